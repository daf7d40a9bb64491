"""A picture of arithmetic intensity: operations for each byte, against what a machine would need."""

from kvlearn.figures.style import BLUE, INK, LINE, VERMILLION, canvas, finish, house_style


@house_style
def intensity_bars(values, balance=None, *, balance_name="the machine's balance", title=None):
    """Operations for each byte of cache, on a logarithmic axis.

    Args:
        values: label -> operations a byte, as `kvlearn.measure.attention_intensity` gives them.
        balance: operations that the machine can do while it reads one byte, drawn as a line; or None. To its
            left reading sets the pace.
        balance_name: what to call it.
        title: above the picture.
    """
    if not values or min(values.values()) <= 0:
        raise ValueError(f"Operations for each byte are above 0, one bar or more; got {values}.")
    picture, axes = canvas(7.6, 0.42 * len(values) + 1.5)
    ax = axes[0, 0]
    places = range(len(values), 0, -1)  # the first on top
    drawn = ax.barh(places, list(values.values()), 0.62, color=BLUE, edgecolor=LINE, linewidth=0.8)
    ax.bar_label(drawn, [f"{value:.3g}" for value in values.values()], padding=3, fontsize=9.5, color=INK)
    ax.set_yticks(places, list(values))
    ax.tick_params(axis="y", length=0)
    ax.set_xscale("log")
    largest = max([*values.values(), balance or 0])
    ax.set_xlim(min(0.5, 0.7 * min(values.values())), 3 * largest)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("operations for each byte of cache read (log)")
    ax.grid(axis="x")
    said = "; ".join(f"{label}: {value:.3g}" for label, value in values.items())
    caption, where = "Operations of decode attention for each byte of cache that is read.", ""
    if balance is not None:
        ax.axvline(balance, color=VERMILLION, linestyle="--", label=f"{balance_name}, {balance:g}")
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)
        caption += " Left of the line reading sets the pace, right of it the arithmetic."
        where = f", against {balance_name} of {balance:g}"
    return finish(picture, caption, f"Bars of operations a byte, logarithmic{where}. {said}.", title)
