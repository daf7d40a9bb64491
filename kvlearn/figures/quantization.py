"""Pictures of numbers that are large or small, and of what in a quantised cache is codes."""

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from kvlearn.figures.style import BLUE, PAPER, SKY, WEIGHTS, canvas, finish, house_style, to_numpy


@house_style
def magnitude_map(
    panels: Mapping, *, top: float | None = None, shared: bool = True, title: str | None = None
):
    """|x| as heat maps side by side, tokens down and channels across.

    Args:
        panels: name -> (tokens, channels), for example {"keys": K[0, 1], "values": V[0, 1]}.
        top: the |x| that is drawn darkest; the largest when left out.
        shared: one colour scale for all panels, to compare sizes; False = one for each, to compare shapes.
        title: above the picture.
    """
    sizes = {name: np.abs(to_numpy(x)) for name, x in panels.items()}
    for name, x in sizes.items():
        if x.ndim != 2 or x.size == 0:
            raise ValueError(
                f"magnitude_map takes (tokens, channels); {name!r} has the shape {x.shape}. Choose a row and "
                "a head first, for example K[0, 1]."
            )
    picture, axes = canvas(4.6 * len(sizes) + 0.6, 3.6, columns=len(sizes))
    largest = {name: _most(sizes.values() if shared else [x]) for name, x in sizes.items()}
    for ax, (name, x) in zip(axes[0], sizes.items(), strict=True):
        end = largest[name] if top is None else top
        image = ax.imshow(
            x, cmap=WEIGHTS, vmin=0, vmax=max(end, 1e-9), aspect="auto", interpolation="nearest"
        )
        ax.set_title(name)
        ax.set_xlabel("channel")
        ax.set_ylabel("token" if ax is axes[0, 0] else "")
        ax.spines[:].set_visible(False)
        if not shared or ax is axes[0, -1]:
            extend = "max" if end < largest[name] else "neither"
            bar = picture.colorbar(image, ax=axes if shared else ax, pad=0.02, aspect=22, extend=extend)
            bar.set_label("|x|")
            bar.outline.set_visible(False)
    said = "; ".join(f"{name}: {_largest_channel(x)}" for name, x in sizes.items())
    return finish(
        picture,
        "Each row is a token, each column a channel. The darker, the further from 0"
        + ("." if shared else "; each map has a colour scale of its own."),
        f"Heat maps of the size of numbers, tokens by channels. {said}.",
        title,
    )


def _most(sizes) -> float:
    return max(x.max() for x in sizes)


def _largest_channel(x) -> str:
    means = x.mean(axis=0)
    return (
        f"channel {int(means.argmax())} is the largest, {means.max():.3g} on average where the middle one is "
        f"{np.median(means):.3g}"
    )


@house_style
def window_map(lengths: int, residual: int, quant_group: int, *, title: str | None = None):
    """Which tokens are codes and which exact, at each length of the text: keys by channel, values by token.

    Args:
        lengths: the longest text; a row for each length up to it.
        residual: the newest tokens that stay exact.
        quant_group: tokens that share a scale of a key's channel.
        title: above the picture.
    """
    if min(lengths, quant_group) < 1 or residual < 0:
        raise ValueError(
            "window_map takes at least 1 for lengths and quant_group, and 0 for residual; got "
            f"{lengths}, {quant_group} and {residual}."
        )
    rows = range(1, lengths + 1)
    picture, axes = canvas(9.2, max(2.2, 0.2 * len(rows) + 1.2), columns=2)
    colours = ListedColormap([PAPER, SKY, BLUE])
    for ax, name, group in zip(axes[0], ("keys", "values"), (quant_group, 1), strict=True):
        cells = np.zeros((len(rows), lengths))
        for row, length in enumerate(rows):
            codes = max(0, length - residual) // group * group
            cells[row, :codes], cells[row, codes:length] = 1, 2
        ax.imshow(cells, cmap=colours, vmin=0, vmax=2, aspect="auto", interpolation="nearest")
        ax.set_title(name)
        ax.set_xlabel("token")
        ax.set_ylabel("length of the text" if name == "keys" else "")
        shown = range(0, len(rows), max(1, len(rows) // 8))
        ax.set_yticks(list(shown), [rows[i] for i in shown])
        for edge in range(len(rows) + 1):
            ax.axhline(edge - 0.5, color=PAPER, linewidth=0.8)
        for edge in range(lengths + 1):
            ax.axvline(edge - 0.5, color=PAPER, linewidth=0.8)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    kinds = [Patch(color=SKY, label="codes"), Patch(color=BLUE, label="exact")]
    picture.legend(handles=kinds, loc="outside upper right", ncols=2)
    values = max(0, lengths - residual)
    keys = values // quant_group * quant_group
    return finish(
        picture,
        f"A row is a length of the text. The last {residual} tokens stay exact; keys become codes in groups "
        f"of {quant_group}.",
        f"Two maps of lengths by tokens. At {lengths} tokens {keys} keys and {values} values are codes; the "
        "rest are exact.",
        title,
    )
