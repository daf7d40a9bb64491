"""What kind of value is this? Numbers come from Python, numpy and torch, and True is none of them."""

import operator

import torch
from torch import Tensor


def is_whole(value) -> bool:
    """A whole number, of Python's, numpy's or torch's; True and False are none."""
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except TypeError:
        return False


def is_number(value) -> bool:
    """Anything that is a number, and not NaN."""
    try:
        return not isinstance(value, str) and float(value) == float(value)  # NaN is not equal to itself
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def is_whole_tensor(value) -> bool:
    """A tensor of integers."""
    if not isinstance(value, Tensor):
        return False
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
