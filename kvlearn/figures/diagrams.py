"""Pictures of ideas: which head reads which, and how rotary positions turn."""

import math

import numpy as np
from matplotlib.patches import FancyBboxPatch

from kvlearn.figures.style import (
    BLUE,
    GREEN,
    INK,
    LINE,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    SKY,
    VERMILLION,
    WEIGHTS,
    canvas,
    finish,
    house_style,
    ink_on,
)

GROUPS = [BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION]


@house_style
def heads_diagram(num_heads: int, num_kv_heads: int, *, title=None):
    """Which query head reads which key/value head: h reads h // group_size.

    Args:
        num_heads: Hq, a multiple of num_kv_heads.
        num_kv_heads: Hkv.
        title: above the picture.
    """
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads={num_heads} is not a multiple of num_kv_heads={num_kv_heads}; "
            "the query heads share the key/value heads evenly."
        )
    group_size = num_heads // num_kv_heads
    picture, axes = canvas(min(max(5.0, 0.72 * num_heads + 1.6), 10.0), 2.4)
    ax = axes[0, 0]
    size = 10.5 if num_heads <= 20 else 7.5  # of the numbers in the boxes
    for head in range(num_heads):
        kv_head = head // group_size
        middle = kv_head * group_size + (group_size - 1) / 2
        colour = GROUPS[kv_head % len(GROUPS)]
        ax.plot([head, middle], [1.0, 0.0], color=colour, linewidth=2, zorder=1)
        _box(ax, head, 1.0, str(head), colour, False, size)
    for kv_head in range(num_kv_heads):
        middle = kv_head * group_size + (group_size - 1) / 2
        _box(ax, middle, 0.0, str(kv_head), GROUPS[kv_head % len(GROUPS)], True, size)
    for height, text in ((1.0, "query heads"), (0.0, "K/V heads")):
        ax.text(-0.7, height, text, ha="right", va="center", fontweight="bold")
    ax.set_xlim(-0.9, num_heads - 0.4)
    ax.set_ylim(-0.35, 1.35)
    ax.axis("off")
    kind = "multi-head" if group_size == 1 else "multi-query" if num_kv_heads == 1 else "grouped-query"
    return finish(
        picture,
        f"Query head h reads key/value head h // {group_size}: {kind} attention.",
        f"{num_heads} query heads above {num_kv_heads} key/value heads. "
        + "; ".join(
            f"K/V head {k} serves query heads {k * group_size} to {(k + 1) * group_size - 1}"
            if group_size > 1
            else f"K/V head {k} serves query head {k}"
            for k in range(num_kv_heads)
        )
        + ".",
        title,
    )


def _box(ax, x, y, text, colour, filled, size):
    ax.add_patch(
        FancyBboxPatch(
            (x - 0.3, y - 0.14), 0.6, 0.28, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=colour if filled else PAPER, edgecolor=colour, linewidth=2, zorder=2,
        )
    )  # fmt: skip
    ax.text(
        x,
        y - 0.005,
        text,
        ha="center",
        va="center",
        color=ink_on(colour if filled else PAPER),
        zorder=3,
        fontsize=size,
        fontweight="bold",
    )


