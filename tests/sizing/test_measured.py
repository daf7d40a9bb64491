"""Predicted equals measured: `cache_bytes` against the bytes of real storages, for every kind of cache."""

import pytest
import torch

from kvlearn import sizing
from kvlearn.cache import GrowingCache, StaticCache
from kvlearn.cache.latent import LatentCache
from kvlearn.cache.quantized import QuantizedCache
from kvlearn.cache.window import SlidingWindowCache
from kvlearn.decoder import DecoderConfig
from kvlearn.quantization import QuantSpec
from kvlearn.sizing import ModelShape, from_specs

CONFIG = DecoderConfig(
    vocab_size=11, hidden_size=40, num_layers=3, num_heads=6, num_kv_heads=2, head_dim=64, intermediate_size=8
)
SHAPE = ModelShape.from_config(CONFIG)


def fill(cache, tokens, chunk):
    """Put random keys and values of `tokens` tokens into every layer, `chunk` at a time."""
    generator = torch.Generator().manual_seed(tokens)
    for start in range(0, tokens, chunk):
        length = min(chunk, tokens - start)
        for layer in range(cache.num_layers):
            k, v = (
                torch.randn(cache.batch_size, heads, length, width, generator=generator).to(cache.dtype)
                for heads, width in (cache.key_shape, cache.value_shape)
            )
            cache.update(layer, k, v)
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens, batch", [(0, 4), (1, 1), (13, 4)])
def test_exact_caches(dtype, tokens, batch):
    """A formula that counts another type, one side, or rows that are not there."""
    predicted = sizing.cache_bytes(SHAPE, tokens, batch, dtype)
    growing = fill(GrowingCache(CONFIG, batch, dtype=dtype), tokens, 5)
    static = fill(StaticCache(CONFIG, batch, max_length=32, dtype=dtype), tokens, 5)
    assert predicted == growing.used_bytes == static.used_bytes
    # What is taken and not used: room for 32, as one block of 32.
    assert static.allocated_bytes == sizing.cache_bytes(SHAPE, 32, batch, dtype)
    if tokens:
        assert static.allocated_bytes == sizing.cache_bytes(SHAPE, tokens, batch, dtype, block=32)


def channel(dtype, group, **more):
    return QuantSpec(dtype, axis="channel", quant_group=group, **more)


def token(dtype, group, **more):
    return QuantSpec(dtype, axis="token", quant_group=group, **more)


SCHEMES = {
    "int4": (channel("int4", 32), token("int4", 32), 32),
    "int8, small groups": (channel("int8", 8), token("int8", 16), 5),
    "int2, no residual": (channel("int2", 16), token("int2", 64), 0),
    "by token both": (token("int4", 32), token("int2", 16), 11),
    "symmetric": (channel("int4", 8, symmetric=True), token("int8", 32, symmetric=True), 7),
    "fp8": (channel("fp8", 16), token("fp8", 32), 3),
    "float32 scales": (channel("int4", 8, scale_dtype=torch.float32), token("int4", None), 9),
    "keys alone": (channel("int2", 16), None, 4),
    "values alone": (None, token("int2", 32), 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 31, 32, 63, 64, 65, 96, 103])
@pytest.mark.parametrize("name", SCHEMES)
def test_quantised_caches(name, tokens):
    """Scales or zeros forgotten, the residual counted twice, keys spilled one by one as values are."""
    keys, values, residual = SCHEMES[name]
    for dtype in (torch.float32, torch.bfloat16):
        cache = QuantizedCache(CONFIG, keys, values, residual, batch_size=2, dtype=dtype)
        kind = from_specs(keys, values, residual, dtype)
        assert sizing.cache_bytes(SHAPE, tokens, 2, kind) == fill(cache, tokens, 7).used_bytes


@pytest.mark.parametrize("width", [6, 10])
def test_a_head_whose_codes_do_not_fill_their_last_byte(width):
    """Bits summed over tokens: each token's codes are padded to a whole byte of its own."""
    config = DecoderConfig(11, 40, 2, 3, 3, width, 8)
    keys, values = channel("int2", 4), token("int2", None)
    cache = fill(QuantizedCache(config, keys, values, 2), 21, 5)
    kind = from_specs(keys, values, 2, torch.float32)
    assert sizing.cache_bytes(ModelShape.from_config(config), 21, 1, kind) == cache.used_bytes


@pytest.mark.parametrize("name", ["int8", "int4", "int2"])
def test_the_named_types_are_the_default_cache(name):
    """A name that counts another scheme than the cache of that name has."""
    cache = QuantizedCache(CONFIG, channel(name, 32), token(name, 32), dtype=torch.bfloat16)
    for tokens in (20, 77, 130):
        cache.reset()
        assert sizing.cache_bytes(SHAPE, tokens, 1, name) == fill(cache, tokens, 64).used_bytes
    assert sizing.cache_bytes(SHAPE, 130, 1, "int3") == 3 * 2 * 64 * (
        96 * (3 / 8 + 4 / 32) + 34 * 2 + 98 * (3 / 8 + 4 / 32) + 32 * 2
    )


@pytest.mark.parametrize("tokens", [0, 3, 6, 7, 8, 29])
@pytest.mark.parametrize("windows", [(7, 7, 7), (7, None, 3)])
def test_windows(tokens, windows):
    """The window ignored, one too wide, or every layer given the widest."""
    config = DecoderConfig(11, 40, 3, 6, 2, 64, 8, windows=windows)
    shape = ModelShape.from_config(config)
    assert shape.windows == windows
    cache = fill(SlidingWindowCache(config, None, batch_size=2), tokens, 4)
    assert sizing.cache_bytes(shape, tokens, 2, torch.float32) == cache.used_bytes
    # A cache without windows keeps everything, whatever the model looks at.
    growing = fill(GrowingCache(config, 2), tokens, 4)
    assert sizing.cache_bytes(shape.but(windows=None), tokens, 2, torch.float32) == growing.used_bytes


@pytest.mark.parametrize("tokens", [0, 5, 23])
def test_latents(tokens):
    """The factor 2 kept, or the latent counted once a head."""
    shape = SHAPE.but(latent_dim=40, rope_dim=6)
    cache = fill(LatentCache(CONFIG, 2, latent_dim=40, rope_dim=6, dtype=torch.bfloat16), tokens, 9)
    assert (cache.key_shape, cache.value_shape) == (shape.key_shape, shape.value_shape)
    assert sizing.cache_bytes(shape, tokens, 2) == cache.used_bytes == 2 * tokens * 3 * 46 * 2
