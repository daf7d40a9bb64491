"""docs/student-checks.yml: a workflow that can be read, names nobody's machine, and whose command works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbgrader.utils import is_solution

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "student-checks.yml"
TEXT = FILE.read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load(TEXT)
(JOB,) = WORKFLOW["jobs"].values()
RUNS = [step["run"] for step in JOB["steps"] if "run" in step]
NAME = "01_attention"


def test_the_workflow_runs_on_a_push_with_a_python_that_the_course_supports():
    """YAML reads `on` as true and 3.10 as 3.1; a right to write into the repository is given for nothing."""
    assert "push" in WORKFLOW[True]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    uses = {step["uses"].partition("@")[0]: step for step in JOB["steps"] if "uses" in step}
    assert set(uses) == {"actions/checkout", "actions/setup-python"}
    assert uses["actions/setup-python"]["with"]["python-version"] == "3.11"
    assert len(RUNS) == 2 and RUNS[0].startswith("python -m pip install ")


def test_it_names_what_exists_and_no_host():
    """A path of somebody's machine, an index's address, an extra or a notebook that is not there."""
    environment = WORKFLOW["env"]
    assert "://" not in TEXT.replace("https://...", "")
    assert not re.search(r"(?<![\w.])/\w+/|--index", TEXT)  # an absolute path, an index of packages
    assert environment["COURSE"] == ".[classroom]"
    assert (ROOT / environment["NOTEBOOKS"]).is_file()
    assert "constraints.txt" in RUNS[0] and (ROOT / "constraints.txt").is_file()


def run(folder):
    """The workflow's own command in `folder`, as its shell runs it: this Python, the workflow's variables."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"NOTEBOOKS": WORKFLOW["env"]["NOTEBOOKS"], "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **variables, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-e", "-c", RUNS[1]], cwd=folder, env=environment, capture_output=True, text=True
    )


def student(folder, answers):
    """A student's repository with one exercise; `answers`: whether it is solved."""
    path = folder / "exercises" / NAME / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / "exercises" / NAME / f"{NAME}.ipynb", path)
    if answers:
        mine = nbformat.read(path, as_version=4)
        theirs = nbformat.read(ROOT / "solutions" / NAME / f"{NAME}.ipynb", as_version=4)
        written = {c.metadata.nbgrader.grade_id: c.source for c in theirs.cells if is_solution(c)}
        for cell in mine.cells:
            if is_solution(cell):
                cell.source = written[cell.metadata.nbgrader.grade_id]
        nbformat.write(mine, path)
    return folder


@pytest.mark.slow
def test_a_solved_exercise_is_green(tmp_path):
    """The command does not exist, or fails where all is right."""
    done = run(student(tmp_path, answers=True))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"exercises/{NAME}/{NAME}.ipynb" in done.stdout
    assert f"  {'right':11}  multi_head_attention" in done.stdout and "wrong" not in done.stdout


@pytest.mark.slow
def test_an_unsolved_exercise_is_red_and_named(tmp_path):
    """Green, although nothing is written (`nbgrader validate`); or red, and nobody knows which exercise."""
    done = run(student(tmp_path, answers=False))
    assert done.returncode == 1, done.stdout + done.stderr
    for name in ("attention_weights", "scaled_dot_product_attention", "multi_head_attention"):
        assert f"not written  {name}" in done.stdout
