"""Code inside the sandbox, for the tests."""

import os
import signal
import subprocess
import sys
import time

from kvlearn.classroom import sandbox


def inside(code: str, shared, limits=None, seconds=60) -> subprocess.CompletedProcess:
    """What a piece of Python prints inside."""
    command = sandbox.command([sys.executable, "-c", code], shared, limits or sandbox.Limits())
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, start_new_session=True)


# Workers that do not do their work. Here, because a worker finds its function by the name of a module.


def killed(job, sender):
    os.kill(os.getpid(), signal.SIGKILL)


def first_fails_then_sleeps(job, sender):
    if job.worker == 0:
        sender.send("it failed at once")
    else:
        time.sleep(10**6)
