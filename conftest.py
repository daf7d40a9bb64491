"""Settings for every test and every notebook under test."""

import os
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

# One thread per process. Several notebooks run side by side, and OpenMP threads that outnumber the
# cores spin instead of working (measured: three times slower). Set before torch is imported; the
# kernels that nbval starts inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import setuptools  # noqa: E402, F401  nbgrader needs it, and it must come before any import of distutils
from hypothesis import settings  # noqa: E402

# The same examples on every run, so that a red run can be repeated; no deadline, because a loaded
# machine is not a failing test.
settings.register_profile("kvlearn", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("kvlearn")


# Run the longest files first. Left to the end, one of them keeps one worker busy while the other sits idle.
# (When tests run in parallel this needs `--no-loadscope-reorder`, which dev.py passes.)
LONGEST = (
    "tests/classroom/test_execute.py",
    "tests/classroom/test_submissions.py",
    "tests/checks/test_exercises_mutants.py",
    "tests/classroom/test_command.py",
    "tests/checks/test_exercises.py",
    "tests/test_nbgrader.py",
    "tests/classroom/test_assignments.py",
    "tests/cache/test_conformance.py",
    "tests/test_build.py",
    "tests/classroom/test_without_walls.py",
    "notebooks/04_kv_cache.ipynb",
    "notebooks/03_naive_decoder.ipynb",
    "notebooks/08_fewer_bits.ipynb",
    "tests/test_student_workflow.py",
    "tests/test_hf.py",
    "tests/test_wheel.py",
)


def pytest_collection_modifyitems(items):
    place = {path: number for number, path in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))
    for item in items:
        # nbval waits a hard-coded 5 s for a cell's output (computationalmodelling/nbval#231), which
        # a loaded machine can exceed. Larger values delay the report of a dead kernel by as much.
        if hasattr(item, "output_timeout"):
            item.output_timeout = 20


# --- Sandbox tests, on a machine without a working sandbox ---


def in_ci():
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def no_sandbox():
    """None if bubblewrap works here, else a sentence that says why it does not and what to do."""
    if sys.platform != "linux":
        return "the sandbox needs Linux."
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed. To run them too (Debian, Ubuntu): sudo apt install bubblewrap"
    # The command that docs/instructors.md suggests. Not sandbox.missing(): a bug in it must fail the tests.
    words = "--unshare-user --disable-userns --unshare-net --ro-bind / / true".split()
    tried = subprocess.run(["bwrap", *words], capture_output=True, text=True, errors="replace")
    if tried.returncode == 0:
        return None
    said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return f'bubblewrap does not work here ({said}). See "Before the first class" in docs/instructors.md.'


NO_SANDBOX = no_sandbox()  # now, before any test changes PATH


def pytest_runtest_setup(item):
    if item.get_closest_marker("bubblewrap") and NO_SANDBOX:
        if in_ci():
            pytest.fail(f"In CI the sandbox must work: {NO_SANDBOX}", pytrace=False)
        pytest.skip(NO_SANDBOX)


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(is_left_out(report) for report in skipped)
    if count:
        tests = "1 test of the sandbox was" if count == 1 else f"{count} tests of the sandbox were"
        terminalreporter.write_line(f"{tests} skipped: {NO_SANDBOX}")


def is_left_out(report):
    """Whether a test was skipped because the sandbox does not work here."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else None
    return told is not None and told == f"Skipped: {NO_SANDBOX}"


# --- Every other skip is a failure, unless tests/allowed_skips.txt names it ---


def read_allowed_skips(path):
    """{pattern of test ids: reason} of tests/allowed_skips.txt."""
    allowed = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, bar, reason = (part.strip() for part in line.partition("|"))
            if not (pattern and bar and reason):
                raise pytest.UsageError(f"{path.name}: a line is 'pattern | reason', not {line!r}.")
            allowed[pattern] = reason
    return allowed


ALLOWED_SKIPS = read_allowed_skips(Path(__file__).parent / "tests" / "allowed_skips.txt")


def refuse_skip(report):
    """Turn a skip that is not allowed into a failure. An expected failure counts as a skip."""
    patterns = (pattern.replace("[", "[[]") for pattern in ALLOWED_SKIPS)  # a bracket is itself
    if report.outcome != "skipped" or any(fnmatchcase(report.nodeid, p) for p in patterns):
        return
    if is_left_out(report):
        return
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"{told}\nIt did not run, and no line of tests/allowed_skips.txt names it."
    if hasattr(report, "wasxfail"):
        del report.wasxfail


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector):
    report = yield
    refuse_skip(report)
    return report
