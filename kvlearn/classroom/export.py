"""Grades as CSV: plain, for Canvas, for Moodle. nbgrader's gradebook gives the grades.

Each is an export plugin of nbgrader: `nbgrader export --exporter=kvlearn.classroom.export.Canvas` works too.
nbgrader's own `CsvExportPlugin` writes names unquoted, and 0 for what was not handed in.

Canvas reads `Student, ID, SIS User ID, SIS Login ID, Section`, then a column for each assignment, whose
title is matched with the assignments of the Canvas course; a row `Points Possible` says the most. It finds a
student by ID, else by an SIS id, else by name, and leaves a blank score as it is.
    instructure/canvas-lms, lib/gradebook_importer.rb: header?, process_student, process_pp, parse_assignments
Moodle reads the grading worksheet of one assignment: `Identifier` ("Participant 123456", the number that it
also writes before `assignsubmission_file`), `Grade` and `Last modified (grade)` must be there. Its Grades >
Import > CSV file reads the same file by the column `Email address`.
    moodle/moodle, mod/assign/feedback/offline/importgradeslib.php: init, next
"""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin
from traitlets import Bool, Unicode

from kvlearn.classroom import course
from kvlearn.classroom.files import write_whole

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


class ExportError(ValueError):
    """Why there is no CSV file, in a sentence."""


@dataclass(frozen=True)
class Grade:
    """One student's grade of one assignment. `score` is None where nothing was handed in."""

    student: str
    name: str  # "Doe, Jane", or the student's id where the gradebook has no name
    email: str
    id: str  # the platform's number of the student, "" where no file name and no gradebook has it
    assignment: str
    score: float | None
    max_score: float
    late: bool
    waiting: bool  # something is still to be graded by hand


@dataclass(frozen=True)
class Exported:
    """What was written: the file, its number of students, and who waits for grading by hand."""

    path: Path
    students: int
    waiting: tuple[Grade, ...]


def export(root: Path, to: Path, style: str = "plain", assignments=(), unfinished: bool = False) -> Exported:
    """Write the grades of the course at `root` into the file `to`.

    `style` is plain, canvas or moodle. `assignments` are whole names or beginnings; none: all that were
    released. For Canvas and Moodle a grade that still waits for grading by hand is left blank unless
    `unfinished`. Raises ExportError and CourseError; the file is then as it was.
    """
    if not to.name:
        raise ExportError("Name the CSV file to write, such as classroom/grades.csv.")
    if style not in STYLES:
        raise ExportError(f"There is no export for {style!r}. There is: {', '.join(STYLES)}.")
    names = [course.find_assignment(root, name) for name in assignments]
    api = course.open_course(root)
    with api.gradebook as gradebook:
        plugin = STYLES[style](to=str(to), assignment=names, unfinished=unfinished)
        plugin.submitted = api.coursedir.format_path(api.coursedir.submitted_directory, "", "").rstrip("/")
        return plugin.export(gradebook)


def read_grades(gradebook: Gradebook, assignments=(), students=(), submitted: str = "") -> list[Grade]:
    """The grades, by assignment and student, also of who handed nothing in. ExportError where there are none.

    `submitted` is the folder of submissions, in which `collect` noted the platform's numbers.
    """
    known = {assignment.name: assignment for assignment in gradebook.assignments}
    missing = [name for name in assignments if name not in known]
    if missing:
        raise ExportError(f"The gradebook has no {missing[0]}. Release it and grade it first.")
    grades = []
    for name in sorted(assignments or known):
        for student in sorted(gradebook.students, key=lambda s: s.id):
            if students and student.id not in students:
                continue
            try:
                submission = gradebook.find_submission(name, student.id)
            except MissingEntry:
                score, late, waiting = None, False, False
            else:
                score = max(0.0, submission.score - (submission.late_submission_penalty or 0.0))
                late = submission.total_seconds_late > 0
                waiting = submission.needs_manual_grade
            number = _number(submitted, student.id, name) or str(student.lms_user_id or "")
            full = ", ".join(part for part in (student.last_name, student.first_name) if part)
            most = known[name].max_score
            email = student.email or ""
            grades.append(
                Grade(student.id, full or student.id, email, number, name, score, most, late, waiting)
            )
    if not grades:
        raise ExportError("The gradebook has no students and grades yet. `kvlearn classroom grade` fills it.")
    return grades


