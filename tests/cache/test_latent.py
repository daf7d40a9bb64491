"""The latent cache: what it stores for a token, and that it keeps the contract of every cache."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_caches import CONFIG

from kvlearn import sizing
from kvlearn.cache.latent import LatentCache
from kvlearn.checks.conformance import check_cache
from kvlearn.latent_attention import LatentConfig

LATENT = LatentConfig(20, num_heads=5, latent_dim=9, nope_dim=7, rope_dim=4, value_dim=3, num_layers=3)


def fill(cache, length, layers):
    for layer in range(layers):
        sides = [
            torch.randn(cache.batch_size, 1, length, width, dtype=cache.dtype)
            for width in (cache.latent_dim, cache.rope_dim)
        ]
        stored = cache.update(layer, *sides)
    return sides, stored


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_keeps_the_contract(dtype):
    """The conformance suite, with two sides of unequal widths: would catch a row or a slot lost."""
    make = partial(LatentCache, latent_dim=24, rope_dim=10, dtype=dtype)
    assert check_cache(make).passed


def test_bytes_are_the_latent_and_the_rotary_key_and_nothing_else():
    """Not x 2, not x heads: a formula by hand, the napkin and the storages agree."""
    shape = sizing.ModelShape(3, num_heads=5, num_kv_heads=5, head_dim=7, latent_dim=9, rope_dim=4)
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        cache = LatentCache(LATENT, 2, dtype=dtype)
        fill(cache, 11, layers=3)
        assert cache.used_bytes == cache.allocated_bytes == 3 * (9 + 4) * 11 * 2 * size
        assert cache.used_bytes == sizing.cache_bytes(shape, 11, 2, dtype)
    assert (cache.key_shape, cache.value_shape) == ((1, 9), (1, 4)) == (shape.key_shape, shape.value_shape)


@pytest.mark.parametrize(("name", "published"), [("deepseek-v2", 69_120), ("deepseek-v3", 70_272)])
def test_the_real_models_bytes_a_token(name, published):
    """60 x 576 x 2 and 61 x 576 x 2, the second published as 70 KB: of one real token in a real cache."""
    shape = sizing.model(name)
    config = replace(LATENT, num_layers=shape.num_layers, latent_dim=512, rope_dim=64)
    cache = LatentCache(config, dtype=torch.bfloat16)
    fill(cache, 1, layers=shape.num_layers)
    assert cache.used_bytes == published == sizing.bytes_per_token(shape)


def test_what_was_stored_comes_back_side_by_side():
    """Would catch the two sides swapped where both widths happen to fit."""
    cache = LatentCache(LATENT, 2)
    (latent, rope_key), (all_latents, all_keys) = fill(cache, 6, layers=3)
    assert torch.equal(all_latents, latent) and torch.equal(all_keys, rope_key)
    with pytest.raises(ValueError, match=r"k should be .* \(2, 1, L, 9\)"):
        cache.update(0, rope_key, latent)


def test_the_config_or_the_caller_says_the_widths():
    """A plain config has no latents: a guess (its head_dim) would be a silent wrong size."""
    cache = LatentCache(CONFIG, latent_dim=5, rope_dim=2, max_length=4)
    assert (cache.key_shape, cache.value_shape, cache.num_layers, cache.max_length) == ((1, 5), (1, 2), 3, 4)
    with pytest.raises(ValueError, match=r"a DecoderConfig has no latent_dim.*latent_dim=512, rope_dim=64"):
        LatentCache(CONFIG)
    with pytest.raises(ValueError, match="a DecoderConfig has no rope_dim"):
        LatentCache(CONFIG, latent_dim=3)
    with pytest.raises(ValueError, match="rope_dim must be at most 2,147,483,647"):
        LatentCache(LATENT, rope_dim=10**30)
    for wrong in (0, -2, 1.5, True, "8"):
        with pytest.raises(ValueError, match="latent_dim (is a whole number|must be at least 1)"):
            LatentCache(LATENT, latent_dim=wrong)
        with pytest.raises(ValueError, match="rows"):
            LatentCache(LATENT, wrong)
