"""What one stored number costs: the types of a cache, with their scales, zeros and residual window.

A plain type (bf16, fp8 with one scale for everything) costs its bits. A quantised one costs its codes, and
for each group of numbers a scale and mostly a zero as well; and the most recent tokens, the residual window,
are kept in full. "4-bit" with groups of 32 and a scale and a zero in fp16 is 4 + 32/32 = 5.0 bits a number.

    KIVI (arXiv 2402.02750)   keys by channel: one scale a channel over `quant_group` tokens, whole groups
                              only; values by token: one scale a token over `quant_group` channels
    llama.cpp                 q8_0: 34 bytes for 32 numbers, q4_0: 18 bytes for 32, scale included;
                              no residual window
"""

from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from kvlearn.quantization import QuantSpec
from kvlearn.values import keep_whole, whole


@dataclass(frozen=True)
class Side:
    """How keys, or values, are stored.

    Args:
        bits: of one code.
        axis: None = no scales. "channel": one scale a channel over `quant_group` consecutive tokens.
            "token": one scale a token over `quant_group` channels.
        quant_group: numbers that share a scale; None, by token, = all channels of a head.
        meta_bytes: bytes of the scale (and the zero) of one group.
    """

    bits: int
    axis: str | None = None
    quant_group: int | None = 1
    meta_bytes: int = 0

    def __post_init__(self):
        keep_whole(self, "bits")
        if self.quant_group is not None or self.axis != "token":
            keep_whole(self, "quant_group")
        keep_whole(self, "meta_bytes", at_least=0)
        if self.axis not in (None, "channel", "token"):
            raise ValueError(
                f"axis is None, 'channel' or 'token'; got {self.axis!r}. (One scale for a whole tensor would "
                "mix rows and quantise the past again at each step; a cache refuses it.)"
            )
        if self.axis is None and (self.meta_bytes or self.quant_group != 1):
            raise ValueError("A plain type has no groups and no scales: quant_group=1, meta_bytes=0.")

    def bits_of(self, width: int) -> Fraction:
        """Bits of one token's `width` numbers in one head, their share of scales and zeros included."""
        width = whole(width, "width")
        group = self.quant_group or width
        if self.axis == "token" and width % group:
            raise ValueError(
                f"{width} channels are not whole groups of {group}; take a quant_group that divides {width}."
            )
        codes = -(-width * self.bits // 8) * 8  # a token's last byte may be filled in part
        return codes + Fraction(8 * self.meta_bytes * width, group)

    def codes_among(self, tokens: int, residual: int) -> int:
        """How many of a row's first `tokens` are stored as codes; the rest are kept in full."""
        if self.axis is None:
            return tokens
        outside = max(tokens - residual, 0)
        return outside - outside % self.quant_group if self.axis == "channel" else outside

    def bytes_of(self, heads: int, width: int, tokens: int, residual: int, full_bits: int) -> int:
        """Bytes of (heads, tokens, width) numbers, one row of one layer."""
        codes = self.codes_among(tokens, residual)
        bits = self.bits_of(width) * codes + full_bits * width * (tokens - codes)
        return heads * -(-bits // 8)


@dataclass(frozen=True)
class CacheType:
    """How a cache stores keys and values: `cache_type("int4")` makes one by name."""

    name: str
    keys: Side
    values: Side
    residual: int = 0  # most recent tokens kept in full
    residual_bits: int = 16  # of one number there

    def __post_init__(self):
        if not isinstance(self.keys, Side) or not isinstance(self.values, Side):
            raise ValueError(f"keys and values are a Side each; got {self.keys!r} and {self.values!r}.")
        keep_whole(self, "residual", at_least=0)
        keep_whole(self, "residual_bits")

    @property
    def exact(self) -> bool:
        """False where what comes back is not what was stored (beyond the rounding of a float)."""
        return (
            self.keys.axis is None
            and self.values.axis is None
            and min(self.keys.bits, self.values.bits) >= 16
        )

    def bits_each(self, width: int = 128) -> float:
        """Bits of one number far from the residual window, in heads of `width`: keys and values together."""
        return float((self.keys.bits_of(width) + self.values.bits_of(width)) / (2 * width))


PLAIN = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8}
TORCH = {torch.float64: 64, torch.float32: 32, torch.bfloat16: 16, torch.float16: 16}
TORCH |= {torch.float8_e4m3fn: 8, torch.float8_e5m2: 8}
CODES = {"int8": 8, "int4": 4, "int3": 3, "int2": 2}
LLAMA_CPP = {"q8_0": Side(8, "token", 32, 2), "q4_0": Side(4, "token", 32, 2)}
NAMES = (*PLAIN, *CODES, *LLAMA_CPP)


def cache_type(
    dtype, *, quant_group: int | None = None, residual: int | None = None, residual_bits: int | None = None
):
    """The `CacheType` of a name, a torch dtype, or a CacheType.

    Args:
        dtype: "fp32", "bf16", "fp16", "fp8" (one byte a number; its one scale is not counted);
            "int8", "int4", "int3", "int2" (KIVI-style, scale and zero in fp16); "q8_0", "q4_0" (llama.cpp's);
            or a torch floating-point dtype.
        quant_group: numbers that share a scale; 32 when left out. For int types only.
        residual: most recent tokens kept in full; 32 when left out. For int types only.
        residual_bits: of a number kept in full; 16 when left out.

    Raises:
        ValueError: an unknown name, or a group or residual for a type that has none.
    """
    found = dtype if isinstance(dtype, CacheType) else _by_name(dtype)
    given = {"quant_group": quant_group, "residual": residual, "residual_bits": residual_bits}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return found
    if found.name not in CODES:
        raise ValueError(
            f"{' and '.join(given)} can be chosen for {', '.join(CODES)}; {found.name} has its own layout."
        )
    group = given.pop("quant_group", found.keys.quant_group)
    sides = {side: replace(getattr(found, side), quant_group=group) for side in ("keys", "values")}
    return replace(found, **sides, **given)


def _by_name(dtype) -> CacheType:
    if isinstance(dtype, torch.dtype):
        if dtype not in TORCH:
            raise ValueError(f"A cache stores floating-point numbers or named codes; got {dtype}.")
        return CacheType(str(dtype).removeprefix("torch."), Side(TORCH[dtype]), Side(TORCH[dtype]))
    name = dtype.strip().lower() if isinstance(dtype, str) else None
    if name in PLAIN:
        return CacheType(name, Side(PLAIN[name]), Side(PLAIN[name]))
    if name in CODES:
        keys, values = (Side(CODES[name], axis, 32, 4) for axis in ("channel", "token"))
        return CacheType(name, keys, values, residual=32)
    if name in LLAMA_CPP:
        return CacheType(name, LLAMA_CPP[name], LLAMA_CPP[name])
    raise ValueError(f"There is no cache type {dtype!r}. There are: {', '.join(NAMES)}.")


def from_specs(keys, values, residual: int = 32, dtype: torch.dtype = torch.bfloat16) -> CacheType:
    """The `CacheType` of a quantised cache, from what it is made with.

    Args:
        keys, values: a `kvlearn.quantization.QuantSpec`, or None for numbers kept as they are.
        residual: most recent tokens kept in full.
        dtype: what those are kept in, of 16 bits or more.
    """
    full = _by_name(dtype).keys
    if full.axis is not None or full.bits < 16:
        raise ValueError(f"What is kept in full has 16 bits or more and no scales; got {dtype!r}.")
    keys, values = (full if spec is None else _side_of(spec) for spec in (keys, values))
    return CacheType("quantised", keys, values, residual=residual, residual_bits=full.bits)


def _side_of(spec: QuantSpec) -> Side:
    if not isinstance(spec, QuantSpec):
        raise ValueError(f"keys and values are QuantSpecs, or None; got {spec!r}.")
    return Side(spec.bits, spec.axis, spec.quant_group, (1 + spec.has_zero) * spec.scale_dtype.itemsize)


def weight_bits(dtype) -> int:
    """Bits of one weight, by name or torch dtype; the scales of quantised weights are not counted."""
    if isinstance(dtype, torch.dtype) and dtype in TORCH:
        return TORCH[dtype]
    bits = {**PLAIN, **CODES}.get(dtype.strip().lower() if isinstance(dtype, str) else None)
    if bits is None:
        raise ValueError(f"There is no weight type {dtype!r}. There are: {', '.join((*PLAIN, *CODES))}.")
    return bits
