"""Operations for each byte of cache: the formula against a counter of operations and a cache's real bytes."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kvlearn import GrowingCache, LatentCache, attention, sizing
from kvlearn.decoder import DecoderConfig
from kvlearn.latent_attention import LatentAttention, LatentConfig
from kvlearn.measure import attention_flops, attention_intensity
from kvlearn.sizing import ModelShape


def counted(function) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (6, 2), (6, 1)])
@pytest.mark.parametrize(("batch", "tokens", "queries"), [(1, 11, 1), (5, 13, 1), (4, 9, 3)])
def test_formula_equals_counter_for_grouped_heads(heads, kv_heads, batch, tokens, queries):
    """Would catch multiplications counted without their additions, key/value heads counted for queries, and
    repeated heads, which would be read again for each query head."""
    config = DecoderConfig(11, 24, 1, heads, kv_heads, 8, 13)
    shape, cache = ModelShape.from_config(config), GrowingCache(config, batch, dtype=torch.bfloat16)
    k, v = torch.randn(2, batch, kv_heads, tokens, 8, dtype=torch.bfloat16)
    k, v = cache.update(0, k, v)
    q = torch.randn(batch, heads, queries, 8, dtype=torch.bfloat16)
    flops = counted(lambda: attention(q, k, v))
    assert flops == attention_flops(shape) * batch * tokens * queries
    assert attention_intensity(shape, "bf16", queries) == flops / cache.used_bytes
    assert attention_intensity(shape) == heads // kv_heads


def test_formula_equals_counter_for_absorbed_latents():
    """Would catch the rotary key counted as a value too, and a factor 2 in the bytes."""
    config = LatentConfig(20, num_heads=5, latent_dim=9, nope_dim=7, rope_dim=4, value_dim=3)
    shape = ModelShape(1, num_heads=5, num_kv_heads=5, head_dim=7, latent_dim=9, rope_dim=4)
    layer, cache = LatentAttention(config).bfloat16(), LatentCache(config, 2, dtype=torch.bfloat16)
    latent, rope_key = cache.update(0, *(torch.randn(2, 1, 12, width).bfloat16() for width in (9, 4)))
    q_nope, q_rope = (torch.randn(2, 5, 1, width).bfloat16() for width in (7, 4))
    flops = counted(lambda: layer.attend_absorbed(q_nope, q_rope, latent, rope_key))
    up = 2 * 2 * 5 * 9 * (7 + 3)  # W_UK into the queries and W_UV after the sum: once, not for each token
    assert flops - up == attention_flops(shape) * 2 * 12
    assert attention_intensity(shape) == (flops - up) / cache.used_bytes


def test_real_models():
    """By hand: 128 heads over 576 + 512 numbers, two operations each, for 576 numbers of two bytes."""
    assert attention_intensity(sizing.model("deepseek-v3")) == 2 * 128 * (576 + 512) / (576 * 2)
    by_name = {"llama-2-7b": 1, "llama-3-8b": 4, "falcon-7b": 71}  # MHA, groups of 4, MQA
    assert {name: attention_intensity(sizing.model(name)) for name in by_name} == by_name
    assert attention_intensity(sizing.model("llama-3-70b"), "fp8") == 16
    assert attention_intensity(sizing.model("smollm2-135m"), torch.float32) == 1.5


def test_windows_and_layers_do_not_change_it():
    """Each stored token is read once and used once, however many there are."""
    shape = ModelShape(7, num_heads=6, num_kv_heads=3, head_dim=8, windows=5, shared_layers=2)
    assert attention_intensity(shape) == 2
    with pytest.raises(ValueError, match="queries"):
        attention_intensity(shape, queries=0)
    for function in (attention_flops, attention_intensity):
        with pytest.raises(ValueError, match="takes a ModelShape.*got a str"):
            function("llama-3-8b")
