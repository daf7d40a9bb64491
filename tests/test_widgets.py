"""Widgets: moving a control changes the picture to the one that the figure function draws for it."""

import pytest
import torch

from kvlearn import figures, widgets
from kvlearn.attention import causal_mask

pytestmark = pytest.mark.slow  # each draws several pictures

NAIVE = [{"projected": list(range(n)), "read": list(range(n))} for n in (3, 4, 5)]
CACHED = [{"projected": [0, 1, 2], "read": [0, 1, 2]}] + [
    {"projected": [n], "read": list(range(n + 1))} for n in (3, 4)
]


def test_the_stepper_draws_the_frame_of_its_slider():
    """Would catch a slider that is not wired, or that is one frame off."""
    runs = {"naive": NAIVE, "cached": CACHED}
    panel = widgets.cache_stepper(runs)
    assert panel.view.value == figures.cache_frame(runs, 0).html()
    panel.controls["step"].value = 2
    assert panel.view.value == figures.cache_frame(runs, 2).html()
    assert panel.controls["step"].max == 2


def test_buttons_step_and_stop_at_the_ends():
    """Would catch a button past the last frame, which would draw nothing or raise inside a callback."""
    panel = widgets.stepper("abc", lambda letter: figures.bars({letter: {"count": 1}}))
    step = panel.controls["step"]
    panel.back.click()
    assert step.value == 0
    for _ in range(5):
        panel.forth.click()
    assert step.value == 2 and "c: count 1" in panel.picture.alt
    panel.back.click()
    assert step.value == 1 and "b: count 1" in panel.picture.alt


def test_a_frame_is_drawn_once():
    """Would catch a redraw at each visit: going back and forth should not lag."""
    drawn = []

    def draw(frame):
        drawn.append(frame)
        return figures.heads_diagram(4, frame)

    panel = widgets.stepper([1, 2, 4], draw)
    for step in (1, 0, 1, 0):
        panel.controls["step"].value = step
    assert drawn == [1, 2]


def test_no_frames_are_refused():
    """Would catch a slider from 0 to -1."""
    with pytest.raises(ValueError, match="no frame to step through"):
        widgets.stepper([], lambda frame: frame)


def test_the_mask_explorer_shows_both_rules():
    """Would catch queries and keys swapped."""
    panel = widgets.mask_explorer(2, 5)
    assert panel.view.value == figures.mask_compare(2, 5).html()
    panel.controls["key_length"].value = 7
    assert "2 queries by 7 keys" in panel.picture.alt


def test_the_mask_explorer_has_at_most_as_many_queries_as_keys():
    """Would catch an error inside a callback, which a front end swallows: the picture would stand still."""
    panel = widgets.mask_explorer(4, 6)
    panel.controls["key_length"].value = 3
    assert "3 queries by 3 keys" in panel.picture.alt


def test_the_attention_explorer_draws_the_chosen_layer_and_head():
    """Would catch layer and head swapped: there are as many of neither."""
    weights = torch.rand(3, 4, 2, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    panel = widgets.attention_explorer(weights, list("abcde"), mask=causal_mask(2, 5))
    assert (panel.controls["layer"].max, panel.controls["head"].max) == (2, 3)
    panel.controls["layer"].value = 1
    panel.controls["head"].value = 3
    image = panel.picture.axes[0].images[0].get_array()
    assert torch.equal(torch.from_numpy(image.data), weights[1, 3].double())


def test_the_head_explorer_offers_the_divisors():
    """Would catch a number of key/value heads that the query heads cannot share."""
    panel = widgets.head_explorer(6, 2)
    assert list(panel.controls["kv_heads"].options) == [1, 2, 3, 6]
    panel.controls["kv_heads"].value = 3
    assert panel.picture.alt.startswith("6 query heads above 3 key/value heads.")


def test_the_memory_planner_counts_what_is_chosen():
    """Would catch a control that is not wired, and a picture of another model than the one chosen."""
    panel = widgets.memory_planner("llama-3.1-8b", 8192, 8, "h100")
    assert "At most 64 sequences of 8,192 tokens fit" in panel.picture.caption
    assert "batch 8: weights 15.0 GiB, cache 8.0 GiB, fits" in panel.picture.alt
    panel.controls["cache"].value = "fp8"
    panel.controls["batch"].value = 200
    assert "batch 200: weights 15.0 GiB, cache 100.0 GiB, too much" in panel.picture.alt
    panel.controls["weights"].value = "int4"
    panel.controls["context"].value = 2**20
    assert "the model itself goes to 131,072 tokens" in panel.picture.caption
    panel.controls["gpu"].value = "t4"
    panel.controls["model"].value = "llama-3.1-405b"
    assert "Not even one sequence fits" in panel.picture.caption


@pytest.mark.slow  # a figure for each model
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.thorough)])
def test_the_memory_planner_stands_every_choice(every):
    """Would catch an error inside a callback, which a front end swallows: groups that divide no head."""
    panel = widgets.memory_planner()
    panel.controls["cache"].value = "q8_0"
    for model in panel.controls["model"].options[::every]:
        panel.controls["model"].value = model
        assert panel.picture.caption.startswith(model) or "whole groups" in panel.picture.caption


def test_the_text_of_a_panel_is_the_same_every_time():
    """Would catch addresses or image bytes in the stored output of a lesson, which nbval compares."""
    first, second = widgets.head_explorer(6, 2), widgets.head_explorer(6, 3)
    assert repr(first) == repr(second)
    assert "Run this cell in JupyterLab" in first._repr_mimebundle_()["text/plain"]
