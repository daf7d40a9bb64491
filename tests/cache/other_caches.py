"""Right caches that are not the library's, for the conformance suite to accept."""

import numpy as np
import torch

from kvlearn.cache import GrowingCache, KVCache, StaticCache


class DoublingCache(KVCache):
    """Four methods on the base class: storages that double when they are full."""

    def _start(self, batch_size):
        self.full = [0] * self.num_layers
        self.room = [
            [torch.empty(batch_size, heads, 1, dim, dtype=self.dtype) for heads, dim in self.shapes()]
            for _ in range(self.num_layers)
        ]

    def shapes(self):
        return self.key_shape, self.value_shape

    def _append(self, layer, k, v):
        end = self.full[layer] + k.shape[2]
        for side, given in enumerate((k, v)):
            while self.room[layer][side].shape[2] < end:
                old = self.room[layer][side]
                self.room[layer][side] = torch.cat((old, torch.empty_like(old)), dim=2)
            self.room[layer][side][:, :, self.full[layer] : end] = given
        self.full[layer] = end
        return tuple(self.stored(layer))

    def stored(self, layer):
        return [side[:, :, : self.full[layer]] for side in self.room[layer]]

    def _truncate(self, layer, length):
        self.full[layer] = length

    def _tensors(self):
        return [side for layer in range(self.num_layers) for side in self.stored(layer)]


class UnequalSidesCache(GrowingCache):
    """Keys of (1, 5) and values of (3, 2), whatever the config says."""

    def _start(self, batch_size):
        self.key_shape, self.value_shape = (1, 5), (3, 2)
        super()._start(batch_size)


