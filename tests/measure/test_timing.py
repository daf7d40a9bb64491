"""Timing: the order, the warm-up, the shape of what comes back, and a bandwidth that is one."""

import time
from types import SimpleNamespace

import pytest
import torch
from small import CONFIG, PROMPT, small_decoder

from kvlearn.cache import GrowingCache
from kvlearn.measure import interleaved, median, read_bandwidth, timing, token_times


def test_functions_take_turns():
    """Would catch all of a and then all of b: whatever slows the machine meanwhile would be b's."""
    calls = []
    seconds = interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, warmup=2
    )
    assert calls == ["a", "b"] * 5
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_the_time_is_that_of_the_function(monkeypatch):
    """Would catch the times of two functions swapped, and a clock that stops before the work is done."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def lasts(seconds):
        clock.now += seconds

    seconds = interleaved({"long": lambda: lasts(5.0), "short": lambda: lasts(1.0)}, repeats=2, warmup=1)
    assert seconds == {"long": [5.0, 5.0], "short": [1.0, 1.0]}


def test_the_device_is_waited_for(monkeypatch):
    """Would catch a GPU's launch timed in place of its work: the wait comes before and after each call."""
    order = []
    monkeypatch.setattr(timing, "synchronize", lambda: order.append("wait"))
    interleaved({"f": lambda: order.append("run")}, repeats=1, warmup=0)
    assert order == ["wait", "run", "wait"]


@pytest.mark.parametrize(("repeats", "warmup"), [(0, 1), (2, -1)])
def test_rounds_that_cannot_be_are_refused(repeats, warmup):
    """Would catch an empty list of times and its median much later."""
    with pytest.raises(ValueError, match=f"got {repeats} and {warmup}"):
        interleaved({"f": lambda: None}, repeats, warmup)


def test_median_is_not_moved_by_one_slow_round():
    """Would catch a mean under the name of a median."""
    assert median([1.0, 100.0, 2.0]) == 2.0
    assert median([1.0, 2.0, 4.0, 100.0]) == 3.0


@pytest.mark.parametrize("cache", [None, GrowingCache(CONFIG)])
def test_token_times_give_each_token_its_position(cache):
    """Would catch the first new token put at the prompt's last position, or a step left out."""
    start = time.perf_counter()
    positions, seconds = token_times(small_decoder(), PROMPT, 6, cache)
    assert positions == [5, 6, 7, 8, 9, 10] and len(seconds) == 6
    assert min(seconds) > 0 and sum(seconds) <= time.perf_counter() - start


def test_token_times_can_be_drawn():
    """Would catch a result that figures.time_per_token does not take."""
    from kvlearn.figures import time_per_token

    assert time_per_token({"naive": token_times(small_decoder(), PROMPT, 3)}).axes[0].lines


def test_read_bandwidth_is_bytes_over_the_best_time(monkeypatch):
    """Would catch bits for bytes, elements for bytes, MiB for MB, and a median where a bound is wanted."""
    monkeypatch.setattr(
        timing, "interleaved", lambda reads, repeats: {name: [0.5, 0.25, 2.0] for name in reads}
    )
    rows = 8_000_000 // (2048 * 2)
    assert read_bandwidth(megabytes=8, dtype=torch.bfloat16) == rows * 2048 * 2 / 0.25


def test_each_read_touches_every_element():
    """Would catch a "read" that skips most of the memory: the bandwidth would be too high."""
    matrix = torch.arange(12.0).view(3, 4)
    assert timing._read("sum", matrix)().item() == 66
    assert timing._read("dot", matrix)().item() == 506
    assert timing._read("tall", matrix)().tolist() == [6, 22, 38]
    assert timing._read("wide", matrix)().sum().item() == 66
    assert timing._read("linear", matrix)().tolist() == [[6, 22, 38]]


def test_read_bandwidth_of_this_machine():
    """Would catch a figure that is off by a thousand: memory reads between 0.1 GB/s and 10 TB/s."""
    assert 1e8 < read_bandwidth(megabytes=16, repeats=2) < 1e13
