"""Kinds of values, of Python's, numpy's and torch's own numbers."""

import numpy as np
import pytest
import torch

from kvlearn.values import is_number, is_whole, is_whole_tensor

TWO = torch.tensor(2)


@pytest.mark.parametrize("value", [2, -2, np.int32(2), TWO, torch.tensor(2, dtype=torch.uint8)])
def test_whole_numbers(value):
    """numpy's and torch's come out of shapes and indices; with `isinstance(value, int)` they are none."""
    assert is_whole(value) and is_number(value)


@pytest.mark.parametrize("value", [2.0, True, "2", None, [2], TWO.double(), torch.tensor([2, 3])])
def test_what_is_no_whole_number(value):
    """True would be 1 row; 2.0 fails deep inside torch."""
    assert not is_whole(value)


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
        ([0, 0], False),
    ],
)
def test_tensors_of_whole_numbers(value, whole):
    """A mask of booleans is no list of rows, though torch indexes with it."""
    assert is_whole_tensor(value) is whole
