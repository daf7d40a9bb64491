"""What `generate` is given: prompts of any form as lists of ids, and what cannot be, in a sentence.

Everything here runs before anything is fed, so that after an error the cache is as it was.
"""

import inspect
import math
import operator
from collections.abc import Sequence

import torch

from kvlearn.cache.arguments import check_is_cache
from kvlearn.cache.base import KVCache
from kvlearn.decoder import Decoder
from kvlearn.values import is_number, is_whole


def as_rows(model: Decoder, prompts) -> list[list[int]]:
    """One prompt or several, in lists, tuples, tensors or arrays, as lists of Python's numbers."""
    prompts = _plain(prompts)
    texts = prompts if isinstance(prompts, Sequence) else ()
    if any(isinstance(text, str | bytes) for text in (prompts, *texts)):
        raise ValueError("generate takes token ids; turn the text into ids with tokenizer.encode(text).")
    if not isinstance(prompts, Sequence):
        kind = type(prompts).__name__
        raise ValueError(f"prompts are a list of token ids, or several; this is of type {kind}.")
    rows = [_plain(row) for row in prompts]
    if rows and not any(isinstance(row, Sequence) for row in rows):
        rows = [rows]
    if not rows or not all(row for row in rows if isinstance(row, Sequence)):
        raise ValueError("A prompt needs at least one token: without one there is nothing to continue.")
    return [_as_prompt(row, tokens, model.config.vocab_size) for row, tokens in enumerate(rows)]


def _as_prompt(row: int, tokens, vocab_size: int) -> list[int]:
    """One prompt's ids as Python's own numbers."""
    if not isinstance(tokens, Sequence):
        raise ValueError(f"Several prompts are a list of lists; prompt {row} is {tokens!r}.")
    for token in tokens:
        if not is_whole(token):
            raise ValueError(f"Prompt {row} has {token!r} in it; token ids are whole numbers.")
        if not 0 <= token < vocab_size:
            raise ValueError(f"Prompt {row} has token {token}; the vocabulary is 0 to {vocab_size - 1}.")
    return [operator.index(token) for token in tokens]


def _plain(value):
    """Tensors and arrays as lists and numbers, the rest as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def as_ids(eos_ids) -> set[int]:
    """The ids that end a row, as Python's numbers."""
    try:
        ids = list(_plain(eos_ids))
    except TypeError:
        ids = [None]
    if not all(is_whole(token) for token in ids):
        raise ValueError(f"eos_ids is a list of token ids, perhaps empty; got {eos_ids!r}.")
    return {operator.index(token) for token in ids}


def check_helpers(generator, on_token) -> None:
    """Refuse a generator that draws nothing and an on_token that cannot be called with (row, token)."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(
            f"generator is a torch.Generator, as torch.Generator().manual_seed(0) makes; got {generator!r}."
        )
    if on_token is None:
        return
    if not callable(on_token):
        raise ValueError(f"on_token is a function, called as on_token(row, token); got {on_token!r}.")
    try:
        signature = inspect.signature(on_token)
    except (TypeError, ValueError):
        return  # a builtin without one
    try:
        signature.bind(0, 0)
    except TypeError:
        raise ValueError(f"on_token is called as on_token(row, token); this one takes {signature}.") from None


def check_settings(max_new_tokens, cache, temperature, top_k, top_p, prefill_chunk) -> None:
    """Refuse numbers outside their range, and settings that contradict one another."""
    whole = {"max_new_tokens": max_new_tokens, "top_k": top_k, "prefill_chunk": prefill_chunk}
    numbers = {"temperature": temperature, "top_p": top_p}
    for kind, named, fits in (("whole number", whole, is_whole), ("number", numbers, is_number)):
        for name, value in named.items():
            left_out = value is None and name not in ("max_new_tokens", "temperature")
            if not left_out and not fits(value):
                raise ValueError(f"{name} is a {kind}; got {value!r}.")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is 0 or more; got {max_new_tokens}.")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is 0 (greedy) or above, and finite; got {temperature}.")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k keeps at least 1 token; got {top_k}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is a probability above 0, at most 1; got {top_p}.")
    if temperature == 0 and (top_k is not None or top_p is not None):
        raise ValueError("top_k and top_p choose among draws; give a temperature above 0 to draw.")
    if prefill_chunk is not None and (prefill_chunk < 1 or cache is None):
        raise ValueError(
            f"prefill_chunk is at least 1 and needs a cache to keep the pieces in; got {prefill_chunk} "
            f"and cache={cache!r}."
        )


def seen_tokens(cache: KVCache, rows: list[list[int]]) -> list[int]:
    """How many tokens of each row the cache has seen; refuse a cache of other texts."""
    check_is_cache(cache)
    seen = cache.next_position.tolist()
    if len(seen) != len(rows):
        raise ValueError(
            f"The cache has {len(seen)} rows and there are {len(rows)} prompts; make the cache with "
            f"batch_size={len(rows)}."
        )
    for index, (row, tokens) in enumerate(zip(rows, seen, strict=True)):
        if tokens > len(row):
            raise ValueError(
                f"The cache has seen {tokens} tokens of row {index} and the prompt has {len(row)}. Prompts "
                "are whole texts, the part in the cache included; for a new text reset the cache."
            )
    return seen


def check_room(model: Decoder, cache, rows, seen: list[int], max_new_tokens: int) -> None:
    """Refuse texts that the model's positions or the cache's slots cannot hold to their end."""
    positions = max(map(len, rows)) + max_new_tokens - 1
    for name, holder in (("model", model.config), ("cache", cache)):
        there = getattr(holder, "max_position", positions)
        if positions > there:
            raise ValueError(
                f"{positions} positions would be needed (the longest prompt has {max(map(len, rows))} "
                f"tokens, and {max_new_tokens} more), and the {name} has {there}."
            )
    limit = getattr(cache, "max_length", None)
    if limit is None:
        return
    fed = max(len(row) - start for row, start in zip(rows, seen, strict=True)) + max_new_tokens - 1
    if cache.length + fed > limit:
        raise ValueError(
            f"The cache holds {cache.length} of {limit} slots, and this call would add {fed}. "
            "Make it with a larger max_length, or ask for fewer new tokens."
        )