class PagedCache(KVCache):
    """Blocks of 16 slots, made when they are needed, and one room where a layer's blocks are put in a row.

    The room holds no stored token, so that it is not among the bytes.
    """

    def __init__(self, config, batch_size=1, dtype=None):
        super().__init__(config, batch_size, max_length=48, dtype=dtype)

    def block(self, slots):
        heads, dim = self.key_shape
        return torch.empty(2, self.rows, heads, slots, dim, dtype=self.dtype)

    def _start(self, batch_size):
        self.rows, self.full = batch_size, [0] * self.num_layers
        self.blocks = [[] for _ in range(self.num_layers)]
        self.room = self.block(48)

    def _append(self, layer, k, v):
        blocks, new = self.blocks[layer], torch.stack((k, v))
        for i in range(k.shape[2]):
            if self.full[layer] == 16 * len(blocks):
                blocks.append(self.block(16))
            blocks[-1][:, :, :, self.full[layer] % 16] = new[:, :, :, i]
            self.full[layer] += 1
        for i, block in enumerate(blocks):
            self.room[:, :, :, 16 * i : 16 * i + 16] = block
        return tuple(self.room[:, :, :, : self.full[layer]])

    def _truncate(self, layer, length):
        self.full[layer] = length
        del self.blocks[layer][-(-length // 16) :]

    def _tensors(self):
        return [
            block[:, :, :, : full - 16 * i]
            for full, blocks in zip(self.full, self.blocks, strict=True)
            for i, block in enumerate(blocks)
        ]


class OneRoomCache(GrowingCache):
    """What comes back lies in a room for one layer, larger than it needs to be; it holds no stored token."""

    def _append(self, layer, k, v):
        sides = super()._append(layer, k, v)
        if not hasattr(self, "room"):
            self.room = torch.zeros(2, 5, *self.key_shape[:1], 77, self.key_shape[1], dtype=self.dtype)
        for room, side in zip(self.room, sides, strict=True):
            room[: len(side), :, : side.shape[2]] = side
        return tuple(self.room[:, : len(k), :, : sides[0].shape[2]])


class ArenaCache(StaticCache):
    """Takes its room out of memory that was there before it, and counts its own part."""

    arena, taken = torch.empty(2_000_000, dtype=torch.uint8), 0

    def __init__(self, config, batch_size=1, dtype=None):
        super().__init__(config, batch_size, max_length=24, dtype=dtype)

    def _start(self, batch_size):
        heads, dim = self.key_shape
        shape = 2, self.num_layers, batch_size, heads, self.max_length, dim
        needed = torch.Size(shape).numel() * self.dtype.itemsize
        start = ArenaCache.taken if ArenaCache.taken + needed <= len(self.arena) else 0
        ArenaCache.taken = start + needed
        self._keys, self._values = self.arena[start : start + needed].view(self.dtype).view(shape)
        self._lengths = [0] * self.num_layers

    @property
    def allocated_bytes(self):
        return self._keys.nbytes + self._values.nbytes


class NumpyCache(KVCache):
    """Arrays of numpy's, which torch has not allocated."""

    def __init__(self, config, batch_size=1):
        super().__init__(config, batch_size)

    def _start(self, batch_size):
        heads, dim = self.key_shape
        nothing = torch.empty(2, batch_size, heads, 0, dim, dtype=self.dtype).numpy()
        self.arrays = [nothing] * self.num_layers

    def _append(self, layer, k, v):
        self.arrays[layer] = np.concatenate((self.arrays[layer], np.stack((k.numpy(), v.numpy()))), axis=3)
        return tuple(torch.from_numpy(self.arrays[layer]))

    def _truncate(self, layer, length):
        self.arrays[layer] = self.arrays[layer][:, :, :, :length].copy()

    def _tensors(self):
        return [torch.from_numpy(array) for array in self.arrays]


class ListCache:
    """From scratch, without the base class: a Python list of tokens for each layer and row.

    Slots come back newest first, and where a row has fewer tokens than another it has empty slots of
    zeros. With a window only the last `window` tokens of a row keep their numbers. A lossy one keeps
    what is older than the step as float8.
    """

    def __init__(self, config, batch_size=1, window=None, exact=True):
        self.config, self.window, self.exact = config, window, exact
        self.key_shape = self.value_shape = (config.num_kv_heads, config.head_dim)
        self.constructed = batch_size
        self.reset()

    def reset(self):
        self._set([[[] for _ in range(self.constructed)] for _ in range(self.config.num_layers)])

    def _set(self, layers):
        """layers[layer][row] is a list of [position, k, v]; k and v are None where they are gone."""
        self.layers, self.pending, self.step = layers, {}, None
        self.last = [torch.tensor([[-1] * self.length for _ in layers[0]])] * len(layers)

    @property
    def length(self):
        return len(self.layers[0][0])

    @property
    def next_position(self):
        return torch.tensor([max([-1] + [p for p, _, _ in row]) + 1 for row in self.layers[0]])

    def update(self, layer, k, v, positions=None):
        rows = len(self.layers[0])
        for side, shape in ((k, self.key_shape), (v, self.value_shape)):
            if side.shape != (rows, shape[0], k.shape[2], shape[1]):
                raise ValueError("wrong shape")
            if side.dtype != torch.get_default_dtype() or side.device.type != "cpu":
                raise ValueError("wrong dtype or device")
        if not 0 <= layer < len(self.layers):
            raise ValueError("wrong layer")
        if positions is None:
            positions = self.next_position[:, None] + torch.arange(k.shape[2])
        if layer in self.pending or not self.pending:
            self._check(positions, k.shape[2])
            self.pending, self.step = {}, positions.tolist()
        elif positions.tolist() != self.step:
            raise ValueError("a step has one set of positions")
        new = [  # each slot a tensor of its own: a slice would keep the whole chunk alive
            [[p, k[row, :, i].clone(), v[row, :, i].clone()] for i, p in enumerate(line)]
            for row, line in enumerate(positions.tolist())
        ]
        slots = [old + fresh for old, fresh in zip(self.layers[layer], new, strict=True)]
        self.pending[layer] = slots
        if len(self.pending) == len(self.layers):
            self.layers = [self._settle(self.pending[i], k.shape[2]) for i in range(len(self.layers))]
            self.pending = {}
        return self._answer(layer, slots)

    def _check(self, positions, length):
        if positions.shape != (len(self.layers[0]), length):
            raise ValueError("wrong positions")
        for start, row in zip(self.next_position.tolist(), positions.tolist(), strict=True):
            real = [start - 1] + [p for p in row if p != -1]
            if any(b <= a for a, b in zip(real, real[1:], strict=False)):
                raise ValueError("positions do not increase")
            if max(real) >= self.config.max_position:
                raise ValueError("position past the last")

    def _settle(self, rows, new):
        """After a step: round what a lossy cache rounds, drop what has left the window."""
        kept = []
        for row in rows:
            real = [p for p, _, _ in row if p >= 0]
            first = real[-self.window] if self.window and len(real) > self.window else 0
            kept.append([[p, *self._stored(k, v, 0 <= p < first)] for p, k, v in row])
        return kept

    def _stored(self, k, v, gone):
        if gone:
            return None, None
        if not self.exact:
            return k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)
        return k, v

    def _answer(self, layer, rows):
        dtype = torch.get_default_dtype()
        real = [[slot for slot in reversed(row) if slot[1] is not None] for row in rows]
        longest = max(len(row) for row in real)
        nothing = [-1, torch.zeros(self.key_shape), torch.zeros(self.value_shape)]
        real = [row + [nothing] * (longest - len(row)) for row in real]
        self.last[layer] = torch.tensor([[p for p, _, _ in row] for row in real], dtype=torch.long)
        if longest == 0:
            return tuple(torch.zeros(len(rows), h, 0, d) for h, d in (self.key_shape, self.value_shape))
        return tuple(
            torch.stack([torch.stack([slot[side].to(dtype) for slot in row], dim=1) for row in real])
            for side in (1, 2)
        )

    def key_positions(self, layer):
        return self.last[layer]

    def truncate(self, length):
        lengths = [length] * len(self.layers[0]) if isinstance(length, int) else list(length)
        if len(lengths) != len(self.layers[0]) or not all(0 <= n <= self.length for n in lengths):
            raise ValueError("wrong lengths")
        longest, nothing = max(lengths), [-1, torch.zeros(self.key_shape), torch.zeros(self.value_shape)]
        layers = [
            [row[:n] + [nothing] * (longest - n) for row, n in zip(rows, lengths, strict=True)]
            for rows in self.layers
        ]
        for row in layers[0]:
            following = max([-1] + [p for p, _, _ in row]) + 1
            if any(k is None and 0 <= p > following - self.window for p, k, _ in row):
                raise ValueError("the next query would need a slot that is gone")
        self._set(layers)

    def reorder(self, batch_index):
        if not batch_index or not all(0 <= i < len(self.layers[0]) for i in batch_index):
            raise ValueError("wrong rows")
        self._set([[list(rows[i]) for i in batch_index] for rows in self.layers])

    @property
    def used_bytes(self):
        sides = [side for rows in self.layers for row in rows for _, *slot in row for side in slot]
        return sum(side.nbytes for side in sides if side is not None)

    allocated_bytes = used_bytes
