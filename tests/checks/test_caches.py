"""The words about what a learner's cache gave back."""

import pytest
import torch

from kvlearn.checks.caches import explain_first, require_two_tensors
from kvlearn.checks.engine import WrongAnswer

FLAT, DEEP = torch.zeros(2, 3, 5), torch.zeros(2, 3, 5, 7)


@pytest.mark.parametrize(
    "back", [None, FLAT, (FLAT,), (FLAT, None), (FLAT, FLAT, FLAT), {"k": FLAT, "v": FLAT}]
)
def test_what_is_no_pair_of_tensors_is_refused(back):
    """A tensor whose first axis is 2 unpacks like a pair."""
    with pytest.raises(WrongAnswer) as caught:
        require_two_tensors(back)
    assert str(caught.value) == "`_append` should give back two tensors: all keys of the layer, all values."


def test_the_axes_are_counted_where_they_matter():
    """Of both tensors, and only when asked."""
    require_two_tensors((FLAT, DEEP))
    require_two_tensors([DEEP, DEEP], ndim=4)
    with pytest.raises(WrongAnswer, match="two tensors with four axes.$"):
        require_two_tensors((DEEP, FLAT), " with four axes", ndim=4)


def told(got, want, **options):
    template = "The {label} should be {right}, not {mine}."
    return explain_first(got, want, template, lambda *difference: difference, **options)


def test_the_first_difference_is_told():
    """The later of two, one that the oracle has not, or the two sides changed round."""
    want = {"keys": FLAT, "bytes": 6, "values": DEEP}
    assert told(want, want) is None
    assert told({"keys": FLAT, "bytes": 8, "values": DEEP + 1}, want) == "The bytes should be 6, not 8."
    label, mine, right = told({"keys": FLAT + 2, "bytes": 8, "values": DEEP}, want)
    assert label == "keys" and torch.equal(mine, FLAT + 2) and right is FLAT
    close = {"keys": FLAT + 1e-9, "bytes": 6, "values": DEEP}
    assert told(close, want, same=torch.allclose) is None and told(close, want)[0] == "keys"


@pytest.mark.parametrize("mine", [FLAT[:1], FLAT.double()])
def test_another_shape_or_dtype_is_left_to_the_engine(mine):
    """Words about numbers, of tensors that cannot be compared, or about what comes after them."""
    assert told({"keys": mine, "bytes": 8}, {"keys": FLAT, "bytes": 6}) is None
