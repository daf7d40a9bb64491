"""Pictures of the napkin: what lies in a card's memory, and what a decode step reads."""

from kvlearn.figures.style import (
    BLUE,
    INK,
    LINE,
    MUTED,
    PAPER,
    VERMILLION,
    canvas,
    finish,
    house_style,
    ink_on,
)

GIB = 2**30
PARTS = {"weights": (MUTED, ""), "cache": (BLUE, "//")}  # the hatching tells them apart in grey as well


@house_style
def memory_stack(bars, limit=None, *, limit_name="memory", title=None):
    """Weights and cache on top of each other, against the memory of a card.

    Args:
        bars: label -> {"weights": bytes, "cache": bytes}.
        limit: bytes of the card, drawn as a line; or None.
        limit_name: what to call it.
        title: above the picture.
    """
    picture, axes = canvas(max(4.8, 1.5 * len(bars) + 2.2), 4.0)
    ax = axes[0, 0]
    totals = {label: sum(parts.values()) for label, parts in bars.items()}
    top = max([*totals.values(), limit or 0]) / GIB
    for place, (label, parts) in enumerate(bars.items()):
        below = 0
        for part, size in parts.items():
            colour, hatch = PARTS[part]
            height = size / GIB
            ax.bar(place, height, 0.62, below, color=colour, hatch=hatch, edgecolor=LINE, linewidth=0.8,
                   label=part if place == 0 else None)  # fmt: skip
            if height > 0.07 * top:
                box = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
                ax.text(place, below + height / 2, f"{height:.1f}", ha="center", va="center", fontsize=9.5,
                        color=ink_on(colour), bbox=box)  # fmt: skip
            below += height
        over = limit is not None and totals[label] > limit
        line = -1 if limit is None else limit / GIB
        # No words on the line of the limit: they go above it.
        foot, lift = (line, 5) if below <= line < below + 0.08 * top else (below, 3)
        ax.annotate(f"{below:.1f}" + (" too much" if over else ""), (place, foot), (0, lift), color=INK,
                    textcoords="offset points", ha="center", fontsize=9.5, fontweight="bold",
                    bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8})  # fmt: skip
    if limit is not None:
        ax.axhline(
            limit / GIB, color=VERMILLION, linestyle="--", label=f"{limit_name}, {limit / GIB:.1f} GiB"
        )
    ax.set_ylim(0, 1.16 * top)
    ax.set_xlim(-0.6, len(bars) - 0.4)
    ax.set_xticks(range(len(bars)), list(bars))
    ax.tick_params(axis="x", length=0)
    ax.set_ylabel("GiB")
    ax.grid(axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)
    said = "; ".join(
        f"{label.replace(chr(10), ' ')}: "
        + ", ".join(f"{part} {size / GIB:.1f} GiB" for part, size in parts.items())
        + ("" if limit is None else ", too much" if totals[label] > limit else ", fits")
        for label, parts in bars.items()
    )
    where = "" if limit is None else f" against {limit_name} of {limit / GIB:.1f} GiB"
    return finish(picture, f"Weights and cache{where}.", f"Stacked bars in GiB{where}. {said}.", title)


@house_style
def step_reads(batches, weights, caches, *, title=None):
    """Bytes that a decode step reads against the batch: the weights once, the cache of each sequence.

    Args:
        batches: numbers of sequences, rising.
        weights: bytes of the weights.
        caches: bytes of the whole batch's cache, one for each of `batches`.
        title: above the picture.
    """
    picture, axes = canvas(7.6, 3.9)
    ax = axes[0, 0]
    read = [cache / GIB for cache in caches]
    ax.plot(batches, [weights / GIB] * len(batches), "--", color=MUTED, label="weights")
    ax.plot(batches, read, "-", color=BLUE, label="cache")
    ax.plot(batches, [weights / GIB + cache for cache in read], ":", color=INK, label="both: one step")
    beyond = next((b for b, cache in zip(batches, caches, strict=True) if cache > weights), None)
    if beyond is not None and beyond > batches[0]:
        ax.axvline(beyond, color=LINE)
        left = (beyond - batches[0]) / (batches[-1] - batches[0])  # share of the width
        texts = {"right": "← more weights", "left": "more cache →"}  # each on its side of the line
        if not 0.2 < left < 0.8:  # one side is too narrow for words
            texts = {"left" if left < 0.5 else "right": "left: more weights\nright: more cache"}
        for side, text in texts.items():
            ax.annotate(text, (beyond, 0.99), (-8 if side == "right" else 8, 0), fontsize=9.5,
                        xycoords=ax.get_xaxis_transform(), textcoords="offset points", ha=side,
                        va="top")  # fmt: skip
    ax.set_xlim(batches[0], batches[-1])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("sequences in the batch")
    ax.set_ylabel("GiB read in one decode step")
    ax.grid(axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)
    crossing = "they do not cross here" if beyond is None else f"the cache is more from batch {beyond:,} on"
    return finish(
        picture,
        "What one decode step reads. The weights are read once for all sequences, a cache for each.",
        f"Lines of GiB read in a decode step for batches of {batches[0]:,} to {batches[-1]:,}: weights "
        f"{weights / GIB:.1f} throughout, cache {read[0]:.1f} to {read[-1]:.1f}; {crossing}.",
        title,
    )
