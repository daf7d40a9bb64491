"""One blank submission before anybody's: where it fails, nobody is graded."""

import shutil

import pytest
from made import ROOT, asked, classroom, error, notebook, right, sent
from nbformat.v4 import new_code_cell
from typer.testing import CliRunner
from walls import cannot_start

from kvlearn.classroom import blank, command, release, workers

NAME = "attention_weights"
ASSIGNMENT = "00_start_here"


def released(*groups):
    """A notebook as it was given: nothing was run."""
    made = notebook(*groups)
    for cell in made.cells:
        cell.outputs = []
    return made


def blank_check():
    words = f"{NAME} is not written yet. Fill in the answer cell."
    return [sent(NAME, message=words), error("CheckFailed", words)]


def test_a_blank_that_comes_through():
    """A trial that is never passed; or one that a cell with an error on purpose fails."""
    made = notebook(asked(NAME, blank_check()))
    on_purpose = new_code_cell("1 / 0", outputs=[error("ZeroDivisionError", "division by zero")])
    on_purpose.metadata["tags"] = ["raises-exception"]
    made.cells.append(on_purpose)
    assert blank.unlike_blank(made, notebook(asked(NAME, []))) is None


@pytest.mark.parametrize(
    "outputs, says",
    [
        (right(NAME), f"the check of {NAME} calls a blank answer right"),
        ([error("CellTimeoutError", "This cell had not ended after 1 seconds.")], "had not ended after 1"),
        ([error("OutOfMemory", "This cell took more than 1 GiB of memory.")], "more than 1 GiB"),
        ([error("NotRun", "The notebook had not ended.")], "did not come to its end"),
        ([], f"the check of {NAME} did not come to its end"),
    ],
    ids=["right", "time", "memory", "not run", "nothing"],
)
def test_what_no_blank_should_get(outputs, says):
    """A machine too slow, or a limit too low, that costs the whole class its points."""
    made = notebook(asked(NAME, outputs))
    if not outputs:
        made.cells[-1].execution_count = None
    assert says in blank.unlike_blank(made, notebook(asked(NAME, [])))


def test_a_given_cell_that_fails():
    """A package or the model that is missing inside: each student would be told of an error of their own."""
    made = notebook(asked(NAME, blank_check()))
    made.cells[0].outputs = [error("ModuleNotFoundError", "No module named 'kvlearn'")]
    assert blank.unlike_blank(made, notebook(asked(NAME, []))) == (
        "the given cell that begins with `import kvlearn` failed. "
        "ModuleNotFoundError: No module named 'kvlearn'."
    )


def test_a_blank_that_fails_stops_the_class(tmp_path, monkeypatch):
    """bubblewrap that can make no sandbox, or torch that does not start: thirty equal problems."""
    classroom(tmp_path, ASSIGNMENT)
    shutil.copytree(ROOT / "solutions" / ASSIGNMENT, tmp_path / "solutions" / ASSIGNMENT)
    release.release(tmp_path, ASSIGNMENT)
    submitted = tmp_path / "classroom" / "submitted" / "jane" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    submitted.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "exercises" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", submitted)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "WORK", cannot_start)
    done = CliRunner().invoke(command.app, ["grade", "00"])
    assert done.exit_code == 2
    assert (
        f"A blank {ASSIGNMENT} was tried first, and failed: Python did not start in the sandbox: bwrap: No "
        "permissions to create a new namespace. Nothing was graded" in done.output
    )
    assert "docs/instructors.md" in done.output
    assert not (tmp_path / "classroom" / "executed").exists()
    assert not (tmp_path / "classroom" / "autograded").exists()
