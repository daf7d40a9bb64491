"""What a family of processes uses, counted on real ones; and that all of it ends."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from kvlearn.classroom import watch

MIB = 2**20


@contextmanager
def running(code, session=True):
    """A process of Python that has run `code` and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}\nimport time\nprint('ready', flush=True)\ntime.sleep(600)"],
        stdout=subprocess.PIPE, text=True, start_new_session=session,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        watch.kill(process.pid)
        process.wait()
        process.stdout.close()


def watching(process, folder, memory=2**40, files=2**40, seconds=0.05):
    return watch.Watch(process.pid, memory, files, folder, seconds)


FOUR = """
import os, time
{before}
for _ in range(4):
    reader, writer = os.pipe()
    if os.fork() == 0:
        {inside}
        os.write(writer, b"x")
        time.sleep(600)
    os.read(reader, 1)
"""
EACH_ITS_OWN = FOUR.format(before="", inside="held = b'x' * (60 * 2**20)")
ALL_THE_SAME = FOUR.format(before="held = b'x' * (60 * 2**20)", inside="held.count(b'y')")


def test_the_watch_counts_the_family(tmp_path):
    """Each process within its limit, and all together beyond: a limit of the system counts each alone."""
    with running(EACH_ITS_OWN) as process:
        counting = watching(process, tmp_path, memory=150 * MIB)
        counting.start()
        assert process.wait(60) == -9
        counting.join(60)
        assert counting.exceeded == "memory"
        assert [pid for pid in watch.family(process.pid) if watch.alive(pid)] == []


@pytest.mark.slow
def test_what_a_family_shares_counts_once(tmp_path):
    """60 MiB that five processes share, counted as 300: a DataLoader with workers would be ended."""
    with running(ALL_THE_SAME) as process:
        counting = watching(process, tmp_path)
        assert counting.holds_more_than(60 * MIB)
        assert not counting.holds_more_than(200 * MIB)
        assert sum(watch.used_bytes(pid) for pid in watch.family(process.pid)) > 300 * MIB


@pytest.mark.slow
def test_files_that_are_mapped_are_not_use_and_shared_memory_is(tmp_path):
    """The libraries of a CUDA build counted as the student's; a bomb in shared memory not counted at all."""
    (tmp_path / "library").write_bytes(bytes(64 * MIB))
    read = f"""
import mmap
with open({str(tmp_path / "library")!r}, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
mapped.find(b"x")
"""
    with running(read) as process:
        assert watch.used_bytes(process.pid) < 32 * MIB and watch.share_bytes(process.pid) < 32 * MIB
    shared = f"import mmap\nshared = mmap.mmap(-1, {64 * MIB})\nshared.write(b'x' * len(shared))"
    with running(shared) as process:
        assert watch.used_bytes(process.pid) > 64 * MIB and watch.share_bytes(process.pid) > 64 * MIB


def test_swap_counts_and_so_does_a_process_that_nobody_may_look_into(monkeypatch):
    """A bomb that the kernel moves to swap looks small; one that hides its pages has none."""
    status = {"VmRSS": 100, "RssAnon": 10, "RssShmem": 2, "RssFile": 88, "VmSwap": 5}
    shares = {"Pss": 50, "Pss_Anon": 6, "Pss_Shmem": 1, "SwapPss": 4}
    monkeypatch.setattr(watch, "_kibibytes", lambda path: status if path.name == "status" else shares)
    assert watch.used_bytes(1) == 17 * 1024 and watch.share_bytes(1) == 11 * 1024
    shares = {}
    assert watch.share_bytes(1) == 17 * 1024
    status = {"VmRSS": 100}  # where /proc has no more
    assert watch.used_bytes(1) == 100 * 1024


def test_what_has_lost_its_parent_is_still_of_the_family(tmp_path):
    """A process that a submission leaves behind runs on, uncounted, beside the rest of the class."""
    orphan = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nos._exit(0)"
    process = subprocess.Popen([sys.executable, "-c", orphan], start_new_session=True)
    assert process.wait(60) == 0
    (left,) = [pid for pid in watch.family(process.pid) if watch.alive(pid)]
    watch.kill(process.pid)
    assert not watch.alive(left)


def test_the_watch_leaves_what_is_small(tmp_path):
    """A watch that ends what may live."""
    (tmp_path / "small").write_bytes(bytes(5000))
    with running("") as process:
        counting = watching(process, tmp_path, memory=200 * MIB, files=MIB, seconds=0.01)
        counting.start()
        time.sleep(0.2)
        counting.stop()
        counting.join(60)
        assert counting.exceeded is None and process.poll() is None


@pytest.mark.parametrize("files, size", [(5, 3 * MIB), (watch.MOST_FILES + 1, 0)], ids=["large", "many"])
def test_the_watch_counts_the_files_that_both_sides_see(tmp_path, files, size):
    """The folder of the kernel's sockets lies on the instructor's disk: written full, file by file."""
    (tmp_path / "deep").mkdir()
    for number in range(files):
        (tmp_path / "deep" / str(number)).write_bytes(bytes(size))
    with running("") as process:
        counting = watching(process, tmp_path, files=12 * MIB)
        counting.start()
        assert process.wait(60) == -9
        counting.join(60)
        assert counting.exceeded == "files"


def test_what_was_used_last_is_known_after_the_end(tmp_path):
    """Python that crashed at its limit is told as `os._exit`, because a dead process uses nothing."""
    with running(f"held = b'x' * {64 * MIB}") as process:
        counting = watching(process, tmp_path, memory=80 * MIB)
        assert not counting.was_near_the_limit()
        assert not counting.holds_more_than(80 * MIB)
        watch.kill(process.pid)
        assert not counting.holds_more_than(80 * MIB) and counting.was_near_the_limit()


def test_a_machine_that_ran_out_of_memory(tmp_path, monkeypatch):
    """What the kernel has killed for memory is told as `os._exit`; or what it killed yesterday counts."""
    killed = 3
    monkeypatch.setattr(watch, "killed_for_memory", lambda: killed)
    counting = watch.Watch(os.getpid(), 2**40, 2**40, tmp_path)
    assert not counting.machine_ran_out()
    killed = 4
    assert counting.machine_ran_out()


def test_threads_are_counted_as_the_kernel_counts_them(monkeypatch):
    """Processes counted instead of threads: a browser has ten times as many. Or those of other users too."""
    threads = "import threading, time\nfor _ in range(9):\n    "
    threads += "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    listed = os.listdir
    with running(threads) as process:
        there = ["self", "cpuinfo", str(process.pid)]
        monkeypatch.setattr(os, "listdir", lambda path: there if path == "/proc" else listed(path))
        assert watch.threads_of(os.getuid()) == 10
        assert watch.threads_of(os.getuid() + 1) == 0
