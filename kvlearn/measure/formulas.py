"""What a run must do and read, from the sizes alone. The counters should give these very numbers.

Generation of `new` tokens after a prompt of `prompt` tokens runs `new` passes: the prompt's pass gives the
first new token, and the last new token is never fed.
"""

import torch
from torch import nn


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
