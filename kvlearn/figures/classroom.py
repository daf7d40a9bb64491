"""Pictures for who stands in front of a class: how each exercise went, and what was misunderstood."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from kvlearn.figures.style import (
    GREEN,
    INK,
    LINE,
    MASKED,
    MUTED,
    PURPLE,
    VERMILLION,
    canvas,
    finish,
    house_style,
    ink_on,
)

# Each has its hatching too, so that grey print and any eyes tell them apart.
STATES = {
    "right": (GREEN, ""),
    "wrong": (VERMILLION, "//"),
    "stopped": (PURPLE, "xx"),
    "not written": (MASKED, ".."),
}


@house_style
def exercise_outcomes(counts: Mapping[str, Mapping[str, int]], *, title: str | None = None):
    """How many answers of each exercise are right, wrong, stopped and not written: one bar an exercise.

    Args:
        counts: exercise -> {"right": 21, "wrong": 6, "stopped": 1, "not written": 2}; a state that is left
            out is 0. The first exercise is drawn on top.
        title: above the picture.
    """
    unknown = sorted({state for states in counts.values() for state in states} - set(STATES))
    if not counts or unknown:
        said = f"{unknown[0]!r} is not one of them" if unknown else "there is no exercise"
        raise ValueError(f"An exercise has counts of {', '.join(STATES)}; {said}.")
    picture, axes = canvas(7.6, 1.3 + 0.42 * len(counts))
    ax = axes[0, 0]
    most = max(sum(states.values()) for states in counts.values())
    for place, states in enumerate(counts.values()):
        left = 0
        for state, (colour, hatch) in STATES.items():
            count = states.get(state, 0)
            ax.barh(place, count, 0.7, left, color=colour, hatch=hatch, edgecolor=LINE, linewidth=0.8,
                    label=state if place == 0 else None)  # fmt: skip
            if count > 0.02 * len(str(count)) * most:  # there is room for the number
                box = {"facecolor": colour, "edgecolor": "none", "pad": 3}  # no hatching behind it
                ax.text(left + count / 2, place, str(count), ha="center", va="center", fontsize=9.5,
                        color=ink_on(colour), bbox=box)  # fmt: skip
            left += count
    ax.set_yticks(range(len(counts)), list(counts), color=INK)
    ax.set_ylim(len(counts) - 0.45, -0.55)
    ax.set_xlim(0, max(1, most))
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    ax.set_xlabel("submissions")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(STATES), borderaxespad=0.2)
    said = "; ".join(
        f"{name}: " + ", ".join(f"{states.get(state, 0)} {state}" for state in STATES)
        for name, states in counts.items()
    )
    return finish(
        picture,
        "Of each exercise the answers that are right, wrong, stopped (time, memory, crash) and not written.",
        f"Stacked bars, one an exercise. {said}.",
        title,
    )


MOST_BARS = 10


@house_style
def frequent_mistakes(
    mistakes: Sequence[tuple[str, str, int]], submissions: int, *, title: str | None = None
):
    """The most frequent mistakes of a class: one bar each, its name above it, the exercise behind it.

    Args:
        mistakes: (name, exercise, students), the first on top; the first ten are drawn.
        submissions: how many there are in all; the axis ends there.
        title: above the picture.
    """
    if not mistakes or any(not 0 < students <= submissions for *_, students in mistakes):
        raise ValueError(f"Each mistake has 1 to {submissions} students, and there is one; got {mistakes!r}.")
    shown = mistakes[:MOST_BARS]
    picture, axes = canvas(7.6, 0.6 + 0.5 * len(shown))
    ax = axes[0, 0]
    for place, (name, exercise, students) in enumerate(shown):
        ax.barh(place, students, 0.42, color=VERMILLION)
        ax.text(0, place - 0.29, name, ha="left", va="bottom", fontsize=9.5)
        inside = students > 0.55 * submissions  # there is no room behind the bar
        ax.annotate(
            f"{students} · {exercise}", (students, place), (-5 if inside else 5, 0), va="center",
            fontsize=9.5, textcoords="offset points", ha="right" if inside else "left",
            color=ink_on(VERMILLION) if inside else MUTED,
        )  # fmt: skip
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set_ylim(len(shown) - 0.7, -0.75)
    ax.set_xlim(0, submissions)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    ax.set_xlabel(f"students, of {submissions}")
    left_out = len(mistakes) - len(shown)
    said = "; ".join(f"{name} ({exercise}): {students}" for name, exercise, students in shown)
    return finish(
        picture,
        "The mistakes that were made most often, and how many students made each"
        + (f"; {left_out} more are not drawn." if left_out else "."),
        f"Bars, one a mistake, out of {submissions} students. {said}.",
        title,
    )
