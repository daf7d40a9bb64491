"""Stacked bars against a card's memory, and what a step reads: heights are the bytes that were given."""

import pytest

from kvlearn.figures import memory_stack, step_reads

GIB = 2**30


def test_a_stack_has_its_parts_on_top_of_each_other():
    """GB under a label that says GiB, the cache drawn from the floor, a bar that fits called too much."""
    bars = {
        "a": {"weights": 15 * GIB, "cache": 8 * GIB},
        "b": {"weights": 15 * GIB, "cache": 70 * GIB},
    }
    picture = memory_stack(bars, 80 * GIB, limit_name="card")
    ax = picture.axes[0]
    drawn = [(bar.get_y(), bar.get_height()) for container in ax.containers for bar in container]
    assert drawn == [(0, 15), (15, 8), (0, 15), (15, 70)]
    assert ax.lines[0].get_ydata()[0] == 80 and ax.get_ylim()[1] > 85 and ax.get_ylabel() == "GiB"
    texts = {text.get_text() for text in ax.texts}
    assert {"23.0", "85.0 too much", "15.0", "70.0"} <= texts
    assert (
        "a: weights 15.0 GiB, cache 8.0 GiB, fits; b: weights 15.0 GiB, cache 70.0 GiB, too much"
        in picture.alt
    )


def test_a_stack_without_a_card():
    """A line at nothing, and a bar judged against it."""
    picture = memory_stack({"a": {"weights": 3 * GIB, "cache": GIB}})
    assert not picture.axes[0].lines and "fits" not in picture.alt and "too much" not in picture.alt


@pytest.mark.parametrize("weights, crossing", [(10 * GIB, 6), (17 * GIB, 9), (99 * GIB, None), (GIB, None)])
def test_a_step_reads_the_weights_once_and_each_cache(weights, crossing):
    """The weights multiplied by the batch, and the crossing drawn where the lines do not cross."""
    batches = list(range(1, 11))
    picture = step_reads(batches, weights, [2 * GIB * b for b in batches])
    ax = picture.axes[0]
    flat, cache, both = (line.get_ydata() for line in ax.lines[:3])
    assert set(flat) == {weights / GIB} and list(cache) == [2 * b for b in batches]
    assert list(both) == [weights / GIB + 2 * b for b in batches]
    assert [line.get_xdata()[0] for line in ax.lines[3:]] == ([crossing] if crossing else [])
    if crossing:
        assert f"the cache is more from batch {crossing} on" in picture.alt
        words = {text.get_text(): (text.get_ha(), text.xy[0]) for text in ax.texts}
        if crossing == 6:  # room on both sides: each word stands where it is true
            assert words == {"← more weights": ("right", 6), "more cache →": ("left", 6)}
        else:
            assert words == {"left: more weights\nright: more cache": ("right", 9)}


@pytest.mark.slow
def test_a_total_does_not_lie_on_the_line_of_the_limit():
    """79.0 GiB under a card of 79.6, its number struck through by the line."""
    bars = {"close": {"weights": 15 * GIB, "cache": 64 * GIB}, "low": {"weights": 15 * GIB, "cache": GIB},
            "over": {"weights": 15 * GIB, "cache": 65 * GIB}}  # fmt: skip
    ax = memory_stack(bars, int(79.5 * GIB)).axes[0]
    heights = {text.get_text(): text.xy[1] for text in ax.texts if hasattr(text, "xy")}
    assert (heights["79.0"], heights["16.0"], heights["80.0 too much"]) == (79.5, 16, 80)
