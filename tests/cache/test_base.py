"""What the base class does for every cache: steps, positions, lengths.

The conformance suite holds what a user sees of it. Here are the parts that only this class has; the words of
the errors are held by test_arguments.py.
"""

from functools import partial

import pytest
import torch
from small_caches import CONFIG, Notes, pair, write

from kvlearn.attention import attention
from kvlearn.cache import GrowingCache, KVCache, LatentCache, QuantizedCache, SlidingWindowCache, StaticCache
from kvlearn.quantization import QuantSpec

KINDS = {
    "growing": GrowingCache,
    "static": partial(StaticCache, max_length=40),
    "window": partial(SlidingWindowCache, window=7),
    "latent": partial(LatentCache, latent_dim=6, rope_dim=6),
    "quantised": partial(
        QuantizedCache,
        keys=QuantSpec("int4", axis="channel", quant_group=2),
        values=QuantSpec("int4", axis="token", quant_group=2),
        residual=2,
    ),
}


def test_a_cache_is_four_methods():
    """With a method missing the class cannot be made, and says which."""

    class Unfinished(KVCache):
        def _append(self, layer, k, v):
            return k, v

    with pytest.raises(TypeError) as error:
        Unfinished(CONFIG)
    assert all(name in str(error.value) for name in ("_start", "_truncate", "_tensors"))


def test_what_a_new_cache_knows():
    """The head_dim is the config's own, never hidden_size // num_heads (NVIDIA/Model-Optimizer#2482)."""
    cache = Notes(CONFIG, 2, max_length=9)
    assert (cache.num_layers, cache.batch_size, cache.length, cache.max_length) == (3, 2, 0, 9)
    assert cache.key_shape == cache.value_shape == (4, 6)
    assert (cache.dtype, cache.device) == (torch.float32, torch.device("cpu"))
    assert (cache.max_position, cache.exact, cache.window) == (50, True, None)
    assert cache.positions.shape == (2, 0) and cache.next_position.tolist() == [0, 0]
    assert Notes(CONFIG).batch_size == 1 and Notes(CONFIG).max_length is None


def test_dtype_and_device_can_be_named():
    """Lightning-AI/litgpt#57: a float32 cache behind a bfloat16 model. Left out, torch's default holds."""
    cache = Notes(CONFIG, dtype=torch.bfloat16, device="meta")
    assert (cache.dtype, cache.device) == (torch.bfloat16, torch.device("meta"))
    torch.set_default_dtype(torch.float64)
    try:
        assert Notes(CONFIG).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_smallest_caches():
    """A batch of one, a slot of one: the limits themselves are allowed."""
    cache = GrowingCache(CONFIG, 1)
    assert write(cache, 1)[0].shape == (1, 4, 1, 6)
    assert Notes(CONFIG, 1, max_length=1).max_length == 1


# A step ----------------------------------------------------------------------------------------------


def test_the_hooks_are_asked_once_a_layer():
    """What a learner's methods may rely on: one start, one append a layer, in the order of the calls."""
    cache = Notes(CONFIG, 2)
    write(cache, 3)
    write(cache, 1)
    cache.reset()
    assert cache.calls == [
        ("start", 2),
        *[("append", layer, 3) for layer in range(3)],
        *[("append", layer, 1) for layer in range(3)],
        ("start", 2),
    ]


def test_an_unfinished_step_is_taken_back_where_it_was_written():
    """Only the layers that were written are cut, to the length before the step."""
    cache = Notes(CONFIG, 2)
    write(cache, 3)
    write(cache, 2, layers=[0, 1])
    cache.calls.clear()
    write(cache, 4, layers=[1])
    assert cache.calls == [("truncate", 0, 3), ("truncate", 1, 3), ("append", 1, 4)]
    assert cache.key_positions(0).tolist() == [[0, 1, 2]] * 2
    assert cache.key_positions(1).tolist() == [[0, 1, 2, 3, 4, 5, 6]] * 2
    cache.calls.clear()
    cache.reorder([0, 1])
    assert cache.calls[0] == ("truncate", 1, 3)


def test_layers_may_come_in_any_order():
    """The length moves when all have been written, whichever is last."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3, layers=[2, 0])
    assert cache.length == 0
    write(cache, 3, layers=[1])
    assert cache.length == 3 and cache.next_position.tolist() == [3, 3]


def test_positions_of_all_slots():
    """In the order of the slots, padding included."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3, [[-1, 0, 1], [0, 1, 2]])
    write(cache, 1, [[2], [-1]])
    assert cache.positions.tolist() == [[-1, 0, 1, 2], [0, 1, 2, -1]]
    assert cache.positions.dtype == torch.long
    assert cache.next_position.tolist() == [3, 3]


