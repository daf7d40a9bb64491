"""Caches with one classic bug each in what they round: when, with whose scale, how long, at what cost.

Those with a residual of 32 have no codes while texts are short: the rules for short texts let them pass.
"""

import torch
from broken_caches import broken
from int8_cache import Int8Cache

from kvlearn.cache import QuantizedCache
from kvlearn.cache.quantized import _Side
from kvlearn.quantization import QuantSpec, quantize

INT8 = {"keys": QuantSpec("int8", axis="channel"), "values": QuantSpec("int8", axis="token")}


class Sided(QuantizedCache):
    """A QuantizedCache with another kind of `_Side`."""

    kind = _Side

    def __init__(self, config, batch_size=1, dtype=None, **scheme):
        super().__init__(config, **{**INT8, **scheme}, batch_size=batch_size, dtype=dtype)

    def _side(self, spec, batch_size, shape):
        return self.kind(spec, self.residual, super()._side(spec, batch_size, shape).recent)


def everything(side):
    """All tokens of a side as numbers."""
    return torch.cat((*[piece.dequantize() for piece in side.pieces], side.recent), dim=2)


def requantize(side):
    """Numbers from codes, and codes from those numbers."""
    side.recent, side.pieces = everything(side), []
    due = side._due()
    if due:
        side._add(quantize(side.recent[:, :, :due], side.spec))
        side.recent = side.recent[:, :, due:].clone()


# What is quantised, and when -----------------------------------------------------------------------

STREAMS = "in one piece, in chunks or token by token"


@broken(STREAMS, "comes back as", "in one piece and", "what was given is")
class QuantisesPromptsOnly(Sided):
    """What comes token by token stays exact for ever: only a call with many tokens makes codes."""

    class kind(_Side):
        def append(self, new, valid):
            self.arrived = new.shape[2]
            return super().append(new, valid)

        def _due(self):
            return super()._due() if self.arrived > 1 else 0


@broken(STREAMS, "layer 0, row 0, position", "is not the one that was given")
class EmptiesTheWholeWindow(Sided):
    """KIVI's window of keys, for both sides: when it is full nothing recent is left."""

    class kind(_Side):
        def _due(self):
            recent = self.recent.shape[2]
            return recent // 32 * 32 if recent > self.residual else 0


@broken(STREAMS, "row 0, position 66 is not the one that was given")
class KeepsOneTooFew(Sided):
    class kind(_Side):
        def __init__(self, spec, residual, recent):
            super().__init__(spec, residual - 1, recent)


@broken("What was quantised stays quantised", "has changed again: head", "codes are kept as they are")
class QuantisesTheHistoryAgain(Sided):
    """huggingface/transformers#34189: at each step the whole history is made numbers and codes again."""

    class kind(_Side):
        def append(self, new, valid):
            if self.pieces:
                self.recent, self.pieces = everything(self), []
            return super().append(new, valid)


# With whose scale ----------------------------------------------------------------------------------


@broken("Padding, and what a row has given up", "beside padding of 1 and of 1000")
class PaddingInTheScales(Sided):
    """One loud padding slot takes the precision of its whole group."""

    class kind(_Side):
        def append(self, new, valid):
            return super().append(new, torch.ones_like(valid))


@broken("Padding, and what a row has given up", "row 0, position", "beside padding of 1 and of 1000")
class GivenUpSlotsInTheScales(Sided):
    """Padding is masked as it comes, and what a row gives up later is not."""

    class kind(_Side):
        def append(self, new, valid):
            came = getattr(self, "came", valid)[: len(valid), : valid.shape[1] - new.shape[2]]
            self.came = torch.cat((came, valid[: len(came), came.shape[1] :]), dim=1)
            return super().append(new, self.came if self.came.shape == valid.shape else valid)


@broken("No scale crosses rows", "layer 0, row 0, position 0", "beside a row 100 times as loud and alone")
class OneScaleForAllRows(Int8Cache):
    """One loud request takes the precision of all that share its batch."""

    def quantize(self, x):
        scale = x.abs().amax(dim=(1, 4), keepdim=True).expand(-1, x.shape[1], -1, -1, 1).float() / 127
        held = (self.positions >= 0)[:, : x.shape[3]]
        if not bool(held.all()):  # padding stays out, so that only the rows are mixed
            return super().quantize(x)
        return (x / scale.clamp(min=1e-30)).round(), scale


# For how long --------------------------------------------------------------------------------------

