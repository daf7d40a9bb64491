"""Lines and bars: heights and positions are the numbers that were given."""

import numpy as np
import pytest

from kvlearn.figures import bars, memory_timeline, time_per_token


def test_time_per_token_is_in_milliseconds_at_its_position():
    """Would catch seconds under a label that says milliseconds, and a line that starts at position 0."""
    ax = time_per_token({"naive": ([7, 8, 9], [0.1, 0.2, 0.3]), "cached": ([7, 8], [0.05, 0.06])}).axes[0]
    naive, cached = ax.lines
    assert naive.get_xdata().tolist() == [7, 8, 9] and np.allclose(naive.get_ydata(), [100, 200, 300])
    assert np.allclose(cached.get_ydata(), [50, 60])
    assert ax.get_ylim()[0] == 0  # a line that starts above 0 would make a small growth look large
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["naive", "cached"]


def test_time_per_token_on_a_logarithmic_axis():
    """Would catch `log` ignored, or the axis forced to the 0 that it cannot have."""
    ax = time_per_token({"naive": ([1, 2], [1.0, 10.0])}, log=True).axes[0]
    assert ax.get_yscale() == "log" and ax.get_ylim()[0] > 0


def test_bars_have_their_heights_and_numbers():
    """Would catch predicted and measured swapped, and numbers rounded: they must agree exactly."""
    groups = {
        "naive": {"predicted": 4124750, "measured": 4124751},
        "cached": {"predicted": 8499, "measured": 8499},
    }
    picture = bars(groups, log=True)
    ax = picture.axes[0]
    predicted, measured = ax.containers
    assert [bar.get_height() for bar in predicted] == [4124750, 8499]
    assert [bar.get_height() for bar in measured] == [4124751, 8499]
    assert {text.get_text() for text in ax.texts} == {"4,124,750", "4,124,751", "8,499"}
    assert ax.get_yscale() == "log" and ax.get_ylim()[1] > 4124751
    assert "naive: predicted 4,124,750, measured 4,124,751" in picture.alt


def test_bars_of_one_group_do_not_overlap():
    """Would catch bars drawn over one another, the last hiding the others."""
    ax = bars({"a": {"x": 1, "y": 2, "z": 3}, "b": {"x": 4, "y": 5, "z": 6}}).axes[0]
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for group in ax.containers for bar in group)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert len({group[0].get_facecolor() for group in ax.containers}) == 3
    assert len(ax.get_legend().get_texts()) == 3
    assert bars({"a": {"x": 1}, "b": {"x": 4}}).axes[0].get_legend() is None  # the axis says it already


@pytest.mark.parametrize(
    ("most", "unit", "shown"),
    [(1000, "bytes", 1000), (2048, "KiB", 2), (3 << 20, "MiB", 3), (5 << 30, "GiB", 5)],
)
def test_memory_is_in_binary_units_that_are_named(most, unit, shown):
    """Would catch MiB divided by 10^6: the course says which of the two it means."""
    ax = memory_timeline({"growing": [0, most], "preallocated": [most, most]}).axes[0]
    assert ax.get_ylabel() == f"live memory ({unit})"
    assert ax.lines[0].get_ydata().tolist() == [0, shown]
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()
