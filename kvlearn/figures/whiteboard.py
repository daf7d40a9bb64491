"""What one would draw on a whiteboard: arrows, a vector cut into heads, the path of the course."""

import textwrap

import numpy as np
from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle

from kvlearn.figures.style import (
    BLUE,
    INK,
    LINE,
    MUTED,
    ORANGE,
    PAPER,
    VERMILLION,
    canvas,
    finish,
    house_style,
    to_numpy,
    token_label,
)

# Soft fills with a colour-blind-safe contrast between neighbours; each cell also carries its number.
HEAD_FILLS = ["#CDE7F8", "#FBE3C0", "#CFEDE3", "#F3DCE9"]

# The lessons, in the groups in which they answer one question.
COURSE = {
    "from a dot product\nto a cache": [
        "Start here", "Attention", "Causal masking", "The naive decoder", "The KV cache",
    ],
    "less to keep\nand to read": ["Napkin maths", "Fewer heads", "Fewer tokens", "Fewer bits"],
    "one memory,\nmany users": ["Pages", "Shared prefixes", "Batching", "Speculative decoding"],
    "the machine,\nand you": ["The real GPU", "More devices", "The interview"],
}  # fmt: skip


@house_style
def arrows(vectors, names=None, *, average=None, title=None):
    """Vectors in the plane as arrows from the origin, and perhaps an average of them.

    Args:
        vectors: (n, 2).
        names: n words for the tips.
        average: (2,) a point to mark; the area that averages of the vectors can reach is then shaded.
        title: above the picture.
    """
    vectors = to_numpy(vectors)
    if vectors.ndim != 2 or vectors.shape[1] != 2:
        raise ValueError(f"arrows draws vectors in the plane, of shape (n, 2); got {vectors.shape}.")
    names = (
        [str(index) for index in range(len(vectors))] if names is None else [token_label(n) for n in names]
    )
    points = np.vstack([vectors, [[0, 0]]])
    low, high = points.min(axis=0) - [0.9, 0.35], points.max(axis=0) + [1.4, 0.45]
    inch = min(6.4 / (high - low)[0], 3.6 / (high - low)[1])  # as large as fits, the same for both axes
    picture, axes = canvas(*((high - low) * inch + 0.5))
    ax = axes[0, 0]
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    ax.set_aspect("equal")
    if average is not None:
        around = vectors.mean(axis=0)
        turn = np.argsort(np.arctan2(*(vectors - around).T[::-1]))
        ax.add_patch(Polygon(vectors[turn], facecolor="#EAF4FB", edgecolor=LINE, linewidth=1.2, zorder=0))
    for index, (tip, name) in enumerate(zip(vectors, names, strict=True)):
        colour = [BLUE, ORANGE, VERMILLION, INK][index % 4]
        ax.annotate(
            "", xy=tip, xytext=(0, 0),
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0,
                        "mutation_scale": 16},
        )  # fmt: skip
        side = 1 if tip[0] > 0 else -1
        ax.annotate(
            f"{name} ({tip[0]:g}, {tip[1]:g})", tip, xytext=(7 * side, 5), textcoords="offset points",
            ha="left" if side > 0 else "right", color=INK, fontweight="bold", fontsize=10,
        )  # fmt: skip
    if average is not None:
        average = to_numpy(average)
        ax.plot(*average, "D", color=INK, markersize=8, zorder=4)
        ax.annotate("average", average, xytext=(9, -13), textcoords="offset points", color=INK, fontsize=10)
    ax.axhline(0, color=LINE, linewidth=1, zorder=0)
    ax.axvline(0, color=LINE, linewidth=1, zorder=0)
    ax.grid(True)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.yaxis.get_major_locator().set_params(integer=True)
    said = ", ".join(f"{name} at ({tip[0]:g}, {tip[1]:g})" for name, tip in zip(names, vectors, strict=True))
    return finish(
        picture,
        "Two arrows that point the same way have a large dot product; at a right angle it is zero."
        if average is None
        else "An average lies between the vectors that it averages: nowhere outside the shaded area.",
        f"Arrows from the origin: {said}."
        + ("" if average is None else f" Their average lies at ({average[0]:.2f}, {average[1]:.2f})."),
        title,
    )


