"""The rules about bytes: what a cache says of itself, beside formulas and beside what is alive."""

import gc
import math

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kvlearn.checks.conformance.ledger import Broken
from kvlearn.checks.conformance.pair import CONFIG, LAYERS, ROWS, UNEVEN, long_pair
from kvlearn.measure import StorageMeter


def byte_counts(new):
    """used_bytes is what the stored slots need, padding included; allocated_bytes is no less."""
    pair = new()
    pair.step(UNEVEN)
    _expect_used(pair, "After 4 slots")
    pair.step(1)
    _expect_used(pair, "After 5 slots")
    pair.truncate(2)
    _expect_used(pair, "After truncate(2)")
    for rows in ([0, 1, 2, 0], [3]):
        pair.reorder(rows)
        _expect_used(pair, f"After reorder({rows})")
    if pair.takes(dtype=torch.bfloat16):
        pair = new(dtype=torch.bfloat16)
        pair.step(3)
        _expect_used(pair, "After 3 slots in bfloat16")
    _a_window_keeps_what_it_says(new())


def _a_window_keeps_what_it_says(pair):
    """The last W positions, and room for the chunk in flight: the text may grow and the bytes may not."""
    if pair.window is None:
        return
    chunk, number = 4, _numbers(pair) * pair.dtype.itemsize
    while pair.ledger.length + chunk <= CONFIG.max_position // 2:
        before, kept = pair.cache.used_bytes, []

        def count(layer, k, v, positions, kept=kept):
            kept.append(int((pair.cache.key_positions(layer) >= 0).sum()) - positions.numel())

        pair.step([list(range(n, n + chunk)) for n in pair.ledger.next_position], after_update=count)
        used, most = pair.cache.used_bytes, (pair.window + chunk) * len(LAYERS) * ROWS * number
        if pair.exact and before < sum(kept) * number:
            raise Broken(
                f"After {pair.ledger.length - chunk} slots used_bytes was {before}, and {sum(kept)} of their "
                f"tokens (all rows and layers) came back in the next step: that many need "
                f"{sum(kept) * number} bytes."
            )
        if used > most:
            raise Broken(
                f"After {pair.ledger.length} slots used_bytes is {used}. A window of {pair.window} keeps the "
                f"last {pair.window} positions of each row, and the chunk of {chunk} while it is in flight: "
                f"{most} bytes at most."
            )


def _expect_used(pair, when):
    used, allocated = pair.cache.used_bytes, pair.cache.allocated_bytes
    slots = len(LAYERS) * pair.ledger.batch_size * pair.ledger.length
    numbers = _numbers(pair)
    want = slots * numbers * pair.dtype.itemsize
    if pair.exact and pair.window is None and used != want:
        raise Broken(
            f"{when} used_bytes is {used} and should be {want}: {len(LAYERS)} layers x "
            f"{pair.ledger.batch_size} rows x {pair.ledger.length} slots x {numbers} numbers in a key "
            f"and its value, of {pair.dtype.itemsize} bytes."
        )
    if pair.exact and used > want:
        raise Broken(f"{when} used_bytes is {used}, and all slots together need {want}.")
    # A window keeps no padding, and of width 1 nothing that the next query needs.
    if used > allocated or (used == 0 and pair.window is None):
        raise Broken(f"{when} used_bytes is {used} and allocated_bytes is {allocated}.")


def allocated_is_alive(new):
    """allocated_bytes is what the storages behind the keys and values hold, room for later tokens
    included."""
    for name, go_back in (
        ("truncate(0)", lambda pair: pair.truncate(0)),
        ("reset", lambda pair: pair.reset()),
    ):
        meter = StorageMeter()
        with meter:
            pair = long_pair(new)
        for tokens in (1, pair.room - 1):
            behind, passing = _fill(pair, meter, tokens)
            slots = "1 slot" if tokens == 1 else f"{pair.room} slots"
            _expect_alive(pair, meter, f"After {slots}", passing, behind)
        with meter:
            go_back(pair)
        _expect_alive(pair, meter, f"After {slots} and a {name}", passing)


def written_in_place(new):
    """A room that is there is written in place: a step does not make a second one."""
    pair = new()
    pair.step(3)
    room, used = pair.cache.allocated_bytes, pair.cache.used_bytes
    if room < 4 * used:
        return  # hardly any room beyond what is stored
    keys, values = pair.draw(1)
    with StorageMeter() as meter:
        for layer in pair.layers:
            pair.cache.update(layer, keys[layer], values[layer])
    if meter.peak > room / 2:
        raise Broken(
            f"allocated_bytes is {room} and used_bytes {used}, so there is room for the next token. To write "
            f"it, update has allocated {meter.peak} bytes: the room is copied at every step."
        )


def _fill(pair, meter, tokens: int) -> tuple[int, int]:
    """One step, and the bytes of the storages behind what came back that the cache itself keeps.

    Returns:
        The bytes of what is stored, and those of rooms for passing through, in which a cache of pages or
        codes puts together what it returns of one layer: one of the two is 0.
    """
    keys, values = pair.draw(tokens)
    results, copies = [], []
    for layer in pair.layers:
        with meter:
            results += pair.cache.update(layer, keys[layer], values[layer])
        copies += [side.clone() for side in results[-2:]]
    # Where a later layer has written over an earlier one's K or V, they lay in a room for passing through.
    lasting = all(map(torch.equal, results, copies))
    storages = [side.untyped_storage() for side in results]
    behind = {storage._cdata: (StorageWeakRef(storage), storage.nbytes()) for storage in storages}
    del results, storages
    kept = sum(nbytes for kept, nbytes in behind.values() if not kept.expired())
    return (kept, 0) if lasting else (0, kept)


def _expect_alive(pair, meter, when: str, passing: int, behind: int = 0) -> None:
    """Compare with the storages that are alive among those that the cache has made.

    Two things may be alive and not be counted: positions, and a room for passing through. What torch has not
    allocated (an array of numpy's) or was there before the cache (a pool for several) is not seen; then
    nothing can be said.
    """
    described = {pair.cache.key_positions(layer).untyped_storage()._cdata for layer in pair.layers}
    # The cache's own positions, and what it has said of each layer; each twice, for a step under way.
    uncounted = passing + 2 * (1 + len(described)) * ROWS * pair.room * torch.long.itemsize
    used, allocated = pair.cache.used_bytes, pair.cache.allocated_bytes
    meter.mark()
    if allocated < max(min(behind, meter.live), meter.live - uncounted):
        gc.collect()  # what only a cycle of references holds is not the cache's any more
        meter.mark()
        if allocated < max(min(behind, meter.live), meter.live - uncounted):
            raise Broken(
                f"{when} allocated_bytes is {allocated}, and the cache keeps {meter.live} bytes of tensors "
                "alive. Room that is not in use counts; so does all of a storage of which a slice is kept, "
                "and a second copy."
            )
    if 0 < used <= meter.live < allocated:
        raise Broken(
            f"{when} allocated_bytes is {allocated}, and all tensors that the cache keeps alive, positions "
            f"included, have {meter.live} bytes."
        )


def _numbers(pair) -> int:
    """Numbers in a key and its value."""
    return math.prod(pair.cache.key_shape) + math.prod(pair.cache.value_shape)


BYTES = (byte_counts, allocated_is_alive, written_in_place)
