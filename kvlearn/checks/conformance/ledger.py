"""What a right cache would hold: the oracle of the conformance suite.

A `Ledger` writes down every token that a cache was given, one after another, and forgets only
what it is told to. `compare` holds what a cache gave back against it, and says in the
subject's words where the two first differ. No two tokens have the same numbers, so that a
token in a wrong place is known for what it is.

Shapes: keys (layers, B, Hkv, S, D), values likewise, positions (B, S).
"""

import torch
from torch import Tensor

# The most that a lossy cache may be off in one token: error / token, both as Euclidean norms. With two bits
# and one scale for 32 random numbers the worst token is off by 0.6 (by 0.9 without a zero point); zeros are
# off by 1, and another token's numbers by 1.4.
LOSSY = 0.95
UNWRITTEN = "it comes from storage that nobody has written."


class Broken(Exception):
    """A rule does not hold. The text says what was seen and what should have been."""


class Ledger:
    """Every token given, in the order of the slots."""

    def __init__(self, num_layers, batch_size, key_shape, value_shape, dtype, device):
        place = {"dtype": dtype, "device": device}
        (key_heads, key_dim), (value_heads, value_dim) = key_shape, value_shape
        self.keys = torch.empty(num_layers, batch_size, key_heads, 0, key_dim, **place)
        self.values = torch.empty(num_layers, batch_size, value_heads, 0, value_dim, **place)
        self.positions = torch.empty(batch_size, 0, dtype=torch.long, device=device)

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
        self.positions = torch.cat((self.positions, positions), dim=1)
        self.keys = torch.cat((self.keys, keys), dim=3)
        self.values = torch.cat((self.values, values), dim=3)

    def truncate(self, length: int | list[int]) -> None:
        rows = [length] * self.batch_size if isinstance(length, int) else length
        longest = max(rows)
        self.keys, self.values = self.keys[:, :, :, :longest], self.values[:, :, :, :longest]
        self.positions = self.positions[:, :longest].clone()
        for row, kept in enumerate(rows):
            self.positions[row, kept:] = -1

    def reorder(self, index: list[int]) -> None:
        self.keys, self.values = self.keys[:, index], self.values[:, index]
        self.positions = self.positions[index]

    def owner(self, token: Tensor) -> str | None:
        """Whose numbers these (heads, head_dim) are: "the value given for layer 0, row 1, ..."."""
        for side, given in (("key", self.keys), ("value", self.values)):
            if (given.shape[2], given.shape[4]) != tuple(token.shape):
                continue
            same = (given == token[None, None, :, None]).all(dim=4).all(dim=2)  # (layers, B, S)
            if same.any():
                layer, row, slot = same.nonzero()[0].tolist()
                position = int(self.positions[row, slot])
                where = f"position {position}" if position >= 0 else f"slot {slot}, which holds no token"
                return f"the {side} given for layer {layer}, row {row}, {where}"
        return None


def compare(ledger: Ledger, layer: int, result, positions, new: int, exact=True, window=None) -> None:
    """Raise `Broken` if `result`, the K and V of one layer, is not what the ledger says.

    Args:
        result: what `update` returned.
        positions: what `key_positions` said of it.
        new: L, how many of the ledger's slots are this step's.
        exact, window: the cache's own. A lossy cache gives this step's tokens exactly and the earlier ones
            nearly; a window may leave out what no query of this step sees.
    """
    _check_kinds(ledger, layer, result, positions)
    rows = zip(positions.tolist(), ledger.positions.tolist(), strict=True)
    for row, (seen, given) in enumerate(rows):
        held = [position for position in seen if position >= 0]
        _check_positions(f"layer {layer}, row {row}", held, given, new, window)
    held = positions >= 0  # (B, S)
    place = (positions[:, :, None] == ledger.positions[:, None]).int().argmax(dim=2)  # where they were given
    tight = torch.full_like(held, True) if exact else place >= ledger.length - new
    sides = ("key", "value"), result, (ledger.keys, ledger.values)
    for side, got, given in zip(*sides, strict=True):
        _, heads, _, dim = got.shape
        want = given[layer].gather(2, place[:, None, :, None].expand(-1, heads, -1, dim))
        differs = (got != want).any(dim=3).any(dim=1)
        if not exact:
            near = (got - want).norm(dim=(1, 3)) <= LOSSY * want.norm(dim=(1, 3))
            differs = torch.where(tight, differs, ~near)
        wrong = (held & differs).nonzero().tolist()
        if wrong:
            row, slot = wrong[0]
            where = f"{side} that comes back for layer {layer}, row {row}, position {positions[row, slot]}"
            raise Broken(_describe_wrong(where, got[row, :, slot], ledger, bool(tight[row, slot])))
        if not got.isfinite().all():
            raise Broken(
                f"A {side} that comes back for padding in layer {layer} is not a finite number: {UNWRITTEN} "
                "Attention gives it the weight 0, and 0 x NaN is NaN."
            )


