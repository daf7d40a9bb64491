"""Rotary positions (RoPE, Su et al. 2021, arXiv 2104.09864).

A query and a key say where they stand by being turned. Coordinates are taken in pairs; the pair i of a
vector at position p is turned by the angle p / theta^(2i/D): the first pair fast, the last hardly. A dot
product of two turned vectors depends on the angle between them, so the score of a query with a key depends
on how far apart they are and not on where.

Which coordinates make a pair is a convention of the checkpoint. Hugging Face's Llama pairs coordinate i
with i + D/2 ("half-split"), and so does this file; Meta's original files pair 2i with 2i + 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class RopeScaling(NamedTuple):
    """How Llama 3.1 stretches RoPE for texts longer than those it was first trained on (arXiv 2407.21783).

    Pairs that turn at least `high_freq_factor` times over the first training's length stay as they are: they
    tell neighbours apart. Pairs that turn at most `low_freq_factor` times turn `factor` times slower, so that
    the longer text brings no angle that was never seen. In between the two are mixed.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int  # tokens of the first training's texts


def rotary_angles(
    positions: Tensor, head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> Tensor:
    """The angle of each pair at each position, in radians.

    Args:
        positions: (B, L) integers.
        head_dim: D, even.
        theta: the base of the frequencies (10,000 in the paper).
        scaling: for a model trained with it.

    Returns:
        (B, L, D/2) float32 whatever the model's dtype: bfloat16 has 8 bits of mantissa and would give
        neighbouring positions past 256 the same angle.
    """
    if head_dim % 2:
        raise ValueError(f"RoPE turns pairs of coordinates, so head_dim must be even; got {head_dim}.")
    return positions[..., None].float() * _frequencies(head_dim, theta, scaling, positions.device)


def _frequencies(head_dim: int, theta: float, scaling: RopeScaling | None, device: torch.device) -> Tensor:
    """(D/2,) radians per position: theta^(-2i/D) for pair i.

    Computed at every call: a tensor kept from an earlier one may have been made where this call cannot use
    it, under FakeTensorMode, in a compiled function or in a transform.
    """
    exponents = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    frequencies = 1.0 / theta**exponents
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1 for the fast pairs, 0 for the slow
    return frequencies * (kept + (1 - kept) / scaling.factor)


def apply_rope(x: Tensor, positions: Tensor, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Turn each head's vectors by their positions.

    Args:
        x: (B, H, L, D), queries or keys.
        positions: (B, L) integers; what stands at padding (-1) is turned too and seen by nobody.
        theta: the base of the frequencies.
        scaling: for a model trained with it (`DecoderConfig.rope_scaling`).

    Returns:
        (B, H, L, D), a new tensor in x's dtype.

    Raises:
        ValueError: D is odd, or the positions are not (B, L).
    """
    if positions.shape != (x.shape[0], x.shape[2]):
        raise ValueError(
            f"apply_rope needs one position for each of x's (batch, length) = "
            f"{(x.shape[0], x.shape[2])}; got positions of shape {tuple(positions.shape)}."
        )
    angles = rotary_angles(positions, x.shape[-1], theta, scaling)[:, None]  # (B, 1, L, D/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
