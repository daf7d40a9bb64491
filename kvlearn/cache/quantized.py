"""The quantised cache: old tokens as codes of a few bits, the newest ones exact.

Keys have a few large channels, so their scales go by channel, over groups of tokens; values have none, so
their scales go by token (KIVI, arXiv 2402.02750). A scale over tokens needs a whole group of them, and the
newest tokens are those that attention favours. So each side of a layer is

    codes of the first tokens, in whole groups  |  recent tokens, exact: the residual window

    by channel   all but the last residual to residual + quant_group - 1 tokens are codes
    by token     all but the last residual tokens are codes

That goes by the number of tokens alone, so the same numbers give the same codes in one piece or in many, and
no token is quantised twice. (KIVI's own code empties the keys' window whole when it is full, so that from
none to residual - 1 keys are exact; of its values the last residual are, as here. transformers'
QuantizedCache quantises a whole prompt at once, and its whole history again each time that the window is
full; see huggingface/transformers#34189.)

`update` puts K and V of one layer together, for this step. A step costs more time than with an exact cache,
until a kernel reads the codes itself; what stays in memory is smaller.
"""

import torch
from torch import Tensor

from kvlearn.cache import arguments
from kvlearn.cache.base import KVCache
from kvlearn.quantization import Quantized, QuantSpec, check_numbers, quantize
from kvlearn.values import is_whole

KEYS = QuantSpec("int4", axis="channel")
VALUES = QuantSpec("int4", axis="token")


