"""Run an answer so that it cannot hang the check, flood the notebook, or leave Python or torch changed.

`undisturbed` gives torch's defaults and seeded random numbers, and restores the caller's state afterwards.
`limited` ends what runs too long and cuts what it prints. Both are context managers around the answer's runs.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

import torch
from torch import overrides
from torch.utils import _python_dispatch as dispatch

MAX_SECONDS = 60
MAX_PRINTED = 5_000  # characters, in one check


class TookTooLong(BaseException):
    """The time is up. Not an Exception, so that an answer's `except Exception` does not catch it."""


@contextmanager
def limited(seconds: float = MAX_SECONDS, characters: int = MAX_PRINTED):
    """Raise TookTooLong after `seconds`, and show at most `characters` of what is printed."""
    with (
        contextlib.redirect_stdout(Cut(sys.stdout, characters)),
        contextlib.redirect_stderr(Cut(sys.stderr, characters)),
        time_limit(seconds),
    ):
        yield


@contextmanager
def time_limit(seconds: float):
    """Raise TookTooLong after `seconds`, where the platform has an alarm and this is the main thread.

    A bare `except:` in an endless loop would catch it and go on. So the alarm comes again each second, and
    turns on a trace that raises at the next line too, which is inside that `except`. An alarm that was set
    before, such as a test's own limit, is set again afterwards.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_at_next_line(frame, event, argument):
        if event == "line":
            raise TookTooLong
        return None if event == "call" else raise_at_next_line  # not in functions that start from here on

    def stop(signum, frame):
        while frame is not None and not frame.f_globals.get("__name__", "").startswith("kvlearn."):
            frame.f_trace = raise_at_next_line
            frame = frame.f_back
        sys.settrace(raise_at_next_line)
        raise TookTooLong

    trace, started = sys.gettrace(), time.monotonic()
    handler = signal.signal(signal.SIGALRM, stop)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(trace)
        signal.signal(signal.SIGALRM, handler)
        if left:
            passed = time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, max(left - passed, 0.01), interval)


class Cut:
    """A stream that passes on the first characters, says once that the rest is left out, and drops it."""

    def __init__(self, stream, characters: int):
        self._stream, self._left = stream, characters

    def write(self, text) -> int:
        if self._left > 0:
            self._stream.write(text[: self._left])
            if len(text) > self._left:
                self._stream.write("\n... (your code prints more than a check shows)\n")
        self._left -= len(text)
        return len(text)

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self._stream, name)


@contextmanager
def undisturbed(seed: int):
    """Torch's defaults and random numbers from `seed` inside; afterwards all is as the caller had it."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with ExitStack() as stack:
        for restore in (_defaults(), _python(), _numpy()):
            stack.callback(restore)
        stack.enter_context(torch.random.fork_rng(devices=list(cuda)))
        if torch.get_default_device().type != "cpu":
            torch.set_default_device("cpu")
        torch.random.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float32)
        yield


def _defaults() -> Callable[[], None]:
    """Take down torch's settings; return what sets them again."""
    device, dtype, grad = torch.get_default_device(), torch.get_default_dtype(), torch.is_grad_enabled()
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    strict = _determinism()

    def restore():
        if torch.get_default_device() != device:
            torch.set_default_device(device if device.type != "cpu" else None)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        if _determinism() != strict:  # to set it imports torch's compiler: seconds
            torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])

    return restore


def _determinism() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _python() -> Callable[[], None]:
    """The same for Python's own state."""
    state, recursion, filters = random.getstate(), sys.getrecursionlimit(), warnings.filters[:]
    folder, hook = os.getcwd(), sys.displayhook

    def restore():
        random.setstate(state)
        sys.setrecursionlimit(recursion)
        warnings.filters[:] = filters
        os.chdir(folder)
        sys.displayhook = hook

    return restore


def _numpy() -> Callable[[], None]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return lambda: None
    state = numpy.random.get_state()
    return lambda: numpy.random.set_state(state)


@contextmanager
def modes_left():
    """Leave the modes that an answer has entered and not left (FakeTensorMode().__enter__() and the like)."""
    stacks = (
        (overrides._get_current_function_mode_stack, overrides._pop_mode),
        (dispatch._get_current_dispatch_mode_stack, dispatch._pop_mode),
    )
    heights, inference = [len(stack()) for stack, _ in stacks], torch.is_inference_mode_enabled()
    try:
        yield
    finally:
        if torch.get_default_device().type != "cpu":  # is a mode too, and torch wants to leave it itself
            torch.set_default_device(None)
        for (stack, pop), height in zip(stacks, heights, strict=True):
            while (now := len(stack())) > height:
                with contextlib.suppress(Exception):
                    stack()[-1].__exit__(None, None, None)
                if len(stack()) == now:  # torch.device's own mode cannot leave in this way
                    pop()
        if torch.is_inference_mode_enabled() != inference:
            _ENTERED.append(torch.inference_mode(inference))
            _ENTERED[-1].__enter__()


_ENTERED = []  # inference modes: torch leaves one as soon as its object is gone
