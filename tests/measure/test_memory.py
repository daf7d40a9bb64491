"""The memory meter: known sequences of storages, and caches whose bytes are known by formula."""

import pytest
import torch
from small import CONFIG, PROMPT, small_decoder

from kvlearn.cache import GrowingCache, StaticCache
from kvlearn.generation import generate
from kvlearn.measure import StorageMeter, growing_peak_bytes, kv_bytes


def test_cat_keeps_old_and_new_alive():
    """huggingface/transformers#30536: a cache that concatenates needs the old and the new copy at once."""
    with StorageMeter() as meter:
        a = torch.zeros(100)  # 400 bytes
        meter.mark()
        a = torch.cat((a, torch.ones(50)))  # + 200, + 600; then the old 400 and the 200 go
        meter.mark()
        assert a.numel() == 150
    assert meter.lives == [400, 600]
    assert meter.peaks == [400, 1200]
    assert meter.peak == 1200 and meter.live == 600
    assert meter.history == [400, 600, 1200]


def test_views_cost_nothing():
    """Would catch each view counted as a tensor of its own: a StaticCache returns views at every step."""
    with StorageMeter() as meter:
        a = torch.zeros(6, 10)
        views = [a[2:], a.T, a.view(3, 20), a.expand(4, 6, 10), a.detach()]
        a += 1
        a[1:3].mul_(2)
    assert meter.peak == 240 and len(views) == 5


def test_a_view_keeps_its_storage_alive():
    """Would catch bytes counted off with the first tensor while a slice of it still holds the storage."""
    with StorageMeter() as meter:
        a = torch.zeros(1000)
        part = a[:2]
        del a
        meter.mark()
        del part
        meter.mark()
    assert meter.lives == [4000, 0]
    assert meter.peaks == [4000, 4000]  # the second step began with all of it alive


def test_what_was_there_before_does_not_count():
    """Would catch the model's weights counted as memory of the run, through views or in-place changes."""
    before = torch.zeros(500)
    with StorageMeter() as meter:
        before[3:9].add_(1)
        view = before.view(50, 10)
        new = view + 1
    assert meter.peak == 2000 and new.shape == (50, 10)


def test_tensors_from_lists_count():
    """Would catch torch.tensor(...) missed: its storage is made before the first operation that is seen."""
    with StorageMeter() as meter:
        kept = torch.tensor([1, 2, 3])
    assert meter.live == 24 and len(kept) == 3


def test_only_one_dtype():
    """Would catch positions and masks counted among the bytes of keys and values."""
    with StorageMeter(dtype=torch.float32) as meter:
        kept = [torch.zeros(10), torch.zeros(10, dtype=torch.int64), torch.ones(10) > 0]
    assert meter.live == 80 - 40 and len(kept) == 3  # of the two float tensors one is gone


def test_an_error_inside_ends_the_count():
    """Would catch a mode that stays on after an error and slows all that follows."""
    with pytest.raises(RuntimeError), StorageMeter() as meter:
        torch.zeros(10)
        raise RuntimeError
    torch.zeros(1000)
    assert meter.peak == 40


def fill(cache, steps, new):
    """Steps of `new` tokens in every layer, from tensors made beforehand."""
    k, v = torch.zeros(1, 2, new, 10), torch.zeros(1, 2, new, 10)
    for _ in range(steps):
        for layer in range(CONFIG.num_layers):
            cache.update(layer, k, v)
        yield


def test_growing_cache_bytes_equal_the_formulas():
    """Would catch a copy of the history that stays alive, in the cache or in the formula of the peak."""
    decoder = small_decoder()
    with StorageMeter(dtype=torch.float32) as meter:
        cache = GrowingCache(CONFIG)
        inputs = 2 * 2 * 3 * 10 * 4  # k and v of 3 tokens, alive throughout
        for _ in fill(cache, steps=4, new=3):
            meter.mark()
    lengths = [3, 6, 9, 12]
    assert [live - inputs for live in meter.lives] == [kv_bytes(decoder, n) for n in lengths]
    assert [peak - inputs for peak in meter.peaks] == [growing_peak_bytes(decoder, n, new=3) for n in lengths]
    assert cache.allocated_bytes == kv_bytes(decoder, 12)


def test_preallocated_cache_is_flat():
    """Would catch a preallocated cache that copies: no step makes a storage."""
    with StorageMeter(dtype=torch.float32) as meter:
        cache = StaticCache(CONFIG, max_length=20)
        inputs = 2 * 2 * 3 * 10 * 4
        for _ in fill(cache, steps=4, new=3):
            meter.mark()
    allocated = kv_bytes(small_decoder(), 20)
    assert cache.allocated_bytes == allocated
    assert set(meter.lives) == set(meter.peaks) == {allocated + inputs}


def test_mark_serves_as_on_token():
    """Would catch a meter that cannot follow `generate`, which calls on_token(row, token)."""
    decoder = small_decoder()
    with StorageMeter() as meter:
        cache = GrowingCache(CONFIG)
        generate(decoder, PROMPT, 6, cache=cache, on_token=meter.mark)
    assert len(meter.lives) == 6
    growth = {after - before for before, after in zip(meter.lives[1:], meter.lives[2:], strict=False)}
    assert growth == {kv_bytes(decoder, 1) + 8}  # one token more, and its position
