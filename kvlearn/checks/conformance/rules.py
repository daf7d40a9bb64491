"""The rules of the cache contract, from the simplest to those that build on it.

Each gets `new`, which makes a `Pair` of a cache and its ledger. `pair.step` compares by itself what comes
back from every layer. The docstring is what a learner is shown.
"""

import torch

from kvlearn.checks.conformance.ledger import Broken
from kvlearn.checks.conformance.lossy import LOSSY
from kvlearn.checks.conformance.memory import BYTES
from kvlearn.checks.conformance.pair import CONFIG, LAYERS, ROWS, THREE, UNEVEN
from kvlearn.checks.conformance.refusals import REFUSALS


def members(new):
    """A cache has every member of the contract."""
    new()  # a Pair looks at them before it does anything


def heads(new):
    """key_shape and value_shape are (kv heads, head_dim): only key/value heads are kept."""
    cache = new().cache
    for name in ("key_shape", "value_shape"):
        shape = tuple(getattr(cache, name))
        if len(shape) != 2 or shape[0] == CONFIG.num_heads:
            raise Broken(
                f"{name} is {shape}. For a model with {CONFIG.num_heads} query heads and "
                f"{CONFIG.num_kv_heads} key/value heads of head_dim {CONFIG.head_dim} it should be "
                f"{(CONFIG.num_kv_heads, CONFIG.head_dim)}."
            )


def empty(new):
    """A new cache is empty."""
    pair = new()
    pair.expect_lengths("Before the first token")
    pair.expect("Before the first token used_bytes", pair.cache.used_bytes, 0)


def everything_comes_back(new):
    """update returns every token given to this layer so far, the new ones included, and nothing else."""
    pair = new()
    pair.step(THREE)
    pair.step([[3]] * ROWS)
    pair.step([[4, 5]] * ROWS)
    pair.step([[6]] * ROWS)


def nothing_shared(new):
    """Two caches share nothing."""
    one, other = new(), new()
    one.step(THREE)
    other.expect_lengths("Of a second cache, when only the first was written,")
    other.step([[0, 1]] * ROWS)
    one.step([[3]] * ROWS)
    one.reset()
    other.step([[2]] * ROWS)


def copies(new):
    """The given k, v and positions are copied, and not changed: what their owner does with them later changes
    nothing."""
    pair = new()

    def spoil(layer, k, v, positions):
        ledger, new = pair.ledger, slice(pair.ledger.length - k.shape[2], None)
        for name, given, was in (
            ("k", k, ledger.keys[layer, :, :, new]),
            ("v", v, ledger.values[layer, :, :, new]),
            ("positions", positions, ledger.positions[:, new]),
        ):
            if not torch.equal(given, was):
                raise Broken(f"update has changed the tensor that it was given as {name}.")
            given.fill_(7)

    for chunk in (THREE, [[3]] * ROWS, [[4]] * ROWS):
        pair.step(chunk, after_update=spoil)


def length_moves_last(new):
    """length and next_position move once a step, when the last layer has been written."""
    pair = new()
    for tokens in (3, 1, 2):
        before = pair.cache.length, pair.next_position()

        def still(layer, *_, before=before):
            if layer < LAYERS[-1]:
                when = f"In the middle of a step (layer {layer} of 0 to {LAYERS[-1]} is written),"
                pair.expect(f"{when} length", pair.cache.length, before[0])
                pair.expect(f"{when} next_position", pair.next_position(), before[1])

        start = pair.ledger.length
        pair.step([list(range(start, start + tokens))] * ROWS, after_update=still)
        pair.expect_lengths("After a step")


def positions_left_out(new):
    """Positions that are left out go on from next_position, the same for every layer of a step."""
    pair = new()
    pair.step(2)
    pair.step(1)
    pair.step(3)
    pair.expect_lengths("After positions that were left out")


def padding(new):
    """Padding (position -1) takes a slot and is no token: rows of unequal length stay apart."""
    pair = new()
    pair.step(UNEVEN)
    pair.expect_lengths("After prompts of unequal length")
    pair.step([[2], [-1], [3]])  # row 1 has ended
    pair.step([[-1, 3], [-1, -1], [4, 5]])
    pair.expect_lengths("After rows that have ended")
    pair.step([[-1], [-1], [-1]])
    pair.step(1)


def gaps(new):
    """Positions may jump: a row's next position is 1 + its largest, not its number of slots."""
    pair = new()
    pair.step([[0, 3], [2, 5], [1, 2]])
    pair.expect_lengths("After positions with gaps")
    pair.step(2)


