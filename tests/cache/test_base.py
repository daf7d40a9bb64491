"""What the base class does for every cache: steps, positions, lengths, errors.

The conformance suite holds what a user sees of it. Here are the words of the errors, and the parts that only
this class has.
"""

import pytest
import torch

from kvlearn.cache import GrowingCache, KVCache
from kvlearn.decoder import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=5,
    hidden_size=9,
    num_layers=3,
    num_heads=8,
    num_kv_heads=4,
    head_dim=6,
    intermediate_size=7,
    max_position=50,
)


class Notes(KVCache):
    """Keeps nothing but a note of what the base class asked for."""

    def __init__(self, *args, **options):
        self.calls = []
        super().__init__(*args, **options)

    def _start(self, batch_size):
        self.calls.append(("start", batch_size))

    def _append(self, layer, k, v):
        self.calls.append(("append", layer, k.shape[2]))
        return k, v

    def _truncate(self, layer, length):
        self.calls.append(("truncate", layer, length))

    def _tensors(self):
        return []


def pair(length, batch=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(length)
    k, v = torch.randn(2, batch, 4, length, 6, generator=generator)
    return k.to(dtype), v.to(dtype)


def write(cache, length, positions=None, layers=range(3)):
    """One step; what the last of the layers returned."""
    given = None if positions is None else torch.as_tensor(positions)
    for layer in layers:
        result = cache.update(layer, *pair(length, cache.batch_size), given)
    return result


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


@pytest.mark.parametrize(
    "options, words",
    [
        ({"batch_size": 0}, "at least 1; got batch_size=0"),
        ({"batch_size": 2.0}, "a whole number of rows, at least 1; got batch_size=2.0"),
        ({"batch_size": "2"}, "got batch_size='2'"),
        ({"batch_size": True}, "got batch_size=True"),
        ({"max_length": 0}, "at least 1; got max_length=0"),
        ({"max_length": 9.5}, "a whole number of slots, at least 1; got max_length=9.5"),
    ],
)
def test_sizes_that_cannot_be(options, words):
    """A cache of no rows accepts tokens of no rows, for ever."""
    with pytest.raises(ValueError, match=words):
        Notes(CONFIG, **options)


def test_a_model_is_not_its_config():
    """The first thing that one gives; a missing attribute would say nothing of what is wanted."""
    with pytest.raises(ValueError, match="a config, such as model.config; a Linear has no num_layers"):
        GrowingCache(torch.nn.Linear(1, 1))
    assert GrowingCache(CONFIG, torch.tensor(2)).batch_size == 2


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


@pytest.mark.parametrize(
    "positions, words",
    [
        ([[3], [3], [3]], "(2, 1); got torch.int64 of shape (3, 1)"),
        ([[3, 4], [3, 4]], "(2, 1); got torch.int64 of shape (2, 2)"),
        ([[3.0], [3.0]], "a tensor of integers (batch, length) = (2, 1); got torch.float32"),
        ([[True], [True]], "got torch.bool"),
        ([[3], [-2]], "got positions [3, -2] where the next are [3, 2]"),
        ([[2], [3]], "got positions [2, 3] where the next are [3, 2]"),
        ([[3], [1]], "got positions [3, 1] where the next are [3, 2]"),
        ([[3], [50]], "Position 50 is past the model's last, 49"),
    ],
)
def test_positions_that_are_refused(positions, words):
    """A repeated position is two tokens at one place: the mask shows both."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3, [[0, 1, 2], [-1, 0, 1]])
    with pytest.raises(ValueError) as error:
        write(cache, 1, positions)
    assert words in str(error.value)
    assert cache.positions.tolist() == [[0, 1, 2], [-1, 0, 1]]


def test_positions_that_are_no_tensor():
    """A list of lists is what one types; in the first layer of a step and in a later one."""
    cache = GrowingCache(CONFIG, 2)
    with pytest.raises(ValueError, match="a tensor of integers .batch, length. = .2, 1.; got a list"):
        cache.update(0, *pair(1), [[0], [0]])
    write(cache, 1, layers=[0])
    with pytest.raises(
        ValueError, match="the same positions; layer 1 got 1 tokens at positions .*, and this"
    ):
        cache.update(1, *pair(1), [[0], [0]])
    assert cache.length == 0


def test_positions_that_are_just_allowed():
    """The next position, a jump, the last one, and padding in between."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3, [[0, -1, 1], [-1, 5, -1]])
    write(cache, 2, [[2, 49], [-1, 6]])
    assert cache.next_position.tolist() == [50, 7]
    with pytest.raises(ValueError, match="got positions .3, -1. to .2, 7."):
        write(GrowingCache(CONFIG, 2), 3, [[3, -1, 2], [-1, 6, 7]])
    with pytest.raises(ValueError, match="Position 50 is past"):
        write(cache, 1)


@pytest.mark.parametrize(
    "layer, k, v, words",
    [
        (3, *pair(2), "layers 0 to 2; got layer 3"),
        (-1, *pair(2), "layers 0 to 2; got layer -1"),
        ("0", *pair(2), "layers 0 to 2; got layer '0'"),
        (1.0, *pair(2), "layers 0 to 2; got layer 1.0"),
        (True, *pair(2), "layers 0 to 2; got layer True"),
        (0, None, pair(2)[1], "k is a tensor (batch, kv heads, length, head_dim); got a NoneType"),
        (0, pair(2)[0], [pair(2)[1]], "v is a tensor (batch, kv heads, length, head_dim); got a list"),
        (0, *pair(2, batch=3), "k should be (batch, kv heads, length, head_dim) = (2, 4, L, 6)"),
        (0, pair(2)[0], pair(3)[1], "v should be"),
        (0, pair(2)[0][:, :3], pair(2)[1], "got (2, 3, 2, 6)"),
        (0, pair(2)[0], pair(2)[1][..., :5], "got (2, 4, 2, 5)"),
        (0, pair(2)[0][0], pair(2)[1][0], "got (4, 2, 6)"),
        (0, pair(2)[0].double(), pair(2)[1], "k is torch.float64 on cpu and the cache holds torch.float32"),
        (0, pair(2)[0], pair(2)[1].bfloat16(), "v is torch.bfloat16 on cpu"),
        (
            0,
            pair(2)[0].to("meta"),
            pair(2)[1],
            "k is torch.float32 on meta and the cache holds torch.float32",
        ),
    ],
)
def test_tensors_that_are_refused(layer, k, v, words):
    """Wrong batch, heads, head_dim, dtype, device or layer: said, and nothing is stored."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 1)
    write(cache, 2, layers=[0])
    with pytest.raises(ValueError) as error:
        cache.update(layer, k, v)
    assert words in str(error.value)
    assert cache.length == 1 and cache.key_positions(0).shape == (2, 3)


def test_positions_of_a_layer_that_is_not_there():
    """key_positions(-1) would be the last layer's, without a word."""
    cache = GrowingCache(CONFIG, 2)
    for layer in (-1, 3):
        with pytest.raises(ValueError, match=f"layers 0 to 2; got layer {layer}"):
            cache.key_positions(layer)


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


@pytest.mark.parametrize(
    "length, words",
    [
        (5, "keeps 0 to 4 slots, which is what the cache holds; got 5"),
        (-1, "keeps 0 to 4 slots"),
        ([2, 5], "keeps 0 to 4 slots"),
        ([2, -1], "keeps 0 to 4 slots"),
        ([2, 1, 3], "one number, or one for each of the 2 rows; got [2, 1, 3]"),
        ([[2, 1]], "one number, or one for each of the 2 rows"),
        (2.0, "whole numbers of slots; got 2.0"),
        (True, "whole numbers of slots; got True"),
        (1j, "whole numbers"),
        (None, "whole numbers of slots; got None"),
        ("all", "whole numbers of slots; got 'all'"),
        ([1, None], "whole numbers of slots; got [1, None]"),
    ],
)
def test_truncates_that_are_refused(length, words):
    """Checked before anything is cut, so that the cache is as it was, an unfinished step included."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 4)
    write(cache, 1, layers=[0])
    with pytest.raises(ValueError) as error:
        cache.truncate(length)
    assert words in str(error.value)
    assert cache.length == 4 and cache.key_positions(0).shape == (2, 5)


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


@pytest.mark.parametrize(
    "index, words",
    [
        ([0, 2], "rows 0 to 1; got [0, 2]"),
        ([-1], "rows 0 to 1; got [-1]"),
        ([], "one or more row numbers; got []"),
        (1, "one or more row numbers; got 1"),
        ([[0, 1]], "one or more row numbers"),
        ([0.0], "one or more row numbers"),
        ([True, False], "one or more row numbers"),
        ("01", "one or more row numbers; got '01'"),
        (None, "one or more row numbers; got None"),
    ],
)
def test_reorders_that_are_refused(index, words):
    """A boolean mask of rows would be read as rows 1 and 0."""
    cache = GrowingCache(CONFIG, 2)
    write(cache, 3)
    with pytest.raises(ValueError) as error:
        cache.reorder(index)
    assert words in str(error.value)
    assert cache.batch_size == 2 and cache.length == 3


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
