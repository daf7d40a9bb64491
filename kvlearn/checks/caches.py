"""What a learner's cache gave back: two tensors or not, and the first thing in it that differs."""

import torch

from kvlearn.checks.engine import WrongAnswer


def require_two_tensors(back, what=": all keys of the layer, all values", ndim=None) -> None:
    """Refuse anything but a pair of tensors, with `ndim` axes where that is said."""
    pair = isinstance(back, tuple | list) and len(back) == 2
    tensors = pair and all(isinstance(side, torch.Tensor) for side in back)
    if not tensors or (ndim is not None and any(side.ndim != ndim for side in back)):
        raise WrongAnswer(f"`_append` should give back two tensors{what}.")


def first_difference(got, want, same=torch.equal):
    """(label, what came, what should have come) of the first thing in these dicts that differs.

    None where nothing does, or where shapes or dtypes differ first: the engine says how.
    """
    for label, right in want.items():
        mine = got[label]
        if not isinstance(right, torch.Tensor):
            if mine != right:
                return label, mine, right
        elif mine.shape != right.shape or mine.dtype != right.dtype:
            return None
        elif not same(mine, right):
            return label, mine, right
    return None
