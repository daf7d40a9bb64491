"""What the prefill exercises are given, and what they ask of `attend`."""

import torch

from kvlearn.attention import attention
from kvlearn.checks.prefill import prompt, run_and_count


def case():
    return prompt(torch.Generator().manual_seed(3), (2, 3, 7, 4), "a label", torch.float64, window=5, chunk=6)


def test_the_inputs_stand_in_the_order_of_the_signature():
    """One tensor drawn for all three, or the numbers in another order: they are passed by position."""
    inputs = case().inputs
    assert list(inputs) == ["q", "k", "v", "window", "chunk"] and (inputs["window"], inputs["chunk"]) == (
        5,
        6,
    )
    sides = list(inputs.values())[:3]
    assert all(side.shape == (2, 3, 7, 4) and side.dtype == torch.float64 for side in sides)
    assert len({float(side.sum()) for side in sides}) == 3


def test_calls_are_counted_and_attend():
    """Queries and keys changed round, or a mask that does not reach attention."""
    drawn, mask = case(), torch.ones(2, 5, dtype=torch.bool).tril(3)

    def answer(attend, q, k, v, window, chunk):
        attend(q, k, v)
        return attend(q[:, :, 3:5], k[:, :, :5], v[:, :, :5], mask)

    out, calls = run_and_count(answer, drawn)
    assert calls == [[7, 7], [2, 5]]
    q, k, v = drawn["q"][:, :, 3:5], drawn["k"][:, :, :5], drawn["v"][:, :, :5]
    assert torch.equal(out, attention(q, k, v, mask)) and not torch.equal(out, attention(q, k, v))
