"""Caches with one classic bug each in how they move: positions, going back, other rows."""

import torch
from broken_caches import broken

from kvlearn.cache import GrowingCache, KVCache, SlidingWindowCache, StaticCache

# Lengths and positions -----------------------------------------------------------------------------


@broken("when the last layer has been written", "layer 0 of 0 to 3 is written), length is 3 and should be 0")
class LengthMovesWithTheFirstLayer(GrowingCache):
    @property
    def length(self):
        return self._keys[0].shape[2]


@broken("when the last layer has been written", "next_position is [3, 3, 3] and should be [0, 0, 0]")
class PositionMovesWithTheFirstLayer(GrowingCache):
    @property
    def next_position(self):
        return super().next_position + (0 if self._step is None else self._step.shape[1])


@broken("that are left out", "layer 1, row 0 are [2, 3]", "should be [0, 1]")
class PositionMovesWithEveryLayer(GrowingCache):
    """Each layer counts for itself, as if the layers were one long text."""

    def update(self, layer, k, v, positions=None):
        result = super().update(layer, k, v, positions)
        if positions is None:
            self._last_positions[layer] = self._last_positions[layer] + layer * k.shape[2]
        return result


@broken("is no token", "next_position is [4, 4, 4] and should be [2, 4, 3]")
class NextPositionCountsPadding(GrowingCache):
    """unslothai/unsloth#3699: the number of slots is taken for the position."""

    @property
    def next_position(self):
        return torch.full((self.batch_size,), self.length)


@broken("1 + its largest", "next_position is [2, 2, 2] and should be [4, 6, 3]")
class NextPositionCountsTokens(GrowingCache):
    """Right for padding, wrong where positions jump."""

    @property
    def next_position(self):
        return (self.positions >= 0).sum(dim=1)


@broken("is no token", "padding in layer 0 is not a finite number", "0 x NaN is NaN")
class PaddingNotWritten(StaticCache):
    """The slots of padding are skipped, and what lay there before comes back."""

    def update(self, layer, k, v, positions=None):
        self.held = None if positions is None else (positions >= 0)[:, None, :, None]
        return super().update(layer, k, v, positions)

    def _append(self, layer, k, v):
        start, end = self._lengths[layer], self._lengths[layer] + k.shape[2]
        old = self._keys[layer, :, :, start:end].clone()
        result = super()._append(layer, k, v)
        if self.held is not None and self.held.shape[2] == k.shape[2]:
            self._keys[layer, :, :, start:end] = torch.where(self.held, k, old)
        return result


@broken("An unfinished step counts for nothing", "slots")
class KeepsUnfinishedSteps(GrowingCache):
    def _drop_step(self):
        self._end_step()


@broken(
    "A new cache is empty", "next_position is a tensor of whole numbers, one a row; this one is [0, 0, 0]."
)
class NextPositionIsAList(GrowingCache):
    """The decoder adds it to a tensor."""

    @property
    def next_position(self):
        return super().next_position.tolist()


@broken("increase strictly", "accepted: positions that are left out and go on to 40")
class CountsPastTheLastPosition(GrowingCache):
    """What nobody gave, nobody checked."""

    def _new_positions(self, positions, length):
        if positions is None:
            return self.next_position[:, None] + torch.arange(length)
        return super()._new_positions(positions, length)


@broken("increase strictly", "accepted: a position that a row has already")
class AcceptsAnyPosition(GrowingCache):
    def _new_positions(self, positions, length):
        return super()._new_positions(None, length) if positions is None else positions.clone()


# Going back, other rows, starting again --------------------------------------------------------------


@broken("keeps the first slots", "is 6, and 5 slots have been written")
class TruncateKeepsOneTooMany(GrowingCache):
    def _truncate(self, layer, length):
        super()._truncate(layer, length + 1)


@broken("keeps the first slots", "slots")
class TruncateToZeroDoesNothing(GrowingCache):
    """huggingface/transformers#47433: 0 is taken for "no number given"."""

    def _truncate(self, layer, length):
        if length:
            super()._truncate(layer, length)


@broken("one length a row", "next_position is [4, 6, 5] and should be [2, 6, 4]")
class TruncateForgetsTheShorterRows(GrowingCache):
    def truncate(self, length):
        super().truncate(length if isinstance(length, int) else max(length))


@broken("keys, values and positions", "The value that comes back", "It is the value given for layer 0, row 1")
class ReordersKeysOnly(GrowingCache):
    """huggingface/transformers#48700: a part of the cache stays behind."""

    def reorder(self, batch_index):
        values = [v.clone() for v in self._values]
        super().reorder(batch_index)
        if len(batch_index) == len(values[0]):
            self._values = values


