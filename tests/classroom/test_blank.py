"""One blank submission before anybody's: where it fails, nobody is graded."""

import nbformat
import pytest
from made import asked, error, notebook, right, sent
from nbformat.v4 import new_code_cell

from kvlearn.classroom import blank, grade
from kvlearn.classroom.folders import Folders
from kvlearn.classroom.sandbox import SandboxError
from kvlearn.classroom.settings import Settings
from kvlearn.classroom.workers import Workers

NAME = "attention_weights"
ASSIGNMENT = "00_start_here"


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
        (right(NAME), f"the check of {NAME} accepts a blank answer"),
        ([error("CellTimeoutError", "This cell had not ended after 1 seconds.")], "had not ended after 1"),
        ([error("OutOfMemory", "This cell took more than 1 GiB of memory.")], "more than 1 GiB"),
        ([error("NotRun", "The notebook had not ended.")], "did not finish"),
        ([], f"the check of {NAME} did not finish"),
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
    folders, asked_for = Folders(tmp_path, ASSIGNMENT), []

    def cannot_start(self, submitted, executed, record):
        asked_for.append(submitted)
        return "Python did not start in the sandbox: bwrap: No permissions to create a new namespace"

    monkeypatch.setattr(Workers, "run", cannot_start)
    result = grade.Graded()
    with pytest.raises(SandboxError) as refused:
        grade._run({"jane": "x", "john": "y"}, folders, Settings((1, 2)), None, result, print)
    assert str(refused.value).startswith(
        f"A blank {ASSIGNMENT} was run first and failed: Python did not start in the sandbox: bwrap: No "
        "permissions to create a new namespace. Nothing was graded"
    )
    assert "docs/instructors.md" in str(refused.value)
    assert asked_for == [folders.released] and result == grade.Graded()


def test_where_nothing_is_run_no_blank_is(tmp_path, monkeypatch):
    """A gradebook that was lost is filled again without a sandbox: all notebooks have been run."""
    folders = Folders(tmp_path, ASSIGNMENT)
    run = notebook()
    run.metadata["kvlearn"]["record"] = "x"
    folders.executed("jane").parent.mkdir(parents=True)
    nbformat.write(run, folders.executed("jane"))
    monkeypatch.setattr(Workers, "run", None)
    monkeypatch.setattr(grade, "enter", lambda api, folders, student: None)
    result = grade.Graded()
    grade._run({"jane": "x"}, folders, Settings((1, 2)), None, result, print)
    assert result.graded == ["jane"]
