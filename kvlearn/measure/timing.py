"""Times that can be compared: interleaved, synchronised, medians; and how fast this machine reads memory."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from kvlearn.generation import generate
from kvlearn.measure.machine import synchronize


def interleaved(functions: dict[str, Callable], repeats: int = 5, warmup: int = 1) -> dict[str, list[float]]:
    """Time functions in turn, a, b, c, a, b, c, ...: what slows the machine for a while slows them all.

    Args:
        functions: name -> callable without arguments.
        repeats: timed rounds.
        warmup: rounds before them that are not timed.

    Returns:
        name -> seconds of each round; take `median`.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats is 1 or more and warmup 0 or more; got {repeats} and {warmup}.")
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warmup + repeats):
        for name, function in functions.items():
            synchronize()
            start = time.perf_counter()
            function()
            synchronize()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median(values) -> float:
    """The middle value: one slow round does not move it."""
    return statistics.median(values)


def token_times(model, prompt: list[int], new_tokens: int, cache=None) -> tuple[list[int], list[float]]:
    """Positions of the new tokens and the seconds that each took, from a greedy run of its own.

    The first new token pays for the whole prompt (the prefill); drop it with [1:] to compare decode steps.

    Args:
        model: a `Decoder`.
        prompt: token ids.
        new_tokens: how many to generate.
        cache: None for the naive decoder.

    Returns:
        (positions, seconds), each of length new_tokens; for `kvlearn.figures.time_per_token`.
    """
    ticks = [time.perf_counter()]
    generate(model, prompt, new_tokens, cache=cache, on_token=lambda *_: ticks.append(time.perf_counter()))
    seconds = [after - before for before, after in zip(ticks, ticks[1:], strict=False)]
    return list(range(len(prompt), len(prompt) + len(seconds))), seconds


def read_bandwidth(
    megabytes: int = 256,
    repeats: int = 5,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> float:
    """Bytes a second that this machine reads from memory, the way a decode step reads weights.

    The best of several reads of a tensor far larger than the last cache: its sum, its dot product with
    itself, matrix-vector products of two shapes, and a linear layer on one row. Threads: as torch is set.

    Args:
        megabytes: size of the tensor (10^6 bytes); several times the last-level cache.
        repeats: rounds of each; the best counts, so the result is a bound and not an average.
        dtype: of the tensor.
        device: where it lies.
    """
    columns = 2048
    rows = max(1, megabytes * 1_000_000 // (columns * dtype.itemsize))
    matrix = torch.ones(rows, columns, dtype=dtype, device=device)
    reads = {name: _read(name, matrix) for name in ("sum", "dot", "tall", "wide", "linear")}
    best = min(min(times) for times in interleaved(reads, repeats).values())
    return matrix.nbytes / best


def _read(name: str, matrix: Tensor) -> Callable[[], Tensor]:
    flat = matrix.view(-1)
    wide = matrix.view(matrix.shape[1], matrix.shape[0])
    along, across = torch.ones_like(matrix[0]), torch.ones_like(matrix[:, 0])
    return {
        "sum": flat.sum,
        "dot": lambda: flat @ flat,
        "tall": lambda: matrix @ along,
        "wide": lambda: wide @ across,
        "linear": lambda: linear(along[None], matrix),  # what a decode step of one row calls
    }[name]