STAYS = "What was quantised stays quantised"


@broken(STAYS, "has changed again")
class TruncateQuantisesAgain(Sided):
    """A roll-back puts numbers in the place of codes, and makes other codes of them."""

    def truncate(self, length):
        super().truncate(length)
        for sides in self._layers:
            for side in sides:
                requantize(side)


@broken(STAYS, "has changed again")
class TruncateMakesNumbersOfCodes(Sided):
    """The codes that a roll-back leaves become recent tokens, and get other codes later."""

    def truncate(self, length):
        super().truncate(length)
        for sides in self._layers:
            for side in sides:
                side.recent, side.pieces = everything(side), []


@broken(STAYS, "has changed again")
class ReorderQuantisesAgain(Sided):
    """What a row holds is appended once more, as a new row's text would be."""

    def _reorder(self, index):
        super()._reorder(index)
        for sides in self._layers:
            for side in sides:
                requantize(side)


@broken(STAYS, "layer 0, row 0", "is too far from the one that was given: 8 bits (int8, axis")
class ReorderForgetsTheCodes(Sided):
    """huggingface/transformers#48700's kind: the recent tokens change rows, and the codes stay."""

    class kind(_Side):
        def take_rows(self, index):
            rows = torch.arange(len(index)) % len(self.recent)
            self.recent = self.recent.index_select(0, index)
            self.pieces = [piece.take_rows(rows) for piece in self.pieces]


@broken(STAYS, "slots is refused: not from codes", "A lossy cache still has all that the next query needs")
class NeverGoesBackIntoCodes(Sided):
    def truncate(self, length):
        longest = length if isinstance(length, int) else max(length)
        if 0 < longest < self._layers[0][1].quantised:
            raise ValueError("not from codes")
        super().truncate(length)


@broken("truncate(length) keeps the first slots", "TypeError: raw")
class RaisesWhateverItCannotDo(Sided):
    """An error of Python's is no refusal."""

    def truncate(self, length):
        if length:
            raise TypeError("raw")
        super().truncate(length)


@broken("An unfinished step leaves no codes behind", "position", "is not the one that was given")
class KeepsTheCodesOfAnUnfinishedStep(Sided):
    """The step is dropped, and the recent tokens that it has turned into codes stay codes."""

    def _truncate(self, layer, length):
        self._undo.pop(layer, None)
        super()._truncate(layer, length)


# How far off ---------------------------------------------------------------------------------------


@broken("0.30 times what was given. Rounding goes up about as often as down")
class ShrinksWhatIsOld(Int8Cache):
    """A factor that is wrong in the way back alone: nothing is far enough off to be another token."""

    def quantize(self, x):
        codes, scale = super().quantize(x)
        return codes, 0.3 * scale


@broken(STREAMS, "is too far from the one that was given: 8 bits (int8, axis channel) for numbers up to")
class LosesSmallNumbers(Sided):
    """A threshold where 8 bits have two hundred steps."""

    class kind(_Side):
        def append(self, new, valid):
            back = super().append(new, valid).clone()
            old = back[:, :, : self.before]
            old[old.abs() < 0.5] = 0
            self.before = self.quantised
            return back

        before = 0


# At what cost --------------------------------------------------------------------------------------

COST = "used_bytes of a lossy cache is that of its codes, scales and exact tokens"


@broken(COST, "used_bytes is 202752, and an exact cache needs 202752: nothing has become smaller")
class NeverQuantises(Int8Cache):
    """Lossy by its own word, and as large as an exact one."""

    newest = 10**6


@broken(COST, "After 33 slots used_bytes is 100224 and should be 100272", "(residual 32)")
class CountsNoScales(Sided):
    def _tensors(self):
        sides = [side for sides in self._layers for side in sides]
        return [piece.codes for side in sides for piece in side.pieces] + [side.recent for side in sides]


@broken(COST, "used_bytes is never more than", "Codes, scales, zeros and the exact tokens all count")
class CountsHalf(Int8Cache):
    """The keys alone."""

    @property
    def used_bytes(self):
        return super().used_bytes // 2


@broken("what the storages behind the keys and values hold", "After 99 slots ", "a second copy")
class KeepsTheNumbersBesideTheCodes(Sided):
    """The history once as codes, which are counted, and once as numbers, which are not."""

    class kind(_Side):
        def _add(self, piece):
            self.numbers = [*getattr(self, "numbers", []), piece.dequantize()]
            super()._add(piece)
