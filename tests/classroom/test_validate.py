"""What a student's notebooks are told on a push: which exercises are right, and an exit code that says so."""

import nbformat
import pytest
from made import marks
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.utils import compute_checksum

from kvlearn.classroom import validate

pytestmark = pytest.mark.slow  # gradebooks and processes: half a minute in all


def check(name, source):
    facts = {"grade": True, "locked": True, "points": 2, "cell_type": "code"}
    cell = new_code_cell(source, metadata=marks(f"{name}-check", **facts))
    cell.metadata.nbgrader.checksum = compute_checksum(cell)
    return cell


def answer(name, source):
    return new_code_cell(source, metadata=marks(name, solution=True, cell_type="code"))


@pytest.fixture
def notebook(tmp_path):
    """A notebook of two exercises (without torch: it starts fast), and how it is written to a file."""
    cells = [answer("two", "two = 2"), check("two", "assert two == 2")]
    cells += [answer("six", "six = 6"), check("six", "assert six == 6")]
    made, path = new_notebook(cells=cells), tmp_path / "numbers.ipynb"
    made.metadata["kernelspec"] = {"name": "my-venv", "display_name": "of a student's editor"}

    def write():
        nbformat.write(made, path)
        return path

    return made, write


def test_all_right_is_exit_code_0_and_each_exercise_by_name(notebook, capsys):
    """A workflow that is red although all is right; a kernel that only the student's machine has."""
    path = notebook[1]()
    assert validate.main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(path), f"  {'right':11}  two", f"  {'right':11}  six"]


@pytest.mark.parametrize(
    "answer, first, second",
    [("two = 3", "wrong", "right"), ("import os\nos._exit(0)", "stopped", "stopped")],
    ids=["wrong", "ends Python"],
)
def test_what_is_not_right_is_exit_code_1_and_all_are_told(answer, first, second, notebook, capsys):
    """`nbgrader validate` has exit code 0 whatever it finds; os._exit leaves no check that has failed."""
    made, write = notebook
    made.cells[0].source = answer
    assert validate.main([str(write())]) == 1
    said = capsys.readouterr().out
    assert f"  {first:11}  two" in said and f"  {second:11}  six" in said


def test_a_check_that_was_edited_is_not_right(notebook, capsys):
    """A check that was made easier on the way to green."""
    made, write = notebook
    made.cells[1].source = "assert True"
    assert validate.main([str(write())]) == 1
    assert "1 cells that are not yours to edit were changed" in capsys.readouterr().out


def test_prose_that_is_not_written_is_not_right(notebook, capsys):
    """The question of an assignment is forgotten, and the workflow is green."""
    made, write = notebook
    facts = {"grade": True, "solution": True, "points": 3, "cell_type": "markdown"}
    cell = new_markdown_cell("YOUR ANSWER HERE", metadata=marks("numbers-why", **facts))
    cell.metadata.nbgrader.checksum = compute_checksum(cell)
    made.cells.append(cell)
    assert validate.main([str(write())]) == 1
    assert "not written  numbers-why" in capsys.readouterr().out
    cell.source = "Because two and six are even."
    assert validate.main([str(write())]) == 0
    assert f"  {'written':11}  numbers-why" in capsys.readouterr().out


def test_no_notebook_is_exit_code_2(tmp_path, notebook, capsys):
    """A pattern that finds nothing, or a file that is none, and all is green."""
    letter = tmp_path / "letter.ipynb"
    letter.write_text("Dear teacher")
    right = notebook[1]()
    assert validate.main([str(letter), str(right)]) == 2
    said = capsys.readouterr().out
    assert f"{letter} cannot be read as a notebook" in said and f"  {'right':11}  two" in said
    assert validate.main([str(tmp_path / "*.ipynb")]) == 2
    assert validate.main([]) == 2


def test_a_notebook_without_exercises_is_not_right(tmp_path, capsys):
    """A lesson in the place of the assignment has no check that fails."""
    path = tmp_path / "lesson.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 + 1")]), path)
    assert validate.main([str(path)]) == 1
    assert "no exercise" in capsys.readouterr().out
