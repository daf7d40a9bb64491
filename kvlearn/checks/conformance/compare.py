"""What a cache gave back, held against the ledger: where the two first differ, in the subject's words."""

import torch
from torch import Tensor

from kvlearn.checks.conformance.ledger import SIDES, Broken, Ledger
from kvlearn.checks.conformance.rounding import Rounding

UNWRITTEN = "it comes from storage that nobody has written."


def compare(
    ledger: Ledger, layer: int, result, positions, new: int, rounding: Rounding | None = None, window=None
) -> None:
    """Raise `Broken` if `result`, the K and V of one layer, is not what the ledger says.

    Args:
        result: what `update` returned.
        positions: what `key_positions` said of it.
        new: L, how many of the ledger's slots are this step's.
        rounding: what a lossy cache may make of a token that is no longer recent; None = it is exact.
        window: the cache's own; it may leave out what no query of this step sees.
    """
    _check_kinds(ledger, layer, result, positions)
    rows = zip(positions.tolist(), ledger.positions.tolist(), strict=True)
    for row, (seen, given) in enumerate(rows):
        held = [position for position in seen if position >= 0]
        _check_positions(f"layer {layer}, row {row}", held, given, new, window)
    held = positions >= 0  # (B, S)
    place = (positions[:, :, None] == ledger.positions[:, None]).int().argmax(dim=2)  # where they were given
    exact = torch.ones_like(held) if rounding is None else place >= ledger.settled
    for side, got in enumerate(result):
        want = _slots(ledger.given[side][layer], place)
        differs = held & _differ(got, want)

        def what(row, slot, side=side):
            where = f"layer {layer}, row {row}, position {positions[row, slot]}"
            return f"The {SIDES[side]} that comes back for {where}"

        for row, slot in (differs & exact).nonzero().tolist():
            raise Broken(_describe_wrong(what(row, slot), got[row, :, slot], ledger))
        if rounding is not None:
            _check_rounded(ledger, layer, side, got, want, place, held, differs, rounding, what)
        if not got.isfinite().all():
            raise Broken(
                f"A {SIDES[side]} that comes back for padding in layer {layer} is not a finite number: "
                f"{UNWRITTEN} Attention gives it the weight 0, and 0 x NaN is NaN."
            )


def _check_rounded(ledger, layer, side, got, want, place, held, differs, rounding, what) -> None:
    """What a lossy cache has settled: near the given, and from then on the same numbers for ever."""
    if not differs.any():  # nothing has been rounded yet
        return
    for row, slot in (differs & ~rounding.near(side, got, want, ledger.largest[side])).nonzero().tolist():
        if not got[row, :, slot].isfinite().all():
            raise Broken(f"{what(row, slot)} is not a finite number: {UNWRITTEN}")
        raise Broken(f"{what(row, slot)} {rounding.too_far(side, ledger.largest[side])}")
    was = _slots(ledger.returned[side][layer], place)
    rounded = held & ledger.rounded[side, layer].gather(1, place)
    for row, slot in (rounded & _differ(got, was)).nonzero().tolist():
        head, channel = (got[row, :, slot] != was[row, :, slot]).nonzero()[0].tolist()
        before, now = was[row, head, slot, channel], got[row, head, slot, channel]
        raise Broken(
            f"{what(row, slot)} has changed again: head {head}, channel {channel} was {before:.6g} and is "
            f"{now:.6g}. A token's numbers change once, when they become codes; codes are kept as they are."
        )
    rows, slots = differs.nonzero(as_tuple=True)
    problem = rounding.shrinks(got[rows, :, slots], want[rows, :, slots])
    if problem:
        raise Broken(f"The {SIDES[side]}s that come back rounded for layer {layer} {problem}")
    rows, slots = held.nonzero(as_tuple=True)
    ledger.returned[side][layer][rows, :, place[rows, slots]] = got[rows, :, slots]
    ledger.rounded[side, layer][rows, place[rows, slots]] |= differs[rows, slots]


def _slots(x: Tensor, place: Tensor) -> Tensor:
    """The slots `place` (B, S) of x (B, heads, slots, dim)."""
    return x.gather(2, place[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """(B, S): in which tokens two (B, heads, S, dim) are not the same numbers."""
    return (one != other).any(dim=3).any(dim=1)


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
    allowed = set(may + fresh)
    extra = [position for position in got if position not in allowed or got.count(position) > 1]
    if missing or extra:
        problem = f"{missing} missing" if missing else f"{extra} too many"
        raise Broken(
            f"The positions that come back for {where} are {got} and should be {need + fresh}: {problem}."
        )


def _describe_wrong(what: str, token: Tensor, ledger: Ledger) -> str:
    if not token.isfinite().all():
        return f"{what} is not a finite number: {UNWRITTEN}"
    owner = ledger.owner(token)
    whose = f"It is {owner}" if owner else "Its numbers belong to no token that should be there"
    return f"{what} is not the one that was given. {whose}."


def _kind(value) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None (is a `return` missing?)" if value is None else f"a {type(value).__name__}"
