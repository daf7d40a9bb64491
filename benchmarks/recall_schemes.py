"""The ways to blur a cache whose cost `benchmarks/recall.py` measures, and the blurring itself.

A scheme is a kind of code (int8, int4, int3, int2, fp8), a style, and a residual of the newest tokens that
stay exact:

    token    keys and values with a scale for each token and 32 channels
    kivi     keys with a scale for each channel and 32 tokens, values as above (KIVI, arXiv 2402.02750)
    tensor   one scale for all keys of a layer, and one for all values; no residual

What is quantised of a context follows the contract of the library's caches: all but the last `residual`
tokens, by channel in whole groups of 32, so that up to 31 more keys stay exact. (KIVI's own code keeps 0 to
residual - 1 of the last keys.) Three bits exist here only as rounded numbers, without codes.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from kvlearn.quantization import QuantSpec, quantize

KINDS = ("fp8", "int8", "int4", "int3", "int2")
GROUP = 32
RESIDUALS = (0, 32, 128)


@dataclass(frozen=True)
class Scheme:
    """One way to keep a context. `sides` is "both", or the only side that is quantised."""

    kind: str | None = None  # None = exact
    style: str | None = None
    residual: int = 0
    sides: str = "both"

    @property
    def name(self) -> str:
        """As in "int4 kivi 32", "int8 tensor", "int2 token 0 keys", "exact"."""
        if self.kind is None:
            return "exact"
        words = [self.kind, self.style]
        if self.style != "tensor":
            words.append(str(self.residual))
        return " ".join(words + ([] if self.sides == "both" else [self.sides]))

    def axis(self, side: str) -> str | None:
        """What owns a scale on this side, "keys" or "values"; None where it is exact."""
        if self.kind is None or self.sides not in ("both", side):
            return None
        return ("channel" if side == "keys" else "token") if self.style == "kivi" else self.style

    def bits(self) -> float:
        """Bits that a quantised number takes, with its share of scale and zero."""
        if self.kind is None:
            return 32.0
        metadata = (1 if self.kind == "fp8" else 2) * 16 / GROUP if self.style != "tensor" else 0.0
        return int(self.kind[-1]) + metadata

    def facts(self) -> dict:
        """For the JSON file."""
        return asdict(self) | {"bits_of_a_quantised_number": self.bits()}


SCHEMES = (
    Scheme(),
    *(
        Scheme(kind, style, residual)
        for kind in KINDS
        for style in ("token", "kivi")
        for residual in RESIDUALS
    ),
    *(Scheme(kind, "tensor") for kind in ("int8", "int4")),
    *(Scheme("int2", style, 0, sides) for style in ("token", "kivi") for sides in ("keys", "values")),
)


class Context:
    """The exact keys and values of a context, and what schemes make of them.

    Args:
        keys, values: (num_layers, B, Hkv, S, D).
    """

    def __init__(self, keys: Tensor, values: Tensor):
        self.exact = {"keys": keys, "values": values}
        self._blurred = {}  # a residual leaves the rest as it is: schemes share what they quantise

    def is_exact(self, scheme: Scheme) -> bool:
        """Nothing of this context is quantised."""
        length = self.exact["keys"].shape[3]
        axes = [axis for axis in (scheme.axis("keys"), scheme.axis("values")) if axis]
        return not any(quantised_tokens(length, axis, scheme.residual) for axis in axes)

    def kept(self, scheme: Scheme) -> tuple[Tensor, Tensor]:
        """Keys and values as the scheme gives them back, (num_layers, B, Hkv, S, D)."""
        return self._side(scheme, "keys"), self._side(scheme, "values")

    def _side(self, scheme: Scheme, side: str) -> Tensor:
        exact, axis = self.exact[side], scheme.axis(side)
        if axis is None:
            return exact
        length = quantised_tokens(exact.shape[3], axis, scheme.residual)
        if (side, scheme.kind, axis) not in self._blurred:
            most = exact[..., : quantised_tokens(exact.shape[3], axis, 0), :]
            self._blurred[side, scheme.kind, axis] = blurred(most, scheme.kind, axis)
        return torch.cat(
            (self._blurred[side, scheme.kind, axis][..., :length, :], exact[..., length:, :]), dim=3
        )


def quantised_tokens(length: int, axis: str, residual: int) -> int:
    """How many of the first tokens of a context are quantised."""
    tokens = max(0, length - residual)
    return tokens // GROUP * GROUP if axis == "channel" else tokens


def blurred(x: Tensor, kind: str, axis: str) -> Tensor:
    """x, (num_layers, B, Hkv, S, D), quantised and back. No scale crosses layers or rows."""
    if x.numel() == 0:
        return x
    if axis == "tensor":
        spec = QuantSpec(kind, axis)
        flat = x.flatten(0, 1)
        return torch.stack([quantize(one, spec).dequantize() for one in flat]).view_as(x)
    if kind == "int3":
        return rounded(x, 3, axis)
    spec = QuantSpec(kind, axis, GROUP)
    return quantize(x.flatten(0, 1), spec).dequantize().view_as(x)


def rounded(x: Tensor, bits: int, axis: str) -> Tensor:
    """What `quantize` to so many bits and back gives, for any number of bits: nothing is packed."""
    dim = -1 if axis == "token" else -2
    groups = x.unflatten(dim, (x.shape[dim] // GROUP, GROUP))
    low, high = groups.amin(dim, keepdim=True), groups.amax(dim, keepdim=True)
    scale, zero = ((high - low) / (2**bits - 1)).half().float(), low.half().float()
    codes = ((groups - zero) / scale.masked_fill(scale == 0, 1)).round().clamp(0, 2**bits - 1)
    return (codes * scale + zero).reshape(x.shape)