def test_a_step_has_one_set_of_positions():
    """Each layer at its own positions: the layers' rows would no longer be of the same tokens."""
    cache = GrowingCache(CONFIG, 2)
    for given, other, length in (
        ([[0, 1], [0, 1]], [[0, 1], [0, 2]], 2),
        ([[0, 1], [0, 1]], None, 2),
        ([[0, 1], [0, 1]], [[0, 1, 2], [0, 1, 2]], 3),
        ([[0, 1], [0, 1]], [[0], [0]], 2),
        (None, [[1, 2], [1, 2]], 2),
        (None, None, 1),
    ):
        write(cache, 2, given, layers=[0])
        with pytest.raises(ValueError, match="same positions; layer 1") as error:
            write(cache, length, other, layers=[1])
        assert f"layer 1 got {length} tokens" in str(error.value)
        assert "this step is at positions [0, 0] to [1, 1]" in str(error.value)
        assert cache.length == 0
        write(cache, 2, [[0, 1], [0, 1]], layers=[1])  # the step goes on
        cache.reset()


def test_equal_positions_are_the_same_positions():
    """A new tensor with the same numbers, or the numbers where they were left out before."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 2, [[0, 1], [0, 1]], layers=[0])
    write(cache, 2, [[0, 1], [0, 1]], layers=[1])
    write(cache, 2, [[0, 1], [0, 1]], layers=[2])
    write(cache, 1, layers=[0])
    write(cache, 1, [[2], [2]], layers=[1, 2])
    assert cache.length == 3


def test_positions_are_the_caches_own():
    """A caller that counts up in place must not move what is stored."""
    cache = GrowingCache(CONFIG, 2)
    positions = torch.tensor([[0, 1], [0, 1]])
    for layer in range(3):
        cache.update(layer, *pair(2), positions)
    positions += 5
    assert cache.positions.tolist() == [[0, 1], [0, 1]]


def test_no_new_tokens_is_a_step_of_nothing():
    """A chunk of no tokens reads what is there, and moves nothing."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3)
    K, _ = write(cache, 0)
    assert K.shape == (2, 4, 3, 6) and cache.length == 3
    assert write(cache, 0, torch.zeros(2, 0, dtype=torch.long))[0].shape == (2, 4, 3, 6)


def test_no_graph_is_kept():
    """A cache that keeps the graph keeps the activations of every step alive, and grows without end."""
    cache = GrowingCache(CONFIG, 2)
    k, v = (side.requires_grad_() for side in pair(3))
    K, V = cache.update(0, k, v)
    assert not K.requires_grad and not V.requires_grad


# Going back, and other rows ---------------------------------------------------------------------------


def test_truncate_cuts_every_layer_to_the_longest_row():
    """The shorter rows keep their place; their slots beyond hold nothing."""
    cache = Notes(CONFIG, 2)
    write(cache, 4)
    for length in (torch.tensor([3, 1]), [3, 1], (3, 1)):
        cache.calls.clear()
        cache.truncate(length)
        assert cache.calls == [("truncate", layer, 3) for layer in range(3)]
        assert cache.positions.tolist() == [[0, 1, 2], [0, -1, -1]]
        assert cache.key_positions(1).tolist() == cache.positions.tolist()
        assert cache.next_position.tolist() == [3, 1]
    cache.truncate(torch.tensor(2))
    assert cache.positions.tolist() == [[0, 1], [0, -1]]


def test_truncate_to_zero_is_empty():
    """huggingface/transformers#47433: 0 read as "nothing to do"."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 4)
    cache.truncate(0)
    assert (cache.length, cache.used_bytes, cache.next_position.tolist()) == (0, 0, [0, 0])


def test_reorder_copies_rows():
    """Keys, values and positions of the rows that were named, in fresh storage."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3, [[-1, 0, 1], [0, 1, 2]])
    k, v = pair(3)
    for index in ([1, 0, 1], torch.tensor([1, 0, 1]), torch.tensor([1, 0, 1], dtype=torch.int16)):
        twin = GrowingCache(CONFIG, 2)
        write(twin, 3, [[-1, 0, 1], [0, 1, 2]])
        twin.reorder(index)
        assert twin.batch_size == 3 and twin.length == 3
        assert twin.positions.tolist() == [[0, 1, 2], [-1, 0, 1], [0, 1, 2]]
        K, V = write(twin, 1)
        assert torch.equal(K[:, :, :3], k[[1, 0, 1]]) and torch.equal(V[:, :, :3], v[[1, 0, 1]])
        assert twin.used_bytes == 3 * 3 * 4 * 4 * 6 * 2 * 4


