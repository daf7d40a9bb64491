"""What a right cache would hold: the oracle of the conformance suite.

A `Ledger` writes down every token that a cache was given, one after another, and forgets only what it is
told to. No two tokens have the same numbers, so that a token in a wrong place is known for what it is.

A lossy cache may change a token's numbers once, when they become codes. So the ledger also writes down what
the cache itself returned last.

Shapes: keys (layers, B, Hkv, S, D), values likewise, positions (B, S).
"""

import torch
from torch import Tensor

SIDES = ("key", "value")


class Broken(Exception):
    """A rule does not hold. The text says what was seen and what should have been."""


class Ledger:
    """Every token given, in the order of the slots.

    Attributes:
        given, returned: [keys, values], as they were given and as they came back last.
        rounded: (2, layers, B, S), whether a key or a value has come back as another than was given.
        positions: (B, S); -1 = padding, or a slot that a row has given up.
        dropped: (B, S), whether a window may have dropped the token.
        settled: the slots from here on are exact; those before may be codes.
        largest: the largest |number| given so far in a key and in a value, padding aside.
    """

    def __init__(self, num_layers, batch_size, key_shape, value_shape, dtype, device):
        self.given = [
            torch.empty(num_layers, batch_size, heads, 0, dim, dtype=dtype, device=device)
            for heads, dim in (key_shape, value_shape)
        ]
        self.returned = list(self.given)
        self.rounded = torch.zeros(2, num_layers, batch_size, 0, dtype=torch.bool, device=device)
        self.positions = torch.empty(batch_size, 0, dtype=torch.long, device=device)
        self.dropped = self.positions.bool()
        self.settled, self.largest = 0, [0.0, 0.0]

    @property
    def keys(self) -> Tensor:
        return self.given[0]

    @property
    def values(self) -> Tensor:
        return self.given[1]

    @property
    def length(self) -> int:
        return self.positions.shape[1]

    @property
    def batch_size(self) -> int:
        return self.positions.shape[0]

    @property
    def next_position(self) -> list[int]:
        return [max([-1, *row]) + 1 for row in self.positions.tolist()]

    def append(self, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """The tokens of a step, before it: `end_step` follows."""
        self.positions = torch.cat((self.positions, positions), dim=1)
        held = (positions >= 0)[:, None, :, None]
        for side, new in enumerate((keys, values)):
            self.given[side] = torch.cat((self.given[side], new), dim=3)
            self.returned[side] = torch.cat((self.returned[side], new), dim=3)
            self.largest[side] = max(self.largest[side], float((new * held).abs().max()))
        nothing = self.rounded.new_zeros(*self.rounded.shape[:3], positions.shape[1])
        self.rounded = torch.cat((self.rounded, nothing), dim=3)
        self.dropped = torch.cat((self.dropped, nothing[0, 0]), dim=1)

    def end_step(self, window: int | None, residual: int) -> None:
        """Now a cache drops what has left the window, and rounds all but the last `residual` slots."""
        self.settled = max(self.settled, self.length - residual)
        if window is not None:
            newest = self.positions.amax(dim=1, keepdim=True)
            self.dropped |= (self.positions >= 0) & (self.positions <= newest - window)

    def needs_what_is_dropped(self, length: int | list[int], window: int) -> bool:
        """Would the next query after a truncate see a token that the window may have dropped?"""
        kept = self._first_slots(length)
        following = kept.amax(dim=1, keepdim=True) + 1 if kept.shape[1] else 0
        seen = (kept >= 0) & (kept > following - window)
        return bool((seen & self.dropped[:, : kept.shape[1]]).any())

    def truncate(self, length: int | list[int]) -> None:
        self.positions = self._first_slots(length)
        for sides in (self.given, self.returned):
            sides[:] = [side[:, :, :, : self.length] for side in sides]
        self.rounded = self.rounded[:, :, :, : self.length]
        self.dropped = self.dropped[:, : self.length]
        self.settled = min(self.settled, self.length)

    def reorder(self, index: list[int]) -> None:
        for sides in (self.given, self.returned):
            sides[:] = [side[:, index] for side in sides]
        self.rounded = self.rounded[:, :, index]
        self.positions, self.dropped = self.positions[index], self.dropped[index]

    def _first_slots(self, length: int | list[int]) -> Tensor:
        """The positions that a truncate leaves."""
        rows = [length] * self.batch_size if isinstance(length, int) else length
        positions = self.positions[:, : max(rows)].clone()
        for row, kept in enumerate(rows):
            positions[row, kept:] = -1
        return positions

    def owner(self, token: Tensor) -> str | None:
        """Whose numbers these (heads, head_dim) are: "the value given for layer 0, row 1, ..."."""
        for side, given in zip(SIDES, self.given, strict=True):
            if (given.shape[2], given.shape[4]) != tuple(token.shape):
                continue
            same = (given == token[None, None, :, None]).all(dim=4).all(dim=2)  # (layers, B, S)
            if same.any():
                layer, row, slot = same.nonzero()[0].tolist()
                position = int(self.positions[row, slot])
                where = f"position {position}" if position >= 0 else f"slot {slot}, which holds no token"
                return f"the {side} given for layer {layer}, row {row}, {where}"
        return None
