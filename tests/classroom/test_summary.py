"""What is counted of a class: each exercise, each mistake once a student, and what was written in words."""

import pytest
from made import asked, error, judged, named, notebook, prose, right
from nbgrader.utils import compute_checksum

from kvlearn.checks import find
from kvlearn.classroom.graded import Points, Submission
from kvlearn.classroom.outcomes import outcomes
from kvlearn.classroom.summary import Prose, summarise

WEIGHTS, ATTEND = "attention_weights", "scaled_dot_product_attention"
SLOW = error("CellTimeoutError", "This cell had not ended after 60 seconds, and was stopped.")


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
    found = summarise("01_attention", a_class())
    assert found.submissions == 5
    weights, attend = found.rows
    assert weights.counts == {"right": 1, "wrong": 4, "stopped": 0, "not written": 0} and weights.known == 3
    assert attend.counts == {"right": 1, "wrong": 2, "stopped": 1, "not written": 1}
    assert (attend.known, attend.stopped_by, weights.stopped_by) == (2, {"time": 1}, {})
    assert weights.causes == {"something else": 1} and attend.causes == {}
    assert weights.title == find(WEIGHTS).title


def test_misconceptions_most_frequent_first():
    """The order of the exercises, or of the bank, in place of the order in which to teach again."""
    found = summarise("01_attention", a_class()).misconceptions
    weights, attend = find(WEIGHTS).misconceptions, find(ATTEND).misconceptions
    assert [(m.students, m.exercise, m.name) for m in found] == [
        (2, WEIGHTS, weights[1].name),
        (2, ATTEND, attend[2].name),
        (1, WEIGHTS, weights[0].name),
    ]
    assert found[1].says == attend[2].says
    assert found[1].read == (
        'Lesson 01, section "4 · Three readings of one vector: Q, K and V" (notebooks/01_attention.ipynb)'
    )
    both = summarise("01_attention", a_class())
    assert [m.students for m in both.frequent] == [2, 2] and [m.students for m in both.single] == [1]


def test_a_student_counts_once_for_one_mistake():
    """The same answer, checked where it was written and where it was pasted, as two students."""
    made = notebook(
        asked("split_heads", named("split_heads")), asked("split_heads", named("split_heads"), again=True)
    )
    found = summarise("x", [Submission("ann", "x", tuple(outcomes(made)))])
    assert [m.students for m in found.misconceptions] == [1]
    assert [row.label for row in found.rows] == ["split_heads", "split_heads (again)"]


def test_answers_that_are_the_librarys():
    """A flag of the check or of the comparison that is lost; flags in a class that allows it."""
    assert summarise("x", a_class()).copies == {WEIGHTS: 1, ATTEND: 1}
    allowed = summarise("x", a_class(), flag=False, names=True)
    assert allowed.copies == {} and "kvlearn.x" not in str(allowed.talk)


def test_whom_to_talk_to():
    """A list of everybody, of nobody, or by the alphabet; a student with all points, all copied, left out."""
    assert summarise("x", a_class()).talk == {}
    talk = summarise("x", [*a_class(), handed_in("fay", right(WEIGHTS), right(ATTEND))], names=True).talk
    weights, attend = find(WEIGHTS).misconceptions, find(ATTEND).misconceptions
    assert list(talk.items()) == [
        (
            "Bob (bob)",
            ["0 of 2 right (2 wrong)", f"{WEIGHTS}: {weights[1].name}", f"{ATTEND}: {attend[2].name}"],
        ),
        (
            "Cyd (cyd)",
            [
                "0 of 2 right (1 wrong, 1 stopped)",
                f"{WEIGHTS}: {weights[0].name}",
                f"{WEIGHTS}: bobs_mask is a copy of kvlearn.x",
            ],
        ),
        ("Dan (dan)", ["0 of 2 right (1 wrong, 1 not written)", f"{WEIGHTS}: {weights[1].name}"]),
        ("Ann (ann)", ["1 of 2 right (1 wrong)", f"{ATTEND}: {attend[2].name}"]),
        ("Eve (eve)", ["1 of 2 right (1 wrong)", f"{ATTEND}: what was handed over is the library's"]),
    ]
    copier = [handed_in("gus", right(WEIGHTS, library=True), right(ATTEND))]
    assert list(summarise("x", copier, names=True).talk) == ["Gus (gus)"]


def test_wrong_answers_without_a_name_are_counted_by_what_can_be_told():
    """Wrong answers that no part of the report says anything about: the column "wrong" does not add up."""
    two = [
        [error("NameError", f"name '{WEIGHTS}' is not defined")],
        judged(WEIGHTS, lambda q, k: q),
        judged(WEIGHTS, lambda q, k: q),
        named(WEIGHTS, 0),
    ]
    made = [Submission(str(n), "x", tuple(outcomes(notebook(asked(WEIGHTS, o))))) for n, o in enumerate(two)]
    (row,) = summarise("x", made).rows
    assert row.causes == {"did not run": 1, "shape or type": 2}
    assert row.counts["wrong"] == row.known + sum(row.causes.values()) == 4


def wrote(student, points, blank=False):
    (cell,) = prose("why", "YOUR ANSWER HERE" if blank else "Because.")
    if blank:
        cell.metadata.nbgrader.checksum = compute_checksum(cell)
    return Submission(student, "x", tuple(outcomes(notebook([cell]))), points={"why": points})


def test_an_empty_cell_was_not_read():
    """0 points that nbgrader gives an untouched cell, told as "2 have points, 0 on average"."""
    waiting, empty = Points(0, 3, waiting=True), Points(0, 3, automatic=0)
    found = summarise("x", [wrote("a", waiting), wrote("b", waiting), wrote("c", empty, blank=True)]).prose
    assert found == (Prose("Why", read=0, waiting=2, empty=1, mean=0, most=3),)
    assert str(found[0]) == "Why: 2 to be read; 1 wrote nothing"
    read = [
        wrote("a", Points(2, 3, by_hand=True)),
        wrote("b", Points(3, 3, by_hand=True)),
        wrote("d", waiting),
    ]
    by_hand = wrote("c", Points(1, 3, automatic=0, by_hand=True), blank=True)  # somebody has told it in class
    assert str(summarise("x", read).prose[0]) == "Why: 2 read, 2.5 of 3 points on average; 1 to be read"
    assert str(summarise("x", [by_hand]).prose[0]) == "Why: 1 read, 1 of 3 points on average"


@pytest.mark.parametrize("points", [None, Points(0, 3, waiting=True)])
def test_an_answer_that_the_gradebook_does_not_know_waits(points):
    """A KeyError, or an answer that nobody counts."""
    assert str(summarise("x", [wrote("a", points)]).prose[0]) == "Why: 1 to be read"
