"""Pictures of the ring and of the window's reach say what they are given."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Wedge

from kvlearn.figures import ring_frames, window_reach
from kvlearn.figures.ring import KEPT, NEW
from kvlearn.figures.style import MASKED


def fills(ax):
    return [to_hex(patch.get_facecolor()) for patch in ax.patches if isinstance(patch, Wedge)]


def test_what_is_new_in_a_frame_stands_out():
    """Would catch a frame compared with itself, or an empty slot drawn as a token."""
    picture = ring_frames([[0, 1, -1], [3, 1, 2]], ["before", "after"])
    first, second = picture.axes[:2]
    new, kept, empty = (to_hex(colour) for colour in (NEW, KEPT, MASKED))
    assert fills(first) == [new, new, empty] and fills(second) == [new, kept, new]
    words = [text.get_text() for text in first.texts]
    assert words == ["0", "0", "1", "1", "2"]  # a position and its slot; an empty slot has no position
    assert "before: 0, 1, empty; after: 3, 1, 2." in picture.alt


def test_a_picture_may_begin_in_the_middle():
    """Would catch a first frame that is wholly new, although the ring had been filled before."""
    first = ring_frames([[4, 1, 2], [4, 5, 2]], before=[0, 1, 2]).axes[0]
    new, kept = to_hex(NEW), to_hex(KEPT)
    assert fills(first) == [new, kept, kept]
    with pytest.raises(ValueError, match=r"before=\[0, 1\] has 2"):
        ring_frames([[4, 1, 2]], before=[0, 1])


def test_slot_0_is_on_top_and_the_ring_runs_clockwise():
    """Would catch a ring that runs against the hands of a clock: slot 1 of 4 is on the right."""
    texts = ring_frames([[5, 6, 7, 8]]).axes[0].texts
    places = {text.get_text(): text.get_position() for text in texts}
    assert places["5"][1] > 0.7 and places["6"][0] > 0.7 and places["7"][1] < -0.7 and places["8"][0] < -0.7


@pytest.mark.parametrize("frames", [[], [[]], [[0, 1], [0]]])
def test_frames_that_are_no_rings_are_refused(frames):
    """Would catch slots that are dropped without a word."""
    with pytest.raises(ValueError, match="one list of slots a frame, all of one length"):
        ring_frames(frames)


def test_the_reach_is_drawn_from_the_last_token():
    """Would catch a cone that widens the wrong way: the first token that takes part is named."""
    reached = [[False, True, True, True], [False, False, True, True], [False, False, False, True]]
    picture = window_reach(reached, 2)
    assert "depends on the tokens 1 to 3" in picture.alt and "window of 2" in picture.alt
    labels = [label.get_text() for label in picture.axes[0].get_yticklabels()]
    assert labels == ["tokens", "layer 1", "layer 2"]
    strong = [line for line in picture.axes[0].lines if line.get_linewidth() > 1]
    assert len(strong) == 2 + 4  # from the top one to two, and from those two to two each
    with pytest.raises(ValueError, match="booleans"):
        window_reach([[0, 1]], 2)
