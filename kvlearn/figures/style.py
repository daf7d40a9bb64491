"""The house style of every picture: one palette, one font, one way to be shown.

A picture is a matplotlib `Figure` with a solid light background, so that it reads the same in Jupyter's
light and dark theme. It carries a caption, printed under it as text, and alt text, which says in words what
a reader who cannot see it should know. No pyplot: nothing here touches a global state or stays open.

Colours: Okabe and Ito, "Color Universal Design" (2008), told apart with any common colour blindness.
Nothing is said by colour alone: cells carry words, masked cells are hatched, lines have their own dashes.
"""

import base64
import functools
import html
import io
import itertools
import re

import matplotlib
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from PIL import Image

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"
INK, MUTED, LINE, MASKED, PAPER = "#222222", "#6B6B6B", "#D9D9D9", "#E4E4E4", "#FFFFFF"

# White, through the palette's blues, to nearly black: larger is darker in grey print too.
WEIGHTS = LinearSegmentedColormap.from_list("weights", [PAPER, "#BFE0F6", SKY, BLUE, "#00304D"])
CHANGES = LinearSegmentedColormap.from_list("changes", ["#FBE3D2", "#F0A878", VERMILLION, "#6E2F00"])

# What a word means looks the same in every lesson. The first that fits counts: "cached, growing" is growing.
SERIES = {
    "naive": (VERMILLION, "-", "o"),
    "growing": (BLUE, "-", "s"),
    "preallocated": (GREEN, "--", "D"),
    "static": (GREEN, "--", "D"),
    "transformers": (PURPLE, "-.", "^"),
    "predicted": ("#A6A6A6", "-", "o"),
    "measured": (BLUE, "-", "s"),
    "cached": (BLUE, "-", "s"),
    "cache": (BLUE, "-", "s"),
    "weights": (MUTED, "--", "D"),
}
OTHERS = [(ORANGE, "-.", "v"), (SKY, "--", "P"), (PURPLE, ":", "X"), (BLACK, "-", "*")]
DASHES, MARKERS = ["-", ":", "--", "-."], ["o", "s", "^", "D"]

HOUSE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 10.5,
    "text.color": INK,
    "text.parse_math": False,  # a token may be a dollar sign
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelsize": 10.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#E9E9E9",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 2.0,
    "lines.markersize": 4.5,
    "hatch.color": "#B5B5B5",
    "hatch.linewidth": 0.8,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}
DPI = 150  # pixels of the PNG for an inch of the figure
SHOWN_DPI = 96  # pixels on the page for the same inch: sharp on fine screens


class Picture(Figure):
    """A matplotlib figure with a `caption` and an `alt` text, which shows itself in a notebook."""

    caption = ""
    alt = ""

    def png(self) -> bytes:
        """The picture as PNG bytes; the same figure gives the same bytes."""
        buffer = io.BytesIO()
        with matplotlib.rc_context(HOUSE):
            self.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.12)
        pixels = Image.open(buffer).convert("RGB")
        # 256 colours are plenty for lines and cells, and a third of the bytes in the notebook.
        small = io.BytesIO()
        pixels.quantize(256, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
        return small.getvalue()

    def _ipython_display_(self):
        from IPython.display import display

        png = self.png()
        # A PNG, because front ends refuse images inside HTML in a notebook that is not trusted yet.
        display(
            {"image/png": png, "text/plain": self.alt or "A figure."},
            metadata={"image/png": {"alt": self.alt, "width": shown_width(png)}},
            raw=True,
        )
        if self.caption:
            display({"text/html": self.caption_html(), "text/plain": self.caption}, raw=True)

    def html(self) -> str:
        """The picture as HTML, the PNG inside it, with its alt text and its caption."""
        png = self.png()
        source = "data:image/png;base64," + base64.b64encode(png).decode()
        image = f'<img src="{source}" alt="{html.escape(self.alt)}" width="{shown_width(png)}">'
        return f'<figure style="margin:0">{image}<figcaption>{self.caption_html()}</figcaption></figure>'

    def caption_html(self) -> str:
        """The caption; it opens to the alt text, which JupyterLab does not hand to screen readers itself."""
        caption, alt = (
            re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)) for text in (self.caption, self.alt)
        )
        return f"<details><summary><em>{caption}</em></summary>{alt}</details>"


