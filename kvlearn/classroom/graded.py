"""What was graded: the notebooks under classroom/autograded/, and their points in nbgrader's gradebook.

The gradebook is read here, and never written.
"""

from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbgrader.api import MissingEntry
from nbgrader.coursedir import CourseDirectory

from kvlearn.classroom import course
from kvlearn.classroom.course import CourseError
from kvlearn.classroom.outcomes import Outcome, outcomes, plain


@dataclass(frozen=True)
class Points:
    """What the gradebook says of one graded cell.

    score: what counts: the points by hand where there are some, and extra credit. automatic: of the check.
    waiting: nobody has given points yet, neither check nor person.
    """

    score: float
    most: float
    automatic: float | None = None
    by_hand: bool = False
    extra: float = 0.0
    waiting: bool = False


@dataclass(frozen=True)
class Submission:
    """One student's graded assignment.

    name: the student's name in the gradebook, the id where there is none.
    points: by grade_id; a cell that the gradebook does not know is missing.
    comments: what a person wrote, by the name of the answer's cell.
    notes: of `repair`, to the student. copied: of `copies`, for the instructor alone.
    late: points taken off for lateness.
    """

    student: str
    assignment: str
    outcomes: tuple[Outcome, ...]
    name: str = ""
    points: dict[str, Points] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    late: float = 0.0

    @property
    def score(self) -> float:
        return max(0.0, sum(points.score for points in self.points.values()) - self.late)

    @property
    def most(self) -> float:
        return sum(points.most for points in self.points.values())

    @property
    def waiting(self) -> float:
        """Points that a person has yet to give, at most."""
        return sum(points.most for points in self.points.values() if points.waiting)


def graded(root: Path, assignment: str | None = None) -> dict[str, list[str]]:
    """{assignment: [student, ...]} of what has been graded, in order; of one assignment, or of all.

    Raises CourseError where there is nothing.
    """
    known = course.assignments(root) if assignment is None else [course.find_assignment(root, assignment)]
    folder = Path(root) / "classroom" / "autograded"
    found = {}
    for name in known:
        students = sorted(path.parent.parent.name for path in folder.glob(f"*/{name}/{name}.ipynb"))
        if students:
            found[name] = students
    if not found:
        what = known[0] if assignment is not None else "any assignment"
        raise CourseError(f"Nothing has been graded of {what}. `kvlearn classroom grade` comes first.")
    return found


def read_graded(root: Path, assignment: str, students: list[str]) -> tuple[list[Submission], dict[str, str]]:
    """The submissions of these students, and for each that cannot be read a sentence.

    Raises CourseError where the gradebook is missing or is none, or the notebook that students were given.
    """
    path = course.gradebook_path(CourseDirectory(config=course.config(root)))
    if not path.is_file():
        raise CourseError(f"{path} is not there. `kvlearn classroom grade {assignment}` makes it.")
    read, problems, released = [], {}, course.released(root, assignment)
    with course.open_course(root).gradebook as gradebook:
        for student in students:
            try:
                read.append(_read(Path(root), gradebook, assignment, student, released))
            except CourseError as error:
                problems[student] = str(error)
    return read, problems


def _read(root: Path, gradebook, assignment: str, student: str, released) -> Submission:
    path = root / "classroom" / "autograded" / student / assignment / f"{assignment}.ipynb"
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        found = outcomes(notebook, released)
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror or error}.") from None
    except Exception:  # a file that was broken off, or that somebody has edited
        raise CourseError(f"{path} is not a notebook. Delete it, and grade {student} again.") from None
    try:
        entry = gradebook.find_submission_notebook(assignment, assignment, student)
    except MissingEntry:
        raise CourseError(
            f"{student} has no points for {assignment} in the gradebook. Grade {student} again."
        ) from None
    return Submission(
        student=student,
        assignment=assignment,
        outcomes=tuple(found),
        name=_name(entry.student),
        points={grade.name: _points(grade) for grade in entry.grades},
        comments={c.name: plain(c.manual_comment) for c in entry.comments if c.manual_comment},
        notes=_sentences(notebook, "notes"),
        copied=_sentences(notebook, "copied"),
        late=entry.late_submission_penalty or 0.0,
    )


def _sentences(notebook, key: str) -> tuple[str, ...]:
    """What a worker has noted in a notebook's metadata; if none has run it, anything may stand there."""
    ours = notebook.metadata.get("kvlearn")
    found = ours.get(key) if isinstance(ours, dict) else None
    return tuple(plain(each) for each in found if isinstance(each, str)) if isinstance(found, list) else ()


def _name(student) -> str:
    return " ".join(part for part in (student.first_name, student.last_name) if part) or student.id


def _points(grade) -> Points:
    return Points(
        score=grade.score,
        most=grade.max_score,
        automatic=grade.auto_score,
        by_hand=grade.manual_score is not None,
        extra=grade.extra_credit or 0.0,
        waiting=grade.manual_score is None and grade.auto_score is None,
    )
