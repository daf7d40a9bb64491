"""Executed notebooks beside the gradebook: whose, which points, and what is missing."""

import nbformat
import pytest
from made import asked, by_hand, classroom, enter, named, notebook, prose, right

from kvlearn.classroom import course
from kvlearn.classroom.course import CourseError
from kvlearn.classroom.graded import graded, read_graded

pytestmark = pytest.mark.slow  # gradebooks and processes: half a minute in all

NAME = "attention_weights"


def two(**facts):
    return notebook(
        asked(NAME, named(NAME), points=2),
        asked("scaled_dot_product_attention", right("scaled_dot_product_attention"), points=1),
        prose("why", "Because.", points=3),
        **facts,
    )


@pytest.fixture
def root(tmp_path):
    return classroom(tmp_path)


def test_points_are_those_of_the_gradebook(root):
    """Points by the check where a person gave others; a waiting cell as 0 points of a mistake."""
    enter(root, "jane", two(), first_name="Jane", last_name="Doe")
    enter(root, "max", two())
    by_hand(
        root, "jane", f"{NAME}-check", manual_score=1.5, extra_credit=0.25, comment_on=NAME, comment="Near!"
    )
    (jane, max_), problems = read_graded(root, "01_attention", ["jane", "max"])
    assert not problems and (jane.name, max_.name) == ("Jane Doe", "max")
    found = jane.points[f"{NAME}-check"]
    assert (found.score, found.most, found.automatic, found.by_hand, found.extra) == (1.75, 2, 0, True, 0.25)
    assert max_.points[f"{NAME}-check"].score == 0 and not max_.points[f"{NAME}-check"].by_hand
    assert max_.points["why"].waiting and max_.points["why"].most == max_.waiting == 3
    assert (jane.score, max_.score, jane.most) == (2.75, 1, 6)
    assert jane.comments == {NAME: "Near!"} and max_.comments == {}


def test_what_students_were_given_is_known(root):
    """The question's heading from a submission, and a changed cell that nobody recognises."""
    made = nbformat.read(root / "exercises/01_attention/01_attention.ipynb", as_version=4)
    enter(root, "jane", made)
    ((jane,), _) = read_graded(root, "01_attention", ["jane"])
    assert jane.outcomes[-1].title == "Why? One more token"


def test_points_taken_off_for_lateness(root):
    """A total that is another one than in the export."""
    enter(root, "jane", two())
    with course.open_course(root).gradebook as book:
        entry = book.find_submission_notebook("01_attention", "01_attention", "jane")
        entry.late_submission_penalty = 0.5
        book.db.commit()
    ((jane,), _) = read_graded(root, "01_attention", ["jane"])
    assert (jane.late, jane.score) == (0.5, 0.5)


def test_nothing_is_written_by_reading(root):
    """A reader that opens a transaction on the gradebook while `grade` writes into it."""
    enter(root, "jane", two())
    path = root / "classroom" / "gradebook.db"
    before = path.read_bytes()
    read_graded(root, "01_attention", ["jane"])
    assert path.read_bytes() == before


def test_what_is_graded(root):
    """A folder without a notebook, or with another assignment's, as a graded submission."""
    enter(root, "max", two())
    enter(root, "jane", two())
    (root / "classroom/autograded/eve/01_attention").mkdir(parents=True)
    assert graded(root) == {"01_attention": ["jane", "max"]} == graded(root, "01")
    with pytest.raises(CourseError, match="There is no assignment '05'"):
        graded(root, "05")


def test_nothing_graded(root):
    """An empty report instead of the command that is missing."""
    with pytest.raises(CourseError, match="Nothing has been graded of any assignment.*grade` comes first"):
        graded(root)
    with pytest.raises(CourseError, match="Nothing has been graded of 01_attention"):
        graded(root, "01")


def test_a_submission_that_cannot_be_read_costs_no_other(root):
    """One broken file or one missing row, and 29 students without feedback."""
    for student in ("ann", "bob", "cy"):
        enter(root, student, two())
    broken = root / "classroom/autograded/ann/01_attention/01_attention.ipynb"
    broken.write_text('{"cells": [', encoding="utf-8")
    with course.open_course(root).gradebook as book:
        book.remove_submission("01_attention", "bob")
    read, problems = read_graded(root, "01_attention", ["ann", "bob", "cy"])
    assert [each.student for each in read] == ["cy"]
    assert problems["ann"].endswith("is not a notebook. Delete it, and grade ann again.")
    assert problems["bob"] == "bob has no points for 01_attention in the gradebook. Grade bob again."


def test_no_gradebook(root):
    """An empty gradebook made on the way, in which nobody has points."""
    enter(root, "jane", two())
    (root / "classroom" / "gradebook.db").unlink()
    with pytest.raises(CourseError, match="gradebook.db is not there"):
        read_graded(root, "01_attention", ["jane"])
    assert not (root / "classroom" / "gradebook.db").exists()


def test_notes_of_any_shape(root):
    """Metadata that a student wrote and no worker replaced: a traceback, or letters as notes."""
    made = two()
    made.metadata["kvlearn"] = {"notes": "abc", "copied": [1, "why: it uses kvlearn.attention"]}
    enter(root, "jane", made)
    ((jane,), _) = read_graded(root, "01_attention", ["jane"])
    assert (jane.notes, jane.copied) == ((), ("why: it uses kvlearn.attention",))
