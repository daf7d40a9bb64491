"""The rules about what a cache must refuse: with a clear error, and as it was before."""

from functools import partial

import torch

from kvlearn.checks.conformance.ledger import Broken
from kvlearn.checks.conformance.pair import CONFIG, LAYERS, ROWS, UNEVEN


def misfits(new):
    """A wrong layer, shape, dtype or device is refused, and the cache is as it was."""
    pair = new()
    pair.step(3)
    (k, *_), (v, *_) = pair.draw(2)
    other = torch.float64 if pair.dtype != torch.float64 else torch.float32
    wide = torch.zeros_like(k).repeat(1, 1, 1, 2)
    for what, layer, keys, values in (
        ("layer -1", -1, k, v),
        (f"layer {len(LAYERS)} of {len(LAYERS)}", len(LAYERS), k, v),
        ("a row too few", 0, k[1:], v[1:]),
        ("a row too many", 0, k[[0, 1, 2, 0]], v[[0, 1, 2, 0]]),
        ("query heads instead of key/value heads", 0, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)),
        ("a head_dim twice as wide", 0, wide, v),
        ("more keys than values", 0, k, v[:, :, 1:]),
        ("more values than keys", 0, k[:, :, 1:], v),
        ("keys without a batch", 0, k[0], v[0]),
        (f"keys in {other}", 0, k.to(other), v),
        (f"values in {other}", 0, k, v.to(other)),
        ("keys and values on another device", 0, k.to("meta"), v.to("meta")),
    ):
        pair.expect_refusal(what, lambda layer=layer, k=keys, v=values: pair.cache.update(layer, k, v))
    last = LAYERS[-1]
    for what, keys, values in (("a row too few", k[1:], v[1:]), (f"keys in {other}", k.to(other), v)):
        pair.begin_step(2)
        pair.expect_refusal(
            f"{what} in the last layer of a step", lambda k=keys, v=values: pair.cache.update(last, k, v)
        )


def bad_positions(new):
    """Positions in a row increase strictly, -1 aside, and stay below max_position; others are refused."""
    pair = new()
    pair.step(UNEVEN)
    last = CONFIG.max_position
    for what, rows in (
        ("a position that a row has already", [[1, 2], [4, 5], [3, 4]]),
        ("positions that fall", [[3, 2], [4, 5], [3, 4]]),
        ("a position twice in one chunk", [[2, 3], [5, 5], [3, 4]]),
        ("position -2", [[2, 3], [4, 5], [-2, 3]]),
        ("positions of too few rows", [[2, 3], [4, 5]]),
        ("one position for two tokens", [[2], [4], [3]]),
        (f"position {last}, which a model with max_position {last} lacks", [[2, 3], [4, last], [3, 4]]),
    ):
        k, v = (side[0] for side in pair.draw(2))
        positions = torch.tensor(rows, device=pair.device)
        pair.expect_refusal(what, lambda k=k, v=v, given=positions: pair.cache.update(0, k, v, given))
        pair.truncate(4)
    pair.step([[last - 2]] * ROWS)
    k, v = (side[0] for side in pair.draw(2))
    what = f"positions that are left out and go on to {last}"
    pair.expect_refusal(what, lambda: pair.cache.update(0, k, v))


def one_step_two_places(new):
    """A step writes all its layers with the same positions; a layer that is given others is refused."""
    step = [[2, 3, 4], [5, 6, 8], [-1, 4, 5]]
    for what, rows in (
        ("another last position in one row", [[2, 3, 4], [5, 6, 7], [-1, 4, 5]]),
        ("another position in the middle of a row", [[2, 3, 4], [5, 7, 8], [-1, 4, 5]]),
        ("a token where the step has padding", [[2, 3, 4], [5, 6, 8], [3, 4, 5]]),
        ("padding where the step has a token", [[2, 3, 4], [-1, 6, 8], [-1, 4, 5]]),
        ("a token fewer", [[2, 3], [5, 6], [-1, 4]]),
        ("a token more", [[2, 3, 4, 5], [5, 6, 8, 9], [-1, 4, 5, 6]]),
    ):
        for layer in (LAYERS[1], LAYERS[-1]):
            pair = new()
            pair.step(UNEVEN)
            pair.begin_step(step, layers=LAYERS[:layer])
            k, v = pair.draw(len(rows[0]))
            given = torch.tensor(rows, device=pair.device)
            pair.expect_refusal(
                f"{what}, in layer {layer} of a step",
                partial(pair.cache.update, layer, k[layer], v[layer], given),
            )


def overflow(new):
    """Tokens past the end of a cache are refused whole, and the cache is as it was."""
    pair = new()
    pair.step(UNEVEN)
    limit = getattr(pair.cache, "max_length", None)
    if limit is None:
        _end_that_is_not_named(pair)
        return
    # Padding takes slots and no positions, so that the slots end first.
    pair.step([[-1] * (limit - pair.ledger.length - 2)] * ROWS)
    k, v = (side[0] for side in pair.draw(3))
    pair.expect_refusal("3 tokens where 2 have room", lambda: pair.cache.update(0, k, v))
    pair.step(1)


def _end_that_is_not_named(pair) -> None:
    """Without a max_length it has no end; if it has one all the same, it may refuse, and never forget."""
    try:
        ended = [-1] * CONFIG.max_position
        pair.step([ended + list(range(start, start + 5)) for start in pair.ledger.next_position])
    except Broken:
        raise
    except Exception:
        pair.expect_next_step("After the refusal of tokens past the end")


def bad_rows(new):
    """A truncate or reorder to slots or rows that are not there is refused, and the cache is as it was."""
    pair = new()
    pair.step(UNEVEN)
    for what, call in (
        ("truncate to more slots than there are", lambda: pair.cache.truncate(pair.ledger.length + 1)),
        ("truncate to -1 slots", lambda: pair.cache.truncate(-1)),
        ("truncate with too few rows", lambda: pair.cache.truncate([1, 2])),
        ("truncate to more slots in one row", lambda: pair.cache.truncate([1, pair.ledger.length + 1, 2])),
        ("truncate to -1 slots in one row", lambda: pair.cache.truncate([2, 1, -1])),
        ("reorder to a row that is not there", lambda: pair.cache.reorder([0, ROWS])),
        ("reorder to row -1", lambda: pair.cache.reorder([0, -1])),
        ("reorder to no rows at all", lambda: pair.cache.reorder([])),
    ):
        pair.expect_refusal(what, call)


REFUSALS = (misfits, bad_positions, one_step_two_places, overflow, bad_rows)
