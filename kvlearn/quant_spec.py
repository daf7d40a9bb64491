"""What a quantisation is, in one line: bits, which axis owns a scale, how large a group; and what that costs.

`kvlearn.quantization` says what the words mean and does it.
"""

from dataclasses import dataclass

import torch

from kvlearn.values import is_whole, keep_whole, whole

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
        if not isinstance(self.dtype, str) or self.dtype not in BITS:
            raise ValueError(f"dtype is one of {', '.join(BITS)}; got {self.dtype!r}.")
        if self.axis not in ("token", "channel", "tensor"):
            raise ValueError(f'axis is "token", "channel" or "tensor"; got {self.axis!r}.')
        if self.quant_group is not None:
            if not is_whole(self.quant_group) or self.quant_group < 1:
                raise ValueError(
                    f"quant_group is a whole number, at least 1, or None for all; got {self.quant_group!r}."
                )
            keep_whole(self, "quant_group")
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
        size = whole(size if self.axis == "tensor" else self.quant_group or size, "the size of a group")
        return self.bits + (1 + self.has_zero) * self.scale_dtype.itemsize * 8 / size

    def groups_along(self, tokens: int, channels: int) -> int:
        """Groups that lie along the axis of `quant_group`: channels by token, tokens by channel.

        Raises:
            ValueError: they are not whole groups.
        """
        size, what = (channels, "channels") if self.axis == "token" else (tokens, "tokens")
        group = self.quant_group or max(size, 1)
        if size % group:
            raise ValueError(
                f"{size} {what} do not divide into groups of {group}; with axis={self.axis!r}, quant_group "
                f"must divide the number of {what}."
            )
        return size // group

    def bytes_for(self, tokens: int, channels: int) -> int:
        """Bytes of the codes, scales and zeros of one (tokens, channels): `used_bytes`, predicted.

        Raises:
            ValueError: sizes that are none, or groups that do not divide them.
        """
        tokens, channels = whole(tokens, "tokens", at_least=0), whole(channels, "channels")
        if tokens == 0:
            return 0
        groups = {
            "token": lambda: tokens * self.groups_along(tokens, channels),
            "channel": lambda: channels * self.groups_along(tokens, channels),
            "tensor": lambda: 1,
        }[self.axis]()
        codes = tokens * -(-channels * self.bits // 8)  # a token's last byte may be filled in part
        return codes + groups * (1 + self.has_zero) * self.scale_dtype.itemsize
