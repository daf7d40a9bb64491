"""Executed submissions into nbgrader's gradebook, by its own Autograde, which finds the cells already run."""

from contextlib import suppress
from pathlib import Path

import nbformat
from nbgrader.api import MissingEntry
from nbgrader.apps.api import NbGraderAPI
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    DeduplicateIds,
    LimitOutput,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)
from nbgrader.utils import is_grade

from kvlearn.classroom import course
from kvlearn.classroom.folders import Folders


def open_to_enter(root: Path) -> NbGraderAPI:
    """nbgrader's API, set up to find submissions in executed/ and not to run them again."""
    api = course.open_course(root)
    api.coursedir.submitted_directory = "classroom/executed"
    api.config.Autograde.sanitize_preprocessors = [
        DeduplicateIds,
        OverwriteKernelspec,
        OverwriteCells,
        CheckCellMetadata,
    ]
    api.config.Autograde.autograde_preprocessors = [
        LimitOutput,
        SaveAutoGrades,
        AssignLatePenalties,
        CheckCellMetadata,
    ]
    return api


def entered(api: NbGraderAPI, folders: Folders) -> set[str]:
    """The students whose submissions the gradebook has.

    CourseError where it has no such assignment, or has it with other cells or points than solutions/ has now.
    """
    assignment = folders.assignment
    with api.gradebook as gradebook:
        try:
            (notebook,) = gradebook.find_assignment(assignment).notebooks
        except (MissingEntry, ValueError):
            raise course.CourseError(
                f"{assignment} is not in the gradebook. `kvlearn classroom release {assignment}` comes first."
            ) from None
        known = {cell.name: cell.max_score for cell in notebook.grade_cells}
        if known != _points(folders.source):
            raise course.CourseError(
                f"{assignment} has changed since it was released: other cells, or other points. "
                f"`kvlearn classroom release {assignment}` comes first."
            )
        return {submission.student_id for submission in gradebook.assignment_submissions(assignment)}


def _points(path: Path) -> dict[str, float]:
    """The points of each graded cell of a notebook."""
    marked = [c.metadata.nbgrader for c in nbformat.read(path, as_version=4).cells if is_grade(c)]
    return {marks.grade_id: marks.points for marks in marked}


def enter(api: NbGraderAPI, folders: Folders, student: str) -> str | None:
    """Put an executed submission into the gradebook; a sentence if nbgrader could not."""
    before = _given_by_hand(api, folders, student)
    outcome = api.autograde(folders.assignment, student, force=True, create=True)
    if not outcome["success"]:
        return f"nbgrader could not grade it: {course.reason(outcome)}"
    if before:
        _need_no_second_look(api, folders, student, before)
    return None


def _given_by_hand(api, folders: Folders, student: str) -> dict[str, tuple]:
    """Of each cell with points by hand that wait for nobody: the answer, and the points of the check."""
    answers, found = _answers(folders.autograded(student)), {}
    with api.gradebook as gradebook, suppress(MissingEntry):
        for grade in _grades(gradebook, folders, student):
            if grade.manual_score is not None and not grade.needs_manual_grade:
                found[grade.name] = answers.get(grade.name), grade.auto_score
    return found


def _need_no_second_look(api, folders: Folders, student: str, before: dict[str, tuple]) -> None:
    """nbgrader sends all points by hand back to be looked at, where nothing has changed as well."""
    answers = _answers(folders.autograded(student))
    with api.gradebook as gradebook:
        for grade in _grades(gradebook, folders, student):
            if grade.name in before and before[grade.name] == (answers.get(grade.name), grade.auto_score):
                grade.needs_manual_grade = False
        gradebook.db.commit()


def _grades(gradebook, folders: Folders, student: str):
    return gradebook.find_submission_notebook(folders.assignment, folders.assignment, student).grades


def _answers(path: Path) -> dict[str, str]:
    """The answer that each graded cell of a notebook is about, by grade_id."""
    try:
        cells = nbformat.read(path, as_version=4).cells
        marked = [cell for cell in cells if "nbgrader" in cell.metadata]
        sources = {cell.metadata.nbgrader.grade_id: cell.source for cell in marked}
    except Exception:  # not there yet, or broken off
        return {}
    return {name: sources.get(name.removesuffix("-check"), source) for name, source in sources.items()}
