"""The sliding-window cache: a ring buffer that keeps the last W positions of each row, and nothing else.

A layer with a window of W lets a query see itself and the W - 1 positions before it (Mistral 7B, arXiv
2310.06825), so that older keys and values will never be read again. Position p stands in slot p % W of the
ring, which is where position p - W stood: writing the new token is what evicts the old one.

A chunk of several tokens must not be written at once, because its first query still sees what its last
token will overwrite. So it is kept apart while the step is under way, and the order is: attend first, trim
later. An unfinished step has then changed nothing, and can be dropped.

    what update returns:    [ the ring, in the order of its slots | the whole chunk ]
    once the step is over:  each of the chunk's last W tokens into slot position % W

Hybrid models have windows in some layers only (Gemma, gpt-oss). A layer without one keeps everything, as
`GrowingCache` does.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kvlearn.cache import arguments
from kvlearn.cache.growing import GrowingCache
from kvlearn.values import is_whole, whole


class SlidingWindowCache(GrowingCache):
    """Keys and values of the last `window` positions of each row; `length` counts all tokens seen.

    Once the step is over, a layer with a window W holds min(W, tokens of the longest row) slots in each
    row; padding takes none. The storage grows to that size and no further.

    Args:
        config: a `DecoderConfig`.
        window: W, for every layer; a layer whose own window is smaller keeps its own. None = the model's own
            windows, `config.windows`.
        batch_size: B.
        dtype: of what is stored; torch's default when left out.
        device: where it lives; the CPU when left out.

    Attributes:
        windows: one entry a layer, W or None (this layer keeps everything).
        window: the largest of these, or None. A layer's mask comes from the smaller of this and its own.

    Raises:
        ValueError: a window that is not a whole number, or below 1.
    """

    def __init__(self, config, window, batch_size=1, *, dtype=None, device=None):
        arguments.check_sizes(config, batch_size, None)
        self.windows = _windows(config, window)
        self.window = None if None in self.windows else max(self.windows)
        super().__init__(config, batch_size, dtype=dtype, device=device)

    @torch.inference_mode(False)
    def truncate(self, length):
        """Roll back to a number of slots, or to one number a row, as every cache does.

        Raises:
            ValueError: as every cache, and where the next query could need a position that has been
                evicted. The cache is then as it was. 0 slots are always possible.
        """
        positions = self._first_slots(arguments.slots_to_keep(self, length))
        for ring in self._rings.values():
            ring.check_roll_back(self._positions, positions)  # before anything is touched
        for layer in range(self.num_layers):
            self._truncate(layer, positions.shape[1])
        for ring in self._rings.values():
            ring.roll_back(positions)
        self._describe(positions)

    # What a kind of cache writes -----------------------------------------------------------------

    def _start(self, batch_size):
        super()._start(batch_size)
        windows = {window for window in self.windows if window is not None}
        self._rings = {window: _Ring(window, batch_size, self.device) for window in windows}
        self._chunks = [()] * self.num_layers  # k and v of the step under way, where there is a window

    def _append(self, layer, k, v):
        ring = self._ring(layer)
        if ring is None:
            return super()._append(layer, k, v)
        places = ring.arrive(self._step)
        self._chunks[layer] = _take(k, places), _take(v, places)
        return tuple(
            torch.cat((ring.without_gaps(kept), new), dim=2)
            for kept, new in ((self._keys[layer], k), (self._values[layer], v))
        )

    def _settle(self):
        moves = {window: ring.take_in() for window, ring in self._rings.items()}
        for layer, chunk in enumerate(self._chunks):
            if not chunk:
                continue
            ring, (rows, places, slots) = self._ring(layer), moves[self.windows[layer]]
            for sides, new in zip((self._keys, self._values), chunk, strict=True):
                sides[layer] = _widened(sides[layer], ring.width)
                sides[layer][rows, :, slots] = new[rows, :, places]
            self._chunks[layer] = ()

    def _truncate(self, layer, length):
        if self._ring(layer) is None:
            super()._truncate(layer, length)
        self._chunks[layer] = ()

    def _reorder(self, index):
        for ring in self._rings.values():
            ring.reorder(index)
        for sides in (self._keys, self._values):
            sides[:] = [side.index_select(0, index) for side in sides]

    def _kept_positions(self, layer):
        ring = self._ring(layer)
        return self._positions if ring is None else ring.kept

    def _tensors(self):
        stored = [new for chunk in self._chunks for new in chunk]
        for layer in range(self.num_layers):
            ring = self._ring(layer)
            end = None if ring is None else ring.kept.shape[1]
            stored += [self._keys[layer][:, :, :end], self._values[layer][:, :, :end]]
        return stored

    def _ring(self, layer):
        return self._rings.get(self.windows[layer])


class _Ring:
    """Which position stands in which slot: one for all layers that have the same window.

    Attributes:
        positions: (B, width) of the slots; -1 = empty. The width grows to the window.
        kept: (B, S) the same without gaps, which is how `update` returns them.
    """

    def __init__(self, window: int, batch_size: int, device: torch.device):
        self.window = window
        self._set(torch.empty(batch_size, 0, dtype=torch.long, device=device))

    @property
    def width(self) -> int:
        return self.positions.shape[1]

    def arrive(self, step: Tensor) -> Tensor:
        """A step at these positions (B, L); (B, n), the places in it of the tokens that will stay."""
        if self._step is not step:
            # The largest positions of each row: where the padding stands does not matter.
            positions, self._places = step.topk(min(self.window, step.shape[1]), dim=1)
            gone = positions <= positions[:, :1] - self.window  # after a jump of positions
            self._step, self._arrived = step, positions.masked_fill(gone, -1)
        return self._places

    def take_in(self) -> tuple[Tensor, Tensor, Tensor]:
        """The step is over. Which tokens move where: row, column in `arrive`'s answer, and slot."""
        rows, columns = (self._arrived >= 0).nonzero(as_tuple=True)
        arrived = self._arrived[rows, columns]
        slots = arrived % self.window
        width = max(self.width, int(slots.max()) + 1 if len(slots) else 0)
        positions = self.positions.new_full((len(self.positions), width), -1)
        positions[:, : self.width] = self.positions
        positions[rows, slots] = arrived
        self._set(positions.masked_fill(positions < _following(positions) - self.window, -1))
        return rows, columns, slots

    def check_roll_back(self, given: Tensor, left: Tensor) -> None:
        """Refuse to leave a row whose next query would need what is gone.

        Args:
            given: (B, length) all positions so far.
            left: (B, S) those that the roll back would leave.
        """
        following = _following(left)
        first = (following - self.window).clamp(min=-1) + 1  # the oldest that the next query sees
        needed = (left >= first).sum(dim=1)
        there = ((self.positions >= first) & (self.positions < following)).sum(dim=1)
        for row in (needed > there).nonzero().flatten().tolist():
            oldest = min(position for position in self.positions[row].tolist() if position >= 0)
            gone = max(position for position in given[row].tolist() if position < oldest)
            raise ValueError(
                f"Row {row} cannot be rolled back so far: its next query, at position {int(following[row])}, "
                f"would see positions from {int(first[row])} on, and a window of {self.window} has dropped "
                f"{gone} and all before it. The row's next position may be {gone + self.window} at the "
                "lowest; or reset the cache and feed the text again."
            )

    def roll_back(self, positions: Tensor) -> None:
        """Empty the slots of all tokens that are not among these (B, S)."""
        self._set(self.positions.masked_fill(self.positions >= _following(positions), -1))

    def reorder(self, index: Tensor) -> None:
        self._set(self.positions.index_select(0, index))

    def without_gaps(self, kept: Tensor) -> Tensor:
        """(B, heads, width, head_dim) as (B, heads, S, head_dim), in the order of `self.kept`."""
        return kept if self._order is None else _take(kept, self._order)

    def _set(self, positions: Tensor) -> None:
        fullest = int((positions >= 0).sum(dim=1).max())
        self.positions, self.kept, self._order = positions, positions, None
        if fullest < self.width:  # slots that no row fills, after a roll back or a jump of positions
            self.kept, self._order = positions.topk(fullest, dim=1)
        self._step = self._places = self._arrived = None


