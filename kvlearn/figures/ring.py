"""Pictures of sliding windows: the ring buffer frame by frame, and how far a window reaches over layers."""

import math

import numpy as np
from matplotlib.patches import Wedge

from kvlearn.figures.style import (
    BLUE,
    INK,
    LINE,
    MASKED,
    MUTED,
    ORANGE,
    PAPER,
    SKY,
    canvas,
    finish,
    house_style,
    ink_on,
    to_numpy,
)

KEPT, NEW = "#CDE7F8", ORANGE


@house_style
def ring_frames(frames, titles=None, *, before=(), title=None):
    """A ring buffer as a ring, one frame after another: what is new in a frame is orange.

    Args:
        frames: the positions in the slots, one list a frame, all of one length; -1 = empty.
        titles: a word over each frame; "start", "1 step", "2 steps", ... when left out.
        before: the slots before the first frame, for a picture that does not begin at the beginning; empty
            when left out.
        title: above the picture.
    """
    frames = [[int(position) for position in frame] for frame in frames]
    before = [int(position) for position in before]
    if not frames or len({len(frame) for frame in frames}) != 1 or not frames[0]:
        raise ValueError(
            "ring_frames takes one list of slots a frame, all of one length, as in [[0, -1], [0, 1], [2, 1]]"
            f"; got {frames!r}."
        )
    before = before or [-1] * len(frames[0])
    if len(before) != len(frames[0]):
        raise ValueError(
            f"A ring of {len(frames[0])} slots had as many before; before={before!r} has {len(before)}."
        )
    titles = (
        [f"{n} step{'s' * (n != 1)}" if n else "start" for n in range(len(frames))]
        if titles is None
        else titles
    )
    columns = min(len(frames), 5)
    rows = math.ceil(len(frames) / columns)
    picture, axes = canvas(1.75 * columns + 0.2, 2.05 * rows + 0.3, rows, columns)
    for index, ax in enumerate(axes.flat):
        ax.set_axis_off()
        if index < len(frames):
            _draw_ring(ax, frames[index], before)
            ax.set_title(titles[index], fontsize=10.5, loc="center")
            before = frames[index]
    said = "; ".join(
        f"{name}: " + ", ".join("empty" if p < 0 else str(p) for p in frame)
        for name, frame in zip(titles, frames, strict=True)
    )
    return finish(
        picture,
        "The number in a slot is the position of its token; the small numbers outside are the slots. Orange "
        "is new, blue is kept, hatched is empty.",
        f"A ring of {len(frames[0])} slots, positions in the order of the slots. {said}.",
        title,
    )


def _draw_ring(ax, slots, before):
    """Slot 0 at the top, the others clockwise."""
    angle = 360 / len(slots)
    for slot, position in enumerate(slots):
        middle = 90 - slot * angle
        fill = MASKED if position < 0 else KEPT if position == before[slot] else NEW
        ax.add_patch(
            Wedge((0, 0), 1.0, middle - angle / 2, middle + angle / 2, width=0.5, facecolor=fill,
                  edgecolor=PAPER, linewidth=2, hatch="////" if position < 0 else None)
        )  # fmt: skip
        at = np.array([math.cos(math.radians(middle)), math.sin(math.radians(middle))])
        if position >= 0:
            ax.text(*(0.75 * at), str(position), ha="center", va="center", fontsize=11, fontweight="bold",
                    color=ink_on(fill))  # fmt: skip
        ax.text(*(1.17 * at), str(slot), ha="center", va="center", fontsize=8.5, color=MUTED)
    ax.set_xlim(-1.32, 1.32)
    ax.set_ylim(-1.32, 1.32)
    ax.set_aspect("equal")


@house_style
def window_reach(reached, window: int, *, title=None):
    """From which tokens, layer by layer, something arrives at the last one.

    Args:
        reached: (layers + 1, tokens) booleans; row 0 are the tokens fed in, row n what layer n gives; True =
            it takes part in the last token's result.
        window: W; lines join a query with the W keys that it sees.
        title: above the picture.
    """
    reached = to_numpy(reached)
    if reached.ndim != 2 or reached.dtype != bool:
        raise ValueError(
            f"window_reach takes booleans (layers + 1, tokens); got {reached.dtype} of shape {reached.shape}."
        )
    levels, tokens = reached.shape
    picture, axes = canvas(min(9.5, 0.55 * tokens + 1.6), 0.85 * levels + 0.9)
    ax = axes[0, 0]
    for level in range(1, levels):
        for query in range(tokens):
            for key in range(max(0, query - window + 1), query + 1):
                part = reached[level, query] and reached[level - 1, key]
                ax.plot([query, key], [level, level - 1], "-", color=BLUE if part else LINE,
                        linewidth=1.6 if part else 0.8, zorder=2 if part else 1)  # fmt: skip
    rows, columns = np.indices(reached.shape)
    for mask, fill, edge in ((reached, SKY, INK), (~reached, PAPER, MUTED)):
        ax.scatter(columns[mask], rows[mask], s=95, color=fill, edgecolors=edge, linewidths=1.1, zorder=3)
    ax.set_yticks(range(levels), ["tokens", *(f"layer {level}" for level in range(1, levels))])
    ax.set_xticks(range(tokens))
    ax.set_xlabel("position")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    first = int(reached[0].argmax())
    return finish(
        picture,
        "Filled: it takes part in the last token's result. Each layer looks W - 1 positions further back.",
        f"Grid of {levels - 1} layers by {tokens} positions with a window of {window}. The last token's "
        f"result depends on the tokens {first} to {tokens - 1}.",
        title,
    )
