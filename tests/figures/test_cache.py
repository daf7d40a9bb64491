"""Frames of the tables of K and V: the colour of each cell is what the recorded step did."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from kvlearn.figures import cache_frame, cache_frames
from kvlearn.figures.cache import STATES, cell_states

# A prompt of 3 tokens and 2 more, as the counters record them.
NAIVE = [{"projected": list(range(n)), "read": list(range(n))} for n in (3, 4, 5)]
CACHED = [
    {"projected": [0, 1, 2], "read": [0, 1, 2]},
    {"projected": [3], "read": [0, 1, 2, 3]},
    {"projected": [4], "read": [0, 1, 2, 3, 4]},
]
WINDOW = [{"projected": [0, 1, 2], "read": [0, 1, 2]}, {"projected": [3], "read": [2, 3]}]


def cells(ax):
    """The state of each cell as it is coloured: [(K, V) of each row]."""
    by_fill = {fill.lower(): state for state, (fill, _, _) in STATES.items() if state != "kept"}
    fills = [to_hex(patch.get_facecolor()) for patch in ax.patches if isinstance(patch, Rectangle)]
    states = [by_fill[fill] for fill in fills]
    return list(zip(states[::2], states[1::2], strict=True))


def test_states_without_a_cache():
    """Would catch work that is done again shown as if it were new: the point of the picture."""
    assert cell_states(NAIVE, 0, 5) == ["written"] * 3 + ["empty"] * 2
    assert cell_states(NAIVE, 2, 5) == ["recomputed"] * 4 + ["written"]


def test_states_with_a_cache():
    """Would catch a step that seems to project the whole text, or not to read it (claims, vii)."""
    assert cell_states(CACHED, 1, 5) == ["read"] * 3 + ["written", "empty"]
    assert cell_states(CACHED, 2, 5) == ["read"] * 4 + ["written"]


def test_a_row_that_is_kept_and_not_read_is_its_own_state():
    """Would catch rows outside a window shown as read, or as if they had never been written."""
    assert cell_states(WINDOW, 1, 4) == ["kept", "kept", "read", "written"]


def test_a_frame_draws_both_runs_and_counts():
    """Would catch the runs swapped, K and V swapped for rows, and counts of another step."""
    picture = cache_frame({"naive": NAIVE, "cached": CACHED}, 1, list("abcde"))
    naive, cached = picture.axes
    assert cells(naive) == [("recomputed",) * 2] * 3 + [("written",) * 2, ("empty",) * 2]
    assert cells(cached) == [("read",) * 2] * 3 + [("written",) * 2, ("empty",) * 2]
    assert naive.get_xlabel() == "projected now 4, so far 7"
    assert cached.get_xlabel() == "projected now 1, so far 4"
    assert [label.get_text() for label in naive.get_yticklabels()] == list("abcde")
    assert "naive: at step 1, 1 new, 3 projected again; 7 positions projected in all." in picture.alt


def test_the_first_position_is_on_top():
    """Would catch the table upside down: text is read from the top."""
    ax = cache_frame({"cached": CACHED}, 0).axes[0]
    assert ax.yaxis_inverted()


def test_the_strip_has_a_frame_for_each_step():
    """Would catch a step left out, and a run drawn in the other's row."""
    picture = cache_frames({"naive": NAIVE, "cached": CACHED})
    assert len(picture.axes) == 6
    assert [ax.get_xlabel() for ax in picture.axes] == [f"projected {n}" for n in (3, 4, 5, 3, 1, 1)]
    assert cells(picture.axes[5]) == [("read",) * 2] * 4 + [("written",) * 2]
    assert picture.axes[0].get_ylabel() == "naive" and picture.axes[3].get_ylabel() == "cached"


@pytest.mark.slow
def test_the_strip_of_chosen_steps():
    """Would catch `steps` taken as a count."""
    picture = cache_frames({"cached": CACHED}, steps=[0, 2])
    assert [ax.get_title(loc="center") for ax in picture.axes] == ["prompt", "step 2"]


def test_the_legend_names_what_is_there_and_no_more():
    """Would catch a legend with states that no frame shows."""
    (legend,) = cache_frames({"cached": CACHED}).legends
    assert [text.get_text().split(":")[0] for text in legend.get_texts()] == [
        "new",
        "read",
        "nothing here yet",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("draw", [lambda *args: cache_frame(args[0], 0, args[1]), cache_frames])
def test_the_dot_for_a_blank_is_explained_where_it_stands(draw):
    """Would catch a sign in the labels that no word on the page speaks of."""
    assert "stands for a blank" in draw({"cached": CACHED}, ["a", " b", "c", "d", "e"]).caption
    assert "stands for a blank" not in draw({"cached": CACHED}, list("abcde")).caption


@pytest.mark.parametrize("step", [-1, 3])
def test_a_step_outside_the_run_is_refused(step):
    """Would catch the last frame shown for a step that does not exist."""
    with pytest.raises(ValueError, match=f"0 to 2; got step {step}"):
        cache_frame({"naive": NAIVE}, step)


@pytest.mark.parametrize("run", [[], [{"projected": [0]}]])
def test_a_run_in_another_form_is_refused(run):
    """Would catch a KeyError from inside matplotlib in place of a sentence."""
    with pytest.raises(ValueError, match="'naive' should be a list of steps"):
        cache_frames({"naive": run})
