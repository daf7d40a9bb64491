"""The cache that concatenates: what it stores, and what it frees."""

import torch

from kvlearn.cache import GrowingCache
from kvlearn.decoder import DecoderConfig
from kvlearn.measure.memory import StorageMeter

CONFIG = DecoderConfig(
    vocab_size=5, hidden_size=9, num_layers=3, num_heads=8, num_kv_heads=4, head_dim=6, intermediate_size=7
)
SLOT = 3 * 4 * 6 * 2 * 4  # bytes of one slot of one row, in all layers


def write(cache, length):
    k, v = torch.randn(2, cache.batch_size, 4, length, 6, dtype=cache.dtype)
    return [cache.update(layer, k, v) for layer in range(3)]


def test_allocated_is_used():
    """Unused room would be a preallocated cache; a slice that is kept would hold the whole old storage."""
    cache = GrowingCache(CONFIG, 2)
    assert cache.used_bytes == cache.allocated_bytes == 0
    for length, slots in ((5, 5), (1, 6)):
        write(cache, length)
        assert cache.used_bytes == cache.allocated_bytes == slots * 2 * SLOT
    cache.truncate(2)
    assert cache.used_bytes == cache.allocated_bytes == 2 * 2 * SLOT
    cache.reorder([1])
    assert cache.used_bytes == cache.allocated_bytes == 2 * SLOT


def test_dtype_and_device_are_kept_through_every_call():
    """Lightning-AI/litgpt#57: a default dtype that comes back with a reset makes a float32 cache."""
    cache = GrowingCache(CONFIG, dtype=torch.bfloat16, device="cpu")
    write(cache, 2)
    cache.reset()
    write(cache, 2)
    cache.reorder([0, 0])
    assert {tensor.dtype for tensor in cache._tensors()} == {torch.bfloat16}
    assert cache.used_bytes == 2 * 2 * SLOT // 2
    assert {tensor.device.type for tensor in GrowingCache(CONFIG, device="meta")._tensors()} == {"meta"}


def test_the_copy_is_there_to_be_seen():
    """huggingface/transformers#30536: while a layer grows, its old and its new tensor are alive together."""
    cache = GrowingCache(CONFIG)
    write(cache, 40)
    before = cache.used_bytes
    with StorageMeter() as meter:
        write(cache, 1)
    layer_side = 41 * 4 * 6 * 4
    # In the end all layers are new; one tensor before that, the last old one was still there.
    assert meter.peak >= before + SLOT
    assert cache.used_bytes == before + SLOT
    assert meter.peak >= 6 * layer_side
