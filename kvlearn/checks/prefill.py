"""A prompt in pieces: what the exercises of lessons 04 and 07 are given, and what they ask of `attend`."""

import torch

from kvlearn.attention import attention, causal_mask
from kvlearn.checks.compare import compare, is_tensor
from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, WrongAnswer

FACTOR = 2.0  # a power of two: it can be taken out again to the last bit


def prompt(generator, shape, label, dtype=torch.float32, **numbers) -> Case:
    """Queries, keys and values of this shape (batch, heads, length, head_dim), then the numbers."""
    q, k, v = (randn(generator, *shape, dtype=dtype) for _ in "qkv")
    return Case({"q": q, "k": k, "v": v, **numbers}, label)


def run_and_count(answer, case) -> tuple:
    """What the answer gives back, and [queries, keys] of each call that it makes of `attend`.

    This `attend` gives a multiple of what attention gives, so that its results are told from those that an
    answer has computed by itself. The factor is taken out again.
    """
    calls = []

    def attend(q, k, v, mask=None):
        calls.append([q.shape[2], k.shape[2]])
        return FACTOR * attention(q, k, v, mask)

    out = answer(attend, *case.inputs.values())
    if calls and is_tensor(out) and out.is_floating_point():
        mask = causal_mask(case["q"].shape[2], window=case.inputs.get("window"))
        if compare(out, attention(case["q"], case["k"], case["v"], mask)) is None:
            raise WrongAnswer(
                "The numbers are right, and they are not those that `attend` gave back: its results were "
                "thrown away, and attention was computed in another way. Put the results together."
            )
        out = out / FACTOR
    return out, calls
