"""A test that does not run is no test that passes: only skips that are named, with a reason, count."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Texts of test files, written to a folder of their own and run there by a pytest of their own: what the rule
# refuses, and what it allows. No test of this file is skipped.
TESTS = {
    "marked": "import pytest\n@pytest.mark.skip(reason='later A')\ndef test_it():\n    pass\n",
    "inside": "import pytest\ndef test_it():\n    pytest.skip('later B')\n",
    "module": "import pytest\npytest.skip('later C', allow_module_level=True)\n",
    "xfail": "import pytest\n@pytest.mark.xfail(reason='later D')\ndef test_it():\n    1 / 0\n",
    "allowed": "import pytest\n@pytest.mark.parametrize('x', 'q')\ndef test_it(x):\n    pytest.skip()\n",
    "runs": "def test_it():\n    pass\n",
}


@pytest.mark.slow  # runs pytest twice
def test_only_a_skip_in_the_list_is_a_skip(tmp_path):
    """Would catch a suite that stays green while half of it is skipped, whichever way."""
    (tmp_path / "tests").mkdir()
    list_of_skips = tmp_path / "tests" / "allowed_skips.txt"
    list_of_skips.write_text("tests/test_allowed.py::test_*[q] | no device\n")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    for name, text in TESTS.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:nbval"]
    done = subprocess.run([*command, "tests"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2  # the module that skips itself is an error of collection
    assert "later C" in done.stdout and "allowed_skips.txt names it" in done.stdout
    (tmp_path / "tests" / "test_module.py").unlink()
    done = subprocess.run([*command, "tests"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "2 failed, 1 passed, 1 skipped, 1 error" in done.stdout
    assert all(f"later {letter}" in done.stdout for letter in "ABD")


def test_a_line_without_a_reason_is_refused(tmp_path):
    """Would catch a list that grows by patterns that nobody can explain."""
    read_allowed_skips = runpy.run_path(str(ROOT / "conftest.py"))["read_allowed_skips"]
    path = tmp_path / "allowed_skips.txt"
    path.write_text("# a comment\n\ntests/a.py::test_b[*] | why | and more\n")
    assert read_allowed_skips(path) == {"tests/a.py::test_b[*]": "why | and more"}
    path.write_text("tests/a.py::test_b\n")
    with pytest.raises(pytest.UsageError, match="pattern | reason"):
        read_allowed_skips(path)
