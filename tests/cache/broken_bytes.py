"""Caches with one classic bug each in the bytes that they count, or that they keep and do not count."""

import torch
from broken_caches import broken
from other_caches import DoublingCache, ListCache

from kvlearn.cache import GrowingCache, SlidingWindowCache, StaticCache

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


@broken("what the stored slots need", "After 8 slots used_bytes is", "A window of 3 keeps the last 3")
class WindowOnlyInTheMask(SlidingWindowCache):
    """llm_from_scratch#3: attention sees a window, and the cache stores the whole text."""

    def __init__(self, config, batch_size=1):
        super().__init__(config, 3, batch_size)

    def _start(self, batch_size):
        super()._start(batch_size)
        self._everything = []

    def _append(self, layer, k, v):
        self._everything += [k.clone(), v.clone()]
        return super()._append(layer, k, v)

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


@broken(HOLD, "After 20 slots ", "allocated_bytes is 122880, and the cache keeps 19")
class ForgetsTheLastDoubling(DoublingCache):
    """20 slots in a room for 32."""

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


@broken(HOLD, "After 20 slots and a truncate(0) allocated_bytes is 0, and the cache keeps 122")
class SlicesWhatItCuts(GrowingCache):
    """A slice of nothing keeps the whole storage alive."""

    def _truncate(self, layer, length):
        self._keys[layer] = self._keys[layer][:, :, :length]
        self._values[layer] = self._values[layer][:, :, :length]

    @property
    def allocated_bytes(self):
        return self.used_bytes


@broken(HOLD, "After 20 slots ", "allocated_bytes is 122880, and the cache keeps 24")
class KeepsWhatItReturned(GrowingCache):
    """A second copy of everything, which nobody counts."""

    def _append(self, layer, k, v):
        k, v = (side.clone() for side in super()._append(layer, k, v))
        self.returned = {**getattr(self, "returned", {}), layer: (k, v)}
        return k, v


@broken(HOLD, "After 20 slots and a reset allocated_bytes is 0, and the cache keeps 12")
class KeepsWhatWasReset(GrowingCache):
    """Forgotten, and still there."""

    def reset(self):
        self.old = self._keys, self._values
        super().reset()
