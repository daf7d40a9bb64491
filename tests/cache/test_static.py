"""The preallocated cache: its room, and that nothing of it is seen before it is written."""

import pytest
import torch
from small_caches import CONFIG

from kvlearn.cache import StaticCache
from kvlearn.measure.memory import StorageMeter

SLOT = 3 * 4 * 6 * 2 * 4  # bytes of one slot of one row, in all layers


def write(cache, length, layers=range(3)):
    k, v = torch.randn(2, cache.batch_size, 4, length, 6, dtype=cache.dtype)
    return [cache.update(layer, k, v) for layer in layers]


def test_the_room_is_there_from_the_start():
    """Used grows by the slot and allocated never: the formula beside the storages."""
    cache = StaticCache(CONFIG, 2, max_length=7)
    for length, slots in ((0, 0), (4, 4), (1, 5)):
        write(cache, length)
        assert cache.used_bytes == slots * 2 * SLOT
        assert cache.allocated_bytes == 7 * 2 * SLOT
    cache.truncate(1)
    assert (cache.used_bytes, cache.allocated_bytes) == (2 * SLOT, 7 * 2 * SLOT)
    assert StaticCache(CONFIG).allocated_bytes == 50 * SLOT and StaticCache(CONFIG).max_length == 50


def test_no_step_allocates_keys_or_values():
    """A cache that copies its history in every step is not preallocated, whatever its name."""
    cache = StaticCache(CONFIG, 2, max_length=7)
    write(cache, 4)
    with StorageMeter(torch.float32) as meter:
        k, v = torch.zeros(2, 2, 4, 1, 6)
        for layer in range(3):
            cache.update(layer, k, v)
    assert meter.peak == 2 * 2 * 4 * 1 * 6 * 4  # the new token itself


def test_what_comes_back_is_a_view():
    """The written slots of the storage itself; a copy would read and write the whole history again."""
    cache = StaticCache(CONFIG, 2, max_length=7)
    K, V = write(cache, 4)[1]
    assert K.untyped_storage().nbytes() == V.untyped_storage().nbytes() == 3 * 2 * 4 * 7 * 6 * 4
    assert K.shape == (2, 4, 4, 6)


def test_full_to_the_last_slot_and_no_further():
    """karpathy/llama2.c#348, karpathy/nanochat#627: a position past the capacity."""
    cache = StaticCache(CONFIG, max_length=5)
    write(cache, 3)
    write(cache, 2)
    stored = [tensor.clone() for tensor in cache._tensors()]
    for length in (1, 30):
        with pytest.raises(ValueError, match=f"room for 5 slots and holds 5; {length} more do not fit"):
            write(cache, length)
        assert cache.length == 5 and cache.next_position.tolist() == [5]
        assert all(torch.equal(now, was) for now, was in zip(cache._tensors(), stored, strict=True))
    cache.truncate(4)
    write(cache, 1)


def test_storages_are_kept_where_they_fit():
    """A reset that allocates again would need the room twice; one that does not must not show old tokens."""
    cache = StaticCache(CONFIG, 2, max_length=7)
    write(cache, 6)
    storage = cache._keys.data_ptr()
    cache.reset()
    assert cache._keys.data_ptr() == storage and cache.used_bytes == 0
    assert write(cache, 1)[0][0].shape == (2, 4, 1, 6)
    cache.reorder([1, 0])
    assert cache._keys.data_ptr() == storage
    cache.reorder([1, 0, 0])
    assert cache.allocated_bytes == 7 * 3 * SLOT
    cache.reset()
    assert cache.allocated_bytes == 7 * 2 * SLOT and cache.batch_size == 2


def test_dtype_and_device_are_kept_through_every_call():
    """Lightning-AI/litgpt#57: a default dtype that comes back with a reset makes a float32 cache."""
    cache = StaticCache(CONFIG, dtype=torch.bfloat16, device="cpu", max_length=4)
    write(cache, 2)
    cache.reorder([0, 0])
    write(cache, 1)
    assert {tensor.dtype for tensor in cache._tensors()} == {torch.bfloat16}
    assert cache.allocated_bytes == 4 * 2 * SLOT // 2
    assert StaticCache(CONFIG, device="meta")._keys.device.type == "meta"
