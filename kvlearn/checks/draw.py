"""Random inputs for cases, from the case's generator alone."""

import torch


def randn(generator, *shape, dtype=torch.float32, size=1.0) -> torch.Tensor:
    """Normal numbers times `size`. Drawn in float64, so that every dtype sees the same ones."""
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * size).to(dtype)
