"""Products with a weight matrix, as fast as this machine's memory allows.

A decode step multiplies every weight matrix by one vector. Each weight is read from memory for a single
multiplication, so the time of the step is the time to read the weights. How close a product comes to that
depends on the processor, the dtype and the shape, and no way of computing it is always fastest:

    whole        one call of the matrix library, which may leave all but one core idle
    by_outputs   each core computes its share of the outputs: rows of W
    by_inputs    each core multiplies its share of the inputs, and the partial results are added: columns of W
    widened      16-bit weights as float32, for processors that cannot multiply 16-bit numbers

Each is called with the matrix and returns a function of x. `fastest` times them, once for each shape, when a
model is loaded (`kvlearn.inference`). `python3 dev.py bench` compares the time of a decode step with the
least time that the memory allows.

Shapes: W (out_features, in_features), x (..., in_features) -> x W^T (..., out_features).
"""

import math
import time
from collections.abc import Callable, Hashable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Product = Callable[[Tensor], Tensor]
Way = Callable[[Tensor], Product]

FEW_TOKENS = 8  # with more, reading the weights no longer dominates the time


class Linear(nn.Linear):
    """`torch.nn.Linear` without a bias, unless asked for: (..., in_features) -> (..., out_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False):
        super().__init__(in_features, out_features, bias=bias)


# Ways to multiply ------------------------------------------------------------------------------------


def whole(weight: Tensor) -> Product:
    return lambda x: F.linear(x, weight)


def by_outputs(weight: Tensor) -> Product:
    shares = math.gcd(torch.get_num_threads(), len(weight))
    parts = weight.unflatten(0, (shares, -1)).mT  # (shares, in, out / shares)

    def multiply(x: Tensor) -> Tensor:
        everyone = x.reshape(1, -1, x.shape[-1]).expand(shares, -1, -1)  # (shares, tokens, in)
        out = torch.bmm(everyone, parts)  # (shares, tokens, out / shares)
        return out.transpose(0, 1).reshape(*x.shape[:-1], -1)

    return multiply


def by_inputs(weight: Tensor) -> Product:
    shares = math.gcd(torch.get_num_threads(), weight.shape[1])
    parts = weight.T.unflatten(0, (shares, -1))  # (shares, in / shares, out)

    def multiply(x: Tensor) -> Tensor:
        own = x.reshape(-1, shares, x.shape[-1] // shares).transpose(0, 1)  # (shares, tokens, in / shares)
        return torch.bmm(own, parts).sum(dim=0).reshape(*x.shape[:-1], -1)

    return multiply


def widened(weight: Tensor) -> Product:
    return lambda x: F.linear(x.float(), weight.float()).to(x.dtype)


# Which one -------------------------------------------------------------------------------------------

LARGE_BYTES = 1_000_000  # smaller matrices stay in the processor's cache: any way is fast
HUGE_BYTES = 20_000_000
BEYOND_CACHE_BYTES = 64_000_000  # read in turn, this many come from memory, like a model's layers
ROUNDS = 4


def by_length(few: Product, many: Product) -> Product:
    """`few` for up to FEW_TOKENS tokens, `many` for more."""
    return lambda x: few(x) if x.numel() <= FEW_TOKENS * x.shape[-1] else many(x)


@lru_cache
def fastest(rows: int, columns: int, dtype: torch.dtype, threads: int) -> tuple[Way, bool]:
    """Find the fastest way to multiply a few tokens by a (rows, columns) matrix, by a short measurement.

    Returns:
        The way, and whether to store the matrix column by column.
    """
    if rows * columns * dtype.itemsize < LARGE_BYTES:
        return whole, False
    rows = min(rows, HUGE_BYTES // (columns * dtype.itemsize))  # part of a huge matrix gives the same answer
    size = rows * columns * dtype.itemsize
    by_row = list(torch.ones(1 + BEYOND_CACHE_BYTES // size, rows, columns, dtype=dtype, device="cpu"))
    by_column = [matrix.T.contiguous().T for matrix in by_row]
    candidates = {(way, False): [way(matrix) for matrix in by_row] for way in (whole, by_outputs)}
    candidates |= {(way, True): [way(matrix) for matrix in by_column] for way in (whole, by_inputs)}
    return least_time(candidates, torch.ones(1, columns, dtype=dtype, device="cpu"))


@lru_cache
def fastest_for_many(dtype: torch.dtype, threads: int) -> Way:
    """Find the fastest way to multiply many tokens by matrices of this dtype, by trying one shape."""
    if dtype.itemsize >= 4:
        return whole
    matrix = torch.ones(512, 512, dtype=dtype, device="cpu")
    return least_time({way: [way(matrix)] for way in (whole, widened)}, matrix[:64])


def least_time(candidates: dict[Hashable, list[Product]], x: Tensor) -> Hashable:
    """The key whose products of x take the least time, measured in turns; much slower ones drop out early."""
    best = dict.fromkeys(candidates, math.inf)
    for _ in range(ROUNDS):
        limit = 2 * min(best.values())
        for key in [key for key, seconds in best.items() if seconds <= limit]:
            start = time.perf_counter()
            for product in candidates[key]:
                product(x)
            best[key] = min(best[key], time.perf_counter() - start)
    return min(best, key=best.get)
