"""How a picture is shown: PNG, caption, alt text and colours, in a notebook and in converted HTML."""

import nbclient
import nbformat
import pytest
import torch
from nbconvert import HTMLExporter

from kvlearn.attention import causal_mask
from kvlearn.figures import bars, mask_map, show, style
from kvlearn.figures.cache import STATES

SOURCE = """
from kvlearn import causal_mask
from kvlearn.figures import mask_map, show
"""


def run_notebook(*cells):
    """The outputs of cells run by a kernel, as nbval and the build run them."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    return notebook


@pytest.fixture(scope="module")
def shown():
    return run_notebook(
        SOURCE,
        "mask_map(causal_mask(2, 5))",
        "show(mask_map(causal_mask(3)), 'A `mask` & more.', alt='Say \"three\" queries.')",
        "import matplotlib.pyplot\n%matplotlib inline",
        "mask_map(causal_mask(4))",
    )


@pytest.mark.slow  # starts a kernel
def test_a_picture_shows_itself_as_png_and_caption(shown):
    """Would catch a Figure made without pyplot showing as the text <Figure size ...>."""
    image, caption = shown.cells[1].outputs
    assert image.output_type == "display_data" and set(image.data) == {"image/png", "text/plain"}
    assert image.metadata["image/png"]["alt"].startswith("Mask of 2 queries by 5 keys.")
    assert "4, 5 keys" in image.data["text/plain"]
    assert "<em>Blue:" in caption.data["text/html"]


@pytest.mark.slow  # starts a kernel
def test_show_takes_words_of_ones_own(shown):
    """Would catch a caption that is ignored, and one whose & or quotes break the HTML around it."""
    image, caption = shown.cells[2].outputs
    assert image.metadata["image/png"]["alt"] == 'Say "three" queries.'
    assert caption.data["text/html"] == (
        "<details><summary><em>A <code>mask</code> &amp; more.</em></summary>"
        "Say &quot;three&quot; queries.</details>"
    )


@pytest.mark.slow  # starts a kernel
def test_pyplot_in_the_notebook_does_not_double_the_picture(shown):
    """Would catch the PNG of matplotlib's inline backend shown a second time beside the picture's own."""
    assert [sorted(output.data) for output in shown.cells[4].outputs] == [
        ["image/png", "text/plain"],
        ["text/html", "text/plain"],
    ]


@pytest.mark.slow  # starts a kernel
def test_the_words_reach_converted_html(shown):
    """Would catch alt text under a metadata key that nbconvert does not read."""
    body, _ = HTMLExporter(template_name="classic").from_notebook_node(shown)
    assert 'alt="Mask of 2 queries by 5 keys.' in body
    lab, _ = HTMLExporter(template_name="lab").from_notebook_node(
        shown
    )  # has no alt of its own: the caption has it
    assert "Mask of 2 queries by 5 keys." in lab


@pytest.mark.slow
def test_the_same_figure_gives_the_same_bytes():
    """Would catch a time, a version or a random id in the file: notebooks would differ at every build."""
    first, second = (mask_map(causal_mask(3, 7)).png() for _ in range(2))
    assert first == second and first.startswith(b"\x89PNG")


def test_a_picture_keeps_its_size_on_the_page():
    """Would catch a picture shown at twice its size because its pixels are fine."""
    png = mask_map(causal_mask(3, 7)).png()
    width = int.from_bytes(png[16:20], "big")
    assert style.shown_width(png) == round(width * 96 / 150)
    assert 200 < style.shown_width(png) < 500


def test_html_carries_alt_and_image():
    """Would catch a widget whose picture a screen reader cannot name."""
    html = mask_map(causal_mask(2, 6)).html()
    assert '<img src="data:image/png;base64,' in html
    assert 'alt="Mask of 2 queries by 6 keys. The queries, first to last, see 5, 6 keys."' in html


def test_the_house_style_stays_in_the_house():
    """Would catch rcParams of a reader's own matplotlib changed by drawing one of ours."""
    import matplotlib

    before = dict(matplotlib.rcParams)
    mask_map(causal_mask(3)).png()
    assert dict(matplotlib.rcParams) == before


def test_contrast_is_that_of_the_guidelines():
    """Would catch a luminance without the gamma: black on white is 21, and #767676 on white is 4.54."""
    assert style.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert style.contrast("#FFFFFF", "#767676") == pytest.approx(4.54, abs=0.01)
    assert style.ink_on("#F0E442") == style.INK and style.ink_on("#0072B2") == style.PAPER


@pytest.mark.parametrize("state", STATES)
def test_words_in_cells_can_be_read(state):
    """Would catch white letters on a light fill."""
    fill = STATES[state][0]
    assert style.contrast(style.ink_on(fill), fill) >= 4.5


def test_a_name_means_one_look_and_two_of_a_kind_differ():
    """Would catch the preallocated cache in the growing one's colour, and two lines that look the same."""
    naive, growing, preallocated = style.looks(["naive", "cached, growing", "cached, preallocated"])
    assert (naive[0], growing[0], preallocated[0]) == (style.VERMILLION, style.BLUE, style.GREEN)
    live, peak = style.looks(["growing, live", "growing, peak"])
    assert live[0] == peak[0] and live[1] != peak[1]
    weights, cache = style.looks(["weights", "cache"])
    assert (weights[0], cache[0]) == (style.MUTED, style.BLUE)  # as in the pictures of the napkin
    assert len({colour for colour, _, _ in style.looks(["a", "b", "c", "d"])}) == 4


def test_tokens_become_labels_that_can_be_drawn():
    """Would catch blanks that vanish, a dollar sign read as mathematics, and letters that the font lacks."""
    assert style.token_label(" a b") == "·a·b"
    assert style.token_label("\n\t") == "\\n\\t"
    assert style.token_label("中") == "□"
    assert style.token_label("abcdefghijklmnop") == "abcdefghijk…"
    picture = mask_map(causal_mask(2), ["$x$", "%_"], ["$x$", "%_"])
    assert picture.png()
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == ["$x$", "%_"]


def test_labels_must_be_as_many_as_positions():
    """Would catch labels cut or repeated in silence, and so every row named wrongly."""
    with pytest.raises(ValueError, match="3 positions to label and 2 tokens"):
        mask_map(causal_mask(3), ["a", "b"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tensors_of_any_dtype_are_drawn(dtype):
    """Would catch numpy's refusal of bfloat16 and of tensors with a gradient."""
    values = torch.tensor([[0.5, 0.25]], dtype=dtype, requires_grad=True)
    assert style.to_numpy(values).tolist() == [[0.5, 0.25]]


def test_show_outside_a_notebook_prints_the_words(capsys):
    """Would catch a script that stops, or opens a window, because a lesson's cell was run in it."""
    show(bars({"naive": {"predicted": 45, "measured": 45}}))
    assert "naive: predicted 45, measured 45" in capsys.readouterr().out
