"""What one step does to the tables of keys and values, cell by cell, as a real run recorded it.

A run is a list of steps, and a step says which positions were projected and which were read:

    {"projected": [0, 1, 2], "read": [0, 1, 2]}

`kvlearn.measure.trace_cache` records this from a decoder.
"""

from matplotlib.patches import Rectangle

from kvlearn.figures.style import PAPER, blank_note, canvas, finish, house_style, ink_on, token_labels

# The states of a cell: fill, the word in it, what the legend says. The green and the red of the palette are
# darkened, so that small white letters can be read on them.
STATES = {
    "written": ("#007A5A", "new", "new: projected for the first time"),
    "recomputed": ("#B84F00", "again", "again: projected before, and thrown away"),
    "read": ("#CDE7F8", "read", "read: comes from the cache"),
    "kept": (PAPER, "kept", "kept, not read"),
    "empty": (PAPER, "", "nothing here yet"),
}


def cell_states(steps, step: int, positions: int) -> list[str]:
    """The state of each position at a step: written, recomputed, read, kept or empty."""
    before = set().union(*(past["projected"] for past in steps[:step]))
    projected, read = set(steps[step]["projected"]), set(steps[step]["read"])
    states = []
    for position in range(positions):
        if position in projected:
            states.append("recomputed" if position in before else "written")
        elif position in read:
            states.append("read")
        else:
            states.append("kept" if position in before else "empty")
    return states


@house_style
def cache_frame(runs, step: int, tokens=None, *, title=None):
    """One step: the tables of K and V of each run, side by side.

    Args:
        runs: {"naive": steps, "cached": steps}; the steps are described at the top of this module.
        step: which step, from 0 (the prompt).
        tokens: a label for each position.
        title: above the picture; "step 3 of 8" when left out.
    """
    runs = _checked(runs)
    steps = max(len(run) for run in runs.values())
    if not 0 <= step < steps:
        raise ValueError(f"There are {steps} steps, 0 to {steps - 1}; got step {step}.")
    positions = _positions(runs)
    labels = token_labels(tokens, positions)
    height = max(2.8, 0.3 * positions + 1.7)
    picture, axes = canvas(max(6.2, 3.4 * len(runs)), height, 1, len(runs))
    for column, (ax, (name, run)) in enumerate(zip(axes[0], runs.items(), strict=True)):
        at = min(step, len(run) - 1)
        _draw_tables(ax, cell_states(run, at, positions), labels if column == 0 else None, words=8.5)
        ax.set_title(name)
        so_far = sum(len(past["projected"]) for past in run[: at + 1])
        ax.set_xlabel(f"projected now {len(run[at]['projected'])}, so far {so_far}")
    _legend(picture, runs)
    return finish(
        picture,
        "The rows of K and V, one for each position, as this step left them." + blank_note(labels),
        f"Step {step} of {steps - 1}. "
        + " ".join(_words(name, run, min(step, len(run) - 1)) for name, run in runs.items()),
        title or ("Step 0: the prompt" if step == 0 else f"Step {step} of {steps - 1}: one more token"),
    )


@house_style
def cache_frames(runs, tokens=None, *, steps=None, title=None):
    """The strip of frames: every step of each run, one run under the other.

    Args:
        runs: {"naive": steps, "cached": steps}; the steps are described at the top of this module.
        tokens: a label for each position.
        steps: which steps to draw; all of them (at most 8) when left out.
        title: above the picture.
    """
    runs = _checked(runs)
    count = max(len(run) for run in runs.values())
    chosen = list(range(min(count, 8))) if steps is None else list(steps)
    positions = _positions(runs)
    labels = token_labels(tokens, positions)
    height = len(runs) * max(1.6, 0.23 * positions + 0.75) + 0.9
    picture, axes = canvas(min(max(1.35 * len(chosen) + 1.3, 7.0), 10.2), height, len(runs), len(chosen))
    for row, (name, run) in enumerate(runs.items()):
        for column, step in enumerate(chosen):
            ax = axes[row, column]
            if step >= len(run):
                ax.set_visible(False)
                continue
            _draw_tables(ax, cell_states(run, step, positions), labels if column == 0 else None, words=7)
            ax.set_title(
                "prompt" if step == 0 else f"step {step}", fontsize=9.5, loc="center", fontweight="normal"
            )
            ax.set_xlabel(f"projected {len(run[step]['projected'])}", fontsize=9)
        axes[row, 0].set_ylabel(name, fontsize=12, fontweight="bold", labelpad=8)
    _legend(picture, runs)
    last = chosen[-1]
    return finish(
        picture,
        "The tables of keys and values, step by step, as the run recorded them: "
        "without a cache every row is projected again at every step." + blank_note(labels),
        f"A strip of {len(chosen)} steps. "
        + " ".join(_words(name, run, min(last, len(run) - 1)) for name, run in runs.items()),
        title,
    )


def _checked(runs) -> dict:
    if not isinstance(runs, dict):
        runs = {"run": runs}
    for name, run in runs.items():
        if not run or any("projected" not in step or "read" not in step for step in run):
            raise ValueError(
                f"The run {name!r} should be a list of steps like {{'projected': [0, 1], 'read': [0, 1]}}, "
                "one at least."
            )
    return runs


def _positions(runs) -> int:
    return 1 + max(max([*step["projected"], *step["read"], 0]) for run in runs.values() for step in run)


def _draw_tables(ax, states, labels, words: float):
    """Two columns, K and V, with a row for each position; the first position on top."""
    for row, state in enumerate(states):
        fill, word, _ = STATES[state]
        for column in (0, 1):
            ax.add_patch(
                Rectangle((column * 1.08, row), 1, 0.92, facecolor=fill, edgecolor="#C4C4C4", linewidth=0.7)
            )
            ax.text(
                column * 1.08 + 0.5,
                row + 0.48,
                word,
                ha="center",
                va="center",
                fontsize=words,
                color=ink_on(fill),
            )
    ax.set_xlim(-0.05, 2.13)
    ax.set_ylim(len(states), -0.1)
    ax.set_xticks([0.5, 1.58], ["K", "V"], fontsize=9.5)
    ax.xaxis.set_ticks_position("bottom")
    ax.set_yticks([row + 0.46 for row in range(len(states))], labels or [""] * len(states))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _legend(picture, runs):
    positions = _positions(runs)
    used = {
        state
        for run in runs.values()
        for step in range(len(run))
        for state in cell_states(run, step, positions)
    }
    shown = [state for state in STATES if state in used]
    patches = [Rectangle((0, 0), 1, 1, facecolor=STATES[s][0], edgecolor="#C4C4C4") for s in shown]
    picture.legend(
        patches,
        [STATES[state][2] for state in shown],
        loc="outside lower center",
        ncols=min(len(shown), 2),
        fontsize=9,
        handlelength=1.2,
    )


def _words(name, run, step) -> str:
    states = cell_states(run, step, 1 + max([*run[step]["projected"], *run[step]["read"], 0]))
    words = {"written": "new", "recomputed": "projected again", "read": "read"}
    counts = [f"{states.count(state)} {word}" for state, word in words.items() if state in states]
    total = sum(len(past["projected"]) for past in run[: step + 1])
    return f"{name}: at step {step}, {', '.join(counts)}; {total} positions projected in all."
