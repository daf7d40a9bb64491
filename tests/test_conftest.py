"""A test that did not run has not passed: only skips that are named, with a reason, are allowed."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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
    "sandboxed": "import pytest\n@pytest.mark.bubblewrap\ndef test_it():\n    1 / 0\n",
    "runs": "def test_it():\n    pass\n",
}


@pytest.mark.slow  # runs pytest twice
def test_only_a_skip_in_the_list_is_a_skip(tmp_path):
    """Would catch a suite that stays green while half of it is skipped, whichever way, and a sandbox that
    is left out without a word."""
    (tmp_path / "tests").mkdir()
    list_of_skips = tmp_path / "tests" / "allowed_skips.txt"
    list_of_skips.write_text("tests/test_allowed.py::test_*[q] | no device\n")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    for name, text in TESTS.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:nbval", "tests"]
    environment = os.environ | {"CI": "", "PATH": str(tmp_path)}  # without bubblewrap

    def run():
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    done = run()
    assert done.returncode == 2  # the module that skips itself is an error of collection
    assert "later C" in done.stdout and "allowed_skips.txt names it" in done.stdout
    (tmp_path / "tests" / "test_module.py").unlink()
    done = run()
    assert done.returncode == 1
    assert "2 failed, 1 passed, 2 skipped," in done.stdout and "1 error" in done.stdout
    assert all(f"later {letter}" in done.stdout for letter in "ABD")
    assert "1 test of the sandbox was skipped: " in done.stdout


@pytest.fixture
def conftest():
    """The functions of conftest.py, apart from those that serve the running tests."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "conftest.py")))


class Sandboxed:
    """As much of a test item as the hook asks for."""

    def get_closest_marker(self, name):
        return name == "bubblewrap"


@pytest.mark.parametrize(
    "ci, outcome", [("true", pytest.fail), ("1", pytest.fail), ("", pytest.skip), ("0", pytest.skip)]
)
def test_only_in_ci_a_missing_sandbox_is_a_failure(conftest, monkeypatch, ci, outcome):
    """Would catch a CI that leaves out the sandbox in silence, and a laptop where each of its tests fails."""
    monkeypatch.setenv("CI", ci)
    hook = conftest.pytest_runtest_setup
    monkeypatch.setitem(hook.__globals__, "NO_SANDBOX", "bubblewrap is not installed")
    # Both are caught: a skip that the hook raises here would skip this test.
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception), match="not installed") as raised:
        hook(Sandboxed())
    assert raised.type is outcome.Exception


@pytest.mark.parametrize(
    "script, said",
    [
        ("exit 0", None),
        ("echo 'bwrap: No permissions to create a new namespace' >&2; exit 1", "(bwrap: No permissions to"),
        ("exit 3", "bubblewrap does not work here (exit code 3). See "),
    ],
)
def test_bubblewrap_counts_where_it_works(conftest, tmp_path, monkeypatch, script, said):
    """Would catch 82 failures on an Ubuntu whose bwrap is there, and may not make a namespace."""
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    found = conftest.no_sandbox()
    assert found is None if said is None else said in found


def test_a_line_without_a_reason_is_refused(conftest, tmp_path):
    """Would catch a list that grows by patterns that nobody can explain."""
    path = tmp_path / "allowed_skips.txt"
    path.write_text("# a comment\n\ntests/a.py::test_b[*] | why | and more\n")
    assert conftest.read_allowed_skips(path) == {"tests/a.py::test_b[*]": "why | and more"}
    path.write_text("tests/a.py::test_b\n")
    with pytest.raises(pytest.UsageError, match="pattern | reason"):
        conftest.read_allowed_skips(path)
