"""dev.py: what it decides, without installing anything."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
dev = type("dev", (), runpy.run_path(str(ROOT / "dev.py")))
OTHER_PYTHONS = [v for v in ("3.6", "3.7", "3.8", "3.9", "3.10", "3.14") if shutil.which(f"python{v}")]


def exercises(root, **texts):
    for name, text in texts.items():
        folder = root / "exercises" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.ipynb").write_text(text)


def test_each_exercise_is_laid_once_and_never_again(tmp_path):
    """Would catch the worst that this repository could do: a learner's answer written over."""
    exercises(tmp_path, a_1="stub one", b_2="stub two")
    lines = dev.lay_exercises(str(tmp_path))
    assert lines == ["New for you: work/a_1/a_1.ipynb", "New for you: work/b_2/b_2.ipynb"]
    mine = tmp_path / "work/a_1/a_1.ipynb"
    assert mine.read_text() == "stub one"
    mine.write_text("my answer")
    assert dev.lay_exercises(str(tmp_path)) == []
    exercises(tmp_path, a_1="stub one, better", c_3="stub three")
    lines = dev.lay_exercises(str(tmp_path))
    assert lines[0].startswith("work/a_1/a_1.ipynb stays as it is; exercises/a_1 has changed")
    assert lines[1:] == ["New for you: work/c_3/c_3.ipynb"]
    assert mine.read_text() == "my answer"


def test_a_renamed_copy_makes_room_for_the_new_edition(tmp_path):
    """Would catch advice that does not work: rename yours, start again, have the new one."""
    exercises(tmp_path, a_1="old")
    dev.lay_exercises(str(tmp_path))
    exercises(tmp_path, a_1="new")
    (tmp_path / "work/a_1/a_1.ipynb").rename(tmp_path / "work/a_1/mine.ipynb")
    assert dev.lay_exercises(str(tmp_path)) == ["New for you: work/a_1/a_1.ipynb"]
    assert (tmp_path / "work/a_1/a_1.ipynb").read_text() == "new"
    assert (tmp_path / "work/a_1/mine.ipynb").read_text() == "old"
    assert dev.lay_exercises(str(tmp_path)) == []


def test_a_file_that_dev_did_not_lay_is_left_alone(tmp_path):
    """Would catch a learner's copy that is replaced, or nagged about, because no record knows it."""
    exercises(tmp_path, a_1="stub")
    (tmp_path / "work/a_1").mkdir(parents=True)
    (tmp_path / "work/a_1/a_1.ipynb").write_text("copied by hand")
    assert dev.lay_exercises(str(tmp_path)) == []
    assert (tmp_path / "work/a_1/a_1.ipynb").read_text() == "copied by hand"
    assert json.loads((tmp_path / "work/.laid.json").read_text()) == {}


def test_work_is_ignored_by_git():
    """Would catch answers that a pull could touch, or that a learner publishes by accident."""
    if (ROOT / ".git").exists():
        path = "work/01_attention/01_attention.ipynb"
        assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("version", [(3, 10), (3, 14), (2, 7), (4, 0)])
def test_another_python_is_told_what_to_do(version):
    """Would catch a traceback, or pip's own words, as the first thing that a learner sees."""
    said = dev.version_problem(version)
    assert said.startswith("The course runs on Python 3.11, 3.12 or 3.13, and this is ")
    assert f"{version[0]}.{version[1]}." in said and "dev.py ..." in said


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_the_supported_pythons_pass(version):
    """Would catch a gate that is closed to those it is for."""
    assert dev.version_problem(version) is None


@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_dev_is_readable_to_a_python_that_it_refuses(version):
    """Would catch new syntax in dev.py: an old Python must reach the sentence that sends it away."""
    done = subprocess.run(
        [f"python{version}", str(ROOT / "dev.py"), "test"], capture_output=True, text=True, cwd=ROOT
    )
    if "pyenv" not in done.stderr:  # a shim that stands for a Python that is not chosen here
        assert done.returncode == 1 and done.stderr.startswith("The course runs on Python")


