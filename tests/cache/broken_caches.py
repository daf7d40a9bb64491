"""Caches with one classic bug each in what they store, and the words that the suite must find for it."""

import torch

from kvlearn.cache import GrowingCache, StaticCache

BROKEN = []  # (class, the words that the message must contain)
EVERYTHING = "every token given to this layer"


def broken(*words):
    def register(kind):
        BROKEN.append((kind, words))
        return kind

    return register


# What is stored, and what comes back ---------------------------------------------------------------


@broken(EVERYTHING, "is 1, and key_positions(0) describes 4 slots. 4 were given")
class FirstChunkNotStored(GrowingCache):
    """An empty cache hands the prompt back and does not keep it."""

    def _append(self, layer, k, v):
        if self.length == 0:
            return k.clone(), v.clone()
        return super()._append(layer, k, v)


@broken(EVERYTHING, "is 2, and key_positions(0) describes 3 slots")
class FirstTokenNotStored(GrowingCache):
    def _append(self, layer, k, v):
        start = 1 if self.length == 0 else 0
        return super()._append(layer, k[:, :, start:], v[:, :, start:])


@broken(EVERYTHING, "is 40, and 3 slots have been written")
class ReturnsTheWholeCapacity(StaticCache):
    def _append(self, layer, k, v):
        super()._append(layer, k, v)
        return self._keys[layer], self._values[layer]


@broken(EVERYTHING, "position 0 is not the one", "It is the key given for layer 0, row 0, position 1")
class ReturnsOneSlotTooFar(StaticCache):
    """The right number of slots from the wrong place: the last has never been written."""

    def _stored(self, layer):
        slots = slice(1, self._lengths[layer] + 1)
        return self._keys[layer, :, :, slots], self._values[layer, :, :, slots]


@broken(EVERYTHING, "The key that comes back", "It is the value given for layer 0, row 0, position 0")
class KeysAndValuesSwapped(GrowingCache):
    def _append(self, layer, k, v):
        return super()._append(layer, v, k)


@broken(EVERYTHING, "layer 1 is 6, and 3 slots have been written")
class OneListForAllLayers(GrowingCache):
    def _append(self, layer, k, v):
        return super()._append(0, k, v)


@broken(EVERYTHING, "layer 0, row 0, position 0 is not", "It is the key given for layer 3, row 0, position 0")
class OneStorageForAllLayers(StaticCache):
    def _start(self, batch_size):
        super()._start(batch_size)
        self._keys = self._keys[:1].expand(self.num_layers, -1, -1, -1, -1)


@broken(EVERYTHING, "layer 0, row 0, position 0 is not", "It is the key given for layer 0, row 0, position 3")
class WritesFromTheStart(StaticCache):
    """Every chunk lands on slot 0: the offset is forgotten."""

    def _append(self, layer, k, v):
        self._keys[layer, :, :, : k.shape[2]] = k
        self._values[layer, :, :, : k.shape[2]] = v
        self._lengths[layer] += k.shape[2]
        return self._stored(layer)


@broken(EVERYTHING, "K has the shape (3, 6, 3, 32)", "(batch, kv heads, length, head_dim)")
class RepeatsToQueryHeads(GrowingCache):
    """meta-pytorch/torchtune#38: as many heads as there are queries."""

    def _append(self, layer, k, v):
        k, v = super()._append(layer, k, v)
        return k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)


@broken("only key/value heads are kept", "key_shape is (6, 32)", "(2, 32)")
class MadeForQueryHeads(GrowingCache):
    def __init__(self, config, batch_size=1):
        super().__init__(config, batch_size)
        self.key_shape = self.value_shape = (config.num_heads, config.head_dim)


@broken(EVERYTHING, "two tensors", "None (is a `return` missing?)")
class ReturnsNothing(GrowingCache):
    def _append(self, layer, k, v):
        super()._append(layer, k, v)


@broken(EVERYTHING, "Its numbers belong to no token that should be there")
class RoundsAndDoesNotSay(GrowingCache):
    """Stores bfloat16 in a float32 cache, and still says that it is exact."""

    def _append(self, layer, k, v):
        return super()._append(layer, k.bfloat16().float(), v.bfloat16().float())


@broken("are copied", "layer 0, row 0, position 0")
class KeepsTheGivenTensors(GrowingCache):
    """The first chunk needs no concatenation, so the caller's own tensors are kept."""

    def _append(self, layer, k, v):
        if self.length == 0:
            self._keys[layer], self._values[layer] = k, v
            return k, v
        return super()._append(layer, k, v)


@broken("are copied, and not changed", "update has changed the tensor that it was given as v")
class ScalesInPlace(GrowingCache):
    """The model goes on with what it gave: its own attention may read the same tensor."""

    def _append(self, layer, k, v):
        k, stored = super()._append(layer, k, v.clone())
        v.mul_(2)
        return k, stored


@broken("are copied, and not changed", "update has changed the tensor that it was given as positions")
class ShiftsPositionsInPlace(GrowingCache):
    def update(self, layer, k, v, positions=None):
        result = super().update(layer, k, v, positions)
        if positions is not None:
            positions += 1
        return result


@broken(EVERYTHING, "view size is not compatible")
class ViewsWhatIsNotContiguous(GrowingCache):
    """Heads that were split from channels do not lie in order, and `view` wants that they do."""

    def _append(self, layer, k, v):
        return super()._append(layer, k.reshape(-1).view(k.shape), v.view(-1).view(v.shape))


@broken("Two caches share nothing", "slots have been written. Only written slots are returned, each once.")
class OnClassLevel(GrowingCache):
    """The lists belong to the class, so that a second cache finds the first one's tokens."""

    _keys, _values = [], []

    def _start(self, batch_size):
        nothing = torch.empty(batch_size, self.key_shape[0], 0, self.key_shape[1])
        while len(self._keys) < self.num_layers:
            self._keys.append(nothing)
            self._values.append(nothing)


@broken("has the dtype", "bfloat16")
class AlwaysFloat32(GrowingCache):
    """Lightning-AI/litgpt#57: float32 storage in a bfloat16 model."""

    def __init__(self, config, batch_size=1, dtype=None):
        super().__init__(config, batch_size, dtype=torch.float32)


# Not finished ---------------------------------------------------------------------------------------


@broken("is not written yet")
class NotWrittenYet(GrowingCache):
    def _append(self, layer, k, v):
        raise NotImplementedError


@broken("fails where a rule is tried", "IndexError", "self.nowhere[layer]")
class RaisesItsOwnError(GrowingCache):
    nowhere = ()

    def _append(self, layer, k, v):
        return self.nowhere[layer]


@broken("every member of the contract", "It has no key_positions and no used_bytes.")
class LacksMembers:
    """From scratch, and not finished."""

    length, allocated_bytes, next_position = 0, 0, torch.zeros(3)
    key_shape = value_shape = (2, 32)

    def __init__(self, config, batch_size=1):
        pass

    def update(self, layer, k, v, positions=None):
        return k, v

    def truncate(self, length):
        pass

    reorder, reset = truncate, truncate
