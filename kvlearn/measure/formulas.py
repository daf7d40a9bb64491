"""What a run must do and read, from the sizes alone. The counters should give these very numbers.

Generation of `new` tokens after a prompt of `prompt` tokens runs `new` passes: the prompt's pass gives the
first new token, and the last new token is never fed.
"""

import torch
from torch import nn

from kvlearn import sizing


def naive_projections(prompt: int, new: int) -> int:
    """Token-positions that one matrix of one layer projects without a cache: prompt + (prompt + 1) + ..."""
    return new * prompt + new * (new - 1) // 2


def cached_projections(prompt: int, new: int) -> int:
    """Token-positions that one matrix of one layer projects with a cache: each position once."""
    return prompt + new - 1 if new else 0


def naive_pairs(prompt: int, new: int) -> int:
    """(query, key) pairs that one head of one layer scores without a cache.

    Each pass over n tokens scores n (n + 1) / 2 causal pairs: every layer but the last needs the output at
    every position, because the next layer makes that position's keys and values from it.
    """
    return _triangles(prompt + new - 1) - _triangles(prompt - 1) if new else 0


def cached_pairs(prompt: int, new: int) -> int:
    """(query, key) pairs that one head of one layer scores with a cache: each pair once, prefill included."""
    return _triangle(prompt + new - 1) if new else 0


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def _triangles(n: int) -> int:
    """1 + 3 + 6 + ...: the sum of the first n triangles."""
    return n * (n + 1) * (n + 2) // 6


def weight_bytes(decoder: nn.Module, batch: int = 1) -> int:
    """Bytes of weights that one decode step reads.

    Every matrix is read whole, once, however many rows the batch has. The embedding is looked up: only
    `batch` rows of it are read, and the table counts once more where it is also the output head.
    """
    embedding, head = decoder.embed_tokens.weight, decoder.lm_head.weight
    whole = {id(p): p for p in decoder.parameters() if p is not embedding}
    if head is embedding:
        whole[id(head)] = head
    looked_up = batch * embedding.shape[1] * embedding.element_size()
    return sum(p.nbytes for p in whole.values()) + looked_up


def kv_bytes(decoder: nn.Module, cached_tokens: int, batch: int = 1, dtype: torch.dtype | None = None) -> int:
    """Bytes of keys and values of `cached_tokens` tokens in each of `batch` rows, all layers.

    Args:
        dtype: what the cache stores; the decoder's own when left out.
    """
    config = decoder.config
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim * cached_tokens * batch
    return numbers * (dtype or decoder.dtype).itemsize


def growing_peak_bytes(decoder: nn.Module, cached_tokens: int, new: int = 1, batch: int = 1) -> int:
    """The most bytes of K and V alive while a cache that concatenates grows to `cached_tokens` tokens.

    The layers grow one after the other, keys and values one after the other. The peak is at the last of
    them: everything is as long as it will be, and the old copy of one layer's values is alive beside it.
    """
    old_copy = kv_bytes(decoder, cached_tokens - new, batch) // (2 * decoder.config.num_layers)
    return kv_bytes(decoder, cached_tokens, batch) + old_copy


def attention_flops(shape: sizing.ModelShape) -> int:
    """Floating-point operations of one decode query with one stored token, all heads of one layer.

    A head multiplies and adds over the width of a key for the score, and over the width of a value for the
    sum: two operations each. Latent attention is counted absorbed: each head reads the latent with the rotary
    key as a key, and the latent again as a value.
    """
    if not isinstance(shape, sizing.ModelShape):
        raise ValueError(
            f"This takes a ModelShape, such as sizing.model('llama-3-8b'); got a {type(shape).__name__}."
        )
    if shape.latent:
        key_width, value_width = shape.latent_dim + shape.rope_dim, shape.latent_dim
    else:
        key_width, value_width = shape.key_shape[1], shape.value_shape[1]
    return 2 * shape.num_heads * (key_width + value_width)


def attention_intensity(shape: sizing.ModelShape, dtype="bf16", queries: int = 1) -> float:
    """Arithmetic intensity of decode attention: operations for each byte of cache that is read.

    In 16 bits it is the number of query heads that share a key/value head (MHA 1), however long the text and
    large the batch: every row reads a cache of its own. Weights, queries and results are not counted.

    Args:
        shape: the model's.
        dtype: what the cache stores; see `sizing.cache_type`.
        queries: tokens that a row brings in this step; more than one where a draft is verified.
    """
    operations = sizing.read_whole(queries, "queries") * attention_flops(shape)
    one_layer = shape.but(num_layers=1, windows=None, shared_layers=0)
    return operations / sizing.bytes_per_token(one_layer, dtype)


def decode_bytes(
    decoder: nn.Module, cached_tokens: int, batch: int = 1, dtype: torch.dtype | None = None
) -> int:
    """Bytes that one decode step must read: the weights, and the keys and values it attends over.

    Divided by the machine's read bandwidth (`read_bandwidth`), the least time that the step can take.

    Args:
        decoder: the model.
        cached_tokens: tokens a row attends over in this step.
        batch: rows decoded together: they share the weights, and each reads its own cache.
        dtype: what the cache stores; the decoder's own when left out.
    """
    return weight_bytes(decoder, batch) + kv_bytes(decoder, cached_tokens, batch, dtype)
