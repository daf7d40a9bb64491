"""Pictures of what a quantised cache still recalls, from a recorded run (benchmarks/recall.json)."""

from collections.abc import Iterable, Mapping

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvlearn.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    canvas,
    finish,
    house_style,
)

# A code has its colour, a style its dash, a residual its marker. Of schemes of one code that are drawn
# together the first has its colour, and the others take what is left.
COLOURS = {
    "exact": BLACK,
    "fp8": PURPLE,
    "int8": GREEN,
    "int4": BLUE,
    "int3": ORANGE,
    "int2": VERMILLION,
}
OTHERS = [PURPLE, GREEN, ORANGE, SKY]
DASHES = {None: "-", "token": "-", "kivi": "--", "tensor": ":"}
MARKERS = {0: "o", 32: "s", 128: "D"}
STYLES = {"token": "by token", "kivi": "KIVI", "tensor": "one scale a tensor"}


@house_style
def recall_by_length(results: Mapping, schemes: Iterable[str], *, title: str | None = None):
    """Two panels against the length of the context: pass keys recalled, and perplexity over the same cache.

    Perplexity is drawn as a multiple of the exact cache's on the same words: words differ far more from each
    other in how well they are expected than caches do.

    Args:
        results: what benchmarks/recall.json holds.
        schemes: names of schemes in it, for example ["exact", "int4 kivi 32", "int2 token 0"].
        title: above the picture.
    """
    schemes = _known(results, schemes)
    picture, axes = canvas(9.4, 4.1, columns=2)
    left, right = axes[0]
    _curves(left, results, schemes, "passkey", "recall")
    _curves(right, results, schemes, "perplexity", "ratio")
    left.set_ylim(-0.03, 1.03)
    left.set_ylabel("pass keys recalled")
    right.set_ylabel("perplexity of what follows / exact")
    right.set_yscale("log")
    right.yaxis.set_major_locator(FixedLocator([1, 1.5, 2, 3, 4, 6, 8]))
    right.yaxis.set_minor_locator(NullLocator())
    right.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    for ax in (left, right):
        ax.set_xlabel("tokens of context")
    _legend(picture, left)
    return finish(
        picture,
        f"Recorded on {results['date']}: {results['model']}, its context quantised once it was read. Bars "
        "are intervals of 95 %.",
        "Lines against the tokens of context. Pass keys recalled: "
        + _said(results, schemes, "passkey", "recall", ".2f")
        + ". Perplexity as a multiple of exact: "
        + _said(results, schemes, "perplexity", "ratio", ".2f")
        + ".",
        title,
    )


@house_style
def recall_by_pairs(results: Mapping, schemes: Iterable[str], *, title: str | None = None):
    """Share of right values against the number of pairs, of the tiny model that was trained to recall them.

    Args:
        results: what benchmarks/recall.json holds; its "pairs", "schemes" and "date" are read.
        schemes: names of schemes in it.
        title: above the picture.
    """
    schemes = _known(results, schemes)
    picture, axes = canvas(7.6, 4.1)
    ax = axes[0, 0]
    _curves(ax, results, schemes, "pairs", "accuracy")
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("pairs in the text")
    ax.set_ylabel("right values")
    _legend(picture, ax)
    return finish(
        picture,
        f'Recorded on {results["date"]}: the tiny model of load("recall"), its context quantised once it '
        "was read. Bars are intervals of 95 %.",
        "Lines of the share of right values against the pairs in the text: "
        + _said(results, schemes, "pairs", "accuracy", ".2f")
        + ".",
        title,
    )


def scheme_label(facts: Mapping, windows: bool = False) -> str:
    """A scheme in words: "int2, KIVI, last 32 exact"; of no window too, where `windows` are what differs."""
    if facts["kind"] is None:
        return "exact"
    words = [facts["kind"], STYLES[facts["style"]]]
    words += [f"{facts['sides']} alone"] if facts["sides"] != "both" else []
    if facts["residual"]:
        words.append(f"last {facts['residual']} exact")
    elif windows:
        words.append("none exact")
    return ", ".join(words)


def _known(results: Mapping, schemes: Iterable[str]) -> list[str]:
    schemes = list(schemes)
    for name in schemes:
        if name not in results["schemes"]:
            raise ValueError(f"{name!r} is not a recorded scheme; there are {', '.join(results['schemes'])}.")
    if not schemes:
        raise ValueError("There is no scheme to draw; name at least one, for example 'exact'.")
    return schemes


def _labels(results, schemes) -> list[str]:
    facts = [results["schemes"][name] for name in schemes]
    windows = any(fact["residual"] for fact in facts)
    return [scheme_label(fact, windows) for fact in facts]


def _colours(results, schemes) -> list[str]:
    kinds = [results["schemes"][name]["kind"] or "exact" for name in schemes]
    free = [colour for colour in OTHERS if colour not in {COLOURS[kind] for kind in kinds}]
    return [
        COLOURS[kind] if kind not in kinds[:index] or not free else free.pop(0)
        for index, kind in enumerate(kinds)
    ]


def _curves(ax, results, schemes, probe, what) -> None:
    """One line a scheme, each a little to the side of the other so that their intervals can be told apart."""
    labels, colours = _labels(results, schemes), _colours(results, schemes)
    for index, name in enumerate(schemes):
        facts, cells = results["schemes"][name], results[probe][name]
        aside = 1.035 ** (index - (len(schemes) - 1) / 2)
        sizes = [int(size) * aside for size in cells]
        middles = [cell[what] for cell in cells.values()]
        low = [
            middle - cell[f"{what}_interval"][0] for middle, cell in zip(middles, cells.values(), strict=True)
        ]
        high = [
            cell[f"{what}_interval"][1] - middle for middle, cell in zip(middles, cells.values(), strict=True)
        ]
        one_side = facts["sides"] != "both"
        ax.errorbar(
            sizes,
            middles,
            [[max(0.0, reach) for reach in side] for side in (low, high)],
            color=colours[index],
            linestyle="-." if one_side else DASHES[facts["style"]],
            marker={"keys": "^", "values": "v"}.get(facts["sides"], MARKERS.get(facts["residual"], "P")),
            elinewidth=0.8,
            capsize=2,
            label=labels[index],
        )
    ticks = [int(size) for size in results[probe][schemes[0]]]
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    ax.grid(axis="y")


def _legend(picture, ax) -> None:
    handles, labels = ax.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper left", ncols=min(3, len(labels)))


def _said(results, schemes, probe, what, form) -> str:
    return "; ".join(
        f"{label} "
        + ", ".join(f"{cell[what]:{form}} at {size}" for size, cell in results[probe][name].items())
        for name, label in zip(schemes, _labels(results, schemes), strict=True)
    )
