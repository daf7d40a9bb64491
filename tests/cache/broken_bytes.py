"""Caches with one classic bug each in the bytes that they count, or that they keep and do not count."""

import torch
from broken_caches import broken
from other_caches import DoublingCache, ListCache

from kvlearn.cache import GrowingCache, LatentCache, SlidingWindowCache, StaticCache

HOLD = "what the storages behind the keys and values hold"


@broken("A new cache is empty", "used_bytes is 123456 and should be 0")
class BytesAreAConstant(GrowingCache):
    used_bytes = 123456


@broken("what the stored slots need", "4 layers x 3 rows x 4 slots x 128 numbers")
class BytesOfOneLayer(GrowingCache):
    @property
    def used_bytes(self):
        return self._keys[0].nbytes + self._values[0].nbytes


@broken("what the stored slots need", "After 3 slots in bfloat16 used_bytes is 18432 and should be 9216")
class BytesOfFloat32(GrowingCache):
    """Four bytes a number, whatever is stored."""

    @property
    def used_bytes(self):
        return sum(tensor.numel() * 4 for tensor in self._tensors())

    allocated_bytes = used_bytes


@broken("what the stored slots need", "After reorder([3]) used_bytes is", "4 layers x 1 rows")
class KeepsRoomForRowsThatLeft(StaticCache):
    def _start(self, batch_size):
        super()._start(max(batch_size, 3))

    def _append(self, layer, k, v):
        rows = len(k)
        k, v = (torch.cat((x, x[:1].expand(max(0, 3 - rows), -1, -1, -1))) for x in (k, v))
        k, v = super()._append(layer, k, v)
        return k[:rows], v[:rows]


@broken("what the stored slots need", "After reorder([3]) used_bytes is", "all slots together need")
class WindowOnlyInTheMask(SlidingWindowCache):
    """llm_from_scratch#3: attention sees a window, and the cache stores the whole text."""

    def __init__(self, config, batch_size=1):
        super().__init__(config, 3, batch_size)

    def _start(self, batch_size):
        super()._start(batch_size)
        self._everything = []

    def _settle(self):
        self._everything += [side for chunk in self._chunks for side in chunk]
        super()._settle()

    def _tensors(self):
        return self._everything


@broken("what the stored slots need", "allocated_bytes is 0")
class NothingAllocated(GrowingCache):
    allocated_bytes = 0


# Memory that is there, and what is said of it ------------------------------------------------------


@broken(HOLD, "After 1 slot ", "allocated_bytes is 6144, and the cache keeps", "Room that is not in use")
class ForgetsItsRoom(StaticCache):
    """The price of preallocating is said to be nothing."""

    @property
    def allocated_bytes(self):
        return self.used_bytes


@broken(HOLD, "After 1 slot ", "allocated_bytes is 6144")
class ForgetsItsRoomAndReturnsCopies(ForgetsItsRoom):
    """What comes back does not lie in the room, so that it shows nothing of its size."""

    def _append(self, layer, k, v):
        k, v = super()._append(layer, k, v)
        return k.clone(), v.clone()


@broken(HOLD, "After 40 slots ", "allocated_bytes is 245760, and the cache keeps 39")
class ForgetsTheLastDoubling(DoublingCache):
    """40 slots in a room for 64."""

    @property
    def allocated_bytes(self):
        return self.used_bytes


@broken(HOLD, "After 1 slot ", "allocated_bytes is 61440, and all tensors", "positions included, have 6")
class CountsTenTimes(GrowingCache):
    @property
    def allocated_bytes(self):
        return 10 * self.used_bytes


@broken(HOLD, "After 1 slot ", "allocated_bytes is 61440, and all tensors")
class CountsTenTimesFromScratch(ListCache):
    """Without the base class, and without tensors that one could ask for."""

    @property
    def allocated_bytes(self):
        return 10 * self.used_bytes


