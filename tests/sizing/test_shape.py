"""A shape refuses sizes that cannot be, and says what kind of attention it has."""

import dataclasses
import json

import numpy as np
import pytest

from kvlearn.sizing import ModelShape, cache_bytes, weight_bytes

GOOD = {"num_layers": 4, "num_heads": 6, "num_kv_heads": 2, "head_dim": 10}


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"num_layers": 0}, "num_layers must be at least 1; got 0"),
        ({"num_layers": 10**9}, "no model has more than 10,000 layers"),
        ({"num_heads": -6}, "num_heads must be at least 1"),
        ({"num_kv_heads": 0}, "num_kv_heads must be at least 1"),
        ({"num_kv_heads": 4}, "num_heads=6 is not a multiple of num_kv_heads=4"),
        ({"head_dim": 2.5}, "head_dim is a whole number; got 2.5"),
        ({"value_dim": 0}, "value_dim must be at least 1"),
        ({"latent_dim": 8}, "give latent_dim and rope_dim, or none"),
        ({"windows": (3, None)}, "one entry for each of the 4 layers; got 2"),
        ({"windows": (3, None, 0, 3)}, "a layer's window must be at least 1"),
        ({"windows": 1.5}, "a layer's window is a whole number"),
        ({"windows": "7777"}, "a layer's window is a whole number"),
        ({"windows": {7}}, r"a layer's window is a whole number; got \{7\}"),
        ({"windows": [[1]] * 4}, r"a layer's window is a whole number; got \[1\]"),
        ({"windows": np.full(4, 7)}, "a layer's window is a whole number; got array"),
        ({"shared_layers": 4}, "leave none that stores"),
        ({"parameters": 0}, "parameters must be at least 1"),
        ({"parameters": "8B"}, "parameters is a whole number"),
    ],
)
def test_sizes_that_cannot_be(fields, said):
    """A formula that goes on with 0 heads: no bytes, and every batch fits."""
    with pytest.raises(ValueError, match=said):
        ModelShape(**{**GOOD, **fields})


def test_sizes_of_numpy_do_not_go_round():
    """numpy's int32 goes round at 2^31: a cache of 2^32 bytes would have none at all."""
    sizes = {"num_layers": 80, "num_heads": 64, "num_kv_heads": 64, "head_dim": 128}
    more = {"value_dim": 128, "parameters": 2**31 - 1, "shared_layers": 0}
    given = {name: np.int32(size) for name, size in (sizes | more).items()}
    shape = ModelShape(**given, windows=[np.int32(2**30), None] * 40)
    expected = ModelShape(**sizes, **more, windows=[2**30, None] * 40)
    assert shape == expected and json.loads(json.dumps(dataclasses.asdict(shape)))
    assert cache_bytes(shape, np.int32(2**20), np.int32(9)) == 80 * 2 * 64 * 128 * 2**20 * 9 * 2
    assert weight_bytes(shape) == 2 * (2**31 - 1)


def test_kinds():
    """One head for many called MHA, windows that are not mentioned."""
    shape = ModelShape(**GOOD)
    assert (
        shape.kind == "GQA"
        and shape.but(num_kv_heads=6).kind == "MHA"
        and shape.but(num_kv_heads=1).kind == "MQA"
    )
    assert shape.but(latent_dim=8, rope_dim=3).kind == "MLA"
    assert shape.but(windows=(7, None, 7, 2048)).kind == "GQA, window 7/2,048 in 3 of 4 layers"
    assert shape.but(windows=7).windows == (7, 7, 7, 7)


def test_what_a_token_leaves_in_a_layer():
    """The factor 2 for keys and values of unequal widths; and for a latent."""
    shape = ModelShape(**GOOD)
    assert shape.numbers_per_token == 2 * 2 * 10
    assert shape.but(value_dim=7).numbers_per_token == 2 * (10 + 7)
    assert shape.but(latent_dim=8, rope_dim=3).numbers_per_token == 11
