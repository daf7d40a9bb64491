"""Fewer bits: numbers kept as small codes, with a scale for each group of them.

    code = round((x - zero) / scale)         x is nearly  code * scale + zero

A group is the set of numbers that share a scale; its spread decides how large the error is. The axis of a
`QuantSpec` says how groups lie in x, (..., tokens, channels), such as (B, H, L, D):

    "token"     one scale for each token, over quant_group channels; of values (KIVI, arXiv 2402.02750)
    "channel"   one scale for each channel, over quant_group tokens; of keys, whose large channels would
                else take the precision of all the others
    "tensor"    one scale for everything

Codes are real bytes: two 4-bit codes, or four 2-bit codes, share one (`kvlearn.packing`). Scales and zeros
cost bytes as well: at 4 bits, groups of 32 and float16 for both, a number takes 4 + 2 x 16 / 32 = 5 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvlearn.packing import pack, unpack
from kvlearn.quant_spec import QuantSpec
from kvlearn.values import is_plain, is_whole_tensor, kind_of, whole

__all__ = ["QuantSpec", "Quantized", "check_numbers", "quantize"]
E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0  # the largest number of float8 e4m3


@dataclass(frozen=True)
class Quantized:
    """Codes with their scales: what `quantize` returns.

    Attributes:
        codes: uint8 (..., tokens, bytes), packed along the channels; fp8 codes as their bytes.
        scale: (..., tokens, channels / quant_group) for axis "token", (..., tokens / quant_group, channels)
            for "channel", () for "tensor".
        zero: as scale, or None.
        spec: the `QuantSpec`.
        channels: D, which packing may have padded.
        dtype: of what was quantised.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    spec: QuantSpec
    channels: int
    dtype: torch.dtype

    @property
    def tokens(self) -> int:
        return self.codes.shape[-2]

    @property
    def _row(self) -> tuple:
        """What does not change from token to token: (rows, heads, channels, dtype, device)."""
        return *self.codes.shape[:-2], self.channels, self.dtype, self.codes.device

    @property
    def tensors(self) -> list[Tensor]:
        """Codes, scales and zeros: all that is kept."""
        return [tensor for tensor in (self.codes, self.scale, self.zero) if tensor is not None]

    @property
    def used_bytes(self) -> int:
        """Bytes of codes, scales and zeros."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """(..., tokens, channels): code * scale + zero, computed in float32 or better.

        Args:
            dtype: of the result; that of what was quantised when left out.
        """
        dtype = dtype or self.dtype
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"What comes back is of a floating-point dtype; got {dtype!r}.")
        work = _working_dtype(dtype)
        numbers = self._numbers(work)
        groups, dim = _in_groups(numbers, self.spec)
        groups *= self._beside(self.scale, dim).to(work)
        if self.zero is not None:
            groups += self._beside(self.zero, dim).to(work)
        return numbers.to(dtype)

    def _numbers(self, dtype: torch.dtype) -> Tensor:
        """The codes as numbers, with their signs."""
        if self.spec.dtype == "fp8":
            return _from_e4m3(self.codes).to(dtype)
        codes = unpack(self.codes, self.spec.bits, self.channels, dtype)
        return codes if self.spec.has_zero else codes.sub_(2 ** (self.spec.bits - 1))

    def _beside(self, metadata: Tensor, dim) -> Tensor:
        """Scale or zero, with an axis of 1 where the groups have their numbers."""
        return metadata if self.spec.axis == "tensor" else metadata.unsqueeze(dim)

    # What a cache does with the tokens that it keeps -------------------------------------------------

    def cut(self, tokens: int) -> list[Quantized]:
        """The first tokens, with the very numbers that they had: whole groups, and the rest of a cut one.

        A cut group keeps its scales, and is a `Quantized` of its own, whose groups are as short as it is.
        """
        if self.spec.axis == "tensor":
            raise ValueError('With axis="tensor" all tokens share one scale; they cannot be cut.')
        tokens = whole(tokens, "tokens", at_least=0)
        if tokens > self.tokens:
            raise ValueError(f"There are {self.tokens} tokens to keep from; got {tokens}.")
        group = self.spec.quant_group or self.tokens
        rest = tokens % group if self.spec.axis == "channel" else 0
        pieces = [self._part(0, tokens - rest, self.spec)]
        pieces.append(self._part(tokens - rest, tokens, replace(self.spec, quant_group=rest or 1)))
        return [piece for piece in pieces if piece.tokens]

    def _part(self, start: int, end: int, spec: QuantSpec) -> Quantized:
        codes = self.codes[..., start:end, :].clone()  # a slice alone would keep the whole storage alive
        group = (self.spec.quant_group or self.tokens) if self.spec.axis == "channel" else 1
        start, end = start // group, -(-end // group)
        scale, zero = (
            None if kept is None else kept[..., start:end, :].clone() for kept in (self.scale, self.zero)
        )
        return replace(self, codes=codes, scale=scale, zero=zero, spec=spec)

    def take_rows(self, index: Tensor) -> Quantized:
        """Row i becomes a copy of row index[i]; `index` is a tensor of whole numbers, (rows,)."""
        if self.spec.axis == "tensor":
            raise ValueError('With axis="tensor" all rows share one scale; they cannot be taken apart.')
        rows = self.codes.shape[0]
        if not is_whole_tensor(index) or index.ndim != 1:
            raise ValueError(f"index is a tensor of row numbers with one axis; got {kind_of(index)}.")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < rows:
            raise ValueError(f"There are rows 0 to {rows - 1}; got {index.tolist()}.")
        codes, scale, zero = (
            None if kept is None else kept.index_select(0, index)
            for kept in (self.codes, self.scale, self.zero)
        )
        return replace(self, codes=codes, scale=scale, zero=zero)

    def followed_by(self, later: Quantized) -> Quantized:
        """These tokens and then those, of the same spec: nothing is quantised again."""
        grows = self.spec.axis == "token" or (self.spec.axis == "channel" and self.spec.quant_group)
        if not isinstance(later, Quantized):
            raise ValueError(f"What follows a Quantized is one too; got a {type(later).__name__}.")
        if later.spec != self.spec or not grows:
            raise ValueError(
                "Only whole groups of one spec follow each other, without a scale over all tokens; got "
                f"{self.spec} and {later.spec}."
            )
        if later._row != self._row:
            raise ValueError(
                "Tokens follow each other with the same rows, heads, channels and dtype; got "
                f"{self._row} and {later._row}."
            )
        codes, scale, zero = (
            None if one is None else torch.cat((one, other), dim=-2)
            for one, other in (
                (self.codes, later.codes),
                (self.scale, later.scale),
                (self.zero, later.zero),
            )
        )
        return replace(self, codes=codes, scale=scale, zero=zero)


def quantize(x: Tensor, spec: QuantSpec, valid: Tensor | None = None) -> Quantized:
    """Codes for x, with a scale for each group.

    Scales and zeros are rounded to their dtype first, and the codes are chosen for the rounded ones. So the
    error of a number is half a step (a scale), plus what rounding may cost the ends of a group. A group of
    zeros gives zeros. A group of one number gives that number, rounded to scale_dtype or better. Where all of
    a group is too small for scale_dtype, it gives zeros.

    Args:
        x: floating point (..., tokens, channels).
        spec: a `QuantSpec`.
        valid: boolean (B, tokens), for x of shape (B, H, tokens, channels); False = padding, which has no
            say in any scale. What comes back for it is some finite number.

    Raises:
        ValueError: x is not such a tensor, has NaN, an infinity or a number above `spec.largest`, or its
            groups do not divide its axis.
    """
    _check_tensor(x, spec)
    padding = None if valid is None else ~_beside_tokens(x, valid)
    if padding is not None:
        x = x.masked_fill(padding, 0)
        padding = _in_groups(padding.expand_as(x), spec)[0]
    check_numbers(x, spec)
    steps = x.detach().to(_working_dtype(x.dtype), copy=True)  # our own: from here on it is worked in place
    groups, dim = _in_groups(steps, spec)
    scale, zero = _grid(groups, dim, padding, spec)
    if zero is not None:
        groups -= zero
    groups /= scale.to(steps.dtype).masked_fill(scale == 0, 1)  # a group without spread: 0 steps
    codes = _encode(steps, spec)
    if spec.axis != "tensor":
        scale = scale.squeeze(dim)
        zero = None if zero is None else zero.squeeze(dim)
    return Quantized(codes, scale, zero, spec, x.shape[-1], x.dtype)


def _grid(groups: Tensor, dim, padding: Tensor | None, spec: QuantSpec) -> tuple[Tensor, Tensor | None]:
    """Scale and zero of each group, in scale_dtype: the steps and the start of its grid."""
    keep = {"dim": dim, "keepdim": spec.axis != "tensor"}
    if padding is None:
        low, high = groups.amin(**keep), groups.amax(**keep)
    else:
        low = groups.masked_fill(padding, torch.inf).amin(**keep)
        high = groups.masked_fill(padding, -torch.inf).amax(**keep)
        nothing = high < low  # padding alone
        low, high = low.masked_fill(nothing, 0), high.masked_fill(nothing, 0)
    if spec.has_zero:
        scale = (high - low) / (2**spec.bits - 1)
        return scale.to(spec.scale_dtype), low.to(spec.scale_dtype)
    most = E4M3_MAX if spec.dtype == "fp8" else 2 ** (spec.bits - 1) - 1  # 127, 7, 1
    return (torch.maximum(high, -low) / most).to(spec.scale_dtype), None


def _encode(steps: Tensor, spec: QuantSpec) -> Tensor:
    """Numbers of steps, which are overwritten -> bytes of codes."""
    if spec.dtype == "fp8":
        # Older versions of torch turn what is beyond 448 into NaN (pytorch/ao#1912).
        return steps.clamp_(-E4M3_MAX, E4M3_MAX).to(E4M3).view(torch.uint8)
    if spec.has_zero:
        codes = steps.round_().clamp_(0, 2**spec.bits - 1)
    else:  # -7 to 7 is kept as 1 to 15, so that a code never has a sign and packs like any other
        middle = 2 ** (spec.bits - 1)
        codes = steps.round_().clamp_(1 - middle, middle - 1).add_(middle)
    return pack(codes.to(torch.uint8), spec.bits)


def _from_e4m3(codes: Tensor) -> Tensor:
    """Bytes of float8 e4m3 as float16, several times as fast as torch's own cast on a CPU. They hold no NaN.

    float16 has the same bits with room between them: the sign on top, one exponent bit more, seven mantissa
    bits more. Its exponent starts 8 lower, so that what comes out is 2**8 too small.
    """
    sign_and_rest = codes.view(torch.int8).to(torch.int16) << 7  # the sign fills bits 15 and 14
    return (sign_and_rest & ~(1 << 14)).view(torch.float16) * 2**8


# What is given ---------------------------------------------------------------------------------------


def check_numbers(x: Tensor, spec: QuantSpec, name: str = "x") -> None:
    """Refuse NaN, infinities and what the scales cannot hold. One NaN would spoil all of its group."""
    if x.numel() and not bool(x.detach().abs().amax() <= spec.largest):  # NaN is not <= anything
        what = "NaN or an infinity" if not x.isfinite().all() else f"a number of {x.abs().max().item():.3g}"
        hint = "" if spec.scale_dtype is torch.float32 else " (scale_dtype=torch.float32 reaches further)"
        raise ValueError(
            f"{name} has {what}; quantising to {spec.dtype} takes finite numbers up to {spec.largest:.5g}"
            f"{hint}."
        )


def _check_tensor(x, spec) -> None:
    if not isinstance(spec, QuantSpec):
        raise ValueError(f'A QuantSpec says how to quantise, as in QuantSpec("int4"); got {spec!r}.')
    if not is_plain(x) or x.is_meta or not x.is_floating_point() or x.itemsize < 2:
        raise ValueError(
            f"What is quantised is a floating-point tensor of 16 bits or more; got {kind_of(x)}."
        )
    if x.ndim < 2:
        raise ValueError(f"x is (..., tokens, channels); got the shape {tuple(x.shape)}.")
    if x.numel() == 0 and (spec.axis == "tensor" or spec.quant_group is None or x.shape[-1] == 0):
        raise ValueError(f"There is nothing to quantise in a tensor of shape {tuple(x.shape)}.")


def _beside_tokens(x: Tensor, valid: Tensor) -> Tensor:
    """valid (B, tokens) as (B, 1, tokens, 1), for x (B, H, tokens, channels)."""
    if not is_plain(valid) or valid.is_meta or valid.dtype != torch.bool or x.ndim != 4:
        raise ValueError(
            "valid is boolean (B, tokens), for x (B, H, tokens, channels); got "
            f"{kind_of(valid)} for x of {x.ndim} axes."
        )
    if valid.shape != (x.shape[0], x.shape[2]):
        raise ValueError(
            f"valid is boolean (B, tokens) = {(x.shape[0], x.shape[2])}; got the shape {tuple(valid.shape)}."
        )
    return valid[:, None, :, None]


def _in_groups(x: Tensor, spec: QuantSpec):
    """A view of x in which the numbers of a group lie along an axis of their own, and which one that is."""
    if spec.axis == "tensor":
        return x, tuple(range(x.ndim))
    dim = -1 if spec.axis == "token" else -2
    groups = spec.groups_along(*x.shape[-2:])
    return x.unflatten(dim, (groups, spec.quant_group or x.shape[dim])), dim


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