@broken(HOLD, "After 1 slot ", "allocated_bytes is 1000000000, and all tensors")
class CountsAConstant(ListCache):
    allocated_bytes = 10**9


@broken(HOLD, "After 1 slot ", "allocated_bytes is 983040, and all tensors that the cache keeps")
class CountsAStorageForEachView(StaticCache):
    """One storage for all layers is counted once a layer."""

    @property
    def allocated_bytes(self):
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors())


@broken(HOLD, "After 40 slots and a truncate(0) allocated_bytes is 0, and the cache keeps 245")
class SlicesWhatItCuts(GrowingCache):
    """A slice of nothing keeps the whole storage alive."""

    def _truncate(self, layer, length):
        self._keys[layer] = self._keys[layer][:, :, :length]
        self._values[layer] = self._values[layer][:, :, :length]

    @property
    def allocated_bytes(self):
        return self.used_bytes


@broken(HOLD, "After 1 slot ", "allocated_bytes is 6144, and the cache keeps 12", "and a second copy")
class KeepsWhatItReturned(GrowingCache):
    """A second copy of everything, which nobody counts."""

    def _append(self, layer, k, v):
        k, v = (side.clone() for side in super()._append(layer, k, v))
        self.returned = {**getattr(self, "returned", {}), layer: (k, v)}
        return k, v


@broken(HOLD, "After 40 slots and a reset allocated_bytes is 0, and the cache keeps 24")
class KeepsWhatWasReset(GrowingCache):
    """Forgotten, and still there."""

    def reset(self):
        self.old = self._keys, self._values
        super().reset()


@broken(HOLD, "After 40 slots ", "allocated_bytes is 245760, and the cache keeps 36", "and a second copy")
class KeepsTheKeysTwice(GrowingCache):
    """A copy of one side, which is less than a room for one layer while a text is short."""

    def _append(self, layer, k, v):
        keys, values = super()._append(layer, k, v)
        if self.length:
            self.old = {**getattr(self, "old", {}), layer: keys.clone()}
        return keys, values


@broken(HOLD, "and a second copy")
class KeepsRotaryKeysTwice(LatentCache):
    """The smaller side of a small cache."""

    def __init__(self, config, batch_size=1):
        super().__init__(config, batch_size, latent_dim=16, rope_dim=4)

    def _append(self, layer, latent, rope_key):
        stored = super()._append(layer, latent, rope_key)
        self.old = {**getattr(self, "old", {}), layer: stored[1].clone()}
        return stored


# Of a window ---------------------------------------------------------------------------------------


class Window(SlidingWindowCache):
    def __init__(self, config, batch_size=1):
        super().__init__(config, 4, batch_size)


@broken("what the stored slots need", "used_bytes was", "came back in the next step: that many need")
class WindowCountsKeysAlone(Window):
    @property
    def used_bytes(self):
        return super().used_bytes // 2


@broken("what the stored slots need", "After 4 slots used_bytes was 0, and 48 of their tokens")
class WindowCountsNothing(Window):
    used_bytes = 0


@broken("what the stored slots need", "After 4 slots used_bytes is", "and all slots together need")
class WindowCountsItsRoom(StaticCache):
    """A ring whose room is counted as used before anything lies in it."""

    window = 40

    @property
    def used_bytes(self):
        return self.allocated_bytes if self.length else 0


@broken("An unfinished step counts for nothing", "After an unfinished step and a truncate, used_bytes is")
class KeepsTheChunkOfAnUnfinishedStep(Window):
    """The chunk was put aside, and stays there when the step is dropped."""

    def _truncate(self, layer, length):
        pass


@broken("A room that is there is written in place", "the room is copied at every step")
class CopiesItsRoom(StaticCache):
    """Preallocated by name: each step copies the room whole, which is more than a cache that grows copies."""

    def _append(self, layer, k, v):
        self._keys, self._values = self._keys.clone(), self._values.clone()
        return super()._append(layer, k, v)
