"""Pictures of a decoder: the way of a text through it, a turned query and key, and the work of the loop."""

import math

import numpy as np
from matplotlib.patches import FancyBboxPatch, Rectangle

from kvlearn.figures.style import (
    BLUE,
    GREEN,
    INK,
    LINE,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    VERMILLION,
    canvas,
    finish,
    house_style,
    to_numpy,
)


@house_style
def decoder_map(config, *, title=None):
    """The way of a text through a decoder: a stream that every layer reads from and adds to.

    Args:
        config: a `DecoderConfig`; its sizes are written below the stream.
        title: above the picture.
    """
    picture, axes = canvas(9.6, 2.9)
    ax = axes[0, 0]
    ax.add_patch(
        Rectangle((2.25, -0.42), 5.75, 2.1, facecolor="#F7F7F7", edgecolor=MUTED, linestyle=(0, (4, 3)))
    )
    ax.text(2.4, 1.5, f"one layer, {config.num_layers} times", fontsize=10, color=MUTED, va="center")
    ax.plot([0.35, 11.35], [0, 0], color=INK, linewidth=3, solid_capstyle="butt", zorder=1)
    ax.annotate("", (11.55, 0), (11.2, 0), arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 2})
    for start, name, colour in ((2.55, "attention", BLUE), (5.3, "MLP", ORANGE)):
        _branch(ax, start, name, colour)
    _named_box(ax, 1.3, 0, "embedding", GREEN, 1.5)
    _named_box(ax, 8.85, 0, "norm", MUTED, 0.85)
    _named_box(ax, 10.3, 0, "output head", PURPLE, 1.6)
    ax.text(0.25, 0, "token\nids", ha="right", va="center", fontweight="bold")
    ax.text(11.7, 0, "logits", ha="left", va="center", fontweight="bold")
    for x, words in (
        (0.0, "(B, L)"),
        (5.1, f"the stream: (B, L, {config.hidden_size})"),
        (11.9, f"(B, L, {config.vocab_size})"),
    ):
        ax.text(x, -0.72, words, ha="center", va="center", fontsize=9.5, color=MUTED)
    ax.set_xlim(-0.75, 12.9)
    ax.set_ylim(-0.95, 1.9)
    ax.axis("off")
    return finish(
        picture,
        "The way of a text through the decoder. Nothing in the stream is overwritten: a layer reads a copy "
        "of it, brought to one size by a norm, and adds what it has found.",
        f"Token ids go into an embedding, whose result is a stream of {config.hidden_size} numbers a token. "
        f"{config.num_layers} layers follow; each adds to it twice: norm and attention, then norm and MLP. "
        f"A last norm and the output head make {config.vocab_size} logits a token.",
        title,
    )


def _branch(ax, start: float, name: str, colour: str):
    """Up from the stream, through a norm and a part, and back down to a plus."""
    end = start + 2.4
    ax.plot([start, start, end, end], [0, 1, 1, 0], color=INK, linewidth=1.5, zorder=1)
    _named_box(ax, start + 0.55, 1, "norm", MUTED, 0.7)
    _named_box(ax, start + 1.6, 1, name, colour, 1.2)
    ax.plot(end, 0, "o", markersize=15, color=PAPER, markeredgecolor=INK, markeredgewidth=1.5, zorder=2)
    ax.text(end, -0.015, "+", ha="center", va="center", fontsize=13, fontweight="bold", zorder=3)


def _named_box(ax, x: float, y: float, text: str, colour: str, width: float):
    ax.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - 0.22), width, 0.44, boxstyle="round,pad=0,rounding_size=0.09",
            facecolor=PAPER, edgecolor=colour, linewidth=2.2, zorder=2,
        )
    )  # fmt: skip
    ax.text(x, y - 0.01, text, ha="center", va="center", zorder=3)


