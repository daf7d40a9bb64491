"""Curves of recall: the points are the record's, and every line can be told from the others."""

import itertools

import pytest

from kvlearn.figures import recall_by_length, recall_by_pairs
from kvlearn.figures.recall import COLOURS, scheme_label

SCHEMES = {
    "exact": {"kind": None, "style": None, "residual": 0, "sides": "both"},
    "int4 kivi 32": {"kind": "int4", "style": "kivi", "residual": 32, "sides": "both"},
    "int2 token 0": {"kind": "int2", "style": "token", "residual": 0, "sides": "both"},
    "int2 token 0 keys": {"kind": "int2", "style": "token", "residual": 0, "sides": "keys"},
    "int4 tensor": {"kind": "int4", "style": "tensor", "residual": 0, "sides": "both"},
}
RECALL = {"exact": (1.0, 0.9), "int4 kivi 32": (1.0, 0.85), "int2 token 0": (0.5, 0.0),
          "int2 token 0 keys": (0.55, 0.05), "int4 tensor": (0.8, 0.4)}  # fmt: skip


@pytest.fixture
def results():
    def cells(what, low, high, sizes):
        return {
            name: {
                size: {what: low + (high - low) * share, f"{what}_interval": [0.0, 1.5 * high]}
                for size, share in zip(sizes, RECALL[name], strict=True)
            }
            for name in SCHEMES
        }

    return {
        "date": "2026-01-02",
        "model": "a model",
        "schemes": SCHEMES,
        "passkey": cells("recall", 0.0, 1.0, ("128", "2048")),
        "perplexity": cells("ratio", 1.0, 3.0, ("128", "2048")),
        "pairs": cells("accuracy", 0.0, 1.0, ("4", "256")),
    }


def lines(ax):
    return {container.get_label(): container.lines[0] for container in ax.containers}


def test_recall_and_perplexity_are_those_of_the_record(results):
    """Would catch panels that are swapped, and a scheme that is drawn with another one's numbers."""
    picture = recall_by_length(results, ["exact", "int2 token 0"])
    left, right = (lines(ax) for ax in picture.axes)
    assert list(left) == list(right) == ["exact", "int2, by token"]
    assert left["int2, by token"].get_ydata().tolist() == [0.5, 0.0]
    assert right["exact"].get_ydata().tolist() == pytest.approx([3.0, 2.8])
    assert "recalled" in picture.axes[0].get_ylabel() and "/ exact" in picture.axes[1].get_ylabel()
    assert "Recorded on 2026-01-02" in picture.caption
    assert "int2, by token 0.50 at 128, 0.00 at 2048" in picture.alt


def test_lengths_stand_where_they_are(results):
    """Would catch lengths as mere labels at equal steps, and lines that hide each other at 1.0."""
    ax = recall_by_length(results, list(SCHEMES)).axes[0]
    for line in lines(ax).values():
        short, long = line.get_xdata()
        assert long / short == pytest.approx(2048 / 128) and 0.85 < short / 128 < 1.15
    starts = [line.get_xdata()[0] for line in lines(ax).values()]
    assert len(set(starts)) == len(SCHEMES)
    assert [ax.xaxis.get_major_formatter()(tick, 0) for tick in ax.get_xticks()] == ["128", "2,048"]


def test_intervals_reach_to_their_ends(results):
    """Would catch ends taken for lengths: an interval from 0 to 1.5 around 0.5 is 0.5 down and 1.0 up."""
    ax = recall_by_length(results, ["int2 token 0"]).axes[0]
    ((_, _, (bars,)),) = (tuple(container) for container in ax.containers)
    assert bars.get_segments()[0][:, 1].tolist() == pytest.approx([0.0, 1.5])


def test_schemes_can_be_told_apart_without_colour(results):
    """Would catch two schemes that differ in colour alone."""
    drawn = lines(recall_by_length(results, list(SCHEMES)).axes[0])
    for one, other in itertools.combinations(drawn.values(), 2):
        assert (one.get_linestyle(), one.get_marker()) != (other.get_linestyle(), other.get_marker()) or (
            one.get_color() != other.get_color()
        )
    assert len({(line.get_linestyle(), line.get_marker()) for line in drawn.values()}) >= 4


def test_every_scheme_has_a_colour(results):
    """Would catch three lines of 2 bits in one orange, and a code that loses its colour to another."""
    names = ["int2 token 0 keys", "exact", "int2 token 0", "int4 kivi 32", "int4 tensor"]
    drawn = lines(recall_by_length(results, names).axes[0])
    colours = [line.get_color() for line in drawn.values()]
    assert len(set(colours)) == 5
    assert colours[:2] == [COLOURS["int2"], COLOURS["exact"]] and colours[3] == COLOURS["int4"]


def test_pairs_are_drawn_from_the_record(results):
    """Would catch the pass keys' numbers under the pairs' axis."""
    picture = recall_by_pairs(results, ["int4 tensor"])
    (line,) = lines(picture.axes[0]).values()
    assert line.get_ydata().tolist() == [0.8, 0.4] and line.get_xdata().tolist() == [4, 256]
    assert "0.80 at 4, 0.40 at 256" in picture.alt


def test_labels_say_all_of_a_scheme(results):
    """Would catch two schemes under one label."""
    labels = [scheme_label(facts) for facts in SCHEMES.values()]
    assert labels == ["exact", "int4, KIVI, last 32 exact", "int2, by token", "int2, by token, keys alone",
                      "int4, one scale a tensor"]  # fmt: skip
    drawn = lines(recall_by_length(results, ["exact", "int4 kivi 32", "int2 token 0"]).axes[0])
    assert list(drawn) == ["exact", "int4, KIVI, last 32 exact", "int2, by token, none exact"]


def test_a_scheme_that_was_not_recorded(results):
    """Would catch a KeyError in the place of the names that there are."""
    with pytest.raises(ValueError, match="'int5' is not a recorded scheme; there are exact, int4 kivi 32"):
        recall_by_length(results, ["exact", "int5"])
    with pytest.raises(ValueError, match="no scheme to draw"):
        recall_by_pairs(results, [])
