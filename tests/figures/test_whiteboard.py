"""Pictures from the whiteboard: what they draw, what their words say, and what they refuse."""

import re

import pytest
import torch

from kvlearn import figures

X = 10 * torch.arange(4)[:, None] + torch.arange(6)


def words(picture) -> list[str]:
    return [text.get_text() for ax in picture.axes for text in ax.texts]


def test_arrows_names_every_tip():
    """Would catch an arrow without its name, or with another one's coordinates."""
    picture = figures.arrows([[2.0, 1.0], [-1.0, 2.0]], ["cat", "car"])
    assert {"cat (2, 1)", "car (-1, 2)"} <= set(words(picture))
    assert "cat at (2, 1), car at (-1, 2)" in picture.alt


def test_arrows_stay_inside_the_picture():
    """Would catch limits that cut off a vector, as autoscaling does, which does not see arrows."""
    ax = figures.arrows(torch.tensor([[2.0, 1.0], [-3.0, -2.0], [0.5, 4.0]])).axes[0]
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert left < -3 and right > 2 and bottom < -2 and top > 4


def test_arrows_mark_the_average():
    """Would catch an average that is not marked where it is."""
    picture = figures.arrows([[0.0, 1.0], [1.0, 2.0], [1.0, 1.0]], average=torch.tensor([0.25, 1.5]))
    (mark,) = [line for line in picture.axes[0].lines if line.get_marker() == "D"]
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (0.25, 1.5)
    assert "(0.25, 1.50)" in picture.alt


def test_arrows_refuse_what_has_no_plane():
    """Would catch three coordinates of which one is dropped without a word."""
    with pytest.raises(ValueError, match=re.escape("of shape (n, 2); got (5, 3)")):
        figures.arrows(torch.zeros(5, 3))


@pytest.mark.slow
def test_split_heads_map_draws_the_true_split_and_the_false_one():
    """Would catch the two grids swapped: the lesson would then teach the scramble."""
    start, split, viewed = (
        [int(word) for word in [t.get_text() for t in ax.texts] if word.isdigit()]
        for ax in figures.split_heads_map(X, 2).axes
    )
    assert start == X.flatten().tolist()
    assert split == X.view(4, 2, 3).transpose(0, 1).flatten().tolist()
    assert viewed == X.flatten().tolist()


@pytest.mark.slow
def test_split_heads_map_counts_the_numbers_out_of_place():
    """Would catch a count that is not of this picture: with one token nothing is out of place."""
    right = X.view(4, 2, 3).transpose(0, 1)
    wrong = int((X.view(2, 4, 3) != right).sum())
    assert f"{wrong} of 24 numbers are in the wrong place" in figures.split_heads_map(X, 2).alt
    assert "0 of 6 numbers" in figures.split_heads_map(X[:1], 2).alt


@pytest.mark.parametrize("heads", [0, 4, 6])
def test_split_heads_map_refuses_heads_that_do_not_fit(heads):
    """Would catch a width that the heads cannot share, or more heads than there are colours."""
    with pytest.raises(ValueError, match=f"that {heads} heads share evenly"):
        figures.split_heads_map(X, heads)


def test_course_path_says_which_lessons_are_there():
    """Would catch a lesson to come that is promised as if it were there."""
    picture = figures.course_path(ready=2)
    there = picture.alt.split("There: ")[1].split(".")[0]
    assert there == "00 Start here, 01 Attention"
    assert {"00", "01", "15"} <= set(words(picture))


@pytest.mark.slow
@pytest.mark.parametrize("draw", [
    lambda: figures.arrows([[2.0, 1.0], [1.5, 1.5]]),
    lambda: figures.split_heads_map(X, 3),
    lambda: figures.course_path(5),
])  # fmt: skip
def test_each_picture_has_words_and_pixels(draw):
    """Would catch a picture without alt text or caption, or one that differs from run to run."""
    picture = draw()
    assert len(picture.alt) > 20 and picture.caption
    assert picture.png()[:4] == b"\x89PNG" and picture.png() == draw().png()
