"""The report for the instructor: counts, order, and nobody's name where none was asked for."""

import re

import pytest
from made import asked, by_hand, classroom, enter, named, notebook, prose, right
from test_feedback import Page
from test_summary import ATTEND, WEIGHTS, a_class, blank, handed_in

from kvlearn.checks import find
from kvlearn.classroom import report, settings
from kvlearn.classroom.course import CourseError
from kvlearn.classroom.summary import summarise

pytestmark = pytest.mark.slow  # gradebooks and processes: half a minute in all


def test_no_student_and_no_students_text_in_what_is_shown_in_the_room():
    """A name on the wall: from the list, from a function's name, from an error."""
    found = summarise("01_attention", a_class())
    for text in (report.table(found), Page(report.page([found])).text, repr(found)):
        for word in ("ann", "bob", "cyd", "dan", "eve", "bobs_mask", "eve did it"):
            assert not re.search(rf"\b{word}\b", text.lower()), word
    named_ones = summarise("01_attention", a_class(), names=True)
    assert "Bob (bob): 0 of 2 right (2 wrong)\n" in report.table(named_ones)
    shown = Page(report.page([named_ones], names=True)).text
    assert "Bob (bob) : 0 of 2 right (2 wrong);" in shown
    warning = "This page names students: do not show it in the room."
    assert warning in shown and warning not in Page(report.page([found])).text


def test_the_table_for_a_terminal():
    """Columns that do not stand under their heads; a table wider than a terminal."""
    lines = report.table(summarise("01_attention", a_class())).splitlines()
    assert lines[0] == "01_attention: 5 submissions, 0 of 0 points on average by the checks"
    head = next(line for line in lines if line.startswith("exercise"))
    row = next(line for line in lines if line.startswith(ATTEND))
    assert row == f"{ATTEND}      1      2        1            1  stopped by: time 1"
    for word, number in (("right", "1"), ("wrong", "2"), ("stopped", "1"), ("not written", "1")):
        assert row[head.index(word) + len(word) - 1] == number
    assert f"    1  {WEIGHTS}: something else 1" in lines
    assert f"    2  {find(WEIGHTS).misconceptions[1].name} ({WEIGHTS})" in lines
    assert max(map(len, lines)) <= 100


def test_a_page_with_figure_and_numbers():
    """A figure that is a file beside the page; <script> of a student's name in the list of names."""
    bad = handed_in("<script>alert(1)</script>", named(WEIGHTS, 0), blank(ATTEND))
    found = summarise("01_attention", [*a_class(), bad], names=True)
    html = report.page([found], names=True)
    shown = Page(html)
    picture, mistakes = [attrs for tag, attrs in shown.tags if tag == "img"]
    assert picture["src"].startswith("data:image/png;base64,")
    assert f"{find(ATTEND).misconceptions[2].name} ({ATTEND}): 2" in mistakes["alt"]
    assert f"{ATTEND}: 1 right, 2 wrong, 1 stopped, 2 not written" in picture["alt"]
    assert "script" not in {tag for tag, _ in shown.tags} and "<Script>Alert(1)</Script>" in shown.text
    assert f"2 of 6 {find(ATTEND).misconceptions[2].name} ( {ATTEND} )" in shown.text
    folded = Page(report.page([summarise("01_attention", a_class())])).text
    assert f"{find(WEIGHTS).misconceptions[0].name} (" in folded.partition("and 1 more, by one student ")[2]
    assert f"{WEIGHTS} 1 5 named below 4 something else 1 0 0 " in shown.text
    assert "6 submissions" in shown.text and "http" not in html.replace("http-equiv", "")


@pytest.fixture
def root(tmp_path):
    """A class of three with an assignment of two exercises and a question in words."""
    root = classroom(tmp_path, "01_attention", "02_causal_masking")
    for student, weights in (("ann", right(WEIGHTS)), ("bob", named(WEIGHTS, 1)), ("cyd", named(WEIGHTS, 1))):
        enter(root, student, notebook(asked(WEIGHTS, weights), prose("why", "Because.")))
    by_hand(root, "ann", "why", manual_score=3)
    return root


def test_a_report_of_a_real_gradebook(root):
    """Points that are not the gradebook's; a question in words among the exercises."""
    (found,) = report.read(root, "01")
    assert (found.submissions, found.mean, found.most) == (3, 2 / 3, 2)
    assert [row.name for row in found.rows] == [WEIGHTS]
    (why,) = found.prose
    assert (why.title, why.read, why.waiting, why.empty, why.mean, why.most) == ("Why", 1, 2, 0, 3, 3)
    path = report.write(root, report.read(root, "01"))
    assert path == root / "classroom" / "reports" / "01_attention.html"
    shown = path.read_text(encoding="utf-8")
    assert "Why: 1 read, 3 of 3 points on average; 2 to be read" in Page(shown).text
    beside = report.write(root, report.read(root, "01", names=True), names=True)
    assert beside == path.with_name("01_attention.names.html") and "bob" in beside.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8") == shown  # the page for the room has not changed


def test_all_assignments_on_one_page(root):
    """The last assignment alone; an assignment that nobody has handed in as an empty table."""
    assert [each.assignment for each in report.read(root)] == ["01_attention"]
    made = notebook(asked("causal_mask", named("causal_mask")))
    enter(root, "ann", made, assignment="02_causal_masking")
    path = report.write(root, report.read(root))
    text = Page(path.read_text(encoding="utf-8")).text
    assert path.name == "all.html" and text.index("attention 3 submissions") < text.index(
        "Assignment 02: causal masking 1 submission,"
    )


def test_the_instructors_setting_about_the_library_counts(root):
    """Flags although the settings allow the library."""
    enter(root, "dan", notebook(asked(WEIGHTS, right(WEIGHTS, library=True)), prose("why", "x")))
    assert report.read(root)[0].copies == {WEIGHTS: 1}
    file = settings.file_of(root)
    file.write_text(file.read_text(encoding="utf-8").replace('library = "flag"', 'library = "allow"'))
    assert report.read(root)[0].copies == {}


def test_submissions_that_could_not_be_read_are_said_and_not_named(root):
    """A class of 29 that looks like the whole class."""
    (root / "classroom/autograded/bob/01_attention/01_attention.ipynb").write_text("{", encoding="utf-8")
    (found,) = report.read(root)
    assert found.submissions == 2
    assert found.unread == ("1 more submission could not be read; `--names` says which.",)
    assert found.unread[0] in report.table(found)
    assert "bob" in report.read(root, names=True)[0].unread[0]


def test_nothing_to_report(tmp_path):
    """An empty page where a command is missing."""
    root = classroom(tmp_path)
    with pytest.raises(CourseError, match="Nothing has been graded of any assignment"):
        report.write(root, report.read(root))
    assert not (root / "classroom" / "reports").exists()
