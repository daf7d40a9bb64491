"""Kill a submission's processes once they exceed its limits together.

Linux's own limits (`limits`) hold for each process alone: they stop one large allocation at once, but not
twenty small processes. So a thread checks the whole family four times per second. It counts the memory that
only ending the family would free: private memory, shared memory and swap. Code and data of libraries do not
count: Linux can drop their pages and read them from the files again, and a CUDA build of torch maps gigabytes
of them.
"""

import os
import signal
import threading
import time
from pathlib import Path

MOST_FILES = 1000  # in the folder that both sides see; Jupyter needs six


class Watch(threading.Thread):
    """Kill a process and its family once they exceed a limit; `exceeded` is then "memory" or "files".

    Args:
        pid: the first process of the family.
        memory_bytes: the most that all of them may use together.
        file_bytes: the most that the files in `folder` may take.
        folder: a folder that both sides of the sandbox see.
        seconds: the time between two checks.
    """

    def __init__(self, pid: int, memory_bytes: int, file_bytes: int, folder: Path, seconds: float = 0.25):
        super().__init__(daemon=True)
        self.pid, self.memory_bytes, self.file_bytes = pid, memory_bytes, file_bytes
        self.folder, self.seconds = folder, seconds
        self.exceeded, self._over = None, threading.Event()
        self._used, self._killed_before = 0, killed_for_memory()

    def run(self):
        while not self._over.wait(self.seconds):
            if self.holds_more_than(self.memory_bytes):
                self.exceeded = "memory"
            elif not _fits(self.folder, self.file_bytes):
                self.exceeded = "files"
            if self.exceeded:
                kill(self.pid)
                return

    def stop(self):
        self._over.set()

    def holds_more_than(self, most_bytes: int) -> bool:
        """Whether the family uses more memory than this."""
        members = family(self.pid)
        # Two steps: the second is exact, and slow. The first counts a shared page once for each process.
        used = sum(used_bytes(pid) for pid in members)
        if used > most_bytes:
            used = sum(share_bytes(pid) for pid in members)
        self._used = used or self._used  # 0: all have ended
        return used > most_bytes

    def was_near_the_limit(self) -> bool:
        """Whether the family used most of its memory when last seen.

        If Python gets no more memory, it may crash instead of raising MemoryError.
        """
        return self._used > 0.75 * self.memory_bytes

    def machine_ran_out(self) -> bool:
        """Whether Linux has killed a process for lack of memory since the watch began.

        Then the machine had less memory left than the limit. `limits` has Linux kill student code first.
        """
        return killed_for_memory() > self._killed_before


# Memory of a process -------------------------------------------------------------------------------------


def used_bytes(pid: int) -> int:
    """Private memory, shared memory and swap of a process; 0 when it has ended."""
    found = _kibibytes(Path(f"/proc/{pid}/status"))
    anonymous = found.get("RssAnon", found.get("VmRSS", 0))  # VmRSS, where /proc is an imitation
    return 1024 * (anonymous + found.get("RssShmem", 0) + found.get("VmSwap", 0))


def share_bytes(pid: int) -> int:
    """The same, with a page that n processes share counted as 1/n, so that the sum over a family is right."""
    found = _kibibytes(Path(f"/proc/{pid}/smaps_rollup"))
    if "Pss_Anon" not in found:  # an older Linux, or a process that we may not inspect
        return used_bytes(pid)
    return 1024 * (found["Pss_Anon"] + found["Pss_Shmem"] + found.get("SwapPss", 0))


def _kibibytes(path: Path) -> dict[str, int]:
    """The lines "Name:  123 kB" of a file under /proc."""
    try:
        words = [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:  # it has just ended
        return {}
    return {line[0].rstrip(":"): int(line[1]) for line in words if len(line) == 3 and line[2] == "kB"}


def killed_for_memory() -> int:
    """How many processes Linux has killed because the machine, or a container, was out of memory."""
    try:
        words = Path("/proc/vmstat").read_text().split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0


# Files, and the family -----------------------------------------------------------------------------------


def _fits(folder: Path, most_bytes: int) -> bool:
    """Whether the files in a folder are neither too large together nor too many."""
    size = count = 0
    for _, folders, files, descriptor in os.fwalk(folder):
        count += len(folders) + len(files)
        for name in files:
            try:
                size += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
            except OSError:
                continue  # it has just gone
        if size > most_bytes or count > MOST_FILES:
            return False
    return True


def family(pid: int) -> list[int]:
    """The process, all of its session, and all that these have started.

    A child whose parent has ended is still in its session. A Jupyter kernel starts a session of its own.
    """
    children: dict[int, list[int]] = {}
    members = [pid]
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                after_name = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2]
                parent, session = (int(after_name.split()[place]) for place in (1, 3))
            except (OSError, ValueError, IndexError):
                continue  # it has just ended
            children.setdefault(parent, []).append(int(name))
            if session == pid != int(name):
                members.append(int(name))
    for member in members:
        members += [child for child in children.get(member, []) if child not in members]
    return members


def alive(pid: int) -> bool:
    """Whether a process has memory. A zombie (it has ended, its parent has not yet waited) has none."""
    try:
        return Path(f"/proc/{pid}/statm").read_text().split()[1] != "0"
    except (OSError, IndexError):
        return False


def kill(pid: int) -> None:
    """End a process and its family."""
    for _ in range(20):  # a process started while we kill is found in the next round
        members = [member for member in family(pid) if alive(member)]
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not members:
            return
        time.sleep(0.05)


def threads_of(uid: int) -> int:
    """How many threads a user has: RLIMIT_NPROC counts these."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue  # it has just ended
    return count
