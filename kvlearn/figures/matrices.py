"""Pictures of matrices: attention weights, masks, and what changed between two runs."""

import math

import numpy as np
from matplotlib.colors import LogNorm

from kvlearn.figures.grid import as_mask, hatch_masked, matrix_axes, room
from kvlearn.figures.style import (
    CHANGES,
    MUTED,
    PAPER,
    WEIGHTS,
    blank_note,
    canvas,
    finish,
    house_style,
    ink_on,
    to_numpy,
    token_labels,
)


@house_style
def attention_map(weights, tokens=None, *, key_tokens=None, mask=None, heads=None, top=None, title=None):
    """Heat maps of attention weights: a row is a query, its weights add up to 1.

    Args:
        weights: (L, S) of one head, or (H, L, S) of several.
        tokens: L labels of the queries; the positions when left out. When S > L and `key_tokens` is left
            out, they may be the S labels of the keys, and the queries are the last of them.
        key_tokens: S labels of the keys.
        mask: (L, S) booleans, True = may attend; what may not is hatched grey.
        heads: H names of the heads; "head 0", "head 1", ... when left out.
        top: the weight that is drawn darkest; the largest one when left out.
        title: above the whole.
    """
    weights = to_numpy(weights)
    weights = weights[None] if weights.ndim == 2 else weights
    if weights.ndim != 3:
        raise ValueError(
            f"attention_map takes weights (L, S) or (heads, L, S); got the shape {weights.shape}. "
            "Choose one row of the batch first, for example weights[0]."
        )
    count, queries, keys = weights.shape
    query_labels, key_labels = _axis_labels(tokens, key_tokens, queries, keys)
    heads = [f"head {head}" for head in range(count)] if heads is None else heads
    columns = min(count, 3 if count in (3, 5, 6, 9) else 4)
    rows = math.ceil(count / columns)
    cell = min({1: 0.6, 2: 0.5}.get(columns, 0.4), 5.2 / max(keys, queries), 8.2 / columns / keys)
    picture, axes = canvas(
        columns * (keys * cell + 0.2) + room(query_labels) + 1.2,
        rows * (max(queries * cell, 0.8) + (0.45 if count > 1 else 0)) + room(key_labels, cell) + 0.5,
        rows,
        columns,
    )
    top = float(weights.max()) if top is None else top
    for index, ax in enumerate(axes.flat):
        if index >= count:
            ax.set_visible(False)
            continue
        image = ax.imshow(weights[index], cmap=WEIGHTS, vmin=0, vmax=max(top, 1e-9), aspect="equal")
        hatch_masked(ax, mask)
        if queries * keys <= 64 and count == 1:
            _write_numbers(ax, weights[index], top, mask)
        last_row = index + columns >= count
        matrix_axes(ax, query_labels, key_labels, cell, left=index % columns == 0, bottom=last_row)
        if count > 1:
            ax.set_title(heads[index], fontsize=10.5)
    bar = picture.colorbar(image, ax=axes, shrink=0.8 if rows * queries > 3 else 1.0, pad=0.02, aspect=22)
    bar.set_label("attention weight")
    bar.outline.set_visible(False)
    return finish(
        picture,
        "A row is a query, and its weights add up to 1. The darker a cell, the more it takes of that value."
        + blank_note(query_labels + key_labels),
        f"Heat map of attention weights: {count} head{'s' * (count > 1)}, {queries} queries as rows, "
        f"{keys} keys as columns"
        + ("." if mask is None else "; cells that the mask forbids are hatched grey."),
        title,
    )


