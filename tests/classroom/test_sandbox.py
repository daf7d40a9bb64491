"""The walls around a student's code, tried from inside."""

import json
import os
import platform
import shutil
import socket
import sys
from pathlib import Path

import pytest
from walls import inside

from kvlearn.classroom import limits, sandbox, settings
from kvlearn.classroom.sandbox import Limits

pytestmark = pytest.mark.slow  # each starts a Python of its own

ROOT = Path(sandbox.PACKAGE).parent


@pytest.mark.bubblewrap
def test_what_is_out_of_reach(tmp_path):
    """A folder bound too much: the answers, the tests and other people's files would be there to read."""
    (tmp_path / "shared").mkdir()
    secret = tmp_path / "gradebook.db"
    secret.write_text("grades")
    paths = [ROOT / "solutions", ROOT / "course", ROOT / "tests", ROOT / "classroom", secret, "/etc/shadow"]
    paths = [str(path) for path in paths]
    shown = inside(f"import os; print([p for p in {paths} if os.path.exists(p)])", tmp_path / "shared")
    assert shown.stdout == "[]\n", shown.stderr
    shown = inside("import kvlearn; print(kvlearn.causal_mask(2).tolist())", tmp_path / "shared")
    assert shown.stdout == "[[True, False], [True, True]]\n", shown.stderr


@pytest.mark.bubblewrap
def test_nothing_of_ours_can_be_written(tmp_path):
    """A library that is not read-only: one submission would change the checks of the next."""
    target = sandbox.PACKAGE / "written_by_a_test"
    shown = inside(f"open({str(target)!r}, 'w')", tmp_path)
    assert "Read-only file system" in shown.stderr and not target.exists()


@pytest.mark.bubblewrap
def test_no_network(tmp_path):
    """A network left open, or this computer's own ports: a submission could send itself, or ask."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
import socket
for address in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
    try:
        print(socket.create_connection(address, 2))
    except OSError as error:
        print("refused")
"""
        assert inside(code, tmp_path).stdout == "refused\nrefused\n"


@pytest.mark.bubblewrap
def test_no_other_process_is_seen(tmp_path):
    """Without a namespace of processes, code could kill the grader or another submission."""
    code = "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"
    shown = inside(code, tmp_path)
    assert max(int(n) for n in shown.stdout.strip("[]\n").split(",")) < 20, shown.stdout
    assert str(os.getpid()) not in shown.stdout or os.getpid() < 20


@pytest.mark.bubblewrap
def test_code_is_nobody_of_ours(tmp_path):
    """RLIMIT_NPROC does nothing for root; and root's files would be open."""
    shown = inside("import os; print(os.getuid() == 0, os.getgroups() in ([], [os.getgid()]))", tmp_path)
    groups = "True" if os.geteuid() == 0 else ""  # only root can give its groups up
    assert shown.stdout.startswith(f"False {groups}"), shown.stdout + shown.stderr


@pytest.mark.bubblewrap
def test_the_environment_is_not_told(tmp_path, monkeypatch):
    """Tokens lie in environments."""
    monkeypatch.setenv("CLASSROOM_TOKEN", "s3cret")
    shown = inside("import os; print('CLASSROOM_TOKEN' in os.environ, os.environ['HOME'])", tmp_path)
    assert shown.stdout == "False /tmp/home\n", shown.stderr


def test_memory_ends(tmp_path):
    """Without a limit one submission takes the computer down."""
    code = "try:\n    bytearray(2**30)\nexcept MemoryError:\n    print('refused')"
    assert inside(code, tmp_path, Limits(memory_bytes=2**29)).stdout == "refused\n"


def test_a_file_ends(tmp_path):
    """A disk that one submission fills has no room for the gradebook."""
    code = """
import os
folder = "/tmp/home" if os.path.isdir("/tmp/home") else "."
with open(f"{folder}/large", "wb") as file:
    file.write(bytes(3 * 2**20))
"""
    shown = inside(code, tmp_path, Limits(file_bytes=2**20))
    assert "File too large" in shown.stderr or "No space left" in shown.stderr


def test_memory_that_is_mapped_and_not_used(tmp_path):
    """A limit on addresses: a CUDA build of torch maps 3 GiB before its first line, and nothing is graded."""
    code = """
import mmap
mmap.mmap(-1, 2**32, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
print("mapped")
"""
    assert inside(code, tmp_path, Limits(memory_bytes=2**29)).stdout == "mapped\n"


def test_the_least_memory_that_may_be_set(tmp_path):
    """A setting that is taken, and with which no submission can start."""
    code = "import kvlearn.classroom.inside, torch\nprint(len(torch.ones(2**26)))"
    shown = inside(code, tmp_path, Limits(memory_bytes=settings.LEAST_MEMORY))
    assert shown.stdout == f"{2**26}\n", shown.stderr


