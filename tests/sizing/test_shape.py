"""A shape refuses sizes that cannot be, and says what kind of attention it has."""

import pytest

from kvlearn.sizing import ModelShape

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
        ({"shared_layers": 4}, "leave none that stores"),
        ({"parameters": 0}, "parameters must be at least 1"),
        ({"parameters": "8B"}, "parameters is a whole number"),
    ],
)
def test_sizes_that_cannot_be(fields, said):
    """A formula that goes on with 0 heads: no bytes, and every batch fits."""
    with pytest.raises(ValueError, match=said):
        ModelShape(**{**GOOD, **fields})


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