@house_style
def mask_map(mask, query_labels=None, key_labels=None, *, title=None):
    """Who may see whom: a row is a query, a column is a key.

    Args:
        mask: (L, S) booleans, True = may attend.
        query_labels: L labels; the positions when left out (the queries are the last of the keys).
        key_labels: S labels.
        title: above the picture.
    """
    mask = as_mask(mask)
    queries, keys = mask.shape
    if query_labels is None and key_labels is None:
        query_labels = [
            str(position) for position in range(max(keys - queries, 0), max(keys - queries, 0) + queries)
        ]
    query_labels, key_labels = token_labels(query_labels, queries), token_labels(key_labels, keys)
    picture, axes = _mask_canvas(1, query_labels, key_labels)
    _draw_mask(axes[0, 0], mask, query_labels, key_labels)
    return finish(
        picture,
        "Blue: the query of this row may attend to the key of this column. Hatched: it may not.",
        f"Mask of {queries} queries by {keys} keys. " + _mask_words(mask),
        title,
    )


@house_style
def mask_compare(query_length: int, key_length: int, *, title=None):
    """The causal mask aligned at the last key, beside the one aligned at the first key.

    The right one for new tokens after stored ones is aligned at the last: the last query sees the last key.
    torch's `scaled_dot_product_attention(is_causal=True)` aligns at the first (pytorch/pytorch#108108).
    """
    offset = key_length - query_length
    right = np.tril(np.ones((query_length, key_length), dtype=bool), offset)
    first = np.tril(np.ones((query_length, key_length), dtype=bool))
    queries = [str(position) for position in range(offset, offset + query_length)]
    keys = [str(position) for position in range(key_length)]
    picture, axes = _mask_canvas(2, queries, keys)
    for ax, mask, name in (
        (axes[0, 0], right, "last query sees last key"),
        (axes[0, 1], first, "torch is_causal=True"),
    ):
        _draw_mask(ax, mask, queries, keys)
        ax.set_title(name, fontsize=10.5)
    same = bool((right == first).all())
    hidden = int((right & ~first).sum())
    return finish(
        picture,
        "With as many queries as keys the two masks are the same."
        if same
        else "Left: the rule for new tokens after stored ones. Right: aligned at the first key; "
        f"{hidden} cells that should be seen are hidden.",
        f"Two masks of {query_length} queries by {key_length} keys. Left: {_mask_words(right)} "
        f"Right: {_mask_words(first)}",
        title,
    )


@house_style
def tensor_diff(a, b, tokens=None, *, name="K", rounding=0.0, title=None):
    """What changed between two runs: the largest |a - b| of each layer (row) at each position (column).

    Args:
        a, b: a tensor for each layer, (B, H, S, D) or (H, S, D) or (S, D). Where one run has more positions
            than the other, the ones that both have are compared.
        tokens: a label for each position that both have.
        name: what is compared, for the words.
        rounding: a difference up to this is no change: sums in another order differ in the last digits.
        title: above the picture.
    """
    a, b = [to_numpy(layer) for layer in a], [to_numpy(layer) for layer in b]
    if len(a) != len(b) or not a:
        raise ValueError(
            f"tensor_diff compares the same layers of two runs; got {len(a)} and {len(b)} layers."
        )
    positions = min(min(layer.shape[-2] for layer in a), min(layer.shape[-2] for layer in b))
    largest = np.zeros((len(a), positions))
    for layer, (one, other) in enumerate(zip(a, b, strict=True)):
        difference = np.abs(one[..., :positions, :] - other[..., :positions, :])
        largest[layer] = difference.max(axis=-1).reshape(-1, positions).max(axis=0)
    largest[largest <= rounding] = 0.0
    same = "equal up to rounding" if rounding else "exactly equal"
    return _draw_differences(largest, token_labels(tokens, positions), name, same, title)