def _number(submitted: str, student: str, assignment: str) -> str:
    """The platform's number of a student, as it stood in the name of the file that was collected."""
    if not submitted:
        return ""
    try:
        text = Path(submitted, student, assignment, "platform_id.txt").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return text if text.isdigit() else ""


class Plain(ExportPlugin):
    """One row for each student and assignment. An empty score: nothing was handed in."""

    submitted = Unicode("", help="The folder of submissions, where the platform's numbers of students lie.")
    unfinished = Bool(False, help="Also send grades that wait for grading by hand.").tag(config=True)

    def export(self, gradebook: Gradebook) -> Exported:
        grades = read_grades(gradebook, self.assignment, self.student, self.submitted)
        path = Path(self.to or "grades.csv")
        write(path, self.rows(grades))
        return Exported(path, len({g.student for g in grades}), tuple(g for g in grades if g.waiting))

    def rows(self, grades: list[Grade]) -> list[list]:
        rows = [["student", "assignment", "score", "max_score", "late", "needs_manual_grading"]]
        for g in grades:
            yes_no = ["yes" if flag else "no" for flag in (g.late, g.waiting)]
            rows.append([g.student, g.assignment, number(g.score), number(g.max_score), *yes_no])
        return rows

    def score(self, grade: Grade) -> str:
        """What a platform is sent: nothing for a grade that is not final."""
        return "" if grade.waiting and not self.unfinished else number(grade.score)


class Canvas(Plain):
    """One row for each student, one column for each assignment: Grades > Import in Canvas."""

    def rows(self, grades: list[Grade]) -> list[list]:
        most = {g.assignment: g.max_score for g in grades}
        rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *map(title, most)]]
        rows.append(["Points Possible", "", "", "", "", *map(number, most.values())])
        students = {}
        for grade in grades:
            students.setdefault(grade.student, []).append(grade)
        for student, own in sorted(students.items()):
            # The number of any assignment: in Canvas it is the student's, the same in all.
            id = next((g.id for g in own if g.id), "")
            rows.append([own[0].name, id, "", student, "", *(self.score(g) for g in own)])
        return rows


class Moodle(Plain):
    """The grading worksheet of one assignment: View all submissions > Upload grading worksheet in Moodle."""

    def rows(self, grades: list[Grade]) -> list[list]:
        names = sorted({g.assignment for g in grades})
        if len(names) != 1:
            raise ExportError(f"Moodle reads one assignment a file. Name one of: {', '.join(names)}.")
        head = ["Identifier", "Full name", "Email address", "Status", "Grade", "Maximum grade"]
        rows = [[*head, "Last modified (grade)"]]
        for g in grades:
            status = "No submission" if g.score is None else "Submitted for grading"
            identifier = f"Participant {g.id}" if g.id else ""
            rows.append([identifier, g.name, g.email, status, self.score(g), number(g.max_score), "-"])
        return rows


STYLES = {"plain": Plain, "canvas": Canvas, "moodle": Moodle}


def title(assignment: str) -> str:
    """02_causal_masking -> 02 Causal masking (points): as the assignment must be called in Canvas."""
    begin, _, rest = assignment.partition("_")
    words = rest.replace("_", " ")
    return f"{begin} {words[:1].upper()}{words[1:]} (points)" if rest else f"{begin} (points)"


def number(score: float | None) -> str:
    """1.0 -> 1, 2.50 -> 2.5, None -> nothing; never 1e-05 or a comma."""
    return "" if score is None else f"{score:.4f}".rstrip("0").rstrip(".")


def cell(value: str) -> str:
    """A text that no spreadsheet takes for a formula: =1+1 is written '=1+1. (A dash alone is none.)"""
    return f"'{value}" if value.startswith(FORMULA) and value != "-" else value


def write(path: Path, rows: list[list[str]]) -> None:
    """The whole file or nothing. ExportError."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([cell(value) for value in row] for row in rows)
    if not path.parent.is_dir():  # a typing error sooner than a wish for a new folder
        raise ExportError(f"{path} could not be written: there is no folder {path.parent}.")
    try:
        write_whole(path, text.getvalue())
    except OSError as error:
        raise ExportError(f"{path} could not be written: {error.strerror}.") from None
