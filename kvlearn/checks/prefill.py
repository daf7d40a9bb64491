"""A prompt in pieces: what the exercises of lessons 04 and 07 are given, and what they ask of `attend`."""

import torch

from kvlearn.attention import attention
from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case


def prompt(generator, shape, label, dtype=torch.float32, **numbers) -> Case:
    """Queries, keys and values of this shape (batch, heads, length, head_dim), then the numbers."""
    q, k, v = (randn(generator, *shape, dtype=dtype) for _ in "qkv")
    return Case({"q": q, "k": k, "v": v, **numbers}, label)


def run_and_count(answer, case) -> tuple:
    """What the answer gives back, and [queries, keys] of each call that it makes of `attend`."""
    calls = []

    def attend(q, k, v, mask=None):
        calls.append([q.shape[2], k.shape[2]])
        return attention(q, k, v, mask)

    return answer(attend, *case.inputs.values()), calls