def _draw_differences(largest, labels, name, same, title):
    layers, positions = largest.shape
    cell = min(0.6, 9.0 / positions)
    picture, axes = canvas(max(4.0, cell * positions + 2.4), 0.42 * layers + room(labels, cell) + 0.5)
    ax = axes[0, 0]
    changed = np.ma.masked_equal(largest, 0.0)
    if changed.count():
        high = float(changed.max())
        norm = LogNorm(vmin=min(float(changed.min()), high / 10), vmax=high)
        image = ax.imshow(changed, cmap=CHANGES, norm=norm, aspect="auto")
        bar = picture.colorbar(image, ax=ax, shrink=0.9, pad=0.02)
        ends = [norm.vmin, (norm.vmin * norm.vmax) ** 0.5, norm.vmax]  # the middle of a logarithmic scale
        bar.set_ticks(ends, labels=[_short(value) for value in ends])
        bar.minorticks_off()
        bar.set_label("largest difference\n(logarithmic scale)")
        bar.outline.set_visible(False)
    else:
        ax.imshow(np.ones_like(largest), cmap="Greys_r", vmin=0, vmax=1, aspect="auto")
    for layer in range(layers):
        for position in range(positions):
            value = largest[layer, position]
            if value == 0 and positions * layers <= 240:
                ax.text(position, layer, "0", ha="center", va="center", color=MUTED, fontsize=9)
            elif value and positions * layers <= 120:
                ax.text(position, layer, _short(value), ha="center", va="center", fontsize=7.5,
                        color=ink_on(CHANGES(norm(value))))  # fmt: skip
    matrix_axes(ax, [f"layer {layer}" for layer in range(layers)], labels, cell, ("", "position"))
    rows = [str(layer) for layer in range(layers) if largest[layer].any()]
    zero = same.replace("equal", "zero")
    return finish(
        picture,
        f"0 means {same}. Coloured: {name} of this layer at this position is not what it was."
        + blank_note(labels),
        f"Table of the largest difference of {name}, {layers} layers by {positions} positions. "
        + (f"Layers that changed: {', '.join(rows)}." if rows else f"Every cell is {zero}."),
        title,
    )


def _short(value: float) -> str:
    """As one says it: 0.08 and 123; 1e-09 where a plain number would be nothing but zeros."""
    if value < 1e-3:
        return f"{value:.0e}"
    return f"{value:.3f}" if value < 1e-2 else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _axis_labels(tokens, key_tokens, queries: int, keys: int):
    if key_tokens is None and tokens is not None and len(tokens) == keys:
        return token_labels(tokens, keys)[keys - queries :], token_labels(tokens, keys)
    return token_labels(tokens, queries), token_labels(key_tokens, keys)


def _write_numbers(ax, weights, top, mask):
    seen = np.ones(weights.shape, dtype=bool) if mask is None else as_mask(mask)
    for row, column in np.argwhere(seen):
        value = weights[row, column]
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9,
                color=ink_on(WEIGHTS(value / top)))  # fmt: skip


def _mask_cell(queries: int, keys: int) -> float:
    return min(0.46, 5.5 / max(queries, keys))


def _mask_canvas(count: int, query_labels, key_labels):
    queries, keys = len(query_labels), len(key_labels)
    cell = _mask_cell(queries, keys)
    width = count * (max(keys * cell, 2.4) + room(query_labels) + 0.3)
    return canvas(width, queries * cell + room(key_labels, cell) + 0.6 + 0.3 * (count > 1), 1, count)


def _draw_mask(ax, mask, query_labels, key_labels):
    ax.imshow(np.where(mask, 1.0, 0.0), cmap=WEIGHTS, vmin=0, vmax=1.45, aspect="equal")
    hatch_masked(ax, mask)
    matrix_axes(ax, query_labels, key_labels, _mask_cell(*mask.shape))
    if mask.size <= 400:
        rows, columns = np.nonzero(mask)
        ax.plot(columns, rows, "o", color=PAPER, markersize=3.5)


def _mask_words(mask) -> str:
    counts = [int(row.sum()) for row in mask]
    return (
        f"The queries, first to last, see {', '.join(map(str, counts))} keys."
        if len(counts) <= 12
        else (f"The first query sees {counts[0]} keys and the last sees {counts[-1]}.")
    )
