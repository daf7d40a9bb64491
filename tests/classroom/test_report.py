"""The report for the instructor: counts, order, and nobody's name where none was asked for."""

import re

import pytest
from made import asked, by_hand, classroom, enter, error, named, notebook, prose, right
from test_feedback import Page

from kvlearn.checks import find
from kvlearn.classroom import report, settings
from kvlearn.classroom.course import CourseError
from kvlearn.classroom.graded import Submission
from kvlearn.classroom.outcomes import outcomes

pytestmark = pytest.mark.slow  # gradebooks and processes: half a minute in all

WEIGHTS, ATTEND = "attention_weights", "scaled_dot_product_attention"
SLOW = error("CellTimeoutError", "This cell had not ended after 60 seconds, and was ended.")


def handed_in(student, weights, attend, copied=(), **facts):
    made = notebook(asked(WEIGHTS, weights), asked(ATTEND, attend, points=1), copied=copied)
    found = tuple(outcomes(made))
    return Submission(student, "01_attention", found, name=student.title(), copied=tuple(copied), **facts)


def blank(exercise):
    def answer(*_):
        raise NotImplementedError

    return [error("CheckFailed", f"{exercise} is not written yet. Fill in the answer cell above, run it.")]


def a_class():
    return [
        handed_in("ann", right(WEIGHTS), named(ATTEND, 2)),
        handed_in("bob", named(WEIGHTS, 1), named(ATTEND, 2)),
        handed_in("cyd", named(WEIGHTS, 0), [SLOW], copied=[f"{WEIGHTS}: bobs_mask is a copy of kvlearn.x"]),
        handed_in("dan", named(WEIGHTS, 1), blank(ATTEND)),
        handed_in("eve", [error("TypeError", "eve did it")], right(ATTEND, library=True)),
    ]


def test_each_exercise_is_counted():
    """Blanks and stopped cells among the mistakes; counts that do not add up to the class."""
    found = report.summarise("01_attention", a_class())
    assert found.submissions == 5
    weights, attend = found.rows
    assert weights.counts == {"right": 1, "wrong": 4, "stopped": 0, "not written": 0} and weights.known == 3
    assert attend.counts == {"right": 1, "wrong": 2, "stopped": 1, "not written": 1}
    assert (attend.known, attend.stopped_by, weights.stopped_by) == (2, {"time": 1}, {})
    assert weights.title == find(WEIGHTS).title


def test_misconceptions_most_frequent_first():
    """The order of the exercises, or of the bank, in place of the order in which to teach again."""
    found = report.summarise("01_attention", a_class()).misconceptions
    weights, attend = find(WEIGHTS).misconceptions, find(ATTEND).misconceptions
    assert [(m.students, m.exercise, m.name) for m in found] == [
        (2, WEIGHTS, weights[1].name),
        (2, ATTEND, attend[2].name),
        (1, WEIGHTS, weights[0].name),
    ]
    assert found[1].says == attend[2].says
    assert found[1].read == (
        'notebooks/01_attention.ipynb, section "4 · Three readings of one vector: Q, K and V"'
    )


def test_a_student_counts_once_for_one_mistake():
    """The same answer, checked where it was written and where it was pasted, as two students."""
    made = notebook(
        asked("split_heads", named("split_heads")), asked("split_heads", named("split_heads"), again=True)
    )
    found = report.summarise("x", [Submission("ann", "x", tuple(outcomes(made)))])
    assert [m.students for m in found.misconceptions] == [1]
    assert [row.label for row in found.rows] == ["split_heads", "split_heads (again)"]


def test_answers_that_are_the_librarys():
    """A flag of the check or of the comparison that is lost; flags in a class that allows it."""
    assert report.summarise("x", a_class()).copies == {WEIGHTS: 1, ATTEND: 1}
    allowed = report.summarise("x", a_class(), flag=False, names=True)
    assert allowed.copies == {} and "kvlearn.x" not in str(allowed.talk)


