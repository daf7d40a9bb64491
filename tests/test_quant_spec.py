"""A spec in numbers, and the specs that cannot be. (That storages have those bytes: test_quantization.py.)"""

import pytest
import torch

from kvlearn.quant_spec import QuantSpec


def test_effective_bits_of_a_whole_axis():
    """Without a quant_group the size of the axis decides."""
    spec = QuantSpec("int8", quant_group=None, symmetric=True)
    assert spec.bits_per_number(64) == 8.25
    assert QuantSpec("int4", "tensor").bits_per_number(64) == 4.5
    for size in (None, 0, 1.5):
        with pytest.raises(ValueError, match="the size of a group"):
            spec.bits_per_number(size)


def test_bytes_by_hand():
    """A last byte that is not full, groups along the other axis, a zero that is not kept."""
    assert QuantSpec("int4", "token", 5).bytes_for(7, 15) == 7 * 8 + 7 * 3 * 4
    assert QuantSpec("int2", "channel", 4, symmetric=True).bytes_for(8, 15) == 8 * 4 + 2 * 15 * 2
    assert QuantSpec("fp8", "token", None, scale_dtype=torch.float32).bytes_for(7, 15) == 7 * 15 + 7 * 4
    assert QuantSpec("int8", "tensor").bytes_for(7, 15) == 7 * 15 + 4
    assert QuantSpec("int4", "channel").bytes_for(0, 15) == 0
    assert QuantSpec("int4", "tensor").bytes_for(0, 15) == 0


@pytest.mark.parametrize(
    "spec, sizes, words",
    [
        (QuantSpec(), (-1, 20), "tokens must be at least 0; got -1"),
        (QuantSpec(), (3, 0), "channels must be at least 1; got 0"),
        (QuantSpec(), ("x", 4), "tokens is a whole number; got 'x'"),
        (QuantSpec(), (1.5, 4), "tokens is a whole number; got 1.5"),
        (QuantSpec(), (float("nan"), 4), "tokens is a whole number; got nan"),
        (QuantSpec(), (True, True), "tokens is a whole number; got True"),
        (QuantSpec("int4", "token", 4), (4, 6), "6 channels do not divide into groups of 4"),
        (QuantSpec("int4", "channel", 4), (5, 6), "5 tokens do not divide into groups of 4"),
    ],
)
def test_bytes_of_what_cannot_be(spec, sizes, words):
    """Groups that do not divide were counted, in numbers that no storage has: `quantize` refuses them."""
    with pytest.raises(ValueError, match=words):
        spec.bytes_for(*sizes)


def test_a_group_is_one_of_pythons_numbers():
    """A tensor in a spec: comparing two specs would give a tensor."""
    assert type(QuantSpec(quant_group=torch.tensor(4)).quant_group) is int


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"dtype": "int3"}, "dtype is one of int8, int4, int2, fp8; got 'int3'"),
        ({"dtype": 4}, "got 4"),
        ({"dtype": ["int4"]}, r"got \['int4'\]"),
        ({"axis": "head"}, "axis is"),
        ({"quant_group": 0}, "quant_group is a whole number, at least 1"),
        ({"quant_group": -32}, "at least 1"),
        ({"quant_group": 2.0}, "at least 1"),
        ({"quant_group": True}, "at least 1"),
        ({"symmetric": 1}, "symmetric is True or False"),
        ({"scale_dtype": torch.int8}, "scale_dtype is"),
        ({"scale_dtype": "float16"}, "scale_dtype is"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(arguments, words):
    """A typing error that turns up when the first group is full."""
    with pytest.raises(ValueError, match=words):
        QuantSpec(**arguments)
