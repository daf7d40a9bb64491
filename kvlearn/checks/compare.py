"""Compare what an answer gave with what was wanted, and say where they first differ.

The order is: kind of object, shape, dtype, device, values. Everything is compared on our
side, with plain tensors and Python numbers, so that an answer with an `__eq__` of its own
or a tensor subclass cannot decide for itself that it is right.
"""

import copy
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch

# Allowed error relative to the largest finite |expected| value (and to 1 where that is less).
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.float16: 5e-3,
    torch.bfloat16: 3e-2,
}


@dataclass(frozen=True)
class Difference:
    """The first place where two observations differ.

    kind   "type", "length", "keys", "layout", "shape", "dtype", "device" or "value"
    path   keys and indices that lead to the leaf, () if the observation is the leaf
    got, want   for "value": the two numbers; else what is named by kind
    index  for a value inside a tensor: its index;  wrong, total: how many values differ
    """

    kind: str
    path: tuple
    got: Any
    want: Any
    index: tuple = ()
    wrong: int = 1
    total: int = 1


def is_tensor(value) -> bool:
    """True for tensors, and not for objects that only claim to be of that class."""
    return issubclass(type(value), torch.Tensor)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as a bare torch.Tensor without gradient."""
    if type(tensor) is torch.Tensor:
        return tensor.detach()
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(tensor, torch.Tensor).detach()


def snapshot(value):
    """A copy of tensors inside lists, tuples and dicts; modules deep-copied; the rest as is."""
    if is_tensor(value):
        return plain(value).clone()
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value)
    if type(value) in (list, tuple):
        return type(value)(snapshot(item) for item in value)
    if type(value) is dict:
        return {key: snapshot(item) for key, item in value.items()}
    return value


def identical(a, b) -> bool:
    """Bitwise equality of inputs: was anything changed in place?"""
    if is_tensor(a):
        if not is_tensor(b):
            return False
        a, b = plain(a), plain(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.dtype.is_floating_point:  # NaN equals NaN here: nothing was changed
            return bool(((a == b) | (a.isnan() & b.isnan())).all())
        return torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.nn.Module):
        return identical(dict(a.state_dict()), dict(b.state_dict()))
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    if type(a) is dict:
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if type(a) in (int, float, bool, str, type(None)):
        return a == b or a != a
    return True  # an object that `snapshot` does not copy


def shares_memory(value, others) -> bool:
    """True if a tensor in `value` uses the storage of a tensor in `others`."""
    ours = {t.untyped_storage().data_ptr() for t in tensors(others)}
    return any(t.untyped_storage().data_ptr() in ours for t in tensors(value))


def tensors(value):
    """All the tensors inside lists, tuples and dicts."""
    if is_tensor(value):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def compare(got, want, path=()) -> Difference | None:
    """The first difference between two observations, or None."""
    if is_tensor(want):
        return _compare_tensors(got, want, path)
    if isinstance(want, dict):
        return _compare_dicts(got, want, path)
    if isinstance(want, list | tuple):
        if not issubclass(type(got), list | tuple):
            return Difference("type", path, got, want)
        if len(got) != len(want):
            return Difference("length", path, len(got), len(want))
        pairs = enumerate(zip(got, want, strict=True))
        return _first(compare(g, w, (*path, i)) for i, (g, w) in pairs)
    return _compare_leaves(got, want, path)


def _first(differences):
    return next((d for d in differences if d is not None), None)


def _compare_dicts(got, want, path):
    if not issubclass(type(got), dict):
        return Difference("type", path, got, want)
    if got.keys() != want.keys():
        return Difference("keys", path, list(got), list(want))
    return _first(compare(got[key], want[key], (*path, key)) for key in want)


def _compare_leaves(got, want, path):
    if type(want) in (int, float, bool):
        value = as_number(got, type(want))
        if value is None:
            return Difference("type", path, got, want)
        coarse = is_tensor(got) and got.dtype is torch.float32  # torch.tensor(a Python number) is
        same = value == want or (type(want) is float and _near(value, want, 1e-6 if coarse else 1e-9))
        return None if same else Difference("value", path, value, want)
    # type() and not isinstance(): a subclass could bring an __eq__ that is always true.
    if type(got) is not type(want):
        return Difference("type", path, got, want)
    return None if got == want else Difference("value", path, got, want)


def _near(value: float, want: float, tolerance: float) -> bool:
    close = math.isclose(value, want, rel_tol=tolerance, abs_tol=tolerance)
    return close or (value != value and want != want)


def as_number(value, kind):
    """`value` as a Python int, float or bool, or None if it is not one of that kind.

    A number may come as a 0-d tensor or as one of numpy's; 12.0 is no whole number.
    """
    try:
        if is_tensor(value) or type(value).__module__ == "numpy":
            if value.ndim != 0:
                return None
            value = plain(value).item() if is_tensor(value) else value.item()
        if kind is bool:
            return value if type(value) is bool else None
        if type(value) is bool or isinstance(value, str | bytes):
            return None
        return operator.index(value) if kind is int else float(value)
    except Exception:  # a tensor without numbers (device "meta"), a float that is too large, an __index__
        return None


def _compare_tensors(got, want, path):
    if not is_tensor(got):
        return Difference("type", path, got, want)
    got, want = plain(got), plain(want)
    if got.is_nested or got.layout is not torch.strided:
        return Difference("layout", path, "nested" if got.is_nested else got.layout, want.layout)
    if got.shape != want.shape:
        return Difference("shape", path, tuple(got.shape), tuple(want.shape))
    if got.dtype != want.dtype:
        return Difference("dtype", path, got.dtype, want.dtype)
    if got.device != want.device:
        return Difference("device", path, got.device, want.device)
    bad = ~close(got, want)
    wrong = int(bad.sum())
    if wrong == 0:
        return None
    index = tuple(bad.nonzero()[0].tolist())
    return Difference("value", path, got[index].item(), want[index].item(), index, wrong, want.numel())


def close(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Elementwise: near enough for the dtype; NaN only where NaN is wanted."""
    if not want.dtype.is_floating_point:
        return got == want
    tolerance = TOLERANCE.get(want.dtype, 3e-2)
    got, want = got.double(), want.double()
    finite = want[want.isfinite()].abs()
    scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
    return torch.isclose(got, want, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
