"""The grid that every picture of a matrix stands on: labels that fit, lines between cells, hatched masks."""

import math

import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from kvlearn.figures.style import LINE, MASKED, to_numpy

LETTER, LINE_HEIGHT = 0.085, 0.155  # inches that a letter of a label takes


def as_mask(mask):
    mask = to_numpy(mask)
    while mask.ndim > 2 and mask.shape[0] == 1:
        mask = mask[0]
    if mask.ndim != 2 or mask.dtype != bool:
        raise ValueError(
            f"A mask to draw is booleans (L, S), True = may attend; got {mask.dtype} of shape {mask.shape}."
        )
    return mask


def room(labels, cell: float | None = None) -> float:
    """Inches that labels take beside the rows, or below columns of width `cell`."""
    longest = LETTER * max(map(len, labels), default=0)
    return longest + 0.35 if cell is None or _turned(labels, cell) else 0.45


def _turned(labels, cell: float) -> bool:
    """Whether labels below columns of width `cell` must be turned to fit; numbers are left out instead."""
    numbers = all(label.isdigit() for label in labels)
    return not numbers and LETTER * max(map(len, labels), default=0) > 0.95 * cell


def _spread(labels, pitch: float, cell: float) -> list[int]:
    """Which labels to write, so that they are `pitch` inches apart or more."""
    return list(range(0, len(labels), max(1, math.ceil(pitch / cell))))


def matrix_axes(ax, rows, columns, cell, names=("query", "key"), left=True, bottom=True):
    """Label the rows and columns of a matrix of cells, `cell` inches wide, and draw thin lines between."""
    ticks = _spread(rows, LINE_HEIGHT, cell)
    ax.set_yticks(ticks, [rows[i] for i in ticks] if left else [""] * len(ticks))
    turned, pitch = {}, LETTER * max(map(len, columns), default=0) + 0.04
    if _turned(columns, cell):
        turned, pitch = {"rotation": 55, "ha": "right", "rotation_mode": "anchor"}, LINE_HEIGHT
    ticks = _spread(columns, min(pitch, cell * len(columns)), cell)
    ax.set_xticks(ticks, [columns[i] for i in ticks] if bottom else [""] * len(ticks), **turned)
    ax.set_ylabel(names[0] if left else "")
    ax.set_xlabel(names[1] if bottom else "")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if len(rows) * len(columns) <= 1200:
        ax.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
        ax.grid(which="minor", color=LINE, linewidth=0.7)
        ax.tick_params(which="minor", length=0)


def hatch_masked(ax, mask):
    """Hatch the cells that the mask forbids, as one shape: a patch for each would take seconds to draw."""
    forbidden = [] if mask is None else np.argwhere(~as_mask(mask))
    if len(forbidden):
        corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]) - 0.5
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
        vertices = (forbidden[:, None, ::-1] + corners).reshape(-1, 2)  # (row, column) -> (x, y)
        cells = Path(vertices, codes * len(forbidden))
        ax.add_patch(
            PathPatch(cells, facecolor=MASKED, edgecolor="#B5B5B5", hatch="////", lw=0, zorder=0.3)
        )  # zorder: under the grid
