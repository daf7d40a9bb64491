"""Settings for every test and every notebook under test."""

import os
from fnmatch import fnmatchcase
from pathlib import Path

# One thread a process. Several notebooks run side by side, and OpenMP threads that outnumber the
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


def pytest_collection_modifyitems(items):
    # The longest file first: at the end it would keep one worker busy while the others have nothing to do.
    items.sort(key=lambda item: "tests/classroom/test_submissions.py" not in item.nodeid)
    for item in items:
        # nbval waits a hard-coded 5 s for a cell's output (computationalmodelling/nbval#231), which
        # a loaded machine can exceed. Larger values delay the report of a dead kernel by as much.
        if hasattr(item, "output_timeout"):
            item.output_timeout = 20


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
    """Turn a skip (an expected failure too) that nobody allowed into a failure."""
    patterns = (pattern.replace("[", "[[]") for pattern in ALLOWED_SKIPS)  # a bracket is itself
    if report.outcome != "skipped" or any(fnmatchcase(report.nodeid, p) for p in patterns):
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
