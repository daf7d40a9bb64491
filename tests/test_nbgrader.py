"""The assignments as nbgrader sees them: valid, released, worth points; hidden tests and prose cells."""

import importlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from course_tools import ROOT, assignments, marks, reading
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import Execute
from nbgrader.validator import Validator
from traitlets.config import PyFileConfigLoader

from kvlearn.checks import REGISTRY, judge

NAMES = assignments()
WITH_PROSE = NAMES[1:]
# nbgrader runs two of them here, the shortest and one with prose, and all in `dev.py test --all`: the
# solutions are run by nbval too, and each check is held against its stub by tests/checks/test_exercises.py.
RUN = ("00_start_here", "03_naive_decoder")
to_run = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in RUN)) for name in NAMES]
)
MARKS = re.compile(r"<!--.*?-->")


def config(root=ROOT):
    """nbgrader_config.py's settings, for a course at `root`."""
    loaded = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    loaded.CourseDirectory.root = str(root)
    loaded.CourseDirectory.db_url = f"sqlite:///{root}/gradebook.db"
    return loaded


def graded_cells(folder, name):
    """{grade_id: cell} of the cells that nbgrader knows."""
    cells = nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4).cells
    marked = [cell for cell in cells if "nbgrader" in cell.metadata]
    found = {cell.metadata.nbgrader.grade_id: cell for cell in marked}
    assert len(found) == len(marked), "a grade_id is there twice"
    return found


def rubric(name):
    """{grade_id: (model answer, lines of the rubric)} of an assignment's prose cells, from its text."""
    target = next(t for t in reading.targets(ROOT) if t.released and t.name == name)
    found = {}
    for cell in reading.unexecuted(ROOT, target).cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if grade_id.endswith("-why"):
            answer, lines = MARKS.sub("", cell.source).split("**Rubric**")
            found[grade_id] = answer.strip(), re.split(r"\n(?=- )", lines.strip())
    return found


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A course of the solutions alone, whose every assignment nbgrader has released through its API."""
    root = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "solutions", root / "solutions")
    settings = config(root)
    with pytest.MonkeyPatch.context() as patch:  # a new gradebook calls `alembic`, as dev.py would find it
        programs = str(Path(sys.executable).parent)
        patch.setenv("PATH", programs + os.pathsep + os.environ["PATH"])
        api = NbGraderAPI(coursedir=CourseDirectory(config=settings), config=settings)
        for name in NAMES:
            result = api.generate_assignment(name)
            assert result["success"], result.get("error") or result.get("log")
        yield root


@pytest.mark.slow
@to_run
def test_nbgrader_accepts_the_solution(name):
    """Would catch a check or a hidden one that the course's own answer fails where nbgrader runs it."""
    path = ROOT / "solutions" / name / f"{name}.ipynb"
    assert Validator(config=config()).validate(str(path)) == {}


