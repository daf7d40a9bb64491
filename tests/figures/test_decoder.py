"""The map of a decoder, turned pairs and areas of work: what is written on them is what is so."""

import math

import numpy as np
import pytest
import torch
from matplotlib.patches import Polygon

from kvlearn.decoder import DecoderConfig
from kvlearn.figures import decoder_map, turned_pairs, work_area
from kvlearn.measure import cached_projections, naive_projections
from kvlearn.rope import apply_rope

CONFIG = DecoderConfig(
    vocab_size=101,
    hidden_size=24,
    num_layers=7,
    num_heads=6,
    num_kv_heads=2,
    head_dim=10,
    intermediate_size=9,
)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_the_map_has_the_sizes_and_parts_of_the_model():
    """Would catch a map of another model, or a layer without one of its norms or plus signs."""
    said = texts(decoder_map(CONFIG).axes[0])
    assert {"one layer, 7 times", "the stream: (B, L, 24)", "(B, L, 101)"} <= set(said)
    assert (said.count("norm"), said.count("+"), said.count("attention"), said.count("MLP")) == (3, 2, 1, 1)


def turned(x, y, position):
    vector = torch.tensor([x, y], dtype=torch.float64)[None, None, None]
    return apply_rope(vector, torch.tensor([[position]]), 10000.0).flatten()


def test_the_angle_between_a_turned_query_and_key_follows_their_distance():
    """Would catch an angle that is measured from the axis, so that it changes from place to place."""
    near = (turned(1.0, 0.5, 9), turned(0.8, -0.2, 7))
    far = (turned(1.0, 0.5, 112), turned(0.8, -0.2, 110))
    picture = turned_pairs({"near": near, "far": far})
    labels = [ax.get_xlabel() for ax in picture.axes]
    apart = (2 + math.atan2(0.5, 1.0) - math.atan2(-0.2, 0.8)) % (2 * math.pi)  # pair 0: one radian a place
    assert labels[0] == labels[1] == f"{apart:.2f} radians apart\nscore {float(near[0] @ near[1]):.2f}"
    assert [ax.get_title(loc="center") for ax in picture.axes] == ["near", "far"]


def test_the_arc_goes_the_short_way_from_the_key_to_the_query():
    """Would catch an arc that runs around the back where the angle passes half a turn."""
    key, query = torch.tensor([math.cos(3.0), math.sin(3.0)]), torch.tensor([math.cos(3.5), math.sin(3.5)])
    ax = turned_pairs({"across": (query, key)}).axes[0]
    arc = ax.lines[-1].get_xydata()
    angles = np.unwrap(np.arctan2(arc[:, 1], arc[:, 0]))
    assert angles[-1] - angles[0] == pytest.approx(0.5)
    assert angles[0] == pytest.approx(3.0)
    assert "0.50 radians" in ax.get_xlabel()


@pytest.mark.parametrize(("prompt", "new"), [(8000, 500), (30, 12)])
def test_the_strip_has_the_area_of_what_is_projected(prompt, new):
    """Would catch a strip drawn to another scale than the square that it is compared with."""
    picture = work_area(prompt, new)
    ax = picture.axes[0]
    strip = next(patch for patch in ax.patches if isinstance(patch, Polygon)).get_xy()
    x, y = strip[:-1].T
    area = 0.5 * abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))
    # A staircase under a straight edge: the two differ by at most half a step of each pass.
    assert area == pytest.approx(naive_projections(prompt, new), abs=new)
    said = " ".join(texts(ax))
    for number in (naive_projections(prompt, new), cached_projections(prompt, new), (prompt + new) ** 2):
        assert f"{number:,}" in said and f"{number:,}" in picture.alt