class QuantizedCache(KVCache):
    """Codes for old tokens, exact numbers for the newest.

    A step's own tokens come back exactly and are quantised after it. What is kept keeps its numbers through
    `truncate` and `reorder`. A roll-back into the codes leaves codes: what was quantised stays quantised, and
    the group that was cut keeps its scales. (A residual at least as long as a draft avoids that.)

    Args:
        config: a `DecoderConfig`.
        keys: `QuantSpec` of the keys, or None to keep them exact.
        values: `QuantSpec` of the values, or None to keep them exact.
        residual: the newest tokens that stay exact, 0 or more.
        batch_size: B.
        max_length: the most slots a row can hold; None = as many as memory holds.
        dtype: of what is given and comes back; torch's default when left out.
        device: where it lives; the CPU when left out.

    Raises:
        ValueError: groups that do not divide head_dim, a scale that would have to change as tokens come
            (axis "tensor", or "channel" without a quant_group), nothing to quantise; and from `update` also
            NaN, infinities and numbers that the scales cannot hold.
    """

    exact = False

    def __init__(
        self,
        config,
        keys: QuantSpec | None = KEYS,
        values: QuantSpec | None = VALUES,
        residual: int = 32,
        batch_size: int = 1,
        *,
        max_length: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        arguments.check_sizes(config, batch_size, max_length)
        _check_scheme(keys, values, residual, config.head_dim)
        self.keys, self.values, self.residual = keys, values, int(residual)
        super().__init__(config, batch_size, max_length=max_length, dtype=dtype, device=device)
        if not self.dtype.is_floating_point or self.dtype.itemsize < 2:
            raise ValueError(f"What is quantised is floating point of 16 bits or more; got {self.dtype}.")

    def _start(self, batch_size):
        self._layers = [
            (self._side(self.keys, batch_size, self.key_shape),
             self._side(self.values, batch_size, self.value_shape))
            for _ in range(self.num_layers)
        ]  # fmt: skip
        # Of each layer that the step under way has written: tokens in codes, and the recent ones, before it.
        self._undo: dict[int, list] = {}

    def _side(self, spec, batch_size, shape):
        heads, dim = shape
        nothing = torch.empty(batch_size, heads, 0, dim, dtype=self.dtype, device=self.device)
        return _Side(spec, self.residual, nothing)

    def update(self, layer, k, v, positions=None):
        """As every cache's. Raises also for NaN, infinities and numbers that the scales cannot hold."""
        arguments.check_layer(layer, self.num_layers)
        arguments.check_keys_values(self, k, v)
        for name, given, spec in (("k", k, self.keys), ("v", v, self.values)):
            if spec is not None:
                check_numbers(given, spec, name)
        return super().update(layer, k, v, positions)

    def _append(self, layer, k, v):
        sides = self._layers[layer]
        self._undo[layer] = [(side.quantised, side.recent) for side in sides]
        # Of padding, and of slots that a row has given up, no scale should know.
        valid = self._with_step(self._positions) >= 0
        return tuple(side.append(new, valid) for side, new in zip(sides, (k, v), strict=True))

    def _settle(self):
        self._undo.clear()  # the step is complete; until here it could be taken back

    def _truncate(self, layer, length):
        # What an unfinished step has turned into codes is exact again.
        before = self._undo.pop(layer, [(None, None), (None, None)])
        for side, (quantised, recent) in zip(self._layers[layer], before, strict=True):
            if recent is not None:
                side.truncate(quantised)
                side.recent = recent
            side.truncate(length)

    def _reorder(self, index):
        # The base class would append what is kept once more, and so quantise it once more.
        for sides in self._layers:
            for side in sides:
                side.take_rows(index)

    def _tensors(self):
        return [tensor for sides in self._layers for side in sides for tensor in side.tensors()]


class _Side:
    """The keys, or the values, of one layer: pieces of codes, then the recent tokens.

    There is one piece, and one more for each time that a roll-back has cut a group.
    """

    def __init__(self, spec: QuantSpec | None, residual: int, recent: Tensor):
        self.spec, self.residual = spec, residual
        self.pieces: list[Quantized] = []
        self.recent = recent  # (B, Hkv, R, D)

    @property
    def quantised(self) -> int:
        """Tokens that are codes."""
        return sum(piece.tokens for piece in self.pieces)

    def append(self, new: Tensor, valid: Tensor) -> Tensor:
        """Put new tokens behind the others, give back all, and quantise those that are no longer recent.

        Args:
            new: (B, Hkv, L, D).
            valid: (B, S) of all slots with the new ones; False = holds no token.
        """
        self.recent = torch.cat((self.recent, new), dim=2)
        everything = self.recent
        if self.pieces:
            numbers = [piece.dequantize() for piece in self.pieces]
            everything = torch.cat((*numbers, self.recent), dim=2)
        due = self._due()
        if due:
            start = self.quantised
            self._add(quantize(self.recent[:, :, :due], self.spec, valid[:, start : start + due]))
            self.recent = self.recent[:, :, due:].clone()  # a slice alone would keep the storage alive
        return everything

    def _due(self) -> int:
        """Of the recent tokens, how many are to become codes: whole groups, and never the last residual."""
        if self.spec is None:
            return 0
        group = self.spec.quant_group if self.spec.axis == "channel" else 1
        return max(0, self.recent.shape[2] - self.residual) // group * group

    def _add(self, piece: Quantized) -> None:
        if self.pieces and self.pieces[-1].spec == piece.spec:
            piece = self.pieces.pop().followed_by(piece)
        self.pieces.append(piece)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        kept = []
        for piece in self.pieces:
            kept += piece.cut(length) if length < piece.tokens else [piece]
            length = max(0, length - piece.tokens)
        self.pieces = kept
        if length < self.recent.shape[2]:
            self.recent = self.recent[:, :, :length].clone()

    def take_rows(self, index: Tensor) -> None:
        self.pieces = [piece.take_rows(index) for piece in self.pieces]
        self.recent = self.recent.index_select(0, index)

    def tensors(self) -> list[Tensor]:
        return [tensor for piece in self.pieces for tensor in piece.tensors] + [self.recent]


def _check_scheme(keys, values, residual, head_dim) -> None:
    """Refuse what cannot be quantised token by token, row by row."""
    if not is_whole(residual) or residual < 0:
        raise ValueError(f"residual is a whole number of tokens, 0 or more; got {residual!r}.")
    if keys is None and values is None:
        raise ValueError("With keys=None and values=None nothing is quantised; GrowingCache does that.")
    for name, spec in (("keys", keys), ("values", values)):
        if spec is None:
            continue
        if not isinstance(spec, QuantSpec):
            raise ValueError(f'{name} is a QuantSpec, as in QuantSpec("int4"), or None; got {spec!r}.')
        if spec.axis == "tensor":
            raise ValueError(
                f'{name} with axis="tensor" share one scale over all rows and tokens: each new token could '
                "change it, and the history would be quantised again. Use axis token or channel."
            )
        if spec.axis == "channel" and spec.quant_group is None:
            raise ValueError(
                f'{name} with axis="channel" and quant_group=None share a scale over all tokens, which are '
                "not all there yet. Give a number of tokens, such as quant_group=32."
            )
        group = spec.quant_group or head_dim
        if spec.axis == "token" and head_dim % group:
            raise ValueError(
                f"head_dim {head_dim} does not divide into groups of {group}; give {name} a quant_group that "
                f"divides it, or None for one scale a token."
            )
