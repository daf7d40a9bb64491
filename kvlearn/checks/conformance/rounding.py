"""What a lossy cache may make of its old tokens, and what they should then cost.

Where a cache says how it quantises (`keys` and `values`, each a `QuantSpec` or None, and `residual`, the
newest tokens that stay exact), its own words are the measure. Of another lossy cache less can be said.
"""

import torch
from torch import Tensor

from kvlearn.quantization import QuantSpec
from kvlearn.values import is_whole

# The most that one token of a lossy cache may be off, where nothing else is known: error / token, both as
# Euclidean norms. With two bits and one scale for 32 random numbers the worst token is off by 0.6 (by 0.9
# without a zero point); zeros are off by 1, and another token's numbers by 1.4.
FAR = 0.95
# How large many rounded tokens may be beside the given ones. Honest rounding is about as often too large as
# too small; two bits without a zero point and a scale for thousands of numbers give 0.6 times what was given.
SHRUNK, GROWN, ENOUGH = 0.5, 1.5, 256


class Rounding:
    """How one lossy cache rounds.

    Attributes:
        specs: (keys, values), each a `QuantSpec` or None (this side stays exact); None = not known.
        residual: the newest slots that stay exact; 0 where the cache does not say.
    """

    def __init__(self, cache):
        specs = getattr(cache, "keys", None), getattr(cache, "values", None)
        kinds = {type(spec) for spec in specs}
        self.specs = specs if QuantSpec in kinds and kinds <= {QuantSpec, type(None)} else None
        residual = getattr(cache, "residual", None)
        self.residual = residual if is_whole(residual) and residual >= 0 else 0
        self.counted = self.specs is not None and is_whole(residual)  # do we know the bytes, too?

    def near(self, side: int, got: Tensor, want: Tensor, largest: float) -> Tensor:
        """(B, S): which tokens of (B, heads, S, dim) are as near as they can be expected to be."""
        if self.specs is None:
            return (got - want).norm(dim=(1, 3)) <= FAR * want.norm(dim=(1, 3))
        return (got - want).abs().amax(dim=(1, 3)) <= self._bound(side, largest, got.dtype)

    def too_far(self, side: int, largest: float) -> str:
        if self.specs is None:
            return "is not even near the one that was given."
        spec = self.specs[side]
        if spec is None:
            return "is not the one that was given, and the cache says that it keeps this side exact."
        return (
            f"is too far from the one that was given: {spec.bits} bits ({spec.dtype}, axis {spec.axis}) for "
            f"numbers up to {largest:.3g} are off by {self._bound(side, largest, torch.float64):.2g} at most."
        )

    def shrinks(self, got: Tensor, want: Tensor) -> str | None:
        """Are these rounded tokens, taken together, as large as what was given?"""
        size = float((got.double() * want).sum() / want.double().square().sum())
        if want.numel() < ENOUGH or SHRUNK <= size <= GROWN:
            return None
        return (
            f"are, on average, {size:.2f} times what was given. Rounding goes up about as often as down, so "
            "that the average is near 1."
        )

    def _bound(self, side: int, largest: float, dtype: torch.dtype) -> float:
        """The most that a number can be off: half a step of the widest grid, and what rounding adds."""
        spec = self.specs[side]
        if spec is None:
            return 0.0
        if spec.dtype == "fp8":
            half = largest / 16  # three mantissa bits
        elif spec.symmetric:
            half = largest / (2 ** (spec.bits - 1) - 1) / 2
        else:
            half = largest / (2**spec.bits - 1)  # from -largest to largest
        return half + largest * (4 * torch.finfo(spec.scale_dtype).eps + 2 * torch.finfo(dtype).eps)

    # Of a text that was only ever appended to ---------------------------------------------------------

    @property
    def long_enough(self) -> int:
        """Slots after which a good part of both sides should be codes."""
        groups = [spec.quant_group for spec in self.specs or () if spec and spec.axis == "channel"]
        return self.residual + 2 * max([*groups, 32]) + 3

    def bytes(self, slots: int, shapes, rows: int, itemsize: int) -> int:
        """`used_bytes` of one layer: codes and scales of the old slots, exact numbers for the others."""
        total = 0
        for spec, (heads, dim) in zip(self.specs, shapes, strict=True):
            group = spec.quant_group if spec and spec.axis == "channel" else 1
            old = max(0, slots - self.residual) // group * group if spec else 0
            codes = spec.bytes_for(old, dim) if old else 0
            total += rows * heads * (codes + (slots - old) * dim * itemsize)
        return total