@pytest.mark.slow
@to_run
def test_nbgrader_fails_every_check_of_the_exercise(name):
    """Would catch a check that passes a stub, one whose text was changed, or metadata that do not fit."""
    path = ROOT / "exercises" / name / f"{name}.ipynb"
    found = Validator(config=config()).validate(str(path))
    checks = {k: cell.source for k, cell in graded_cells("exercises", name).items() if k.endswith("-check")}
    assert list(found) == ["failed"], "changed or mistyped cells come under another name"
    code = [cell for cell in found["failed"] if cell["source"] != "YOUR ANSWER HERE"]
    assert [cell["source"] for cell in code] == list(checks.values())
    assert all("is not written yet" in cell["raw_error"] for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_release_is_nbgraders_own(released, name):
    """Would catch an exercise that the build makes otherwise than `nbgrader generate_assignment` does."""
    file = f"exercises/{name}/{name}.ipynb"
    theirs, ours = (json.loads((root / file).read_text(encoding="utf-8")) for root in (released, ROOT))
    assert theirs["cells"] == ours["cells"]
    assert theirs["metadata"] == ours["metadata"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_gradebook_has_the_points(released, name):
    """Would catch a check without points, a pasted one that pays twice, or prose that counts for nothing."""
    with Gradebook(f"sqlite:///{released}/gradebook.db", "kvlearn") as gradebook:
        (notebook,) = gradebook.find_assignment(name).notebooks
        points = {cell.name: cell.max_score for cell in notebook.grade_cells}
        sources = {cell.name: cell.source for cell in notebook.source_cells}
    want = {f"{e.name}-check": e.difficulty for e in REGISTRY.values() if e.lesson == int(name[:2])}
    want |= dict.fromkeys(rubric(name), 3)
    assert {key: worth for key, worth in points.items() if worth} == want
    assert all(key.endswith("-again-check") for key, worth in points.items() if not worth)
    for key in want:  # what autograde puts back
        if key.endswith("-check"):
            exercise = key.removesuffix("-check")
            assert [int(s) for s in re.findall(r"seed=(\d+)", sources[key])] == [
                *marks.hidden_seeds(exercise)
            ]


def test_a_cell_of_a_submission_has_a_time_limit():
    """Would catch an endless loop that nbgrader waits for: its own limit is none, or 30 seconds."""
    settings = config()
    assert settings.ExecutePreprocessor.timeout == Execute(config=settings).timeout == 120


@pytest.mark.parametrize("name", NAMES)
def test_no_hidden_test_is_in_the_exercise(name):
    """Would catch a seed that a student can read off the exercise, or a check that has no hidden one."""
    shown, whole = graded_cells("exercises", name), graded_cells("solutions", name)
    assert list(shown) == list(whole)
    for key, cell in shown.items():
        assert "HIDDEN" not in cell.source and "seed" not in cell.source
        if key.endswith("-check"):
            hidden = "" if key.endswith("-again-check") else whole[key].source.removeprefix(cell.source)
            assert whole[key].source.startswith(cell.source)
            assert hidden.count("kvlearn.check(") == (0 if key.endswith("-again-check") else 2)


@pytest.mark.parametrize("name", WITH_PROSE)
def test_an_assignment_asks_why(name):
    """Would catch an assignment that code alone can answer, and a rubric that does not add up."""
    found = rubric(name)
    assert 1 <= len(found) <= 2
    for grade_id, (answer, lines) in found.items():
        cell = graded_cells("solutions", name)[grade_id]
        assert cell.cell_type == cell.metadata.nbgrader.cell_type == "markdown"
        assert 3 <= len(lines) <= 4 and all(line.startswith("- ") for line in lines)
        worth = [int(re.search(r"\((\d) points?\)$", line)[1]) for line in lines]
        assert sum(worth) == cell.metadata.nbgrader.points == 3
        sentences = len(re.findall(r"[.?!](?:\s|$)", answer))
        assert 3 <= sentences <= 8, "a model answer is about as long as what is asked for"


@pytest.mark.parametrize("name", WITH_PROSE)
def test_an_exercise_shows_the_question_and_nothing_of_the_answer(name):
    """Would catch a model answer or a rubric in what a student is given, and a question that is lost."""
    cells = nbformat.read(ROOT / "exercises" / name / f"{name}.ipynb", as_version=4).cells
    text = " ".join(" ".join(cell.source for cell in cells).split())
    for grade_id, (answer, lines) in rubric(name).items():
        at = next(
            i for i, c in enumerate(cells) if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id
        )
        question, cell = cells[at - 1], cells[at]
        assert cell.source == "YOUR ANSWER HERE" and cell.metadata.get("editable", True)
        assert "?" in question.source and "In three to five sentences" in question.source
        assert re.search(r"^\*\d+ minutes · 3 points · ", question.source, flags=re.M)
        assert "`solutions/`" in question.source
        for sentence in [*re.split(r"(?<=[.:]) ", " ".join(answer.split())), *lines]:
            assert " ".join(sentence.split()) not in text
    assert "Rubric" not in text


@pytest.mark.thorough
@pytest.mark.parametrize("exercise", REGISTRY.values(), ids=REGISTRY)
def test_other_right_answers_pass_the_hidden_tests(exercise):
    """Would catch a hidden seed with which a right answer loses its points."""
    alternatives = importlib.import_module(f"alternatives_{exercise.lesson:02}").ALTERNATIVES
    for seed in marks.hidden_seeds(exercise.name):
        for answer in alternatives[exercise.name]:
            result = judge(exercise, answer, seed)
            assert result.passed, (answer.__name__, seed, result.message)