@broken("keys, values and positions", "next_position is [2, 4, 3] and should be [3, 2, 4]")
class ReorderForgetsPositions(GrowingCache):
    def reorder(self, batch_index):
        positions = self._positions
        super().reorder(batch_index)
        if len(batch_index) == len(positions):
            self._describe(positions)


@broken("independent afterwards", "The value that comes back for layer 0, row 0")
class ReorderMixesARowThatIsNew(GrowingCache):
    """A batch that grows by a row, and the values of all rows move up by one."""

    def reorder(self, batch_index):
        grows = len(batch_index) > self.batch_size
        super().reorder(batch_index)
        if grows:
            self._values = [v.roll(1, dims=0) for v in self._values]


@broken("independent afterwards", "After reorder([4, 1]) and truncate(0) next_position is [0, 0, 0]")
class TruncateToZeroIsAReset(GrowingCache):
    def truncate(self, length):
        super().truncate(length)
        if length == 0:
            self.reset()


@broken("independent afterwards", "row 0")
class RowsShareStorageAfterReorder(KVCache):
    """One storage a row; a row that is taken twice is one storage with two names."""

    def __init__(self, config, batch_size=1):
        super().__init__(config, batch_size, max_length=config.max_position)

    def _start(self, batch_size):
        heads, dim = self.key_shape
        self.rows = [
            [torch.empty(2, heads, self.max_length, dim) for _ in range(batch_size)]
            for _ in range(self.num_layers)
        ]
        self.full = [0] * self.num_layers

    def _append(self, layer, k, v):
        start, self.full[layer] = self.full[layer], self.full[layer] + k.shape[2]
        for row, storage in enumerate(self.rows[layer]):
            storage[0, :, start : self.full[layer]] = k[row]
            storage[1, :, start : self.full[layer]] = v[row]
        stored = torch.stack(self.rows[layer], dim=1)[:, :, :, : self.full[layer]]
        return stored[0], stored[1]

    def _truncate(self, layer, length):
        self.full[layer] = length

    def _tensors(self):
        return [
            storage[:, :, : self.full[layer]]
            for layer in range(self.num_layers)
            for storage in self.rows[layer]
        ]

    def reorder(self, batch_index):
        rows = self.rows
        super().reorder(batch_index)  # for its errors
        self.rows = [[layer[row] for row in batch_index] for layer in rows]


@broken("returns to the batch of the constructor", "length is 4 and should be 0")
class ResetForgetsPositions(GrowingCache):
    def reset(self):
        self._start(self._constructed_batch)


@broken("returns to the batch of the constructor", "[0, 0] and should be [0, 0, 0]")
class ResetKeepsTheBatch(GrowingCache):
    """EricLBuehler/candle-vllm#6: what one request left is there for the next."""

    def reset(self):
        self.truncate(0)


@broken("holds nothing may be rolled back", "IndexError", "self.parts[layer][0]")
class NothingToRollBack(GrowingCache):
    """The first chunk opens the list; before it there is none."""

    def truncate(self, length):
        self.parts = [[key] if key.shape[2] else [] for key in self._keys]
        for layer in range(self.num_layers):
            self.parts[layer][0]
        super().truncate(length)


# A window that goes back -----------------------------------------------------------------------------


class Window(SlidingWindowCache):
    def __init__(self, config, batch_size=1):
        super().__init__(config, 7, batch_size)


@broken("keeps the first slots", "truncate(5) of 5 slots is refused: no", "A window of 7 still has all")
class WindowNeverGoesBack(Window):
    """A window that has dropped nothing can go back like any cache."""

    def truncate(self, length):
        raise ValueError("no")


@broken("is refused: past the window", "A window of 7 still has all that the next query needs")
class WindowCountsSlotsWhereItGoesBack(Window):
    """What matters is what the next query needs, and not how long the text is."""

    def truncate(self, length):
        if self.length > self.window and length:
            raise ValueError("past the window")
        super().truncate(length)


@broken("keeps the first slots", "TypeError: raw")
class WindowRaisesWhateverItCannotDo(Window):
    """An error of Python's is no refusal."""

    def truncate(self, length):
        raise TypeError("raw")


@broken("After the refusal of truncate(", "length is")
class WindowForgetsASlotWhereItRefuses(Window):
    def truncate(self, length):
        try:
            super().truncate(length)
        except ValueError:
            self._positions = self._positions[:, :-1]
            raise


@broken("should be", "[0] missing")
class WindowGoesBackTooFar(Window):
    """What the next query would see is gone, and nobody says so."""

    def truncate(self, length):
        for ring in self._rings.values():
            ring.check_roll_back = lambda *_: None
        super().truncate(length)
