"""Right answers to lesson 07 that were written independently of the library and of the course."""

import torch
import torch.nn.functional as F

from kvlearn import KVCache

# window_mask ----------------------------------------------------------------------------------------


def mask_by_distance(query_positions, key_positions, window):
    """How far back each key lies: 0 to window - 1 is inside."""
    back = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)  # (B, L, S)
    inside = back.ge(0).logical_and(back.lt(window)).logical_and(key_positions.ne(-1).unsqueeze(-2))
    return inside.unsqueeze(1)


def mask_by_rows(query_positions, key_positions, window):
    B, L = query_positions.shape
    mask = torch.zeros(B, 1, L, key_positions.shape[1]).bool()
    for row in range(B):
        for i, position in enumerate(query_positions[row]):
            oldest = max(int(position) - window + 1, 0)
            mask[row, 0, i] = (key_positions[row] >= oldest) & (key_positions[row] <= position)
    return mask


# windowed_prefill ------------------------------------------------------------------------------------


def prefill_from_the_whole(attend, q, k, v, window, chunk):
    """Nothing is carried along: each chunk's keys are cut out of the prompt, one fewer than may be kept."""
    outputs = []
    for queries in torch.arange(q.shape[2]).split(chunk):
        keys = torch.arange(max(0, int(queries[0]) - window + 1), int(queries[-1]) + 1)
        back = queries[:, None] - keys
        outputs.append(attend(q[:, :, queries], k[:, :, keys], v[:, :, keys], (back >= 0) & (back < window)))
    return torch.cat(outputs, dim=2)


def prefill_with_a_queue(attend, q, k, v, window, chunk):
    """A Python list of (position, key, value)."""
    queue, out = [], torch.empty_like(q)
    for start in range(0, q.shape[2], chunk):
        end = min(start + chunk, q.shape[2])
        queue += [(i, k[:, :, i], v[:, :, i]) for i in range(start, end)]
        positions, keys, values = zip(*queue, strict=True)
        mask = torch.tensor([[i - window < p <= i for p in positions] for i in range(start, end)])
        out[:, :, start:end] = attend(
            q[:, :, start:end], torch.stack(keys, 2), torch.stack(values, dim=2), mask
        )
        del queue[:-window]
    return out


# The ring --------------------------------------------------------------------------------------------


def ring_by_distance(length, window):
    """How far back from the last token's slot, around the ring."""
    last = length - 1
    positions = [last - (last - slot) % window for slot in range(window)]
    return [position if position >= 0 else -1 for position in positions]


def ring_by_scatter(length, window):
    slots = torch.full((window,), -1)
    kept = torch.arange(max(0, length - window), length)
    slots[kept % window] = kept
    return slots


def write_by_choice(ring, new, positions):
    """For each slot: the last column whose token belongs there, or none."""
    B, _, W, _ = ring.shape
    out = ring.clone()
    for row in range(B):
        for slot in range(W):
            line = positions[row]
            columns = torch.nonzero((line >= 0) & (line % W == slot)).flatten()
            if len(columns):
                out[row, :, slot] = new[row, :, columns[-1]]
    return out


def write_by_one_hot(ring, new, positions):
    """A matrix product with ones and zeros picks the tokens."""
    W = ring.shape[2]
    newest = positions.amax(dim=1, keepdim=True)
    stays = (positions >= 0) & (positions > newest - W)
    pick = F.one_hot(positions.clamp(min=0) % W, W) * stays[..., None]  # (B, L, W)
    kept = 1 - pick.sum(dim=1)  # (B, W)
    return ring * kept[:, None, :, None].to(ring.dtype) + torch.einsum(
        "blw,bhld->bhwd", pick.to(new.dtype), new
    )


# may_roll_back ---------------------------------------------------------------------------------------


def roll_back_by_counting(stored, length, window):
    seen = [p for p in stored if max(0, length - window + 1) <= p < length]
    return len(seen) == min(length, window - 1)


def roll_back_step_by_step(stored, length, window):
    position, left = length - 1, window - 1
    while position >= 0 and left > 0:
        if position not in stored:
            return False
        position, left = position - 1, left - 1
    return True


# sliding_window_cache ----------------------------------------------------------------------------------