def _windows(config, window: int | None) -> tuple[int | None, ...]:
    """The window of each layer."""
    own = getattr(config, "windows", None)
    own = () if own is None else own
    if not isinstance(own, list | tuple) or len(own) not in (0, config.num_layers):
        raise ValueError(
            f"config.windows has one window (or None) for each of the {config.num_layers} layers, or is "
            f"empty; got {own!r:.80}."
        )
    own = [None if layer is None else whole(layer, "a layer's window") for layer in own]
    own = own or [None] * config.num_layers
    if window is not None:
        if not is_whole(window) or window < 1:
            raise ValueError(
                f"A window is a whole number of positions, at least 1 (the query itself), or None for the "
                f"model's own; got {window!r}."
            )
        window = int(window)
        own = [window if layer is None else min(layer, window) for layer in own]
    # No query sees more than all positions, and numbers beyond 64 bits are no tensor's.
    return tuple(None if layer is None else min(layer, config.max_position) for layer in own)


def _following(positions: Tensor) -> Tensor:
    """(B, 1) the position after each row's last."""
    return F.pad(positions, (0, 1), value=-1).amax(dim=1, keepdim=True) + 1


def _take(x: Tensor, places: Tensor) -> Tensor:
    """The slots `places` (B, n) of x (B, heads, S, head_dim), row by row."""
    return x.gather(2, places[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _widened(kept: Tensor, width: int) -> Tensor:
    """Room for `width` slots."""
    if kept.shape[2] == width:
        return kept
    # Zeros: a slot that a shorter row has not written gets the weight 0, and 0 x NaN is NaN.
    wider = kept.new_zeros(*kept.shape[:2], width, kept.shape[3])
    wider[:, :, : kept.shape[2]] = kept
    return wider
