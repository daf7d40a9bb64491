"""Grades as CSV: the numbers of the gradebook, in the columns that each platform reads."""

import csv
import errno
import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from kvlearn.classroom import course, export
from kvlearn.classroom.course import CourseError
from kvlearn.classroom.export import ExportError

pytestmark = pytest.mark.slow  # gradebooks and processes: half a minute in all

ROOT = Path(__file__).resolve().parents[2]
MASKING, ATTENTION = "02_causal_masking", "01_attention"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A course with an empty gradebook: making one takes seconds."""
    folder = tmp_path_factory.mktemp("template")
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for name in (ATTENTION, MASKING):
        shutil.copytree(ROOT / "exercises" / name, folder / "exercises" / name)
    course.open_course(folder)
    return folder


@pytest.fixture
def empty(template, tmp_path):
    return shutil.copytree(template, tmp_path / "clone")


def hand_in(gradebook, student, assignment, auto, manual=None, when=None):
    """A graded submission: points of the check, and of the prose cell (None: waits for a person)."""
    submission = gradebook.update_or_create_submission(assignment, student, timestamp=when)
    notebook = submission.notebooks[0]
    for grade in notebook.grades:
        if grade.name == "check":
            grade.auto_score, grade.needs_manual_grade = auto, False
        else:
            grade.auto_score, grade.manual_score = None, manual
            grade.needs_manual_grade = manual is None
    gradebook.db.commit()


@pytest.fixture
def root(empty):
    """Two assignments; Jane did both, Moe one of them late, Zoe none; one answer waits for a person."""
    with course.open_course(empty).gradebook as gradebook:
        gradebook.add_student("doejane", first_name="Jane", last_name="Doe", email="jane@example.com")
        gradebook.add_student("=cmd()", first_name="Moe", last_name="@Roe")
        gradebook.add_student("zoë", lms_user_id="777")
        for name, points in ((ATTENTION, 5), (MASKING, 7)):
            gradebook.add_assignment(name, duedate=datetime(2026, 3, 1))
            gradebook.add_notebook(name, name)
            gradebook.add_grade_cell("check", name, name, max_score=points, cell_type="code")
            gradebook.add_grade_cell("why", name, name, max_score=3, cell_type="markdown")
            gradebook.add_solution_cell("why", name, name)
        early, late = datetime(2026, 2, 28), datetime(2026, 3, 1, 0, 0, 1)
        hand_in(gradebook, "doejane", ATTENTION, auto=4, manual=1.25, when=early)
        hand_in(gradebook, "doejane", MASKING, auto=6, manual=None, when=early)
        hand_in(gradebook, "=cmd()", MASKING, auto=7, manual=3, when=late)
    for name, number in ((ATTENTION, "12345"), (MASKING, "67")):
        folder = empty / "classroom" / "submitted" / "doejane" / name
        folder.mkdir(parents=True)
        (folder / "platform_id.txt").write_text(number)
    return empty


def rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_plain(root, tmp_path):
    """A score without the manual points, a late one that is not, a 0 for what was never handed in."""
    to = tmp_path / "grades.csv"
    result = export.export(root, to)
    assert rows(to) == [
        ["student", "assignment", "score", "max_score", "late", "needs_manual_grading"],
        ["'=cmd()", ATTENTION, "", "8", "no", "no"],
        ["doejane", ATTENTION, "5.25", "8", "no", "no"],
        ["zoë", ATTENTION, "", "8", "no", "no"],
        ["'=cmd()", MASKING, "10", "10", "yes", "no"],
        ["doejane", MASKING, "6", "10", "no", "yes"],
        ["zoë", MASKING, "", "10", "no", "no"],
    ]
    assert (result.path, result.students) == (to, 3)
    assert [(g.student, g.assignment) for g in result.waiting] == [("doejane", MASKING)]


def test_canvas(root, tmp_path):
    """Canvas refuses another order of its first columns, and takes a student without ID for a new one."""
    to = tmp_path / "grades.csv"
    export.export(root, to, "canvas")
    assert rows(to) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
        + ["01 Attention (points)", "02 Causal masking (points)"],
        ["Points Possible", "", "", "", "", "8", "10"],
        ["'@Roe, Moe", "", "", "'=cmd()", "", "", "10"],
        ["Doe, Jane", "12345", "", "doejane", "", "5.25", ""],
        ["zoë", "777", "", "zoë", "", "", ""],
    ]


def test_moodle(root, tmp_path):
    """Moodle finds a row by "Participant N" alone, N of this assignment; three columns must be there."""
    to = tmp_path / "grades.csv"
    export.export(root, to, "moodle", ["01"])
    assert rows(to) == [
        [
            "Identifier",
            "Full name",
            "Email address",
            "Status",
            "Grade",
            "Maximum grade",
            "Last modified (grade)",
        ],
        ["", "'@Roe, Moe", "", "No submission", "", "8", "-"],
        ["Participant 12345", "Doe, Jane", "jane@example.com", "Submitted for grading", "5.25", "8", "-"],
        ["Participant 777", "zoë", "", "No submission", "", "8", "-"],
    ]
    export.export(root, to, "moodle", ["02"], unfinished=True)
    assert rows(to)[2][:5] == [
        "Participant 67",
        "Doe, Jane",
        "jane@example.com",
        "Submitted for grading",
        "6",
    ]


def test_moodle_reads_one_assignment(root, tmp_path):
    """Two rows of one participant: the second grade overwrites the first."""
    with pytest.raises(
        ExportError, match="one assignment a file. Name one of: 01_attention, 02_causal_masking"
    ):
        export.export(root, tmp_path / "grades.csv", "moodle")
    assert not (tmp_path / "grades.csv").exists()


def test_a_grade_that_waits_is_sent_only_when_asked(root, tmp_path):
    """6 of 10 sent to Canvas as final, while 3 points wait for a person."""
    to = tmp_path / "grades.csv"
    export.export(root, to, "canvas", ["02"])
    assert rows(to)[3] == ["Doe, Jane", "67", "", "doejane", "", ""]
    export.export(root, to, "canvas", ["02"], unfinished=True)
    assert rows(to)[3] == ["Doe, Jane", "67", "", "doejane", "", "6"]


def test_a_late_penalty_counts(root, tmp_path):
    """nbgrader keeps the penalty beside the score; and a penalty may exceed it."""
    with course.open_course(root).gradebook as gradebook:
        gradebook.find_submission_notebook(MASKING, MASKING, "=cmd()").late_submission_penalty = 2.5
        gradebook.find_submission_notebook(ATTENTION, ATTENTION, "doejane").late_submission_penalty = 99
        gradebook.db.commit()
    export.export(root, tmp_path / "grades.csv")
    found = {(r[0], r[1]): r[2] for r in rows(tmp_path / "grades.csv")}
    assert found["'=cmd()", MASKING] == "7.5"
    assert found["doejane", ATTENTION] == "0"


def test_as_a_plugin_of_nbgrader(root, tmp_path):
    """`nbgrader export --exporter=...` gives no folder of submissions, and names students by a list."""
    plugin = export.Canvas(to=str(tmp_path / "grades.csv"), student=["doejane"], assignment=[ATTENTION])
    with course.open_course(root).gradebook as gradebook:
        plugin.export(gradebook)
    assert rows(tmp_path / "grades.csv")[2:] == [["Doe, Jane", "", "", "doejane", "", "5.25"]]


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_a_name_is_never_a_formula(begin):
    """CSV injection: a student named =HYPERLINK(...) runs in the instructor's spreadsheet."""
    assert export.cell(f"{begin}1+1") == f"'{begin}1+1"
    assert export.cell(f"a{begin}1") == f"a{begin}1"