@house_style
def split_heads_map(x, num_heads: int, *, title=None):
    """A vector a token, the same numbers split into heads, and what `view` alone would make of them.

    Args:
        x: (L, width), small whole numbers; head h owns columns h * D to (h + 1) * D - 1, and its colour.
        num_heads: H, a divisor of the width, 4 at most.
        title: above the picture.
    """
    x = to_numpy(x)
    if x.ndim != 2 or num_heads < 1 or x.shape[1] % num_heads or num_heads > len(HEAD_FILLS):
        raise ValueError(
            f"split_heads_map draws (tokens, width) with a width that {num_heads} heads share evenly, "
            f"{len(HEAD_FILLS)} heads at most; got {x.shape}."
        )
    tokens, width = x.shape
    head_dim = width // num_heads
    owner = np.broadcast_to(np.arange(width) // head_dim, x.shape)
    split = [part.reshape(tokens, num_heads, head_dim).swapaxes(0, 1) for part in (x, owner)]
    viewed = [part.reshape(num_heads, tokens, head_dim) for part in (x, owner)]
    row = num_heads * (tokens + 0.9)
    picture, axes = canvas(
        8.8, 0.4 * row + 0.6, 1, 3, width_ratios=[width + 1.8] + [max(head_dim, 4) + 1.8] * 2
    )
    for ax, name in zip(axes[0], ("one vector a token", "split into heads", "view alone"), strict=True):
        ax.text(0, -0.85, name, fontsize=11, fontweight="bold", color=INK, va="bottom")
        ax.set_ylim(row - 0.4, -1.7)
        ax.set_aspect("equal")
        ax.axis("off")
    _cells(axes[0, 0], x, owner, (row - tokens) / 2 - 0.4)
    axes[0, 0].set_xlim(-1.8, width)
    for ax, (numbers, owners) in ((axes[0, 1], split), (axes[0, 2], viewed)):
        for head in range(num_heads):
            place = head * (tokens + 0.9)
            _cells(ax, numbers[head], owners[head], place)
            ax.text(0, place - 0.22, f"head {head}", fontsize=9.5, color=INK, va="bottom")
        ax.set_xlim(-1.8, max(head_dim, 4))
    wrong = int((viewed[0] != split[0]).sum())
    return finish(
        picture,
        "One colour a head. In the middle each head holds its own columns of every token. On the right the "
        "numbers were read on in the order of memory: same shape, and the heads hold each other's numbers.",
        f"Three grids of the same {x.size} numbers: {tokens} tokens of width {width}; split into {num_heads} "
        f"heads; and viewed straight into the same shape, where {wrong} of {x.size} numbers are in the wrong "
        "place.",
        title,
    )


def _cells(ax, numbers, owners, top: float):
    for (line, column), value in np.ndenumerate(numbers):
        ax.add_patch(
            Rectangle((column, top + line), 1, 1, facecolor=HEAD_FILLS[int(owners[line, column])],
                      edgecolor=PAPER, linewidth=2)
        )  # fmt: skip
        ax.text(
            column + 0.5, top + line + 0.52, f"{value:g}", ha="center", va="center", fontsize=10, color=INK
        )
    for line in range(len(numbers)):
        ax.text(-0.2, top + line + 0.52, f"token {line}", ha="right", va="center", fontsize=9, color=MUTED)


@house_style
def course_path(ready: int, *, title=None):
    """The lessons in order, in four groups; the ones that are there filled, the ones to come outlined.

    Args:
        ready: lessons with a smaller number are there.
        title: above the picture.
    """
    picture, axes = canvas(9.4, 4.1)
    ax = axes[0, 0]
    number, there = 0, []
    for row, (group, lessons) in enumerate(COURSE.items()):
        ax.text(-0.18, row, group, ha="right", va="center", fontsize=9.5, color=MUTED, linespacing=1.25)
        for column, name in enumerate(lessons):
            if column:
                ax.plot([column - 0.08, column], [row, row], color=MUTED, linewidth=1.6, zorder=1)
            _lesson(ax, column, row, number, name, number < ready)
            there += [f"{number:02} {name}"] if number < ready else []
            number += 1
    ax.set_xlim(-1.45, 5.0)
    ax.set_ylim(len(COURSE) - 0.55, -0.5)
    ax.axis("off")
    return finish(
        picture,
        "The path, row by row. Blue: the lesson is there. Dashed: it is to come.",
        f"{number} lessons in {len(COURSE)} rows. There: {', '.join(there)}. The others are to come.",
        title,
    )


def _lesson(ax, column: int, row: int, number: int, name: str, there: bool):
    ax.add_patch(
        FancyBboxPatch(
            (column, row - 0.33), 0.92, 0.66, boxstyle="round,pad=0,rounding_size=0.08", zorder=2,
            facecolor="#E3F1FA" if there else PAPER, edgecolor=BLUE if there else MUTED,
            linewidth=1.8 if there else 1.2, linestyle="-" if there else (0, (3, 2)),
        )
    )  # fmt: skip
    middle = column + 0.46
    ax.text(middle, row - 0.14, f"{number:02}", ha="center", va="center", fontsize=10, fontweight="bold",
            color=BLUE if there else MUTED, zorder=3)  # fmt: skip
    words = textwrap.fill(name, 12)
    ax.text(
        middle,
        row + 0.12,
        words,
        ha="center",
        va="center",
        fontsize=8.6,
        color=INK,
        zorder=3,
        linespacing=1.15,
    )
