"""Bars of a class: lengths are the counts that were given, no two states look alike, the order is kept."""

import pytest

from kvlearn import figures
from kvlearn.figures.classroom import STATES, exercise_outcomes, frequent_mistakes

COUNTS = {
    "attention_weights": {"right": 21, "wrong": 6, "stopped": 1, "not written": 2},
    "merge_heads (again)": {"right": 25, "wrong": 5},
}


def test_bars_are_the_counts_one_behind_the_other():
    """States in another order than the legend, bars that all begin at 0, the last exercise on top."""
    picture = exercise_outcomes(COUNTS)
    ax = picture.axes[0]
    drawn = [[(bar.get_x(), bar.get_width()) for bar in container] for container in ax.containers]
    assert drawn == [[(0, 21)], [(21, 6)], [(27, 1)], [(28, 2)], [(0, 25)], [(25, 5)], [(30, 0)], [(30, 0)]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(STATES)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(COUNTS)
    low, high = ax.get_ylim()
    assert low > high and ax.get_xlim() == (0, 30)
    assert [text.get_text() for text in ax.texts] == ["21", "6", "1", "2", "25", "5"]
    assert "merge_heads (again): 25 right, 5 wrong, 0 stopped, 0 not written" in picture.alt


def test_states_are_told_apart_without_colour():
    """Grey print: two states with the same hatching."""
    assert len({hatch for _, hatch in STATES.values()}) == len(STATES)


def test_a_number_is_left_out_where_its_bar_is_too_thin():
    """Numbers that lie on each other in a class of 500."""
    ax = exercise_outcomes({"x": {"right": 497, "wrong": 2, "not written": 1}}).axes[0]
    assert [text.get_text() for text in ax.texts] == ["497"]


@pytest.mark.slow
def test_the_same_counts_give_the_same_picture():
    """A picture that depends on what was drawn before."""
    assert exercise_outcomes(COUNTS, title="01").png() == exercise_outcomes(COUNTS, title="01").png()


@pytest.mark.parametrize(
    "counts, said", [({}, "there is no exercise"), ({"x": {"late": 1}}, "'late' is not")]
)
def test_what_cannot_be_drawn(counts, said):
    """An IndexError of matplotlib, or a state that is left out without a word."""
    with pytest.raises(ValueError, match=said):
        exercise_outcomes(counts)


MISTAKES = [("no mask at all", "chunked_prefill", 17), ("the cache is never used", "cached_decode", 3)]


def test_a_bar_for_each_mistake_as_long_as_its_students_are_many():
    """The most frequent below; the share of the class lost, because the axis ends at the longest bar."""
    ax = (picture := frequent_mistakes(MISTAKES, 30)).axes[0]
    assert [(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in ax.patches] == [(0, 17), (1, 3)]
    low, high = ax.get_ylim()
    assert low > high and ax.get_xlim() == (0, 30)
    assert [text.get_text() for text in ax.texts] == [
        "no mask at all", "17 · chunked_prefill", "the cache is never used", "3 · cached_decode",
    ]  # fmt: skip
    assert "out of 30 students. no mask at all (chunked_prefill): 17; the cache" in picture.alt


def test_what_is_written_beside_a_bar_stays_above_the_axis():
    """The exercise of a mistake that everybody makes, behind the end of its bar: the bars shrink for it."""
    picture = frequent_mistakes([("x", "scaled_dot_product_attention", n) for n in (30, 17, 16, 1)], 30)
    picture.draw_without_rendering()
    (ax,) = picture.axes
    for text in ax.texts:
        drawn = text.get_window_extent()
        assert ax.bbox.x0 - 1 <= drawn.x0 and drawn.x1 <= ax.bbox.x1 + 1


def test_ten_mistakes_are_enough():
    """A picture of three screens; mistakes that are left out without a word."""
    picture = frequent_mistakes([(f"m{n}", "x", 30 - n) for n in range(13)], 30)
    assert len(picture.axes[0].patches) == 10 and "3 more are not drawn." in picture.caption
    assert "more" not in frequent_mistakes(MISTAKES, 30).caption


@pytest.mark.parametrize("mistakes", [[], [("x", "y", 0)], [("x", "y", 31)]])
def test_mistakes_that_cannot_be_drawn(mistakes):
    """A bar beyond the axis."""
    with pytest.raises(ValueError, match="1 to 30 students"):
        frequent_mistakes(mistakes, 30)


def test_they_are_offered_where_all_figures_are():
    """Figures that are found in a file of the package alone."""
    assert {"exercise_outcomes", "frequent_mistakes"} <= set(figures.__all__)
    assert figures.frequent_mistakes is frequent_mistakes
