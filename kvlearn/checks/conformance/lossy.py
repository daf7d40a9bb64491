"""The rules for caches that round what is old: what is quantised, when, and with whose scale.

Most of them feed two caches texts that must be stored as the same numbers, and compare what a last token gets
back from both. An exact cache has nothing to show here. Texts are so long that a good part of them should be
codes.
"""

import torch

from kvlearn.checks.conformance.ledger import SIDES, Broken
from kvlearn.checks.conformance.pair import ROWS, Pair, long_pair

LOUD = 1000.0  # padding
LOUDER = 100  # a row beside others; float8 without a scale ends at 448


def streaming(new):
    """A lossy cache stores the same numbers, and keeps as many exact, whether a text comes in one piece, in
    chunks or token by token."""
    first = long_pair(new)
    if first.exact:
        return
    text = _text(first)
    _feed(first, text, [first.room - 1])
    for how, sizes in (
        ("in chunks of 7", [7] * (first.room // 7)),
        ("token by token", [1] * (first.room - 1)),
    ):
        other = long_pair(new)
        _feed(other, text, sizes)
        _expect_same(first, other, f"in one piece and {how}")


def padding_in_scales(new):
    """Padding, and what a row has given up, have no say in what the tokens of a lossy cache come back as."""
    quiet, loud = long_pair(new), long_pair(new)
    if quiet.exact:
        return
    text, half, last = _text(quiet), quiet.room // 2, quiet.room - 1
    positions = torch.arange(quiet.room).repeat(ROWS, 1)
    positions[0] = (positions[0] - 5).clamp(min=-1)
    positions[2, 9:12] = -1  # a row that has ended, and goes on
    positions[2, 12:] -= 3
    # Row 0 gives up tokens that are exact still (the newest `residual` are), so that nothing is left of them.
    given_up = min(6, quiet.rounding.residual)
    token = positions >= 0
    token[0, half - given_up : half] = False
    for pair, noise in ((quiet, 1.0), (loud, LOUD)):
        numbers = [torch.where(token[:, None, :, None].to(side.device), side, noise) for side in text]
        for start, end in ((0, half), (half, last), (last, last + 1)):
            _step(pair, [side[:, :, :, start:end] for side in numbers], positions[:, start:end])
            if end == half and given_up:
                pair.truncate([half - given_up, half, half])
    _expect_same(quiet, loud, f"beside padding of 1 and of {LOUD:.0f}")


def rows_apart(new):
    """No scale crosses rows: a row of a lossy cache comes back as it does alone, however loud the others
    are."""
    together = long_pair(new)
    if together.exact:
        return
    text = _text(together)
    for side in text:
        side[:, 1] *= LOUDER
    sizes = [together.room // 2] * 2
    _feed(together, text, sizes)
    for row in range(ROWS):
        alone = long_pair(new, batch_size=1)
        _feed(alone, [side[:, row : row + 1] for side in text], sizes)
        _expect_same(together, alone, f"beside a row {LOUDER} times as loud and alone", row)


def codes_stay(new):
    """What was quantised stays quantised, with its very numbers: through steps, truncate and reorder."""
    pair = long_pair(new)
    if pair.exact:
        return
    for lengths, rows in (
        (pair.room - 12, [2, 0, 1]),
        (pair.room // 2 + 2, [1, 1, 0]),
        ([pair.room // 2 - 4, 7, pair.room // 2], [2, 1]),
        (pair.room // 3, [0]),
    ):
        if pair.ledger.length > pair.room - 6:  # a window has refused to go back
            pair.reset()
        pair.step(pair.room - 5 - pair.ledger.length)
        pair.step(1)
        pair.truncate(lengths)
        pair.step(1)
        pair.step(2)
        pair.reorder(rows)
        pair.step(1)


def unfinished_codes(new):
    """An unfinished step leaves no codes behind: what was exact before it is exact afterwards."""
    clean = long_pair(new)
    if clean.exact:
        return
    text, half = _text(clean), clean.room // 2
    _feed(clean, text, [half, clean.room - half - 1])
    for how, drop in (
        ("whose second step was begun twice", lambda pair: None),
        ("rolled back after an unfinished step", lambda pair: pair.truncate(half)),
        ("reordered in an unfinished step", lambda pair: pair.reorder([0, 1, 2])),
    ):
        pair = long_pair(new)
        _step(pair, [side[:, :, :, :half] for side in text])
        pair.begin_step(clean.room - half)
        drop(pair)
        _feed(pair, text, [clean.room - half - 1], start=half)
        _expect_same(clean, pair, f"in a cache without unfinished steps and in one {how}")


def lossy_bytes(new):
    """Codes are smaller: used_bytes of a lossy cache is that of its codes, scales and exact tokens."""
    pair = long_pair(new)
    if pair.exact:
        return
    shapes = pair.cache.key_shape, pair.cache.value_shape
    numbers = sum(heads * dim for heads, dim in shapes)
    layers, itemsize, fullest = len(pair.layers), pair.dtype.itemsize, 0.0
    for slots in range(3, pair.room + 1, 3):
        pair.step(3)
        used = pair.cache.used_bytes
        fullest = max(fullest, used / max(1, pair.cache.allocated_bytes))
        if pair.rounding.counted:
            want = layers * pair.rounding.bytes(slots, shapes, ROWS, itemsize)
            if used != want:
                raise Broken(
                    f"After {slots} slots used_bytes is {used} and should be {want}: codes, scales and zeros "
                    f"of what is quantised (residual {pair.rounding.residual}), and {itemsize} bytes a "
                    "number for the others."
                )
    exact = layers * ROWS * pair.ledger.length * numbers * itemsize
    if not pair.rounding.counted and used >= exact:
        raise Broken(
            f"After {pair.ledger.length} slots used_bytes is {used}, and an exact cache needs {exact}: "
            "nothing has become smaller. (Name the newest tokens that stay exact `residual`, and the text "
            "that is tried is longer by as many.)"
        )
    if fullest < 3 / 4:
        raise Broken(
            f"used_bytes is never more than {fullest:.0%} of allocated_bytes while {pair.ledger.length} "
            "tokens come. Codes, scales, zeros and the exact tokens all count."
        )


# Two caches that should hold the same ------------------------------------------------------------------


def _text(pair: Pair) -> list[torch.Tensor]:
    """Keys and values (layers, B, heads, S, dim) that fill the pair's cache."""
    return pair.draw(pair.room)


def _feed(pair: Pair, text, sizes: list[int], start: int = 0) -> None:
    """Chunks of these sizes, the rest of all but the last token, and the last token, which gets all back."""
    last = pair.room - 1
    for size in [*sizes, last]:
        end = min(start + size, last)
        if end > start:
            _step(pair, [side[:, :, :, start:end] for side in text])
        start = end
    _step(pair, [side[:, :, :, last:] for side in text])


def _step(pair: Pair, numbers, positions=None) -> None:
    length = numbers[0].shape[3]
    pair.step(length if positions is None else positions.tolist(), numbers=numbers)


def _expect_same(one: Pair, other: Pair, how: str, row: int | None = None) -> None:
    """The tokens of two caches came back as the same numbers the last time (row `row`, and the only one)."""
    rows = slice(None) if row is None else slice(row, row + 1)
    held = (one.ledger.positions[rows] >= 0) & ~one.ledger.dropped[rows]  # a window gives back no others
    for side, name in enumerate(SIDES):
        mine, theirs = one.ledger.returned[side][:, rows], other.ledger.returned[side]
        differ = (mine != theirs) & held[None, :, None, :, None]
        for layer, at, head, slot, channel in differ.nonzero().tolist():
            place = layer, at, head, slot, channel
            raise Broken(
                f"The {name} of layer {layer}, row {at if row is None else row}, position "
                f"{int(one.ledger.positions[rows][at, slot])} (head {head}, channel {channel}) comes back as "
                f"{mine[place]:.6g} and {theirs[place]:.6g}, {how}; what was given is "
                f"{one.ledger.given[side][:, rows][place]:.6g}."
            )


LOSSY = (streaming, padding_in_scales, rows_apart, codes_stay, unfinished_codes, lossy_bytes)