class InOrder(KVCache):
    """No ring: the last W tokens of each row in order, right-aligned, -1 in front of a short row."""

    def __init__(self, config, window, batch_size=1, dtype=None, device=None):
        self.window = window
        super().__init__(config, batch_size, dtype=dtype, device=device)

    def _start(self, batch_size):
        heads, dim = self.key_shape
        self.past = torch.zeros(self.num_layers, 2, batch_size, heads, 0, dim, dtype=self.dtype)
        self.where = torch.zeros(batch_size, 0, dtype=torch.long)
        self.both = [None] * self.num_layers

    def _append(self, layer, k, v):
        self.both[layer] = torch.cat((self.past[layer], torch.stack((k, v))), dim=3)
        return self.both[layer][0], self.both[layer][1]

    def _kept_positions(self, layer):
        return self.where

    def _settle(self):
        length = self.both[0].shape[3] - self.past.shape[4]
        where = torch.cat((self.where, self.positions[:, self.positions.shape[1] - length :]), dim=1)
        self._keep(torch.stack(self.both), where)

    def _keep(self, both, where):
        order = where.argsort(dim=1, stable=True)
        most = min(int((where >= 0).sum(dim=1).max()), self.window)
        order = order[:, order.shape[1] - most :]
        self.where = where.gather(1, order)
        layers, _, _, heads, _, dim = both.shape
        index = order[None, None, :, None, :, None].expand(layers, 2, -1, heads, -1, dim)
        self.past = both.gather(4, index)
        self.both = [None] * self.num_layers

    def _truncate(self, layer, length):
        self.both[layer] = None

    def _tensors(self):
        return [self.past]

    def truncate(self, length):
        left = [max([-1, *row[:length]]) + 1 for row in self.positions.tolist()]
        for stored, following in zip(self.where.tolist(), left, strict=True):
            for position in range(max(0, following + 1 - self.window), following):
                if position not in stored:
                    raise ValueError("gone")
        super().truncate(length)
        self._keep(self.past, self.where.masked_fill(self.where >= torch.tensor(left)[:, None], -1))


class RingOfDicts(KVCache):
    """A dict for each layer, row and slot; what comes back is put together at every call."""

    def __init__(self, config, window, batch_size=1, dtype=None, device=None):
        super().__init__(config, batch_size, dtype=dtype, device=device)
        self.window = window

    def _start(self, batch_size):
        self.slots = [[{} for _ in range(batch_size)] for _ in range(self.num_layers)]
        self.waiting = {}

    def _append(self, layer, k, v):
        self.waiting[layer] = k.clone(), v.clone()
        K, V = self._read(layer)
        return torch.cat((K, k), dim=2), torch.cat((V, v), dim=2)

    def _read(self, layer):
        width = max(len(row) for row in self.slots[layer])
        heads, dim = self.key_shape
        out = torch.zeros(2, self.batch_size, heads, width, dim, dtype=self.dtype)
        for i, row in enumerate(self.slots[layer]):
            for j, (_, k, v) in enumerate(row.values()):
                out[0, i, :, j], out[1, i, :, j] = k, v
        return out.unbind()

    def _kept_positions(self, layer):
        rows = [[p for p, _, _ in row.values()] for row in self.slots[layer]]
        width = max(map(len, rows))
        return torch.tensor([row + [-1] * (width - len(row)) for row in rows]).long().view(len(rows), width)

    def _settle(self):
        for layer, (k, v) in self.waiting.items():
            for i, line in enumerate(self.positions[:, -k.shape[2] :].tolist()):
                for j, p in enumerate(line):
                    if p != -1:
                        self.slots[layer][i][p % self.window] = p, k[i, :, j], v[i, :, j]
        self.waiting.clear()

    def _truncate(self, layer, length):
        self.waiting.pop(layer, None)

    def truncate(self, length):
        ends = [max(row[:length], default=-1) for row in self.positions.tolist()]
        for end, row in zip(ends, self.slots[0], strict=True):
            held = {p for p, _, _ in row.values() if p <= end}
            if len([p for p in held if p > end + 1 - self.window]) < min(end + 1, self.window - 1):
                raise ValueError(f"a window of {self.window} cannot go back to {length}")
        super().truncate(length)
        for layer in self.slots:
            for i, end in enumerate(ends):
                layer[i] = {slot: token for slot, token in layer[i].items() if token[0] <= end}

    def _tensors(self):
        return [side.clone() for layer in range(self.num_layers) for side in self._read(layer)]


ALTERNATIVES = {
    "window_mask": [mask_by_distance, mask_by_rows],
    "windowed_prefill": [prefill_from_the_whole, prefill_with_a_queue],
    "ring_positions": [ring_by_distance, ring_by_scatter],
    "ring_write": [write_by_choice, write_by_one_hot],
    "may_roll_back": [roll_back_by_counting, roll_back_step_by_step],
    "sliding_window_cache": [InOrder, RingOfDicts],
}