def test_whom_to_talk_to():
    """A list of everybody, or of nobody; the student who has copied all and has all points left out."""
    assert report.summarise("x", a_class()).talk == {}
    talk = report.summarise(
        "x", [*a_class(), handed_in("fay", right(WEIGHTS), right(ATTEND))], names=True
    ).talk
    assert talk == {
        "Ann (ann)": ["1 of 2 right (1 wrong)"],
        "Bob (bob)": ["0 of 2 right (2 wrong)"],
        "Cyd (cyd)": ["0 of 2 right (1 wrong, 1 stopped)", f"{WEIGHTS}: bobs_mask is a copy of kvlearn.x"],
        "Dan (dan)": ["0 of 2 right (1 wrong, 1 not written)"],
        "Eve (eve)": ["1 of 2 right (1 wrong)", f"{ATTEND}: what was handed over is the library's"],
    }
    copier = [handed_in("gus", right(WEIGHTS, library=True), right(ATTEND))]
    assert list(report.summarise("x", copier, names=True).talk) == ["Gus (gus)"]


def test_no_student_and_no_students_text_in_what_is_shown_in_the_room():
    """A name on the wall: from the list, from a function's name, from an error."""
    found = report.summarise("01_attention", a_class())
    for text in (report.table(found), Page(report.page([found])).text, repr(found)):
        for word in ("ann", "bob", "cyd", "dan", "eve", "bobs_mask", "eve did it"):
            assert not re.search(rf"\b{word}\b", text.lower()), word
    named_ones = report.summarise("01_attention", a_class(), names=True)
    assert "Bob (bob): 0 of 2 right (2 wrong)" in report.table(named_ones)
    assert "Bob (bob) : 0 of 2 right (2 wrong)" in Page(report.page([named_ones], names=True)).text


def test_the_table_for_a_terminal():
    """Columns that do not stand under their heads; a table wider than a terminal."""
    lines = report.table(report.summarise("01_attention", a_class())).splitlines()
    assert lines[0] == "01_attention: 5 submissions, 0 of 0 points on average by the checks"
    head = next(line for line in lines if line.startswith("exercise"))
    row = next(line for line in lines if line.startswith(ATTEND))
    assert row == f"{ATTEND}      1      2        1            1  stopped by: time 1"
    for word, number in (("right", "1"), ("wrong", "2"), ("stopped", "1"), ("not written", "1")):
        assert row[head.index(word) + len(word) - 1] == number
    assert f"    2  {find(WEIGHTS).misconceptions[1].name} ({WEIGHTS})" in lines
    assert max(map(len, lines)) <= 100


def test_a_page_with_figure_and_numbers():
    """A figure that is a file beside the page; <script> of a student's name in the list of names."""
    bad = handed_in("<script>alert(1)</script>", named(WEIGHTS, 0), blank(ATTEND))
    found = report.summarise("01_attention", [*a_class(), bad], names=True)
    html = report.page([found], names=True)
    shown = Page(html)
    (picture,) = [attrs for tag, attrs in shown.tags if tag == "img"]
    assert picture["src"].startswith("data:image/png;base64,")
    assert f"{ATTEND}: 1 right, 2 wrong, 1 stopped, 2 not written" in picture["alt"]
    assert "script" not in {tag for tag, _ in shown.tags} and "<Script>Alert(1)</Script>" in shown.text
    assert f"2 {find(ATTEND).misconceptions[2].name} ( {ATTEND} )" in shown.text
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
    assert (why.title, why.asked, why.given, why.mean, why.most) == ("Why", 3, 1, 3, 3)
    path = report.write(root, report.read(root, "01"))
    assert path == root / "classroom" / "reports" / "01_attention.html"
    assert "Why: 1 of 3 have points, 3 of 3 on average" in Page(path.read_text(encoding="utf-8")).text


def test_all_assignments_on_one_page(root):
    """The last assignment alone; an assignment that nobody has handed in as an empty table."""
    assert [each.assignment for each in report.read(root)] == ["01_attention"]
    made = notebook(asked("causal_mask", named("causal_mask")))
    enter(root, "ann", made, assignment="02_causal_masking")
    path = report.write(root, report.read(root))
    text = Page(path.read_text(encoding="utf-8")).text
    assert path.name == "all.html" and text.index("01_attention 3 submissions") < text.index(
        "02_causal_masking 1 submission,"
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
