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
        with pytest.raises(ValueError, match="size of a group"):
            spec.bits_per_number(size)


def test_bytes_by_hand():
    """A last byte that is not full, groups along the other axis, a zero that is not kept."""
    assert QuantSpec("int4", "token", 5).bytes_for(7, 15) == 7 * 8 + 7 * 3 * 4
    assert QuantSpec("int2", "channel", 4, symmetric=True).bytes_for(8, 15) == 8 * 4 + 2 * 15 * 2
    assert QuantSpec("fp8", "token", None, scale_dtype=torch.float32).bytes_for(7, 15) == 7 * 15 + 7 * 4
    assert QuantSpec("int8", "tensor").bytes_for(7, 15) == 7 * 15 + 4
    assert QuantSpec("int4", "channel").bytes_for(0, 15) == 0
    for sizes in ((-1, 20), (3, 0)):
        with pytest.raises(ValueError, match="at least 1 channel; got"):
            QuantSpec("int4").bytes_for(*sizes)


def test_a_group_is_one_of_pythons_numbers():
    """A tensor in a spec: comparing two specs would give a tensor."""
    assert type(QuantSpec(quant_group=torch.tensor(4)).quant_group) is int


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"dtype": "int3"}, "dtype is one of int8, int4, int2, fp8; got 'int3'"),
        ({"dtype": 4}, "got 4"),
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
