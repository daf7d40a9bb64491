"""Heat maps and window maps: each cell is the number, or the kind, that it stands for."""

import numpy as np
import pytest
import torch

from kvlearn.figures import magnitude_map, window_map


def test_magnitudes_are_absolute_and_share_one_scale():
    """Would catch signs drawn as sizes, axes swapped, and two panels whose colours mean different numbers."""
    keys, values = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    keys[:, 3] = -20
    picture = magnitude_map({"keys": keys, "values": values})
    left, right = (ax.images[0] for ax in picture.axes[:2])
    assert np.allclose(left.get_array(), keys.abs()) and np.allclose(right.get_array(), values.abs())
    assert left.get_clim() == right.get_clim() == (0, 20)
    assert "keys: channel 3 is the largest, 20 on average" in picture.alt
    assert magnitude_map({"keys": keys}, top=4).axes[0].images[0].get_clim() == (0, 4)


def test_magnitudes_with_a_scale_each():
    """Would catch small numbers that look like none beside large ones, and one bar that means two things."""
    keys, values = torch.full((5, 7), 20.0), torch.full((5, 7), 0.5)
    picture = magnitude_map({"keys": keys, "values": values}, shared=False)
    left, right = (ax.images[0] for ax in picture.axes[:2])
    assert left.get_clim() == (0, 20) and right.get_clim() == (0, 0.5)
    assert [ax.get_ylabel() for ax in picture.axes].count("|x|") == 2
    assert "a colour scale of its own" in picture.caption


def test_the_window_map_is_the_contract():
    """Would catch a window that is drawn otherwise than the cache keeps it."""
    picture = window_map(11, 3, 4)
    keys, values = (ax.images[0].get_array() for ax in picture.axes[:2])
    for length in range(1, 12):
        old = max(0, length - 3)
        for cells, codes in ((keys, old // 4 * 4), (values, old)):
            assert cells[length - 1].tolist() == [1] * codes + [2] * (length - codes) + [0] * (11 - length)
    assert "At 11 tokens 8 keys and 8 values are codes" in picture.alt


def test_what_cannot_be_drawn_is_refused():
    """Would catch a batch drawn as one head, or a map of nothing."""
    with pytest.raises(ValueError, match="'keys' has the shape"):
        magnitude_map({"keys": torch.ones(1, 5, 7)})
    with pytest.raises(ValueError, match="got 0, 4 and 3"):
        window_map(0, 3, 4)
