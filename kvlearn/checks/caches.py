"""What a learner's cache gave back: two tensors or not, and the first thing in it that differs."""

import torch

from kvlearn.checks.engine import WrongAnswer


def require_two_tensors(back, what=": all keys of the layer, all values", ndim=None) -> None:
    """Refuse anything but a pair of tensors, with `ndim` axes where that is said."""
    pair = isinstance(back, tuple | list) and len(back) == 2
    tensors = pair and all(isinstance(side, torch.Tensor) for side in back)
    if not tensors or (ndim is not None and any(side.ndim != ndim for side in back)):
        raise WrongAnswer(f"`_append` should give back two tensors{what}.")


def explain_first(got, want, template, explain_tensor, same=torch.equal) -> str | None:
    """Words for the first thing in these dicts that differs; None if shapes or dtypes do.

    template         for what is no tensor: a sentence with {label}, {right} and {mine}
    explain_tensor   says of (label, mine, right) where the two tensors differ
    same             whether two tensors are the same numbers
    """
    for label, right in want.items():
        mine = got[label]
        if not isinstance(right, torch.Tensor):
            if mine != right:
                return template.format(label=label, right=right, mine=mine)
        elif mine.shape != right.shape or mine.dtype != right.dtype:
            return None  # the engine says how
        elif not same(mine, right):
            return explain_tensor(label, mine, right)
    return None
