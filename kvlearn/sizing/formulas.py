"""The napkin: bytes of a cache and of weights, and what fits beside what.

    bytes = layers x 2 x kv_heads x head_dim x tokens x batch x bytes a number

is the whole of it for a model whose layers all look back without limit. With a window a layer keeps
min(tokens, window); with latent attention 2 x kv_heads x head_dim becomes latent + rotary key; quantised
numbers bring scales, zeros and a residual window. `cache_bytes` counts what is used: it equals a cache's
`used_bytes` to the byte.
"""

from collections import Counter
from fractions import Fraction

from kvlearn.sizing.formats import Side, cache_type, weight_bits
from kvlearn.sizing.shape import ModelShape
from kvlearn.sizing.units import read_bytes
from kvlearn.values import whole


def cache_bytes(
    shape: ModelShape, tokens: int, batch: int = 1, dtype="bf16", *, block: int | None = None, ranks: int = 1
) -> int:
    """Bytes of keys and values of `tokens` tokens in each of `batch` rows, all layers.

    Args:
        shape: the model's.
        tokens: fed to the model in each row: after n new tokens, len(prompt) + n - 1.
        batch: rows.
        dtype: what the cache stores; see `cache_type`.
        block: tokens of a block, where memory is handed out in whole blocks: counts what is taken, not used.
        ranks: tensor-parallel ranks; the bytes are then those of one rank.

    Raises:
        ValueError: sizes that cannot be, an unknown type, heads that do not share out evenly.
    """
    return _cache(shape, tokens, batch, dtype, block, ranks, Side.bytes_of)


def _cache(shape, tokens, batch, dtype, block, ranks, one_side) -> int:
    """Layers of one window together; `one_side` counts keys or values of one row in one layer."""
    _check_shape(shape)
    tokens, batch = whole(tokens, "tokens", at_least=0), whole(batch, "batch")
    kind, shape = cache_type(dtype), shape.on_rank(ranks)
    sides = ((kind.keys, shape.key_shape), (kind.values, shape.value_shape))
    return batch * sum(
        count * one_side(side, *size, _kept(tokens, window, block), kind.residual, kind.residual_bits)
        for window, count in Counter(shape.stored_windows).items()
        for side, size in sides
    )


def _peak(side: Side, heads: int, width: int, slots: int, residual: int, full_bits: int) -> int:
    """The most bytes that one side has taken on the way to `slots`.

    A step that turns a whole group of tokens into codes makes the cache smaller, so the most is either now or
    at the last length at which a group was about to become codes.
    """
    group = side.quant_group if side.axis == "channel" else 1
    before = max(slots - (slots - residual + 1) % group, 0)
    return max(side.bytes_of(heads, width, at, residual, full_bits) for at in (before, slots))


def _check_shape(shape) -> None:
    if not isinstance(shape, ModelShape):
        raise ValueError(
            "The first argument is a ModelShape, such as sizing.model('llama-3.1-8b'); got a "
            f"{type(shape).__name__}."
        )


def _kept(tokens: int, window: int | None, block: int | None) -> int:
    """Slots that one layer holds for one row."""
    kept = tokens if window is None else min(tokens, window)
    return kept if block is None else -(-kept // whole(block, "block")) * block


def bytes_per_token(shape: ModelShape, dtype="bf16", *, tokens: int = 0, ranks: int = 1) -> int | float:
    """Bytes by which one row grows with each token, scales and zeros included.

    Args:
        tokens: how many the row holds already: layers whose window is full grow no more.
    """
    _check_shape(shape)
    whole(tokens, "tokens", at_least=0)
    kind, shape = cache_type(dtype), shape.on_rank(ranks)
    sides = ((kind.keys, shape.key_shape), (kind.values, shape.value_shape))
    bits = sum(heads * side.bits_of(width) for side, (heads, width) in sides)
    growing = sum(window is None or window > tokens for window in shape.stored_windows)
    found = Fraction(bits * growing, 8)
    return int(found) if found.denominator == 1 else float(found)


def weight_bytes(shape: ModelShape, dtype="bf16", *, ranks: int = 1) -> int:
    """Bytes of all weights, the scales of quantised ones not counted.

    A decode step reads all of them once, however many rows it has; a mixture of experts reads those of the
    experts that are chosen, which with many rows comes near all.

    Raises:
        ValueError: the shape does not say how many parameters there are.
    """
    _check_shape(shape)
    if shape.parameters is None:
        raise ValueError(
            f"How many parameters {shape.name or 'this model'} has is not known; say it: "
            "shape.but(parameters=8_030_261_248), or --parameters 8B on the command line."
        )
    return -(-shape.parameters * weight_bits(dtype) // (8 * whole(ranks, "ranks")))


def max_batch(
    shape: ModelShape,
    tokens: int,
    memory: int | str,
    dtype="bf16",
    weights="bf16",
    *,
    block=None,
    ranks: int = 1,
) -> int:
    """The most rows of `tokens` tokens that fit beside the weights; 0 where not even one does.

    Args:
        memory: of one device: bytes, or a text as "80 GB". What the activations and the engine itself need is
            not taken off: take it off first.
        weights: type of the weights, or None to leave them out.
    """
    whole(tokens, "tokens")
    room = read_bytes(memory) - _weights(shape, weights, ranks)
    return max(room, 0) // cache_bytes(shape, tokens, 1, dtype, block=block, ranks=ranks)


def max_context(
    shape: ModelShape,
    memory: int | str,
    batch: int = 1,
    dtype="bf16",
    weights="bf16",
    *,
    block=None,
    ranks: int = 1,
) -> int | None:
    """The most tokens that each of `batch` rows can reach beside the weights; 0 where not even one fits.

    None: memory sets no limit, because every layer has a window and the full windows fit. The model's own
    last position is another limit (`shape.max_position`).
    """
    room = read_bytes(memory) - _weights(shape, weights, ranks)

    def fits(tokens: int) -> bool:
        return _cache(shape, tokens, batch, dtype, block, ranks, _peak) <= room

    if not fits(1):
        return 0
    windows = shape.stored_windows
    if all(windows) and fits(max(windows)):
        return None
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def crossover_batch(shape: ModelShape, tokens: int, dtype="bf16", weights="bf16") -> int:
    """The smallest batch of `tokens` tokens a row whose cache outweighs the weights.

    Below it a decode step reads more weights than cache, and another row is nearly free; beyond it the cache
    sets the pace.
    """
    return weight_bytes(shape, weights) // cache_bytes(shape, whole(tokens, "tokens"), 1, dtype) + 1


def crossover_tokens(shape: ModelShape, batch: int = 1, dtype="bf16", weights="bf16") -> int | None:
    """The fewest tokens in each of `batch` rows whose cache outweighs the weights; None: it never does."""
    below = max_context(shape, 2 * weight_bytes(shape, weights), batch, dtype, weights)
    return None if below is None else below + 1


def step_bytes(shape: ModelShape, tokens: int, batch: int = 1, dtype="bf16", weights="bf16") -> int:
    """Bytes that a decode step reads: all weights once, and each row's cache."""
    return weight_bytes(shape, weights) + cache_bytes(shape, tokens, batch, dtype)


def _weights(shape: ModelShape, weights, ranks: int) -> int:
    return 0 if weights is None else weight_bytes(shape, weights, ranks=ranks)