def truncate(new):
    """truncate(length) keeps the first slots, with their very numbers, and forgets the others."""
    pair = new()
    pair.step(5)
    for length in (5, 3):
        pair.truncate(length)
        pair.expect_lengths(f"After truncate({length})")
        pair.step(2)
    pair.step(1)
    pair.truncate(1)
    pair.step(1)
    pair.truncate(0)
    pair.expect_lengths("After truncate(0)")
    pair.step(2)


def truncate_rows(new):
    """truncate takes one length a row: slots beyond it become position -1, in that row alone."""
    pair = new()
    pair.step(UNEVEN)
    pair.step(2)
    pair.truncate([4, 6, 5])
    pair.expect_lengths("After truncate([4, 6, 5])")
    pair.step(2)
    pair.truncate([3, 0, 7])
    pair.expect_lengths("After truncate([3, 0, 7])")
    pair.step(1)


def reorder(new):
    """reorder makes row i a copy of what was row batch_index[i], keys, values and positions."""
    pair = new()
    pair.step(UNEVEN)
    pair.reorder([2, 0, 1])
    pair.expect_lengths("After reorder([2, 0, 1])")
    pair.step(1)


def reorder_other_batch(new):
    """reorder may shrink or grow the batch, and the rows are independent afterwards."""
    pair = new()
    pair.step(UNEVEN)
    pair.reorder([2, 0, 2, 1])
    pair.expect_lengths("After reorder([2, 0, 2, 1])")
    pair.step(1)
    pair.reorder([3])
    pair.expect_lengths("After reorder([3])")
    pair.step(2)
    pair.reorder([0, 0, 0, 0, 0])
    pair.expect_lengths("After reorder([0, 0, 0, 0, 0])")
    pair.step(1)
    pair.truncate([pair.ledger.length - row for row in range(5)])
    pair.step(2)
    pair.reorder([4, 1])
    pair.step(1)
    pair.truncate(0)
    pair.expect_lengths("After reorder([4, 1]) and truncate(0)")
    pair.step(1)


def reset(new):
    """reset forgets everything, positions too, and returns to the batch of the constructor."""
    pair = new()
    pair.step(UNEVEN)
    pair.reorder([1, 1])
    pair.reset()
    pair.expect_lengths("After reset")
    pair.expect("After reset used_bytes", pair.cache.used_bytes, 0)
    pair.step(THREE)
    pair.step(1)


def moved_while_empty(new):
    """A cache that holds nothing may be rolled back to 0 slots, reordered and reset all the same."""
    pair = new()
    pair.truncate(0)
    pair.reorder([2, 0, 1])
    pair.reset()
    pair.expect_lengths("After truncate(0), reorder and reset, before the first token,")
    pair.step(1)


def unfinished_step(new):
    """An unfinished step counts for nothing: writing a written layer again starts the step again, and
    truncate, reorder and reset drop it."""
    pair = new()
    pair.begin_step(2)
    pair.step(3)
    pair.begin_step(1)
    pair.expect_lengths("In an unfinished step")
    pair.step(1)
    for name, drop in (
        ("truncate", lambda: pair.truncate(pair.ledger.length)),
        ("reorder", lambda: pair.reorder([0, 1, 2])),
        ("reset", pair.reset),
    ):
        used = 0 if name == "reset" else pair.cache.used_bytes
        pair.begin_step(2)
        drop()
        pair.expect_lengths(f"After an unfinished step and a {name},")
        pair.expect(f"After an unfinished step and a {name}, used_bytes", pair.cache.used_bytes, used)
        pair.step(1)


def number_format(new):
    """What comes back has the dtype that the cache was made for; torch's default when none is named."""
    if new().takes(dtype=torch.bfloat16):
        new(dtype=torch.bfloat16).step(2)
    torch.set_default_dtype(torch.float64)
    try:
        new().step(2)
    finally:
        torch.set_default_dtype(torch.float32)


RULES = (
    members,
    heads,
    empty,
    everything_comes_back,
    nothing_shared,
    copies,
    length_moves_last,
    positions_left_out,
    padding,
    gaps,
    truncate,
    truncate_rows,
    reorder,
    reorder_other_batch,
    reset,
    moved_while_empty,
    unfinished_step,
    number_format,
    *LOSSY,
    *BYTES,
    *REFUSALS,
)
