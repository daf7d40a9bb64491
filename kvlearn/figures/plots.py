"""Pictures of measurements: time, counts and bytes."""

import itertools

import numpy as np
from matplotlib.ticker import EngFormatter, FuncFormatter

from kvlearn.figures.style import INK, OTHERS, canvas, finish, house_style, looks

KIB = 1024


@house_style
def time_per_token(series, *, log=False, title=None):
    """Time of each new token against its position.

    Args:
        series: name -> (positions, seconds), as `kvlearn.measure.token_times` returns them.
        log: a logarithmic time axis.
        title: above the picture.
    """
    picture, axes = canvas(7.6, 3.9)
    ax = axes[0, 0]
    for (name, (positions, seconds)), style in zip(series.items(), looks(series), strict=True):
        colour, dash, marker = style
        every = max(1, len(positions) // 16)
        ax.plot(positions, np.asarray(seconds, dtype=float) * 1000, dash, color=colour, marker=marker,
                markevery=every, label=name)  # fmt: skip
    if log:
        ax.set_yscale("log")
    else:
        ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("position of the new token")
    ax.set_ylabel("milliseconds for this token")
    ax.grid(axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(series), 4), borderaxespad=0.2)
    names = " and ".join(series)
    return finish(
        picture,
        "Time for one new token against its position, measured on this machine.",
        f"Lines of the time for each new token against its position: {names}.",
        title,
    )


@house_style
def bars(groups, *, ylabel="token positions", log=False, title=None):
    """Counts side by side.

    Args:
        groups: label -> {name of the bar: number}, for example
            {"naive": {"predicted": 45, "measured": 45}, "cached": {"predicted": 13, "measured": 13}}.
        ylabel: what is counted.
        log: a logarithmic axis, for counts that differ by orders of magnitude.
        title: above the picture.
    """
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / len(names)
    picture, axes = canvas(max(4.8, 0.95 * len(groups) * len(names) + 1.8), 3.7)
    ax = axes[0, 0]
    colours = [colour for colour, _, _ in looks(names)]
    if len(set(colours)) < len(colours):
        colours = [colour for colour, _, _ in OTHERS]
    for index, (name, colour) in enumerate(zip(names, itertools.cycle(colours), strict=False)):
        at = [place + (index - (len(names) - 1) / 2) * width for place in range(len(groups))]
        heights = [group.get(name, 0) for group in groups.values()]
        drawn = ax.bar(at, heights, width * 0.94, color=colour, label=name)
        ax.bar_label(drawn, [f"{height:,}" for height in heights], padding=2, fontsize=9, color=INK)
    if log:
        ax.set_yscale("log")
        counts = [count for group in groups.values() for count in group.values() if count]
        ax.set_ylim(0.3 * min(counts), 4 * max(counts))
    else:
        ax.margins(y=0.12)
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_xticks(range(len(groups)), list(groups))
    ax.tick_params(axis="x", length=0)
    ax.set_ylabel(ylabel + (" (log)" if log else ""))
    ax.grid(axis="y")
    if len(names) > 1:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(names), borderaxespad=0.2)
    said = "; ".join(
        f"{label}: " + ", ".join(f"{name} {value:,}" for name, value in group.items())
        for label, group in groups.items()
    )
    return finish(picture, f"Counted in {ylabel}.", f"Bars of {ylabel}. {said}.", title)


@house_style
def memory_timeline(series, *, xlabel="decode step", title=None):
    """Live bytes over the steps of a run.

    Args:
        series: name -> bytes at each step; for example `StorageMeter.peaks` of a growing cache and of a
            preallocated one.
        xlabel: what a step is.
        title: above the picture.
    """
    picture, axes = canvas(7.6, 3.7)
    ax = axes[0, 0]
    most = max((max(values) for values in series.values()), default=0)
    power = 0 if most < KIB else 1 if most < KIB**2 else 2 if most < KIB**3 else 3
    for (name, values), (colour, dash, _) in zip(series.items(), looks(series), strict=True):
        scaled = np.asarray(values, dtype=float) / KIB**power
        steps = len(scaled) > 1 and len(scaled) <= 60  # each step is one level; of many, a plain line
        ax.plot(scaled, dash, drawstyle="steps-mid" if steps else "default", color=colour, label=name)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(f"live memory ({['bytes', 'KiB', 'MiB', 'GiB'][power]})")
    ax.grid(axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(series), 4), borderaxespad=0.2)
    return finish(
        picture,
        "Bytes of the storages that are alive, counted while the run went on.",
        f"Lines of live memory against the {xlabel}: {' and '.join(series)}.",
        title,
    )
