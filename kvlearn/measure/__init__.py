"""Counters, clocks and meters: what a run did, beside the formulas of what it should do.

counters.py   how many token-positions were projected, which pairs scored, what a step reads and writes
formulas.py   the same numbers from the sizes alone
memory.py     live bytes and their peak, from the storages themselves
timing.py     interleaved timings, time of each token, how fast this machine reads memory
machine.py    the device, and what a measurement should say about where it was taken
"""

from kvlearn.measure.counters import count_pairs, count_projections, trace_cache
from kvlearn.measure.formulas import (
    attention_flops,
    attention_intensity,
    cached_pairs,
    cached_projections,
    decode_bytes,
    growing_peak_bytes,
    kv_bytes,
    naive_pairs,
    naive_projections,
    weight_bytes,
)
from kvlearn.measure.machine import device, machine, synchronize
from kvlearn.measure.memory import StorageMeter
from kvlearn.measure.timing import interleaved, median, read_bandwidth, token_times

__all__ = [
    "StorageMeter",
    "attention_flops",
    "attention_intensity",
    "cached_pairs",
    "cached_projections",
    "count_pairs",
    "count_projections",
    "decode_bytes",
    "device",
    "growing_peak_bytes",
    "interleaved",
    "kv_bytes",
    "machine",
    "median",
    "naive_pairs",
    "naive_projections",
    "read_bandwidth",
    "synchronize",
    "token_times",
    "trace_cache",
    "weight_bytes",
]
