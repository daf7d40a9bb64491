"""Grading where bubblewrap is not installed: a warning, the limits that remain, and the right grades."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from submissions import ASSIGNMENT, CLASS, ROOT
from typer.testing import CliRunner

from kvlearn.classroom import command, course, settings

pytestmark = pytest.mark.slow

WHO = ("misconception", "crash")


def test_a_class_without_bubblewrap(tmp_path, monkeypatch):
    """Limits that hang on the walls, a warning that is not said, a grade that needs them."""
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder / ASSIGNMENT, tmp_path / folder / ASSIGNMENT)
    shutil.copy(ROOT / course.CONFIG, tmp_path)
    settings.create(tmp_path)
    path = settings.file_of(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace('"6GiB"', '"3GiB"'), encoding="utf-8")
    (tmp_path / "downloads").mkdir()
    for student in WHO:
        (tmp_path / "downloads" / f"{student}_{ASSIGNMENT}.ipynb").write_bytes(CLASS[student].data)
    programs = tmp_path / "programs"  # all but bubblewrap
    programs.mkdir()
    (programs / "rm").symlink_to(shutil.which("rm"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{programs}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    said = ""
    for words in (["release", "00"], ["collect", "downloads"], ["grade", "00"], ["export", "grades.csv"]):
        if words[0] == "grade":  # its workers must come from a process that never had another PATH
            told = [sys.executable, "-m", "kvlearn", "classroom", *words]
            done = subprocess.run(told, capture_output=True, text=True)
            code, text = done.returncode, done.stdout + done.stderr
        else:
            done = CliRunner().invoke(command.app, words)
            code, text = done.exit_code, done.output
        said += text
        assert code == 0, said
    assert said.count("bubblewrap is not installed: student code can read what you can read") == 1
    with open(tmp_path / "grades.csv", newline="", encoding="utf-8") as file:
        scores = {row["student"]: float(row["score"]) for row in csv.DictReader(file)}
    assert scores == {student: sum(CLASS[student].points) for student in WHO}, said
