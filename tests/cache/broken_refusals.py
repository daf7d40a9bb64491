"""Caches that take, each, what should be refused, or that are not as before after they refused it."""

import torch
from broken_caches import broken
from other_caches import ListCache

from kvlearn.cache import GrowingCache, StaticCache


@broken("wrong layer, shape, dtype or device", "accepted: layer -1")
class CountsLayersFromTheEnd(GrowingCache):
    def update(self, layer, k, v, positions=None):
        return super().update(layer % self.num_layers, k, v, positions)


@broken("wrong layer, shape, dtype or device", "accepted: a row too many")
class IgnoresExtraRows(GrowingCache):
    def update(self, layer, k, v, positions=None):
        return super().update(layer, k[: self.batch_size], v[: self.batch_size], positions)


@broken("wrong layer, shape, dtype or device", "accepted: keys in torch.float64")
class CastsInSilence(GrowingCache):
    def update(self, layer, k, v, positions=None):
        return super().update(layer, k.to(self.dtype), v, positions)


@broken("wrong layer, shape, dtype or device", "accepted: keys in torch.float64 in the last layer of a step")
class ChecksTheFirstLayerOnly(GrowingCache):
    """What the later layers are given is made to fit."""

    def update(self, layer, k, v, positions=None):
        if layer > 0:
            k, v = k.to(self.dtype), v.to(self.dtype)
        return super().update(layer, k, v, positions)


@broken("past the end", "2 have room", "accepted")
class DropsWhatHasNoRoom(StaticCache):
    """karpathy/llama2.c#348: nobody looks at the capacity."""

    def update(self, layer, k, v, positions=None):
        room = self.max_length - self.length
        positions = None if positions is None else positions[:, :room]
        return super().update(layer, k[:, :, :room], v[:, :, :room], positions)


@broken("past the end", "After the refusal of tokens past the end, the next step fails", "full")
class HalfWrittenOverflow(StaticCache):
    """What fits is stored before the error is raised."""

    def __init__(self, config, batch_size=1):
        super().__init__(config, batch_size)
        self.room, self.max_length = self.max_length, None

    def _start(self, batch_size):
        self.max_length = getattr(self, "room", self.max_length)
        super()._start(batch_size)

    def _append(self, layer, k, v):
        fits = self.room - self._lengths[layer]
        result = super()._append(layer, k[:, :, :fits], v[:, :, :fits])
        if fits < k.shape[2]:
            raise ValueError("full")
        return result


@broken("past the end", "missing")
class ForgetsInSilence(GrowingCache):
    """No max_length and no error: the oldest go."""

    def update(self, layer, k, v, positions=None):
        K, V = super().update(layer, k, v, positions)
        self._last_positions[layer] = self._last_positions[layer][:, -30:]
        return K[:, :, -30:], V[:, :, -30:]


@broken("truncate or reorder to slots or rows", "accepted: truncate to more slots")
class TruncateTakesAnyNumber(GrowingCache):
    """huggingface/transformers#47433: a crop past the end does nothing, and says nothing."""

    def truncate(self, length):
        super().truncate(min(length, self.length) if isinstance(length, int) else length)


@broken("truncate or reorder to slots or rows", "accepted: reorder to row -1")
class ReorderCountsFromTheEnd(GrowingCache):
    def reorder(self, batch_index):
        super().reorder([row % self.batch_size if row < 0 else row for row in batch_index])


@broken("truncate or reorder to slots or rows", "accepted: truncate to more slots in one row")
class TruncateClampsARow(GrowingCache):
    def truncate(self, length):
        super().truncate(length if isinstance(length, int) else [min(n, self.length) for n in length])


@broken("truncate or reorder to slots or rows", "accepted: truncate to -1 slots in one row")
class TruncateRowsFromTheEnd(GrowingCache):
    def truncate(self, length):
        rows = length if isinstance(length, int) else [n + self.length * (n < 0) for n in length]
        super().truncate(rows)


# Two sets of positions in one step -------------------------------------------------------------------

ONE_STEP = "writes all its layers with the same positions"


@broken(ONE_STEP, "accepted: another last position in one row, in layer 1 of a step")
class EachLayerItsOwnPositions(GrowingCache):
    """The positions of the first layer are kept, whatever the others are given."""

    def _same_step(self, positions):
        return True


@broken(ONE_STEP, "accepted: another last position in one row, in layer 1")
class EachLayerItsOwnPositionsFromScratch(ListCache):
    def update(self, layer, k, v, positions=None):
        if self.pending and layer not in self.pending and positions is not None:
            self.step = positions.tolist()
        return super().update(layer, k, v, positions)


@broken(ONE_STEP, "accepted: another position in the middle of a row, in layer 1")
class ComparesTheEndsOfAStep(GrowingCache):
    def _same_step(self, positions):
        if positions is None or positions.shape != self._step.shape:
            return positions is self._given
        return bool((positions[:, [0, -1]] == self._step[:, [0, -1]]).all())


@broken(ONE_STEP, "accepted: a token where the step has padding, in layer 1")
class ComparesTokensAlone(GrowingCache):
    def _same_step(self, positions):
        if positions is None or positions.shape != self._step.shape:
            return positions is self._given
        return bool(((positions == self._step) | (self._step < 0)).all())


@broken(ONE_STEP, "accepted: padding where the step has a token, in layer 1")
class ComparesTokensThatAreGiven(GrowingCache):
    def _same_step(self, positions):
        if positions is None or positions.shape != self._step.shape:
            return positions is self._given
        return bool(((positions == self._step) | (positions < 0)).all())


@broken(ONE_STEP, "accepted: another last position in one row, in layer 1")
class ComparesTheLastRow(GrowingCache):
    def _same_step(self, positions):
        if positions is None or positions.shape != self._step.shape:
            return positions is self._given
        return torch.equal(positions[-1], self._step[-1])


@broken(ONE_STEP, "accepted: a token fewer, in layer 1")
class ComparesAsFarAsBothGo(ListCache):
    """`zip` ends with the shorter."""

    def update(self, layer, k, v, positions=None):
        if self.pending and layer not in self.pending and positions is not None:
            rows = zip(positions.tolist(), self.step, strict=False)
            if all(new == old for row in rows for new, old in zip(*row, strict=False)):
                self.step = positions.tolist()
        return super().update(layer, k, v, positions)


@broken(ONE_STEP, "accepted: another last position in one row, in layer 3 of a step")
class ComparesUntilTheLastLayer(GrowingCache):
    def update(self, layer, k, v, positions=None):
        last = len(self._written) == self.num_layers - 1 and layer not in self._written
        fits = positions is not None and positions.shape == self._step.shape if last else False
        return super().update(layer, k, v, self._given if fits else positions)


@broken(ONE_STEP, "After the refusal of another last position", "length is 7 and should be 4")
class EndsTheStepThatItRefuses(GrowingCache):
    """The error is right, and the step counts as written."""

    def update(self, layer, k, v, positions=None):
        try:
            return super().update(layer, k, v, positions)
        except ValueError:
            if self._step is not None and positions is not None and positions.shape == self._step.shape:
                self._positions = self._with_step(self._positions)
            raise
