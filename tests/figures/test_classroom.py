"""Stacked bars of a class: lengths are the counts that were given, and no two states look alike."""

import pytest

from kvlearn.figures.classroom import STATES, exercise_outcomes

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