def test_time_limits_that_are_no_whole_numbers_or_short(tmp_path):
    """RLIMIT_CPU takes no fraction; and to import torch takes longer than a second, which is not theirs."""
    code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU)[0])"
    shown = inside(code, tmp_path, Limits(submission_seconds=1.5))
    assert int(shown.stdout) == (sandbox.STARTING + 2) * os.cpu_count(), shown.stderr


def test_the_machines_memory_is_taken_from_the_student_first(tmp_path):
    """A machine with less memory than the limits: the kernel would end the grader."""
    assert inside("print(open('/proc/self/oom_score_adj').read())", tmp_path).stdout == "1000\n\n"


def test_a_user_who_has_many_processes_already(tmp_path, monkeypatch):
    """The kernel counts the instructor's browser too: Python would start no thread inside."""
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    monkeypatch.setattr(sandbox, "_readable_by_all", lambda: False)
    monkeypatch.setattr(sandbox, "threads_of", lambda uid: 700)
    words = sandbox.command([sys.executable], tmp_path, Limits())
    assert json.loads(words[3])["RLIMIT_NPROC"] == 956
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: "bwrap")  # counts apart
    words = sandbox.command([sys.executable], tmp_path, Limits())
    assert '"RLIMIT_NPROC": 256' in " ".join(words)


@pytest.mark.bubblewrap
def test_processes_end(tmp_path):
    """A fork bomb, small: as root there would be no limit at all."""
    code = """
import os, time
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count)
"""
    assert int(inside(code, tmp_path, Limits(processes=20)).stdout) <= 20


@pytest.mark.skipif(platform.machine() not in limits.REFUSED, reason="no numbers of this machine's calls")
def test_calls_that_are_refused(tmp_path):
    """Memory that belongs to no process, a user with all rights, notes for the next submission."""
    numbers = limits.REFUSED[platform.machine()]
    clone = limits.CLONE[platform.machine()]
    code = f"""
import ctypes, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {numbers}.items():
    libc.syscall(number, 0, 0, 0, 0, 0)
    if ctypes.get_errno() != 1:
        print(name, ctypes.get_errno())
print(libc.syscall({clone}, 0x10000000 | 17, 0, 0, 0, 0), ctypes.get_errno())  # CLONE_NEWUSER
thread = threading.Thread(target=print, args=("a thread",))
thread.start()
thread.join()
print(subprocess.run(["echo", "a process"], capture_output=True, text=True).stdout, end="")
"""
    assert inside(code, tmp_path).stdout == "-1 1\na thread\na process\n"


@pytest.mark.bubblewrap
def test_a_shared_memory_that_is_full(tmp_path):
    """/dev/shm without a size is the instructor's memory: torch's own workers need a little of it."""
    code = """
with open("/dev/shm/x", "wb", buffering=0) as one, open("/dev/shm/y", "wb", buffering=0) as other:
    for file in (one, other):
        try:
            for _ in range(40):
                file.write(bytes(2**20))
            print("written")
        except OSError as error:
            print(error.strerror)
"""
    shown = inside(code, tmp_path, Limits(file_bytes=48 * 2**20))
    assert shown.stdout == "written\nNo space left on device\n", shown.stderr


def test_without_bubblewrap_a_sentence(monkeypatch):
    """Walls that are missing in silence."""
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    assert "bubblewrap is not installed" in sandbox.missing() and "apt install" in sandbox.missing()


def test_grading_elsewhere_than_on_linux(monkeypatch):
    """A traceback about /proc."""
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    with pytest.raises(sandbox.SandboxError, match="Grading needs Linux"):
        sandbox.missing()


@pytest.mark.bubblewrap
def test_the_package_inside_is_the_one_that_grades(tmp_path, monkeypatch):
    """Two clones and one environment: inside, Python looks for the other clone's package, and finds none."""
    clone = tmp_path / "clone" / "kvlearn"
    (tmp_path / "shared").mkdir()
    shutil.copytree(sandbox.PACKAGE, clone, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sandbox, "PACKAGE", clone)
    shown = inside("import kvlearn; print(kvlearn.__file__)", tmp_path / "shared")
    assert shown.stdout == f"{clone}/__init__.py\n", shown.stderr


def test_without_bubblewrap_limits_remain(tmp_path, monkeypatch):
    """The limits hang on the walls."""
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    code = """
from resource import *
print(getrlimit(RLIMIT_NOFILE), getrlimit(RLIMIT_CORE))
"""
    assert inside(code, tmp_path, Limits(open_files=99)).stdout == "(99, 99) (0, 0)\n"


@pytest.mark.parametrize(
    "name", ["RLIMIT_DATA", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CPU"]
)
def test_a_limit_cannot_be_undone(tmp_path, name):
    """A soft limit alone: code raises it again."""
    code = f"""
import resource
hard = resource.getrlimit(resource.{name})[1]
try:
    resource.setrlimit(resource.{name}, (hard + 1, hard + 1))
    print("raised")
except (ValueError, OSError):
    print("held", hard != resource.RLIM_INFINITY)
"""
    assert inside(code, tmp_path).stdout == "held True\n"
