"""The built notebooks as files: whole, executed, equal to a fresh build, and fit to be read.

nbval runs a cell that was never executed and compares it with nothing, so a notebook without outputs
would pass it. These tests close that hole, and hold what nbval does not look at.
"""

import re

import nbformat
import pytest
from course_tools import ROOT, assignments, build, code_cells, reading

TARGETS = reading.targets(ROOT)
EXECUTED = [target.built for target in TARGETS]
RELEASED = [target.released for target in TARGETS if target.released]
LOCAL = re.compile(r"/(?:home|root|tmp|Users|work|opt)/|[A-Z]:\\")
FENCED = re.compile(r"```.*?```", re.DOTALL)
WIDTH = 76


def test_each_lesson_has_its_assignment():
    """Would catch tests that pass because nothing was there, or a lesson without exercises."""
    lessons = [target.name for target in TARGETS if not target.released]
    assert len(lessons) >= 5 and lessons == assignments()
    assert [name[:2] for name in lessons] == [f"{n:02}" for n in range(len(lessons))]


def test_what_is_committed_equals_a_fresh_build():
    """Would catch a notebook that was edited by hand, and a text that was not built: run `dev.py build`."""
    assert build.check(ROOT) == []


@pytest.mark.parametrize("path", EXECUTED + RELEASED)
def test_a_notebook_is_valid_and_its_ids_are_unique(path):
    """Would catch a file that Jupyter repairs on opening, which then differs from what is committed."""
    notebook = nbformat.read(ROOT / path, as_version=4)
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert notebook.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("path", EXECUTED)
def test_every_cell_was_executed_in_order(path):
    """Would catch a stripped notebook, which nbval passes with nothing compared."""
    counts = [cell.execution_count for cell in code_cells(ROOT / path)]
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("path", RELEASED)
def test_an_exercise_holds_no_answer(path):
    """Would catch an answer, or what an answer printed, in what a learner is given."""
    text = (ROOT / path).read_text(encoding="utf-8")
    assert "SOLUTION" not in text and "raise NotImplementedError" in text
    assert all(cell.outputs == [] for cell in code_cells(ROOT / path))


@pytest.mark.parametrize("path", EXECUTED)
def test_errors_and_skips_are_meant(path):
    """Would catch a lesson that shows a failure nobody meant, or a cell that no test runs."""
    for cell in code_cells(ROOT / path):
        tags = cell.metadata.get("tags", [])
        failed = any(output.output_type == "error" for output in cell.outputs)
        is_check = cell.metadata.get("nbgrader", {}).get("grade_id", "").endswith("-check")
        assert failed == ("raises-exception" in tags and not is_check), cell.source
        assert "raises-exception" in tags or not is_check, "a failed check would stop Run All"
        assert "nbval-skip" not in tags, "every cell runs; a branch on the device does what a skip would"


@pytest.mark.parametrize("path", EXECUTED)
def test_outputs_are_fit_for_every_reader(path):
    """Would catch a path of the machine that built it, a warning in red, a picture without words."""
    for cell in code_cells(ROOT / path):
        for output in cell.outputs:
            data = output.get("data", {})
            words = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
            words += [text for kind, text in data.items() if kind.startswith("text/")]
            assert not LOCAL.search("\n".join(words)), cell.source
            assert output.get("name") != "stderr", cell.source
            if "image/png" in data:
                alt = output.metadata.get("image/png", {}).get("alt", "")
                assert len(alt) > 20, f"a picture without alt text: {cell.source}"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.source)
def test_code_fits_a_narrow_window(target):
    """Would catch a line that a reader must scroll sideways for, beside an open table of contents."""
    for cell in reading.unexecuted(ROOT, target).cells:
        if cell.cell_type == "code":
            wide = [line for line in cell.source.splitlines() if len(line) > WIDTH]
            assert wide == []


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.source)
def test_there_is_one_title_and_no_empty_cell(target):
    """Would catch an empty cell, and a second title, which the reading edition cannot place."""
    cells = reading.unexecuted(ROOT, target).cells[1:]  # the first says what the file is
    assert all(cell.source.strip() for cell in cells)
    words = [FENCED.sub("", cell.source) for cell in cells if cell.cell_type == "markdown"]
    assert [len(re.findall(r"(?m)^# ", text)) for text in words] == [1] + [0] * (len(words) - 1)
