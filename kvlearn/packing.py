"""Codes of a few bits in whole bytes: two of 4 bits, or four of 2, share one.

No tensor has numbers of less than a byte. Codes that are not packed are a quantised cache in name only: its
bytes do not fall (sgl-project/sglang#22777).
"""

import torch
from torch import Tensor

from kvlearn.values import is_plain, is_whole, kind_of, whole


def pack(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers below 2**bits, uint8 (..., n), to bytes (..., ceil(n * bits / 8)).

    The first code takes the lowest bits of the first byte. Where the last byte is not full, zeros fill it.

    Raises:
        ValueError: bits is not 8, 4 or 2, or a code has more bits than that: it would run into the next one.
    """
    _check_bits(bits, codes)
    if bits == 8:
        return codes
    if codes.numel() and int(codes.max()) >= 2**bits:
        raise ValueError(f"A code of {bits} bits is 0 to {2**bits - 1}; the largest is {int(codes.max())}.")
    per_byte = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per_byte))
    packed = codes[..., ::per_byte].clone()
    for place in range(1, per_byte):
        packed |= codes[..., place::per_byte] << (bits * place)
    return packed


def unpack(packed: Tensor, bits: int, n: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """The n codes, (..., n) of `dtype`, that `pack` has put into these bytes.

    Raises:
        ValueError: bits is not 8, 4 or 2, or n codes of so many bits take another number of bytes.
    """
    _check_bits(bits, packed)
    n, per_byte = whole(n, "n", at_least=0), 8 // bits
    if -(-n // per_byte) != packed.shape[-1]:
        raise ValueError(f"{n} codes of {bits} bits take {-(-n // per_byte)} bytes, not {packed.shape[-1]}.")
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype is one of torch's, such as torch.float32; got {dtype!r}.")
    if bits == 8:
        return packed.to(dtype)
    codes = torch.empty(*packed.shape, per_byte, dtype=dtype, device=packed.device)
    for place in range(per_byte):
        codes[..., place] = (packed >> (bits * place)) & (2**bits - 1)
    return codes.flatten(-2)[..., :n]


def _check_bits(bits: int, codes: Tensor) -> None:
    if not is_whole(bits) or bits not in (8, 4, 2):
        raise ValueError(f"A byte holds codes of 8, 4 or 2 bits; got {bits!r}.")
    if not is_plain(codes) or codes.dtype != torch.uint8 or codes.ndim == 0:
        raise ValueError(f"Codes are a tensor of uint8 with at least one axis; got {kind_of(codes)}.")
