"""Bars of operations a byte: their lengths, their order and the line that they are held against."""

import pytest

from kvlearn.figures.intensity import intensity_bars

VALUES = {"MHA": 1, "GQA, 4 share": 4, "MLA": 241.8}


def test_bars_have_their_lengths_and_the_first_is_on_top():
    """Would catch labels that go to the wrong bar when the axis is turned over."""
    ax = intensity_bars(VALUES, balance=200, balance_name="a card").axes[0]
    bars = sorted(ax.patches, key=lambda bar: -bar.get_y())
    assert [bar.get_width() for bar in bars] == [1, 4, 241.8]
    labels = dict(zip(ax.get_yticks(), [text.get_text() for text in ax.get_yticklabels()], strict=True))
    assert [labels[round(bar.get_y() + bar.get_height() / 2)] for bar in bars] == list(VALUES)
    assert {text.get_text() for text in ax.texts} == {"1", "4", "242"}
    assert ax.get_xscale() == "log" and ax.get_xlim()[1] > 242


def test_the_machine_is_drawn_where_it_stands():
    """Would catch a line at another place than its label says, and one where none was asked for."""
    picture = intensity_bars(VALUES, balance=300, balance_name="a card")
    (line,) = picture.axes[0].lines
    assert set(line.get_xdata()) == {300} and picture.axes[0].get_xlim()[1] > 300
    assert "a card of 300" in picture.alt and "MLA: 242" in picture.alt
    assert [text.get_text() for text in picture.axes[0].get_legend().get_texts()] == ["a card, 300"]
    assert not intensity_bars(VALUES).axes[0].lines


@pytest.mark.parametrize("values", [{}, {"MHA": 0}, {"MHA": 1, "GQA": -3}])
def test_nothing_to_draw_is_said(values):
    """A logarithmic axis has no 0: matplotlib would draw an empty picture and warn."""
    with pytest.raises(ValueError, match="above 0"):
        intensity_bars(values)