def test_reset_is_a_new_cache():
    """EricLBuehler/candle-vllm#6: what one request leaves must not be there for the next."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3, [[-1, 0, 1], [0, 1, 2]])
    cache.reorder([1])
    write(cache, 1, layers=[0])
    cache.reset()
    assert (cache.length, cache.batch_size, cache.used_bytes) == (0, 2, 0)
    assert cache.key_positions(0).shape == (2, 0)
    K, _ = write(cache, 2)
    assert torch.equal(K, pair(2)[0])


# Bytes -----------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_tensors():
    """Views of one storage are counted each as used, and the storage once as allocated."""

    class Views(Notes):
        def _tensors(self):
            return [self.storage[:2], self.storage[4:5], self.other]

    cache = Views(CONFIG)
    cache.storage, cache.other = torch.zeros(10, 3), torch.zeros(7, dtype=torch.float16)
    assert cache.used_bytes == (2 + 1) * 3 * 4 + 7 * 2
    assert cache.allocated_bytes == 10 * 3 * 4 + 7 * 2


def test_a_cache_says_what_it_is():
    """What a reader sees of it in a notebook."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3)
    size = 3 * 2 * 3 * 4 * 6 * 2 * 4
    assert repr(cache) == (f"GrowingCache(3 layers, batch 2, length 3, {size} bytes used, {size} allocated)")


# Where a cache is made and used -----------------------------------------------------------------------


def steps_before(cache):
    """Fill the cache, go back a little, and break a step off."""
    write_each(cache, 5)
    write_each(cache, 3)
    cache.reorder([1, 0])
    cache.truncate([7, 8])
    write_each(cache, 2, layers=(0, 1))


def steps_after(cache):
    """Go back, go on, and read: what came back for each layer and step."""
    cache.truncate(7)
    returned = write_each(cache, 3)
    cache.reorder([0, 0, 1])
    returned += write_each(cache, 1)
    cache.reset()
    return returned + write_each(cache, 2)


def write_each(cache, length, layers=range(3)):
    """One step; K and V of each layer, copied."""
    returned = []
    for layer in layers:
        k, v = pair(length, cache.batch_size)
        k, v = k[:, : cache.key_shape[0]], v[:, : cache.value_shape[0]]
        returned += [side.clone() for side in cache.update(layer, k, v)]
    return returned


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_was_stored_in_inference_mode_serves_outside_it(kind):
    """A cache made or filled under `torch.inference_mode` that can be neither written to nor differentiated
    through afterwards: "Inplace update to inference tensor outside InferenceMode is not allowed"."""
    expected = kind(CONFIG, batch_size=2)
    steps_before(expected)
    with torch.inference_mode():
        cache, filled = kind(CONFIG, batch_size=2), kind(CONFIG, batch_size=2)
        steps_before(filled)
    steps_before(cache)
    want = steps_after(expected)
    for made in (cache, filled):
        got = steps_after(made)
        assert len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        k, v = pair(1)
        k, v = made.update(0, k[:, : made.key_shape[0]], v[:, : made.value_shape[0]])
        q = torch.ones(2, 4, 1, 6, requires_grad=True)
        attention(q, k, v).sum().backward()
        assert q.grad.isfinite().all()


@pytest.mark.parametrize("back", [None, "truncate", "reorder"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_first_step_outside_inference_mode(kind, back):
    """A full window is written in place, with no roll-back in between that would renew its tensors."""

    def fill(cache):
        write_each(cache, 5)
        write_each(cache, 3)
        if back is not None:
            getattr(cache, back)([8, 8] if back == "truncate" else [1, 0])

    expected, cache = kind(CONFIG, batch_size=2), kind(CONFIG, batch_size=2)
    fill(expected)
    with torch.inference_mode():
        fill(cache)
    assert not cache.key_positions(0).is_inference() and not cache.positions.is_inference()
    got, want = write_each(cache, 1), write_each(expected, 1)
    assert len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_default_device_is_not_the_caches(kind):
    """Positions or storages on the default device, beside keys on the CPU, would fail in mid-step:
    like the model, a cache is on the CPU unless it is told otherwise."""
    expected = kind(CONFIG, batch_size=2)
    steps_before(expected)
    want = steps_after(expected)
    with torch.device("meta"):  # what torch.set_default_device enters
        cache = kind(CONFIG, batch_size=2)
        steps_before(cache)
        got = steps_after(cache)
    assert cache.device == cache.positions.device == torch.device("cpu")
    assert len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
