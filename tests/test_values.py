"""Kinds of values, of Python's, numpy's and torch's own numbers."""

import numpy as np
import pytest
import torch

from kvlearn.values import is_number, is_plain, is_whole, is_whole_tensor, kind_of, whole

TWO = torch.tensor(2)


@pytest.mark.parametrize("value", [2, -2, np.int32(2), TWO, torch.tensor(2, dtype=torch.uint8)])
def test_whole_numbers(value):
    """numpy's and torch's come out of shapes and indices; with `isinstance(value, int)` they are none."""
    assert is_whole(value) and is_number(value)


NOT_WHOLE = [2.0, True, "2", None, [2], TWO.double(), torch.tensor([2, 3]), TWO.to("meta")]


@pytest.mark.parametrize("value", NOT_WHOLE)
def test_what_is_no_whole_number(value):
    """True would be 1 row; 2.0 fails deep inside torch."""
    assert not is_whole(value)
    with pytest.raises(ValueError, match="rows is a whole number; got"):
        whole(value, "rows")


@pytest.mark.parametrize("value", [7, np.int8(7), torch.tensor(7, dtype=torch.int8)])
def test_a_whole_number_that_is_kept_is_pythons(value):
    """numpy's int8 goes round at 127: 100 heads would be -56 bytes."""
    kept = whole(value, "rows")
    assert type(kept) is int and kept == 7


@pytest.mark.parametrize(
    "value, said",
    [
        (2, "rows must be at least 3; got 2"),
        (9001, "rows must be at most 9,000; got 9,001"),
        (10**101, "rows has more than a hundred digits"),
        (-(10**4000), "rows has more than a hundred digits"),
    ],
)
def test_whole_numbers_out_of_range(value, said):
    """A number too long to be printed, and a limit that is one off."""
    assert whole(3, "rows", 3, 9000) == 3 and whole(9000, "rows", 3, 9000) == 9000
    with pytest.raises(ValueError, match=said):
        whole(value, "rows", 3, 9000)


@pytest.mark.parametrize(
    "value, number",
    [
        (2.5, True),
        (np.float32(2.5), True),
        (TWO.double(), True),
        (float("inf"), True),
        (float("nan"), False),
        (10**400, False),
        ("2.5", False),
        (None, False),
        (2j, False),
        (torch.tensor([1.0, 2.0]), False),
    ],
)
def test_numbers(value, number):
    """NaN passes every comparison that refuses, and a text is one only after float()."""
    assert is_number(value) is number


@pytest.mark.parametrize(
    "value, whole",
    [
        (torch.zeros(2, dtype=torch.uint8), True),
        (torch.zeros(2, dtype=torch.int64), True),
        (torch.zeros(2), False),
        (torch.zeros(2, dtype=torch.bool), False),
        (torch.zeros(2, dtype=torch.complex64), False),
        (torch.zeros(2, dtype=torch.int64).to_sparse(), False),
        (torch.zeros(2, dtype=torch.int64, device="meta"), False),
        ([0, 0], False),
    ],
)
def test_tensors_of_whole_numbers(value, whole):
    """A mask of booleans is no list of rows, though torch indexes with it."""
    assert is_whole_tensor(value) is whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_another_layout():
    """A sparse tensor has a shape and a dtype like any other, and nearly no function that takes it."""
    plain = torch.zeros(2, 3)
    nested = torch.nested.nested_tensor([plain, plain[:1]])
    jagged = torch.nested.nested_tensor([plain, plain[:1]], layout=torch.jagged)
    assert is_plain(plain) and is_plain(plain.t()) and is_plain(plain.to("meta"))
    assert not any(is_plain(x) for x in (plain.to_sparse(), nested, jagged, [0.0]))
    given = (plain, plain.to_sparse(), nested, jagged, plain.to("meta"), [0.0])
    assert [kind_of(x) for x in given] == [
        "torch.float32", "a tensor of layout torch.sparse_coo", "a nested tensor", "a nested tensor",
        "a tensor on meta, which has no numbers", "a list",
    ]  # fmt: skip
