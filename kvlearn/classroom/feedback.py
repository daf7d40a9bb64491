"""A page for each student: of every exercise the points, what is wrong and why, a hint, and where to read.

nbgrader's own `nbgrader generate_feedback` shows the student's whole notebook with its outputs and points. It
stays as it is, for who wants that as well. This page adds what it has no room for: the mistake by its name,
a hint where it has none, the section of the lesson, notes about the file, and what stopped a cell in words
that can be acted on.

Both write into classroom/feedback/STUDENT/ASSIGNMENT/. nbgrader leaves a folder that is there alone, and with
`--force` empties it first: let it write first, then call `write`.

What is flagged as copied from the library is not in it: that is for the instructor (`report`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvlearn.classroom import graded
from kvlearn.classroom.course import CourseError
from kvlearn.classroom.files import write_whole
from kvlearn.classroom.graded import Points, Submission
from kvlearn.classroom.outcomes import PROSE, Outcome
from kvlearn.classroom.pages import render
from kvlearn.classroom.reasons import DID_NOT_RUN, ELSE, GIVEN_CELL, KIND
from kvlearn.classroom.sections import where_to_read

FILE = "feedback.html"


@dataclass
class Written:
    """The pages that were written, and "STUDENT, ASSIGNMENT" -> sentence for those that could not be."""

    paths: list[Path] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def write(
    root: Path,
    assignment: str | None = None,
    students: list[str] | None = None,
    tell: Callable[[str], None] = print,
) -> Written:
    """Write classroom/feedback/STUDENT/ASSIGNMENT/feedback.html for what has been graded.

    Args:
        root: of the repository.
        assignment: its name, or the beginning of it; all that are graded when left out.
        students: these alone; all when left out.
        tell: is given a line for each assignment.

    Raises:
        CourseError: nothing graded, no assignment of that name, a student of whom nothing is graded, no
            gradebook. A submission that cannot be read is a problem of its own: the others are written.
    """
    found = graded.graded(root, assignment)
    everybody = {student for names in found.values() for student in names}
    for student in students or ():
        if student not in everybody:
            raise CourseError(f"Nothing of {student} has been graded: {', '.join(found)}.")
    written = Written()
    for name, known in found.items():
        chosen = [student for student in known if students is None or student in students]
        read, problems = graded.read_graded(root, name, chosen)
        for submission in read:
            path = Path(root) / "classroom" / "feedback" / submission.student / name / FILE
            try:
                written.paths.append(write_whole(path, page(submission)))
            except OSError as error:
                problems[submission.student] = f"{path} could not be written: {error.strerror}."
        written.problems |= {f"{student}, {name}": why for student, why in problems.items()}
        if chosen:
            tell(f"{name}: feedback for {len(chosen) - len(problems)} of {len(chosen)}")
    return written


def page(submission: Submission) -> str:
    """The page as HTML, in one piece: no JavaScript, no other file, all that students wrote as text."""
    exercises = [
        _facts(outcome, submission.points.get(outcome.grade_id))
        | {"comment": submission.comments.get(outcome.answer_id, "")}
        for outcome in submission.outcomes
    ]
    go_on = any(outcome.state != "right" and not outcome.prose for outcome in submission.outcomes)
    return render("feedback.html.jinja", submission=submission, exercises=exercises, go_on=go_on)


def _facts(outcome: Outcome, points: Points | None) -> dict:
    given = outcome.state == PROSE and points is not None and not points.waiting
    return {
        "outcome": outcome,
        "points": points,
        "state": "read" if given else outcome.state,
        "hint": hint(outcome),
        "read": where_to_read(outcome.name) if _about_the_lesson(outcome) else None,
        "more": outcome.exercise is not None and _about_the_lesson(outcome),
    }


def hint(outcome: Outcome) -> str | None:
    """The first hint of an exercise, where neither a mistake has a name nor Python has said an error."""
    unknown = outcome.state == "not written" or outcome.cause in (KIND, ELSE)
    return outcome.exercise.hints[0] if outcome.exercise and unknown else None


def _about_the_lesson(outcome: Outcome) -> bool:
    """Whether reading helps: not against a missing colon, a loop, or a given cell that was changed."""
    judged = outcome.state == "wrong" and outcome.cause not in (DID_NOT_RUN, GIVEN_CELL)
    return judged or outcome.state == "not written"
