"""Comparing observations: kind, shape, dtype, device, values; tolerance; where NaN may be."""

import numpy
import pytest
import torch

from kvlearn.checks.compare import as_number, compare, identical, shares_memory, snapshot
from kvlearn.checks.explain import explain_difference

NAN, INF = float("nan"), float("inf")


def kind(got, want):
    difference = compare(got, want)
    return difference and difference.kind


def test_order_of_the_comparison():
    """A wrong shape is said before a wrong dtype, and that before wrong values."""
    want = torch.zeros(2, 3)
    assert kind(torch.ones(3, 2).double(), want) == "shape"
    assert kind(torch.ones(2, 3).double(), want) == "dtype"
    assert kind(torch.ones(2, 3, device="meta"), want) == "device"
    assert kind(torch.ones(2, 3), want) == "value"
    assert kind(torch.zeros(2, 3), want) is None


def test_the_first_place_and_how_many():
    """The index in reading order, the two numbers there, the number of wrong values."""
    want = torch.zeros(2, 3)
    got = want.clone()
    got[1, 0] = got[1, 2] = 5
    d = compare({"K": [got]}, {"K": [want]})
    assert (d.path, d.index, d.got, d.want, d.wrong, d.total) == (("K", 0), (1, 0), 5.0, 0.0, 2, 6)


def test_nan_only_where_it_is_wanted():
    """A NaN must never pass for a number, nor a number for a NaN; inf has a sign."""
    assert kind(torch.tensor([NAN]), torch.tensor([0.0])) == "value"
    assert kind(torch.tensor([0.0]), torch.tensor([NAN])) == "value"
    assert kind(torch.tensor([NAN, 1]), torch.tensor([NAN, 1])) is None
    assert kind(torch.tensor([-INF]), torch.tensor([INF])) == "value"
    assert kind(torch.tensor([-INF, 2]), torch.tensor([-INF, 2])) is None
    assert kind(NAN, 1.0) == "value" and kind(NAN, NAN) is None and kind(INF, INF) is None


@pytest.mark.parametrize(
    "dtype, small, large",
    [(torch.float64, 1e-11, 1e-7), (torch.float32, 1e-6, 1e-3), (torch.bfloat16, 1e-2, 0.2)],
)
def test_tolerance_by_dtype(dtype, small, large):
    """Rounding passes, a mistake does not; measured against the largest number of the tensor."""
    want = torch.tensor([0.5, 1.0, 8.0], dtype=dtype)
    assert kind(want + torch.tensor(small, dtype=dtype), want) is None
    assert kind(want + torch.tensor([0, large, 0], dtype=dtype) * 8, want) == "value"


def test_integers_and_booleans_are_exact():
    """A mask or a count that is nearly right is wrong."""
    big = torch.tensor([2**60])
    assert kind(big + 1, big) == "value"
    assert kind(torch.tensor([True]), torch.tensor([False])) == "value"
    assert kind(torch.tensor([1]), torch.tensor([True])) == "dtype"
    assert kind(10**20 + 1, 10**20) == "value"


def test_whole_numbers_come_in_several_kinds():
    """A 0-d tensor or a numpy integer is a whole number; 4.0 and True are not."""
    for four in (4, torch.tensor(4), numpy.int64(4), numpy.array(4)):
        assert kind(four, 4) is None
    for other in (4.0, torch.tensor(4.0), torch.tensor([4]), "4", True, None):
        assert kind(other, 4) == "type"
    assert kind(torch.tensor(0.5), 0.5) is None and kind(1, 1.0) is None
    assert kind(torch.tensor(128 / 3), 128 / 3) is None and kind(float(torch.tensor(128 / 3)), 128 / 3)
    assert kind(torch.tensor(42.667), 128 / 3) == "value"
    assert kind(1, True) == "type" and kind(torch.tensor(True), True) is None
    assert kind(numpy.bool_(False), False) is None and kind(numpy.bool_(False), True) == "value"
    assert kind(numpy.int64(1), True) == "type" and kind(numpy.array([True]), True) == "type"
    assert as_number(object(), float) is None


def test_numbers_that_cannot_be_read_or_written():
    """A tensor without numbers, and an integer that Python will not print, made the checker itself fail."""
    meta = torch.empty((), device="meta", dtype=torch.int64)
    assert kind(meta, 4) == kind(meta, 4.0) == kind(meta, True) == "type"
    assert "a tensor of shape ()" in explain_difference(compare(meta, 4), {}, {})
    assert kind(10**5000, 4) == "value" and kind(10**5000, 4.0) == "type"
    for want in (4, 4.0, True):
        assert "a number of about 5,000 digits" in explain_difference(compare(10**5000, want), {}, {})


def test_lists_tuples_and_dicts():
    """Length and keys first; a tuple passes for a list of the same items."""
    assert kind((1, 2), [1, 2]) is None
    assert kind([1], [1, 2]) == "length"
    assert kind(torch.tensor([1, 2]), [1, 2]) == "type"
    assert kind({"a": 1}, {"b": 1}) == "keys"
    assert kind([("a", 1)], {"a": 1}) == "type"
    assert kind("abc", "abd") == "value" and kind(None, "abc") == "type"


def test_strings_that_always_agree():
    """A subclass of str with an __eq__ of its own is no string to us."""

    class Yes(str):
        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    assert kind(Yes("no"), "yes") == "type"


def test_sparse_and_nested_tensors_have_a_sentence():
    """Neither can be compared element by element."""
    want = torch.ones(2, 3)
    assert kind(want.to_sparse(), want) == "layout"
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])
    assert kind(nested, want) == "layout"


def test_snapshots_are_copies_and_identical_sees_changes():
    """A change inside a list, a dict or a module's parameters is a change."""
    linear = torch.nn.Linear(2, 3)
    value = {"x": [torch.ones(2), (torch.tensor([NAN]),)], "net": linear, "n": 3}
    copy = snapshot(value)
    assert identical(value, copy)
    copy["x"][1][0][0] = 1
    assert not identical(value, copy)
    copy = snapshot(value)
    with torch.no_grad():
        copy["net"].weight += 1
    assert not identical(value, copy)
    assert not identical(torch.zeros(2), torch.zeros(2, dtype=torch.int32))


def test_changes_of_plain_values_inside_are_seen():
    """Only tensors were compared: a sorted list or a config that was filled in looked untouched."""
    value = {"windows": [4, None, 2.5, NAN], "config": {"name": "a", "inner": {"on": True}}}
    assert identical(value, snapshot(value))
    for change in (
        lambda copy: copy["windows"].reverse(),
        lambda copy: copy["windows"].__setitem__(1, 7),
        lambda copy: copy["windows"].__setitem__(0, 4.0),
        lambda copy: copy["windows"].__setitem__(0, torch.tensor(4)),
        lambda copy: copy["windows"].append(1),
        lambda copy: copy["config"].__setitem__("name", "b"),
        lambda copy: copy["config"].__setitem__("inner", None),
        lambda copy: copy["config"]["inner"].pop("on"),
    ):
        copy = snapshot(value)
        change(copy)
        assert not identical(value, copy)
    assert not identical(torch.ones(2), [1.0, 1.0])


def test_shared_memory_is_seen_through_views():
    """A slice, a transpose or an expanded tensor is the same memory; a copy is not."""
    x = torch.ones(2, 3)
    for view in (x, x[1:], x.T, [x.expand(4, 2, 3)], {"K": x.view(6)}):
        assert shares_memory(view, {"x": x})
    assert not shares_memory(x.clone(), {"x": x})
