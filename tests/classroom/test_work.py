"""What a worker does to a check's cell after the run, and what a grade is the grade of."""

from dataclasses import replace

import pytest
from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import determine_grade

from kvlearn.classroom.folders import Folders
from kvlearn.classroom.results import MIME
from kvlearn.classroom.settings import Settings
from kvlearn.classroom.work import asked_for, let_warnings_be, require_result


def check(*outputs, source='kvlearn.check("split_heads", split_heads)'):
    one = new_code_cell(source, outputs=list(outputs))
    marks = {"grade": True, "solution": False, "locked": True, "grade_id": "split_heads-check", "points": 3}
    one.metadata["nbgrader"] = marks | {"task": False, "schema_version": 3, "cell_type": "code"}
    return one


SEEDS = (5, 6)


def said(passed, seeds=(0, *SEEDS), exercise="split_heads"):
    found = {"exercise": exercise, "passed": passed, "seeds": list(seeds)}
    return new_output("display_data", data={MIME: found})


def junk(found):
    return new_output("display_data", data={MIME: found})


@pytest.mark.parametrize("outputs, points", [
    ((), 0),
    ((new_output("stream", name="stdout", text="passed"),), 0),
    ((said(True),), 3),
    ((said(True, seeds=[0]), said(False)), 0),
    ((said(True, seeds=[0]),), 0),  # one that a student sends does not know the class's seeds
    ((said(True, exercise="merge_heads"),), 0),
    ((junk("hello"), junk({"passed": True}), junk({"passed": True, "exercise": [], "seeds": [[]]})), 0),
    ((junk([1]), said(True)), 3),
])  # fmt: skip
def test_points_need_a_check_that_said_so(outputs, points):
    """nbgrader gives all points to a cell in which nothing went wrong, so also to one that never ran."""
    one = check(*outputs)
    require_result(one, SEEDS)
    assert determine_grade(one)[0] == points


def test_each_check_of_a_cell_must_have_run():
    """A hidden test behind the visible one that never ran, because the answer ended the cell in silence."""
    source = 'kvlearn.check("split_heads", f)\nkvlearn.check("split_heads", f, seed=1153)'
    assert asked_for(source) == [("split_heads", 0), ("split_heads", 1153)]
    assert asked_for('%matplotlib inline\nkvlearn.check(name="a", answer=f)') == [("a", 0)]
    assert asked_for('kvlearn.check("a", f, 7)\nfor s in (1, 2):\n    kvlearn.check(which, f, seed=s)') == [
        ("a", 7)
    ]
    for outputs, points in (((said(True),), 0), ((said(True), said(True, seeds=[1153])), 3)):
        one = check(*outputs, source=source)
        require_result(one, SEEDS)
        assert determine_grade(one)[0] == points


def test_an_instructors_own_assertions_count_as_they_are():
    """A cell that never calls kvlearn.check has no result to send."""
    one = check(source="assert split_heads is not None")
    require_result(one, SEEDS)
    assert determine_grade(one)[0] == 3


def test_a_warning_costs_no_points():
    """nbgrader gives nothing where a right answer's check has written a warning to stderr."""
    one = check(new_output("stream", name="stderr", text="UserWarning: a view"), said(True))
    assert determine_grade(one)[0] == 0  # nbgrader's own way
    let_warnings_be(one)
    assert determine_grade(one)[0] == 3 and one.outputs[0].text == "UserWarning: a view"


def test_what_a_grade_depends_on(tmp_path):
    """A new seed, limit, release or submission that leaves an old grade standing."""
    folders = Folders(tmp_path, "00_start_here")
    paths = [folders.submitted("ada"), folders.released, folders.source]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True)
        path.write_text(str(number))
    settings = Settings(hidden_seeds=(1, 2))
    before = folders.record("ada", settings)
    assert folders.record("ada", replace(settings, cores=7, library="allow")) == before
    others = [replace(settings, hidden_seeds=(1, 3)), replace(settings, cell_seconds=5)]
    others += [replace(settings, submission_seconds=5), replace(settings, memory=5)]
    found = {before} | {folders.record("ada", other) for other in others}
    for path in paths:
        path.write_text("changed")
        found.add(folders.record("ada", settings))
    assert len(found) == 1 + len(others) + len(paths)
