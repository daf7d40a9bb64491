"""Settings for every test and every notebook under test."""

import os

# One thread a process. Several notebooks run side by side, and OpenMP threads that outnumber the
# cores spin instead of working (measured: three times slower). Set before torch is imported; the
# kernels that nbval starts inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings  # noqa: E402

# The same examples on every run, so that a red run can be repeated; no deadline, because a loaded
# machine is not a failing test.
settings.register_profile("kvlearn", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("kvlearn")


def pytest_collection_modifyitems(items):
    for item in items:
        # nbval waits a hard-coded 5 s for a cell's output (computationalmodelling/nbval#231), which
        # a loaded machine can exceed. Larger values delay the report of a dead kernel by as much.
        if hasattr(item, "output_timeout"):
            item.output_timeout = 20
