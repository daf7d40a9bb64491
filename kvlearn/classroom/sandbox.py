"""The walls around a student's code: where it can look, what it can use up, and that nobody hears it.

With bubblewrap (`bwrap`, a package of every Linux) a command sees Python, this package and the model, all
read-only, and a folder of its own in memory; no network, no other process, no solutions, gradebook or other
submission. Limits on memory, processes and files hold for each process in it (`limits`), and for all of them
together (`watch`). If this process is root, the command runs as an unprivileged user, a different one for
each worker: root has no limit on processes, and two workers under one user would share theirs.

The limit on memory counts what a process may write to (RLIMIT_DATA), and not the addresses that it maps
(RLIMIT_AS): a CUDA build of torch maps gigabytes of code that it never uses on a CPU.

Without bubblewrap the limits and the user remain, and `missing()` says what does not.
"""

import json
import math
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import kvlearn
from kvlearn import model_store
from kvlearn.classroom.watch import threads_of

FIRST_UID = 61_000  # of the users that workers become; Debian gives people at most 59,999
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
FILES = ("/etc/alternatives", "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl")
STARTING = 300  # seconds that Python, and torch in it, may take to start: a cold disk, a busy machine
PACKAGE = Path(kvlearn.__file__).parent


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    cell_seconds, submission_seconds: of each cell, and of all of them.
    memory_bytes: of each process, and of all together; files in memory, under /tmp and /dev/shm, come on top.
    processes: at once, threads among them.
    file_bytes: of one file, and of all files of a folder that can be written.
    """

    cell_seconds: float = 60
    submission_seconds: float = 600
    memory_bytes: int = 6 * 2**30
    processes: int = 256
    file_bytes: int = 256 * 2**20
    open_files: int = 512


class SandboxError(RuntimeError):
    """Why nothing can be run inside, in a sentence. No submission is the cause."""


def missing() -> str | None:
    """A sentence if student code would run without walls here, else None.

    Raises SandboxError if this is not Linux. `blank` tests whether the sandbox works.
    """
    if sys.platform != "linux":
        raise SandboxError("Grading needs Linux: the walls and limits around student code are Linux's.")
    if not shutil.which("bwrap"):
        return (
            "bubblewrap is not installed: student code can read what you can read, and reach the network. "
            "Limits on time, memory, processes and the size of each file remain. "
            "On Debian and Ubuntu: apt install bubblewrap."
        )
    return None


def command(inner: list[str], shared: Path, limits: Limits, worker: int = 0) -> list[str]:
    """The command that runs `inner` inside.

    Args:
        inner: a command whose program is this Python.
        shared: a folder that both sides may write, for the sockets of the kernel.
        limits: of the submission.
        worker: whose user to become, where this process is root.
    """
    uid = FIRST_UID + worker if os.geteuid() == 0 and _readable_by_all() else None
    if uid is not None:
        os.chown(shared, uid, uid)
    # Linux counts all threads of a user: also the instructor's own, if student code runs as that user.
    others = 0 if uid is not None or shutil.which("bwrap") else threads_of(os.geteuid())
    numbers = {
        "RLIMIT_DATA": limits.memory_bytes,
        "RLIMIT_NPROC": limits.processes + others,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": math.ceil(STARTING + limits.submission_seconds) * (os.cpu_count() or 1),
    }
    who = "-" if uid is None else str(uid)
    script = str(PACKAGE / "classroom" / "limits.py")
    limited = [sys.executable, "-I", script, json.dumps(numbers), who, *inner]
    return [*_walls(shared, limits), *limited] if shutil.which("bwrap") else limited


def environment(home: str) -> dict[str, str]:
    """What student code may know of this process's environment."""
    variables = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": home,
        "USER": "student",
        "LOGNAME": "student",
        "TMPDIR": home,
        model_store.VARIABLE: str(model_store.store()),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # This package, also where an environment that several clones share would find that of another clone.
    if not PACKAGE.is_relative_to(sys.prefix):
        variables["PYTHONPATH"] = str(PACKAGE.parent)
    return variables


def _walls(shared: Path, limits: Limits) -> list[str]:
    home = "/tmp/home"
    words = [
        shutil.which("bwrap"),
        "--die-with-parent",
        "--clearenv",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
    ]
    words += ["--unshare-uts", "--unshare-cgroup-try", "--hostname", "classroom"]
    if os.geteuid() == 0:
        words += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--disable-userns"]
    for name, value in environment(home).items():
        words += ["--setenv", name, value]
    for path in SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    words += ["--perms", "0755", "--dir", "/etc"]
    for path in FILES:
        words += ["--ro-bind-try", path, path]
    words += ["--proc", "/proc", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(limits.file_bytes), "--tmpfs", "/tmp"]
    words += ["--perms", "1777", "--dir", home]
    words += ["--perms", "1777", "--size", str(limits.file_bytes), "--tmpfs", "/dev/shm"]
    seen = [sys.base_prefix, sys.prefix, str(PACKAGE), str(model_store.store())]
    for path in sorted({str(up) for end in (*seen, shared) for up in Path(end).parents[:-1]}):
        if not path.startswith(SYSTEM):
            # Left to bwrap, folders on the way are its user's alone.
            words += ["--perms", "0755", "--dir", path]
    for path in seen:
        words += ["--ro-bind-try", path, path]
    return [*words, "--bind", str(shared), str(shared), "--chdir", home]


def _readable_by_all() -> bool:
    """Whether another user could run this Python: inside the walls always, else where no folder is shut."""
    if shutil.which("bwrap"):
        return True
    folders = [Path(sys.executable).resolve(), PACKAGE]
    return all(os.stat(up).st_mode & 0o005 == 0o005 for folder in folders for up in folder.parents)
