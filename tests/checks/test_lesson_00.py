"""Answers to lesson 00 that are nearly right, and what they are told."""

import pytest
import torch

from kvlearn.checks import REGISTRY, judge


def split(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def split_with_a_memory():
    """The size of a head is worked out once for each shape of x."""
    sizes = {}

    def answer(x, num_heads):
        size = sizes.setdefault(tuple(x.shape), x.shape[2] // num_heads)
        return x.reshape(*x.shape[:2], -1, size).transpose(1, 2)

    return answer


def merge_in_the_order_of_memory(x):
    """Right for a tensor whose heads lie one after the other in memory, as in a fresh one."""
    B, H, L, D = x.shape
    return torch.as_strided(x, (B, L, H, D), (H * L * D, D, L * D, 1)).reshape(B, L, H * D)


WRONG = [
    ("split_heads", lambda: split_with_a_memory(), "has shape (2, 3, 5, 4); expected (2, 1, 5, 12)"),
    (
        "split_heads",
        lambda: lambda x, num_heads: x if num_heads == 1 else split(x, num_heads),
        "has shape (2, 5, 12); expected (2, 1, 5, 12)",
    ),
    (
        "split_heads",
        lambda: lambda x, num_heads: split(x, num_heads).squeeze(-1),
        "has shape (2, 7, 3); expected (2, 7, 3, 1)",
    ),
    (
        "split_heads",
        lambda: lambda x, num_heads: split(x, num_heads) + torch.zeros(1),
        "has dtype float32; expected bfloat16, as x has",
    ),
    ("merge_heads", lambda: merge_in_the_order_of_memory, "First difference at batch 0, token 0, entry 4"),
    (
        "merge_heads",
        lambda: lambda x: x.transpose(1, 2).flatten(2) + torch.zeros(1),
        "has dtype float32; expected bfloat16, as x has",
    ),
]


@pytest.mark.parametrize("name, make, words", WRONG, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(WRONG)])
def test_what_used_to_slip_past_is_told_where(name, make, words):
    """Would catch checks without a shape seen before, one head, heads of one channel, bfloat16, or a view."""
    result = judge(REGISTRY[name], make())
    assert not result.passed and words in result.message, result.message


def test_the_examples_by_hand_are_cases():
    """Would catch a check that leaves out the tables that the assignment prints."""
    table = torch.tensor([[[0, 1, 2, 3], [10, 11, 12, 13]]])
    heads = torch.tensor([[[[0, 1], [10, 11]], [[2, 3], [12, 13]]]])
    for name, given, want in (("split_heads", (table, 2), heads), ("merge_heads", (heads,), table)):
        exercise = REGISTRY[name]
        case = exercise.cases(torch.Generator().manual_seed(3))[-1]
        assert case.label == "the example by hand"
        assert all(
            a == b if type(a) is int else torch.equal(a, b)
            for a, b in zip(given, case.inputs.values(), strict=True)
        )
        assert torch.equal(exercise.reference(*case.inputs.values()), want)
