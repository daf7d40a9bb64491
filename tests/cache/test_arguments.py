"""What caches are given and refuse: the words, and that the cache is as it was."""

from types import SimpleNamespace

import pytest
import torch
from small_caches import CONFIG, Notes, pair, write

from kvlearn.cache import GrowingCache, SlidingWindowCache, StaticCache
from kvlearn.cache.arguments import check_order


def test_the_order_of_positions_against_a_loop():
    """All chunks of three tokens over -2 to 3 after each start: an off-by-one would refuse a neighbour's."""

    def right(row, following):
        for position in row:
            if position != -1 and position < following:
                return False
            following = max(following, position + 1)
        return True

    chunks = torch.cartesian_prod(*[torch.arange(-2, 4)] * 3)
    for following in range(3):
        for row in chunks:
            try:
                check_order(row[None], torch.tensor([[following]]))
                accepted = True
            except ValueError:
                accepted = False
            assert accepted == right(row.tolist(), following), (row, following)
            if following == 0:  # which is what is meant where it is left out
                first = torch.stack((torch.tensor([0, 1, 2]), row))
                if accepted:
                    check_order(first)
                else:
                    with pytest.raises(ValueError, match="increase strictly"):
                        check_order(first)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"batch_size": 0}, "at least 1; got batch_size=0"),
        ({"batch_size": 2.0}, "a whole number of rows, at least 1; got batch_size=2.0"),
        ({"batch_size": "2"}, "got batch_size='2'"),
        ({"batch_size": True}, "got batch_size=True"),
        ({"max_length": 0}, "at least 1; got max_length=0"),
        ({"max_length": 9.5}, "a whole number of slots, at least 1; got max_length=9.5"),
        ({"batch_size": 10**30}, "batch_size must be at most 2,147,483,647"),
        ({"max_length": 10**30}, "max_length must be at most 2,147,483,647"),
        ({"dtype": "float32"}, "A cache stores floating-point numbers, .* got dtype='float32'"),
        ({"dtype": torch.int8}, "A cache stores floating-point numbers, .* got dtype=torch.int8"),
        ({"device": "cudax"}, "device='cudax' is no device of this torch: "),
        ({"device": "cuda:99"}, "device='cuda:99' is no device of this torch: "),
        ({"device": 0.5}, "device=0.5 is no device of this torch: "),
    ],
)
def test_sizes_that_cannot_be(options, words):
    """A cache of no rows accepts tokens of no rows, for ever."""
    with pytest.raises(ValueError, match=words):
        Notes(CONFIG, **options)


@pytest.mark.parametrize(
    "field, size, words",
    [
        ("num_layers", 0, "num_layers must be at least 1; got 0"),
        ("num_layers", "2", "num_layers is a whole number; got '2'"),
        ("num_kv_heads", -3, "num_kv_heads must be at least 1; got -3"),
        ("head_dim", 0, "head_dim must be at least 1; got 0"),
        ("head_dim", 8.0, "head_dim is a whole number; got 8.0"),
        ("head_dim", 10**30, "head_dim must be at most 2,147,483,647"),
        ("max_position", None, "max_position is a whole number; got None"),
        ("max_position", 2**63, "max_position must be at most"),
    ],
)
@pytest.mark.parametrize("make", [GrowingCache, StaticCache, lambda config: SlidingWindowCache(config, 4)])
def test_configs_that_lie(make, field, size, words):
    """Of one's own making: a cache without layers never ends a step, one without head_dim holds nothing."""
    config = SimpleNamespace(**{**vars(CONFIG), field: size})
    with pytest.raises(ValueError, match=words):
        make(config)


def test_a_device_has_a_number():
    """`device or "cpu"`: card 0 is false, and the cache would be on the CPU."""
    if torch.cuda.is_available():
        assert GrowingCache(CONFIG, device=0).device == torch.device("cuda", 0)
    else:
        with pytest.raises(ValueError, match="device=0 is no device of this torch"):
            GrowingCache(CONFIG, device=0)


def test_a_model_is_not_its_config():
    """The first thing that one gives; a missing attribute would say nothing of what is wanted."""
    with pytest.raises(ValueError, match="a config, such as model.config; a Linear has no num_layers"):
        GrowingCache(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="a config, such as model.config; a Linear has no num_layers"):
        StaticCache(torch.nn.Linear(1, 1))
    assert GrowingCache(CONFIG, torch.tensor(2)).batch_size == 2


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


def test_positions_without_numbers():
    """They have the shape and the dtype, and nothing that could be compared."""
    cache, positions = GrowingCache(CONFIG, 2), torch.zeros(2, 1, dtype=torch.long)
    for given, words in ((positions.to("meta"), "on meta"), (positions.to_sparse(), "of layout")):
        with pytest.raises(ValueError, match=f"a tensor of integers .*; got a tensor {words}"):
            cache.update(0, *pair(1), given)
    with pytest.raises(ValueError, match="k is a tensor on meta, which has no numbers; a step is taken with"):
        GrowingCache(CONFIG, 2, device="meta").update(0, *(x.to("meta") for x in pair(1)))


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
        (0, pair(2)[0].to_sparse(), pair(2)[1], "got a tensor of layout torch.sparse_coo"),
        (
            0,
            pair(2)[0],
            torch.nested.nested_tensor([*pair(2)[1]]),
            "got a nested tensor",
        ),
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