@house_style
def rope_clock(positions, head_dim: int, theta: float = 10000.0, *, pairs=None, title=None):
    """How far each pair of coordinates is turned at each position: clocks with one hand for a position.

    Args:
        positions: which positions, for example range(8).
        head_dim: D; there are D / 2 pairs.
        theta: the base of the frequencies.
        pairs: which pairs; the fastest, two between and the slowest when left out.
        title: above the picture.
    """
    positions = [int(position) for position in positions]
    half = head_dim // 2
    if pairs is None:
        pairs = sorted({0, round((half - 1) / 4), round((half - 1) / 2), half - 1})
    picture, axes = canvas(2.25 * len(pairs) + 0.9, 3.0, 1, len(pairs))
    turn = np.linspace(0, 2 * math.pi, 200)
    reach = 1.25 + 0.1 * len(f"{max(positions):,}")  # of the longest number at a hand
    shades = [WEIGHTS(0.3 + 0.7 * i / max(len(positions) - 1, 1)) for i in range(len(positions))]
    for ax, pair in zip(axes[0], pairs, strict=True):
        step = theta ** (-2 * pair / head_dim)  # radians from one position to the next
        ax.plot(np.cos(turn), np.sin(turn), color=LINE, linewidth=1.2)
        for shade, position in zip(shades, positions, strict=True):
            x, y = math.cos(position * step), math.sin(position * step)
            ax.plot([0, x], [0, y], color=shade, linewidth=2, solid_capstyle="round")
            ax.plot(x, y, "o", color=shade, markersize=5)
        _number_the_hands(ax, positions, step)
        ax.set_title(f"pair {pair}", loc="center")
        ax.set_xlabel(_speed(step))
        ax.set_aspect("equal")
        ax.set_xlim(-reach, reach)
        ax.set_ylim(-1.32, 1.32)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
    return finish(
        picture,
        "Each hand is a position. A fast pair tells neighbours apart and soon comes around; a slow one shows "
        "a difference only over a long way.",
        f"{len(pairs)} clocks, pairs {', '.join(map(str, pairs))} of {half}, with a hand for each of "
        f"{len(positions)} positions; the earlier the pair, the faster its hand turns.",
        title,
    )


def _number_the_hands(ax, positions, step):
    """Numbers at the hands; hands too close to be told apart share one, like 0–7."""
    numbers = [f"{position:,}" for position in positions]
    places = [(1.2 * math.cos(p * step), 1.2 * math.sin(p * step)) for p in positions]
    if all(math.dist(places[0], place) < 0.3 for place in places):
        labels = {0: "–".join(dict.fromkeys((numbers[0], numbers[-1])))}
    else:
        kept = [0]
        last = len(positions) - 1
        for i in [*range(1, last), last]:
            free = all(math.dist(places[i], places[k]) > 0.22 for k in kept)
            room_for_last = i == last or math.dist(places[i], places[last]) > 0.22
            kept += [i] if free and room_for_last else []
        labels = {i: numbers[i] for i in kept}
    for i, label in labels.items():
        x, y = places[i]
        side = "center" if len(label) == 1 or abs(x) < 0.4 else "left" if x > 0 else "right"
        ax.text(x if side == "center" else 0.95 * x, y, label, ha=side, va="center", fontsize=9, color=INK)


def _speed(step: float) -> str:
    steps = 2 * math.pi / step
    return (
        f"once around in\n{steps:,.0f} positions" if steps >= 10 else f"once around in\n{steps:.1f} positions"
    )


@house_style
def score_by_distance(series, *, title=None):
    """Scores of a rotated query with rotated keys, against the distance between them.

    Args:
        series: name -> (distances, scores), one for each place where the pair was put; when the score
            depends on the distance alone the lines lie on one another.
        title: above the picture.
    """
    picture, axes = canvas(7.2, 3.6)
    ax = axes[0, 0]
    series = list(series.items())
    for index, (name, (distances, scores)) in enumerate(series):
        colour = GROUPS[index % len(GROUPS)]
        # The first line is the widest, so that it shows around those drawn over it.
        width = 7 - 5 * index / max(len(series) - 1, 1)
        ax.plot(distances, scores, color=colour, linewidth=width, label=str(name))
    ax.axhline(0, color=MUTED, linewidth=0.8)
    ax.set_xlabel("distance from the query back to the key")
    ax.set_ylabel("score")
    ax.grid(axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(series), 4), borderaxespad=0.2)
    return finish(
        picture,
        "The same query and key at several places: the score follows the distance, not the place.",
        f"{len(series)} lines of score against distance, one for each place.",
        title,
    )