def shown_width(png: bytes) -> int:
    """Pixels that a picture should take on the page: its own are finer, for sharp screens."""
    return round(int.from_bytes(png[16:20], "big") * SHOWN_DPI / DPI)  # a PNG says its width there


def show(picture: Picture, caption: str | None = None, alt: str | None = None) -> None:
    """Show a picture in a notebook, its caption under it.

    Args:
        picture: what a function of `kvlearn.figures` returned.
        caption: one or two sentences in place of the picture's own: what to look at.
        alt: in place of the picture's own: what it shows, for a reader who does not see it.
    """
    picture.caption = picture.caption if caption is None else caption
    picture.alt = picture.alt if alt is None else alt
    picture._ipython_display_()


def house_style(draw):
    """Decorator: draw with the house's fonts, lines and colours."""

    @functools.wraps(draw)
    def styled(*args, **kwargs):
        with matplotlib.rc_context(HOUSE):
            return draw(*args, **kwargs)

    return styled


def canvas(width: float, height: float, rows: int = 1, columns: int = 1, **kwargs):
    """A new picture, `width` x `height` inches, and its axes as a (rows, columns) array."""
    picture = Picture(figsize=(width, height), layout="constrained")
    picture.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    return picture, picture.subplots(rows, columns, squeeze=False, **kwargs)


def finish(picture: Picture, caption: str, alt: str, title: str | None = None) -> Picture:
    """Give a picture its words."""
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    picture.caption, picture.alt = caption, alt
    return picture


def looks(names) -> list[tuple[str, str, str]]:
    """Colour, dash and marker of each series: by what its name means, the others in turn.

    Two series of one meaning ("growing, live" and "growing, peak") share the colour and differ in the dash.
    """
    chosen, others = [], itertools.cycle(OTHERS)
    for name in names:
        words = str(name).lower().replace(",", " ").split()
        known = [SERIES[word] for word in SERIES if word in words]
        colour, dash, marker = known[0] if known else next(others)
        same = sum(colour == other for other, _, _ in chosen)
        if same:
            dash = DASHES[(DASHES.index(dash) + same) % len(DASHES)]
            marker = MARKERS[(MARKERS.index(marker) + same) % len(MARKERS)] if marker in MARKERS else marker
        chosen.append((colour, dash, marker))
    return chosen


def contrast(one, other) -> float:
    """Contrast of two colours, 1 to 21, as the accessibility guidelines WCAG 2 define it; 4.5 is enough."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink_on(fill) -> str:
    """The colour of letters on a fill: dark or white, whichever stands out more."""
    return max(INK, PAPER, key=lambda ink: contrast(ink, fill))


def to_numpy(values):
    """An array of float64 (or of booleans) from a tensor on any device, an array or nested lists."""
    import numpy as np

    if hasattr(values, "detach"):  # a torch tensor; this file does not import torch
        values = values.detach().cpu()
        values = values.numpy() if str(values.dtype) == "torch.bool" else values.double().numpy()
    values = np.asarray(values)
    return values if values.dtype == bool else values.astype(float)


@functools.cache
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())


def token_label(token, limit: int = 12) -> str:
    """A token as a short label: blanks as middle dots, line ends as \\n, what the font lacks as a box."""
    text = str(token).replace("\n", "\\n").replace("\t", "\\t").replace(" ", "·")
    text = "".join(char if ord(char) in _drawable() else "□" for char in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def blank_note(labels) -> str:
    """What a caption adds where labels hold the dot that `token_label` writes for a blank."""
    return " · stands for a blank." if any("·" in label for label in labels) else ""


def token_labels(tokens, count: int) -> list[str]:
    """`count` labels: of the tokens, or 0, 1, 2, ... when there are none."""
    if tokens is None:
        return [str(position) for position in range(count)]
    if len(tokens) != count:
        raise ValueError(f"There are {count} positions to label and {len(tokens)} tokens; give one for each.")
    return [token_label(token) for token in tokens]
