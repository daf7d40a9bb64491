import subprocess
import sys

import pytest
from typer.testing import CliRunner

import kvlearn
from kvlearn import cli, doctor
from kvlearn.doctor import GOOD, MISSING, NOTE, Finding


def run(*arguments):
    return CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "70"})


def test_version():
    """Would catch a version that needs a command behind it."""
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"kvlearn {kvlearn.__version__}\n")


def test_no_command_shows_the_commands():
    """Would catch an app that runs its only command when it is given none."""
    assert "doctor" in run().output and run("nonsense").exit_code == 2


@pytest.mark.parametrize("state, exit_code", [(GOOD, 0), (NOTE, 0), (MISSING, 1)])
def test_doctor(monkeypatch, state, exit_code):
    """Would catch an exit code that is not true to the report, and advice that is cut off or wrapped in the
    middle of a command."""
    long = (
        'Run this: python -m pip install -e ".[notebooks]" in the folder of the course, then try again. ' * 2
    )
    findings = [Finding("Python", "3.11.7"), Finding("Jupyter", "nothing [at all]", state, long)]
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    result = run("doctor")
    assert result.exit_code == exit_code
    assert "Python" in result.output and "nothing [at all]" in result.output and state in result.output
    assert f"Jupyter: {long.strip()}" in result.output
    assert ("cannot run yet" in result.output) == (state == MISSING)


@pytest.mark.slow
def test_doctor_on_this_machine():
    """The command as it is installed, with the real model: would catch a broken entry point."""
    code = "from kvlearn.cli import app; app(prog_name='kvlearn')"
    result = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for word in (
        "torch",
        "Device",
        "Threads",
        "Memory",
        "smollm2-135m in",
        "jupyterlab",
        "The course can run.",
    ):
        assert word in result.stdout