def test_commas_quotes_and_line_ends_in_a_name(empty, tmp_path):
    """A name that shifts the columns: nbgrader's own export joins texts with commas."""
    to = tmp_path / "a.csv"
    written = [["a,b", 'c"d', "e\nf"], ["1", "2", "3"]]
    export.write(to, written)
    assert rows(to) == written


@pytest.mark.parametrize(
    ("score", "text"),
    [(None, ""), (0.0, "0"), (10.0, "10"), (100, "100"), (2.5, "2.5"), (1 / 3, "0.3333"), (1e-9, "0")],
)
def test_numbers(score, text):
    """10 cut to 1 with its zero, 1e-09, a third with 16 digits."""
    assert export.number(score) == text


def test_titles():
    """Canvas takes a number in parentheses for its own id of an assignment."""
    assert export.title("02_causal_masking") == "02 Causal masking (points)"
    assert export.title("08_KV_cache") == "08 KV cache (points)"
    assert export.title("99") == "99 (points)"


def test_nothing_to_export(empty, root, tmp_path):
    """A file with a header and no rows; an assignment that does not exist."""
    with pytest.raises(ExportError, match="no export for 'blackboard'. There is: plain, canvas, moodle"):
        export.export(root, tmp_path / "a.csv", "blackboard")
    with pytest.raises(CourseError, match="no assignment '07'"):
        export.export(root, tmp_path / "a.csv", assignments=["07"])
    assert not (tmp_path / "a.csv").exists()


def test_an_empty_gradebook(empty, tmp_path):
    """A file with a header alone looks like a class that handed in nothing."""
    with pytest.raises(ExportError, match="no students and grades yet"):
        export.export(empty, tmp_path / "a.csv")
    with pytest.raises(ExportError, match="has no 02_causal_masking. Release it and grade it first"):
        export.export(empty, tmp_path / "a.csv", assignments=["02"])
    assert not (tmp_path / "a.csv").exists()


def test_a_full_disk_keeps_the_file_that_was_there(tmp_path, monkeypatch):
    """Half of the grades in place of the whole file of yesterday."""
    to = tmp_path / "grades.csv"
    to.write_text("yesterday", encoding="utf-8")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportError, match="grades.csv could not be written: No space left on device"):
        export.write(to, [["a"]])
    assert to.read_text(encoding="utf-8") == "yesterday"
    assert list(tmp_path.iterdir()) == [to]


def test_a_place_that_is_no_file(tmp_path):
    """A traceback where the folder is missing, or where a folder has the name."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(ExportError, match="could not be written: Is a directory"):
        export.write(tmp_path / "folder", [["a"]])
    with pytest.raises(ExportError, match="could not be written: there is no folder .*nowhere"):
        export.write(tmp_path / "nowhere" / "a.csv", [["a"]])