def test_the_stamp_follows_what_is_installed(tmp_path, monkeypatch):
    """Would catch an environment that is not renewed when a pin or the Python changed."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.setitem(dev.stamp.__globals__, "ROOT", str(tmp_path))
    first = dev.stamp("3.11.7")
    assert dev.stamp("3.11.7") == first != dev.stamp("3.12.1")
    with open(tmp_path / "constraints.txt", "a") as file:
        file.write("another==1.0\n")
    assert dev.stamp("3.11.7") != first


JUNIT = '<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10"/></testsuites>'


def test_counts_come_from_what_pytest_reports(tmp_path):
    """Would catch errors of collection, or a pytest that never wrote its report, counted as nothing."""
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT)
    assert dev.read_counts(str(path)) == (4, 3, 3)
    path.write_text("<testsuites><testsuite")
    assert dev.read_counts(str(path)) == (0, 1, 0)
    assert dev.read_counts(str(tmp_path / "none.xml")) == (0, 1, 0)


@pytest.mark.parametrize(
    "codes, junit, line, code",
    [
        ((0, 0, 0), 'errors="0" failures="0" skipped="1" tests="9"', "10 passed, 0 failed, 1 skipped", 0),
        ((1, 0, 0), 'errors="0" failures="0" skipped="0" tests="9"', "10 passed, 1 failed, 0 skipped", 1),
        ((0, 1, 0), 'errors="0" failures="0" skipped="0" tests="9"', "10 passed, 1 failed, 0 skipped", 1),
        ((0, 0, 1), 'errors="1" failures="2" skipped="0" tests="9"', "8 passed, 3 failed, 0 skipped", 1),
        ((0, 0, 3), 'errors="0" failures="0" skipped="0" tests="9"', "11 passed, 1 failed, 0 skipped", 1),
        ((0, 0, 3), None, "2 passed, 1 failed, 0 skipped", 1),
    ],
    ids=["green", "lint", "format", "tests", "pytest stopped", "no report"],
)
def test_the_last_line_and_the_exit_code_agree(monkeypatch, capsys, codes, junit, line, code):
    """Would catch a red run that exits with 0, or a line that hides which of the parts was red."""
    left = list(codes)

    def call(command, **_):
        if "pytest" in command and junit:
            path = Path(command[command.index("--junitxml") + 1])
            path.write_text(f"<testsuites><testsuite {junit}/></testsuites>")
        return left.pop(0)

    monkeypatch.setattr(dev.subprocess, "call", call)
    assert dev.test(["--fast"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert left == []


def test_fast_leaves_out_the_notebooks_and_nothing_else_does(monkeypatch):
    """Would catch a full run that skips what takes long."""
    commands = []
    monkeypatch.setattr(dev.subprocess, "call", lambda command, **_: commands.append(command) or 0)
    monkeypatch.setitem(dev.test.__globals__, "fetch_model", lambda: True)
    dev.test(["--fast"])
    dev.test([])
    fast, full = [command for command in commands if "pytest" in command]
    assert "not slow" in fast and "notebooks" not in fast
    assert "not slow" not in full and {"tests", "notebooks", "solutions"} <= set(full)


def test_an_unknown_command_and_no_command(tmp_path):
    """Would catch a typo that starts an installation, or a bare `dev.py` that says nothing."""
    run = [sys.executable, str(ROOT / "dev.py")]
    done = subprocess.run([*run, "tset"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("There is no command 'tset'. There is: lab, test, build, python, bench.")
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "python3 dev.py lab" in done.stdout


def test_ci_runs_the_tests_and_may_not_fall_back():
    """Would catch a CI that runs something else, or runs the lessons on the tiny stand-in model."""
    path = ROOT / ".ci" / "run"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert "set -euo pipefail" in lines and "export KVLEARN_REQUIRE_MODEL=1" in lines
    assert lines[-1] == 'python3 dev.py test "$@"'
    assert os.name == "nt" or os.access(path, os.X_OK)
