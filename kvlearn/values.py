"""What kind of value is this? Numbers come from Python, numpy and torch, and True is none of them."""

import operator

import torch
from torch import Tensor

LARGEST = 10**100  # beyond it nothing is a size


def is_whole(value) -> bool:
    """A whole number, of Python's, numpy's or torch's; True and False are none."""
    try:
        return not isinstance(value, bool) and operator.index(value) is not None
    except (TypeError, RuntimeError):  # RuntimeError: of a tensor without numbers
        return False


def whole(value, name: str, at_least: int = 1, at_most: int = LARGEST) -> int:
    """A whole number as one of Python's, or a ValueError that says which one is not.

    Keep what comes back: numpy's own numbers have a largest, and go round beyond it without a word.
    """
    if not is_whole(value):
        shown = repr(value)
        raise ValueError(f"{name} is a whole number; got {shown if len(shown) < 80 else shown[:77] + '...'}.")
    number = operator.index(value)
    if abs(number) > LARGEST:
        raise ValueError(f"{name} has more than a hundred digits; that is no size.")
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}; got {number}.")
    if number > at_most:
        raise ValueError(f"{name} must be at most {at_most:,}; got {number:,}.")
    return number


def keep_whole(settings, name: str, at_least: int = 1) -> None:
    """The same for a field of a frozen dataclass, which is then one of Python's numbers."""
    object.__setattr__(settings, name, whole(getattr(settings, name), name, at_least))


def is_number(value) -> bool:
    """Anything that is a number, and not NaN."""
    try:
        return not isinstance(value, str) and float(value) == float(value)  # NaN is not equal to itself
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def is_plain(value) -> bool:
    """A tensor whose numbers lie in rows, as all code here takes for granted: not sparse, not nested."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested


def is_whole_tensor(value) -> bool:
    """A tensor of integers, which are there to be looked at."""
    if not is_plain(value) or value.is_meta:
        return False
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def kind_of(value) -> str:
    """What was given, for a message: "torch.float32" of a plain tensor, "a sparse tensor", "a list"."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    if value.is_nested:
        return "a nested tensor"
    if value.layout is not torch.strided:
        return f"a tensor of layout {value.layout}"
    return "a tensor on meta, which has no numbers" if value.is_meta else str(value.dtype)
