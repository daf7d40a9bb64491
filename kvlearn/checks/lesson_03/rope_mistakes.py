"""What goes wrong in apply_rope: turns by another angle, of other pairs, or no turns at all."""

import math

import torch


def _angles(positions, head_dim, theta, exponent=2):
    """(B, 1, L, D/2) in float64."""
    pairs = torch.arange(head_dim // 2, dtype=torch.float64)
    return positions[:, None, :, None].double() / theta ** (exponent * pairs / head_dim)


def _turned(x, angles):
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _right(x, positions, theta):
    return _turned(x, _angles(positions, x.shape[-1], theta))


def neighbours(x, positions, theta):
    angles = _angles(positions, x.shape[-1], theta)
    split = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
    return torch.stack(_turned(split, angles).chunk(2, dim=-1), dim=-1).flatten(-2)


def from_zero(x, positions, theta):
    return _right(x, torch.arange(x.shape[2]).expand_as(positions), theta)


def table_ends(x, positions, theta):
    return _right(x, positions.clamp(max=2047), theta)


def first_row(x, positions, theta):
    return _right(x, positions[:1].expand_as(positions), theta)


def from_one(x, positions, theta):
    return _right(x, positions + 1, theta)


def half_exponent(x, positions, theta):
    return _turned(x, _angles(positions, x.shape[-1], theta, exponent=1))


def double_exponent(x, positions, theta):
    return _turned(x, _angles(positions, x.shape[-1], theta, exponent=4))


def growing_frequencies(x, positions, theta):
    return _turned(x, _angles(positions, x.shape[-1], theta, exponent=-2))


def slow_first(x, positions, theta):
    return _turned(x, _angles(positions, x.shape[-1], theta).flip(-1))


def one_speed(x, positions, theta):
    return _turned(x, _angles(positions, x.shape[-1], theta, exponent=0))


def degrees(x, positions, theta):
    return _turned(x, _angles(positions, x.shape[-1], theta).deg2rad())


def clockwise(x, positions, theta):
    return _right(x, -positions, theta)


def twice(x, positions, theta):
    return _turned(x, 2 * _angles(positions, x.shape[-1], theta))


def two_minuses(x, positions, theta):
    angles = _angles(positions, x.shape[-1], theta)
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos - first * sin), dim=-1).to(x.dtype)


def two_pluses(x, positions, theta):
    angles = _angles(positions, x.shape[-1], theta)
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos + second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def cos_and_sin_swapped(x, positions, theta):
    return _turned(x, math.pi / 2 - _angles(positions, x.shape[-1], theta))


def second_half_kept(x, positions, theta):
    half = x.shape[-1] // 2
    return torch.cat((_right(x, positions, theta)[..., :half], x[..., half:]), dim=-1)


def added(x, positions, theta):
    angles = _angles(positions, x.shape[-1], theta)
    return x + torch.cat((angles.sin(), angles.cos()), dim=-1).to(x.dtype)


def positions_rounded(x, positions, theta):
    return _right(x, positions.to(x.dtype), theta)


def speeds_rounded(x, positions, theta):
    return _turned(x, positions[:, None, :, None] * _speeds(x, theta).to(x.dtype).double())


def angles_rounded(x, positions, theta):
    return _turned(x, _angles(positions, x.shape[-1], theta).to(x.dtype).double())


def coarse_angles(x, positions, theta):
    angles = positions[:, None, :, None].to(x.dtype) * _speeds(x, theta).to(x.dtype)
    return _turned(x, angles.double())


def _speeds(x, theta):
    """(1, 1, 1, D/2): the angle from one position to the next."""
    return _angles(torch.ones(1, 1), x.shape[-1], theta)
