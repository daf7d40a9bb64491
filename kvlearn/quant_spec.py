"""What a quantisation is, in one line: bits, which axis owns a scale, how large a group; and what that costs.

`kvlearn.quantization` says what the words mean and does it.
"""

import operator
from dataclasses import dataclass

import torch

from kvlearn.values import is_whole

BITS = {"int8": 8, "int4": 4, "int2": 2, "fp8": 8}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of scales and zeros


@dataclass(frozen=True)
class QuantSpec:
    """How numbers are quantised: width of a code, what shares a scale, and what the scale is kept in.

    Args:
        dtype: of the codes: "int8", "int4", "int2" or "fp8" (e4m3, which has a sign and no zero).
        axis: "token", "channel" or "tensor"; the axis owns the scale.
        quant_group: channels (axis "token") or tokens (axis "channel") that share a scale; it must divide
            them. None = all of them. Of no account for "tensor".
        symmetric: a scale alone, zero in the middle. Else a scale and a zero, the group's smallest number,
            so that no code is spent on a side that the group does not have. fp8 is always symmetric.
        scale_dtype: float16, bfloat16 or float32, of scales and zeros.
    """

    dtype: str = "int8"
    axis: str = "token"
    quant_group: int | None = 32
    symmetric: bool = False
    scale_dtype: torch.dtype = torch.float16

    def __post_init__(self):
        if self.dtype not in BITS:
            raise ValueError(f"dtype is one of {', '.join(BITS)}; got {self.dtype!r}.")
        if self.axis not in ("token", "channel", "tensor"):
            raise ValueError(f'axis is "token", "channel" or "tensor"; got {self.axis!r}.')
        if self.quant_group is not None and (not is_whole(self.quant_group) or self.quant_group < 1):
            raise ValueError(
                f"quant_group is a whole number, at least 1, or None for all; got {self.quant_group!r}."
            )
        if self.quant_group is not None:  # a number of numpy's or torch's becomes one of Python's
            object.__setattr__(self, "quant_group", operator.index(self.quant_group))
        if not isinstance(self.symmetric, bool):
            raise ValueError(f"symmetric is True or False; got {self.symmetric!r}.")
        if self.scale_dtype not in DTYPES:
            raise ValueError(f"scale_dtype is float32, float16 or bfloat16; got {self.scale_dtype!r}.")

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return BITS[self.dtype]

    @property
    def has_zero(self) -> bool:
        """Is a zero kept beside each scale?"""
        return not self.symmetric and self.dtype != "fp8"

    @property
    def largest(self) -> float:
        """The largest |x| that may be quantised: scales, zeros and what they give stay finite."""
        return torch.finfo(self.scale_dtype).max / 2

    def bits_per_number(self, size: int | None = None) -> float:
        """Bits that one number takes, with its share of scale and zero.

        Args:
            size: of the group where quant_group does not say: channels, tokens or all numbers.
        """
        size = size if self.axis == "tensor" else self.quant_group or size
        if not is_whole(size) or size < 1:
            raise ValueError(f"The size of a group is a whole number, at least 1; got {size!r}.")
        return self.bits + (1 + self.has_zero) * self.scale_dtype.itemsize * 8 / size

    def bytes_for(self, tokens: int, channels: int) -> int:
        """Bytes of the codes, scales and zeros of one (tokens, channels): `used_bytes`, predicted."""
        if tokens < 0 or channels < 1:
            raise ValueError(f"There are 0 or more tokens and at least 1 channel; got {tokens}, {channels}.")
        groups = {
            "token": tokens * (channels // (self.quant_group or channels)),
            "channel": channels * (tokens // (self.quant_group or max(tokens, 1))),
            "tensor": 1,
        }[self.axis]
        codes = tokens * -(-channels * self.bits // 8)  # a token's last byte may be filled in part
        return codes + groups * (1 + self.has_zero) * self.scale_dtype.itemsize