def _check_kinds(ledger: Ledger, layer: int, result, positions) -> None:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Broken(f"update returns K and V, two tensors; this one returned {_kind(result)}.")
    for side, got, given in zip("KV", result, (ledger.keys, ledger.values), strict=True):
        if not isinstance(got, Tensor):
            raise Broken(f"update returns K and V, two tensors; {side} is {_kind(got)}.")
        batch, heads, _, dim = given.shape[1:]
        if got.ndim != 4 or got.shape[:2] != (batch, heads) or got.shape[3] != dim:
            raise Broken(
                f"{side} has the shape {tuple(got.shape)}; it should be (batch, kv heads, length, head_dim) "
                f"= ({batch}, {heads}, S, {dim})."
            )
        if got.dtype != given.dtype or got.device != given.device:
            raise Broken(
                f"{side} comes back as {got.dtype} on {got.device}; what was given is {given.dtype} on "
                f"{given.device}."
            )
        if got.shape[2] > ledger.length:
            raise Broken(
                f"The length of {side} in layer {layer} is {got.shape[2]}, and {ledger.length} slots have "
                "been written. Only written slots are returned, each once."
            )
    length = result[0].shape[2]
    if result[1].shape[2] != length:
        raise Broken(
            f"The length of K is {length} and that of V is {result[1].shape[2]}; each key has its value."
        )
    if not isinstance(positions, Tensor) or positions.ndim != 2 or len(positions) != ledger.batch_size:
        raise Broken(
            f"key_positions({layer}) is a tensor of shape (batch, slots) = "
            f"{(ledger.batch_size, length)}; this one gave {_kind(positions)}."
        )
    if positions.shape[1] != length:
        raise Broken(
            f"The length of K in layer {layer} is {length}, and key_positions({layer}) describes "
            f"{positions.shape[1]} slots. {ledger.length} were given to this layer."
        )


def _check_positions(where: str, got: list[int], given: list[int], new: int, window: int | None) -> None:
    """Are these positions, in any order, the ones that this row's queries need?"""
    old = [position for position in given[: len(given) - new] if position >= 0]
    fresh = [position for position in given[len(given) - new :] if position >= 0]
    need, may = old, old
    if window is not None:
        first = fresh[0] if fresh else max([-1, *old]) + 1
        need, may = [position for position in old if position > first - window], old[-window:]
    missing = sorted(set(need + fresh) - set(got))
    extra = [position for position in got if got.count(position) > 1 or position not in may + fresh]
    if missing or extra:
        problem = f"{missing} missing" if missing else f"{extra} too many"
        raise Broken(
            f"The positions that come back for {where} are {got} and should be {need + fresh}: {problem}."
        )


def _describe_wrong(where: str, token: Tensor, ledger: Ledger, tight: bool) -> str:
    if not token.isfinite().all():
        return f"The {where} is not a finite number: {UNWRITTEN}"
    if not tight:
        return f"The {where} is not even near the one that was given."
    owner = ledger.owner(token)
    what = f"It is {owner}" if owner else "Its numbers belong to no token that should be there"
    return f"The {where} is not the one that was given. {what}."


def _kind(value) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None (is a `return` missing?)" if value is None else f"a {type(value).__name__}"