@house_style
def turned_pairs(places, *, title=None):
    """One pair of coordinates of a query and of a key, turned by their positions, at several places.

    Args:
        places: name -> (query, key), each the two coordinates of a turned point. The angle between the two
            arrows and their dot product are measured from the points.
        title: above the picture.
    """
    places = {name: (to_numpy(query), to_numpy(key)) for name, (query, key) in places.items()}
    reach = 1.15 * max(float(np.hypot(*point)) for points in places.values() for point in points)
    picture, axes = canvas(3.0 * len(places) + 0.3, 3.5, 1, len(places))
    said = []
    for ax, (name, (query, key)) in zip(axes[0], places.items(), strict=True):
        for radius in {float(np.hypot(*query)), float(np.hypot(*key))}:
            turn = np.linspace(0, 2 * math.pi, 200)
            ax.plot(radius * np.cos(turn), radius * np.sin(turn), color=LINE, linewidth=1)
        for point, colour, word in ((key, ORANGE, "key"), (query, BLUE, "query")):
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.4}
            ax.annotate("", point, (0, 0), arrowprops=arrow)
            beyond = point * (1 + 0.17 * reach / np.hypot(*point))
            ax.text(*beyond, word, ha="center", va="center", color=INK)
        start, between = math.atan2(key[1], key[0]), _angle_between(key, query)
        arc = np.linspace(start, start + between, 60)
        ax.plot(0.3 * reach * np.cos(arc), 0.3 * reach * np.sin(arc), color=INK, linewidth=1.6)
        score = float(query @ key)
        ax.set_title(name, loc="center", fontsize=10.5)
        ax.set_xlabel(f"{abs(between):.2f} radians apart\nscore {score:.2f}")
        said.append(f"{name}: {abs(between):.2f} radians apart, score {score:.2f}")
        ax.set_aspect("equal")
        ax.set_xlim(-1.22 * reach, 1.22 * reach)
        ax.set_ylim(-1.22 * reach, 1.22 * reach)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
    return finish(
        picture,
        "One pair of a query and of a key, each turned by its position. Further on in the text both arrows "
        "point elsewhere, and the angle between them is the same.",
        "; ".join(said) + ".",
        title,
    )


def _angle_between(a, b) -> float:
    """Radians from a to b, counter-clockwise positive, the short way round."""
    return math.atan2(a[0] * b[1] - a[1] * b[0], float(a @ b))


@house_style
def work_area(prompt: int, new: int, *, title=None):
    """What the naive decoder projects, beside the square of the whole length, as areas of one scale.

    Args:
        prompt: tokens of the prompt, T.
        new: new tokens, N: one pass each, the first over T positions and the last over T + N - 1.
        title: above the picture.
    """
    whole = prompt + new
    naive, cached = new * prompt + new * (new - 1) // 2, prompt + new - 1
    picture, axes = canvas(6.4, 4.2)
    ax = axes[0, 0]
    ax.add_patch(Rectangle((0, 0), whole, whole, facecolor="#F1F1F1", edgecolor=MUTED, hatch="///"))
    ax.fill([0, 0, new, new], [0, prompt, whole - 1, 0], color=VERMILLION, zorder=2)
    ax.text(
        0.56 * whole, 0.5 * whole, f"the square\n{whole:,} x {whole:,}\n= {whole**2:,}",
        ha="center", va="center", bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 5}, zorder=3,
    )  # fmt: skip
    ax.annotate(
        f"what {new:,} passes project:\n{naive:,}", (0.8 * new, 0.85 * whole), (1.06 * whole, 0.85 * whole),
        va="center", arrowprops={"arrowstyle": "-|>", "color": VERMILLION, "linewidth": 1.6}, zorder=4,
    )  # fmt: skip
    thin = f"with a cache:\n{cached:,},\ntoo thin to draw"
    ax.text(1.06 * whole, 0.62 * whole, thin, va="center", color=MUTED)
    ax.set_xlim(-0.02 * whole, 1.72 * whole)
    ax.set_ylim(0, 1.02 * whole)
    ax.set_xticks([new, whole], [f"{new:,}", f"{whole:,}"])
    ax.set_yticks([0, prompt, whole], ["0", f"{prompt:,}", ""])
    ax.set_xlabel("passes", loc="left")
    ax.set_ylabel("positions in a pass")
    ax.spines["bottom"].set_bounds(0, whole)
    return finish(
        picture,
        f"A pass is a column, as high as it has positions. {new:,} passes after {prompt:,} tokens make the "
        "narrow strip; the square is what the claim counts.",
        f"A square of side {whole:,}, {whole**2:,} in area. In it a strip of {new:,} passes, from {prompt:,} "
        f"to {whole - 1:,} positions high: {naive:,} in area. With a cache it would be {cached:,}.",
        title,
    )
