"""Types of a cache: bits with their scales, by name and by spec."""

import numpy as np
import pytest
import torch

from kvlearn.quantization import QuantSpec
from kvlearn.sizing import CacheType, ModelShape, Side, cache_bytes, cache_type, from_specs
from kvlearn.sizing.formats import NAMES, weight_bits


@pytest.mark.parametrize(
    "name, bits",
    [("fp32", 32), ("bf16", 16), ("fp16", 16), ("fp8", 8), ("int8", 9), ("int4", 5), ("int3", 4), ("int2", 3),
     ("q8_0", 8.5), ("q4_0", 4.5)],
)  # fmt: skip
def test_bits_of_a_number(name, bits):
    """ "4-bit" said and 5 stored: scale and zero of a group of 32 in fp16 are a bit more."""
    assert cache_type(name).bits_each() == bits and cache_type(name.upper()).name == name
    assert set(NAMES) >= {name} and cache_type(name).exact == (bits >= 16)


def test_the_published_effective_bits():
    """KIVI's arithmetic (arXiv 2402.02750): 2 bits are 3.0, 2.5 and 2.25; int8 in groups of 128 is 8.25."""
    assert [cache_type("int2", quant_group=g).bits_each() for g in (32, 64, 128)] == [3.0, 2.5, 2.25]
    assert cache_type("int8", quant_group=128).bits_each() == 8.25


def test_group_residual_and_its_precision():
    """An option that is read and not used."""
    kind = cache_type("int4", quant_group=16, residual=5, residual_bits=32)
    shape = ModelShape(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=48)
    keys = 16 * (24 + 48 * 4 / 16) + 10 * 48 * 4  # 26 tokens: one group of codes, the rest in full
    values = 21 * (24 + 3 * 4) + 5 * 48 * 4
    assert cache_bytes(shape, 26, 1, kind) == keys + values
    assert cache_bytes(shape, 26, 1, kind) == cache_bytes(shape, 26, 1, cache_type(kind))


@pytest.mark.parametrize("dtype, nbytes", [(torch.float64, 8), (torch.bfloat16, 2), (torch.float8_e4m3fn, 1)])
def test_torch_dtypes(dtype, nbytes):
    assert cache_type(dtype).bits_each() == 8 * nbytes and weight_bits(dtype) == 8 * nbytes


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: cache_type("int5"), "no cache type 'int5'. There are: fp32, bf16"),
        (lambda: cache_type(None), "no cache type None"),
        (lambda: cache_type(16), "no cache type 16"),
        (lambda: cache_type(torch.int8), "stores floating-point numbers or named codes; got torch.int8"),
        (lambda: cache_type("fp8", residual=3), "residual can be chosen for int8, int4, int3, int2; fp8"),
        (lambda: cache_type("q8_0", quant_group=64), "quant_group can be chosen for .*; q8_0 has its own"),
        (lambda: cache_type("int4", quant_group=0), "quant_group must be at least 1"),
        (lambda: cache_type("int4", residual=-1), "residual must be at least 0"),
        (lambda: Side(4, "tensor", 8, 4), "axis is None, 'channel' or 'token'; got 'tensor'"),
        (lambda: Side(0), "bits must be at least 1"),
        (lambda: Side(8, None, 1, 4), "no groups and no scales"),
        (lambda: Side(4, "channel", None, 4), "quant_group is a whole number; got None"),
        (lambda: from_specs(QuantSpec(axis="tensor"), None), "axis is None, 'channel' or 'token'"),
        (lambda: from_specs("int4", None), "keys and values are QuantSpecs, or None; got 'int4'"),
        (lambda: CacheType("x", Side(8), Side(8), residual=1.5), "residual is a whole number"),
        (lambda: CacheType("x", 4, 4), "keys and values are a Side each; got 4 and 4"),
        (lambda: cache_type("int4").bits_each(0), "width must be at least 1; got 0"),
        (lambda: cache_type("int4").bits_each(-32), "width must be at least 1; got -32"),
        (lambda: from_specs(None, None, dtype="int4"), "16 bits or more and no scales; got 'int4'"),
        (lambda: from_specs(QuantSpec(), None, dtype=torch.float8_e4m3fn), "kept in full has 16 bits"),
        (lambda: weight_bits("q8_0"), "no weight type 'q8_0'"),
    ],
)
def test_what_cannot_be_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_numbers_of_a_type_are_pythons():
    """numpy's int8 goes round at 127: 8 bits of 40 numbers would be 64."""
    side = Side(np.int8(8), "token", np.int8(10), np.int8(4))
    assert side.bits_of(40) == 40 * 8 + 4 * 4 * 8
    kind = CacheType("x", side, side, residual=np.int8(100))
    assert kind == CacheType("x", Side(8, "token", 10, 4), Side(8, "token", 10, 4), residual=100)
    assert {type(number) for number in (side.bits, side.quant_group, kind.residual)} == {int}


def test_groups_that_do_not_divide_a_head():
    """A scale for a piece of a group: Phi-2's heads of 80 in groups of 32, or a latent's rotary key."""
    shape = ModelShape(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=80)
    for name in ("int4", "q8_0"):
        with pytest.raises(ValueError, match="80 channels are not whole groups of 32; take a quant_group"):
            cache_bytes(shape, 5, 1, name)
    assert cache_bytes(shape, 0, 1, cache_type("int4", quant_group=16)) == 0
