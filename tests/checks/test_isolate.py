"""What an answer cannot do to the check or to the notebook: hang it, flood it, leave it changed."""

import os
import random
import signal
import sys
import threading
import time
import warnings

import numpy
import pytest
import torch
from toy import DOUBLE, message, right

from kvlearn.checks import engine, isolate
from kvlearn.checks.engine import judge
from kvlearn.checks.isolate import Cut, TookTooLong, time_limit


@pytest.fixture
def soon(monkeypatch):
    """A check whose time is up after a tenth of a second."""
    monkeypatch.setattr(engine, "limited", lambda: isolate.limited(seconds=0.1))


def endless(x, times):
    while True:
        pass


def endless_and_deaf(x, times):
    while True:
        try:
            while True:
                x + 1
        except:  # noqa: E722
            pass


@pytest.mark.parametrize("answer", [endless, endless_and_deaf])
def test_a_loop_that_never_ends_is_stopped(answer, soon):
    """A check that never comes back, and takes the notebook with it."""
    text = message(answer)
    assert "had not finished after 60 seconds, and was stopped. Is there a loop that never ends?" in text
    assert f"in {answer.__name__}, line " in text
    assert judge(DOUBLE, right).passed and sys.gettrace() is None


def test_an_alarm_of_the_callers_is_set_again():
    """A test's own limit, or a notebook's, that a check switches off."""
    rung = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    before = signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        assert judge(DOUBLE, right).passed
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 400 < left <= 500 and interval == 0 and not rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def test_a_check_works_in_a_thread():
    """Only the main thread has an alarm: elsewhere there is no limit, and the check works all the same."""
    results = []
    thread = threading.Thread(target=lambda: results.append(judge(DOUBLE, right).passed))
    thread.start()
    thread.join()
    assert results == [True]


def test_time_that_was_enough_raises_nothing_later():
    """An alarm that is left on rings in the middle of the next cell."""
    with time_limit(0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(TookTooLong), time_limit(0.02):
        while True:
            pass


def test_what_an_answer_prints_is_cut(capsys):
    """A print in an inner loop fills the notebook, and the browser with it."""

    def chatty(x, times):
        for number in range(100_000):
            print("step", number)
        return x * times

    assert judge(DOUBLE, chatty).passed
    printed = capsys.readouterr().out
    assert printed.startswith("step 0\nstep 1\n") and len(printed) < isolate.MAX_PRINTED + 100
    assert printed.count("your code prints more than a check shows") == 1
    assert judge(DOUBLE, lambda x, times: print("once") or x * times).passed
    assert capsys.readouterr().out == "once\n" * 3  # two inputs, and the first of them again


def test_a_cut_stream_is_a_stream():
    """print, sys.stdout.writelines and flush; what was written is counted whole."""
    out = Cut(sys.stdout, 3)
    assert out.write("12345") == 5 and out.encoding == sys.stdout.encoding
    out.writelines(["6", "7"])
    out.flush()


def change_everything(x, times):
    torch.manual_seed(9)
    random.seed(9)
    numpy.random.seed(9)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_default_device("meta")
    torch.set_num_threads(3)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("medium")
    sys.setrecursionlimit(5_000)
    sys.displayhook = print
    warnings.simplefilter("error")
    os.chdir("/")
    return x * times


def state():
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        numpy.random.get_state()[1].tolist(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        sys.getrecursionlimit(),
        sys.displayhook,
        warnings.filters[:],
        os.getcwd(),
    )


def test_the_callers_state_is_left_alone():
    """What leaks from a check changes the cells behind it: random numbers, defaults, modes, folders."""
    before = state()
    assert judge(DOUBLE, change_everything).passed
    assert state() == before


def enter(mode):
    """An answer that enters a mode and never leaves it."""
    kept = []

    def answer(x, times):
        kept.append(mode())
        kept[-1].__enter__()
        return x * times

    return answer


def modes():
    from torch._subclasses import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    return [
        FakeTensorMode,
        lambda: FlopCounterMode(display=False),
        lambda: torch.device("meta"),
        torch.inference_mode,
        torch.no_grad,
    ]


@pytest.mark.parametrize("number", range(5))
def test_a_mode_that_is_left_on_is_left(number):
    """FakeTensorMode().__enter__(): every later cell computes nothing, and fails at its first number."""
    result = judge(DOUBLE, enter(modes()[number]))
    assert result.passed or "not right yet" in result.message
    assert torch.ones(2).sum().item() == 2 and torch.ones(2).device.type == "cpu"
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert judge(DOUBLE, right).passed
