"""Generation: prefill the prompts, then decode one token at a time; naive and cached differ by one argument.

With `cache=None` each step runs the whole text through the model again. With a cache it runs the tokens that
the cache has not seen. Prompts of different lengths stand side by side, padded on the left; positions of -1
keep the padding out of everything, so that each row says what it would say alone.

A row that has ended stays in the batch until the last row ends. At every step it fills one more padded slot
of the cache and takes its share of the computation. Serving engines do not work that way: they give its place
to the next request at once, which is called continuous batching (lesson 11).
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvlearn.cache.base import KVCache
from kvlearn.decoder import Decoder
from kvlearn.generation_arguments import (
    as_ids,
    as_rows,
    check_helpers,
    check_room,
    check_settings,
    seen_tokens,
)

# From float32 logits, a sum of probabilities is right to about six digits: .5 + .3 may come out as .79999998.
NEARLY = 1e-6


@dataclass(frozen=True)
class Generation:
    """What `generate` returns."""

    tokens: list[list[int]]  # one list a prompt: the new tokens only, the EOS included if it came
    prefill_seconds: float  # from the call to the first new token
    decode_seconds: float  # all the steps after it
    cache: KVCache | None

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all rows after the first ones, over the decode seconds; 0 if there were none."""
        decoded = sum(max(len(row) - 1, 0) for row in self.tokens)
        return decoded / self.decode_seconds if decoded else 0.0

    @property
    def cache_length(self) -> int:
        """Slots that the cache holds; 0 without a cache."""
        return 0 if self.cache is None else self.cache.length

    @property
    def cache_bytes(self) -> int:
        """Bytes that these slots need; 0 without a cache."""
        return 0 if self.cache is None else self.cache.used_bytes


@torch.no_grad()
def generate(
    model: Decoder,
    prompts: Sequence[int] | Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    cache: KVCache | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_ids: Sequence[int] = (),
    generator: torch.Generator | None = None,
    prefill_chunk: int | None = None,
    on_token: Callable[[int, int], None] | None = None,
) -> Generation:
    """Continue each prompt by up to `max_new_tokens` tokens.

    Args:
        model: the decoder.
        prompts: one list of token ids, or a list of them, of any lengths: always the whole texts. A cache
            that is not empty has seen the first `next_position` tokens of each row, and only the rest is
            fed, so that the next turn of a conversation is the same call.
        max_new_tokens: 0 or more. A row ends earlier with one of `eos_ids`.
        cache: None recomputes everything at every step (the naive decoder).
        temperature: 0 takes the likeliest token; above it the logits are divided by it and a token is drawn.
        top_k: draw from the k likeliest tokens (Fan et al. 2018, arXiv 1805.04833), plus any that are exactly
            as likely as the k-th, as in transformers.
        top_p: draw from the smallest set of likeliest tokens that together have at least this probability
            (Holtzman et al. 2020, arXiv 1904.09751). Ties are taken in the order of their ids; 1 keeps all.
        eos_ids: the ids that end a row.
        generator: the source of the draws; torch's own when left out.
        prefill_chunk: feed the prompts in pieces of so many tokens; None = in one piece. Needs a cache.
        on_token: called as on_token(row, token) for each new token as it comes.

    Returns:
        A `Generation`. Afterwards each row's `next_position` in the cache is len(prompt) + len(new) - 1:
        the last token has not been fed yet.

    Raises:
        ValueError: an argument is invalid, or a text does not fit the cache or the model. This is found
            before anything is fed, so the cache has not changed. Also if the model's logits contain NaN or
            +inf, or a row contains only -inf. This is found after the step that computed them, so the cache
            already holds each row's tokens up to that step, with their bad numbers. Reset it.
    """
    prompts = as_rows(model, prompts)
    check_settings(max_new_tokens, cache, temperature, top_k, top_p, prefill_chunk)
    check_helpers(generator, on_token)
    eos_ids = as_ids(eos_ids)
    rows = [list(prompt) for prompt in prompts]
    seen = [0] * len(rows) if cache is None else seen_tokens(cache, rows)
    check_room(model, cache, rows, seen, max_new_tokens)
    if cache is not None:
        _step_back(cache, rows, seen)

    started = first = time.perf_counter()
    open_rows = list(range(len(rows)))
    for step in range(max_new_tokens):
        if not open_rows:
            break
        if step == 0 and prefill_chunk is not None:
            _prefill(model, cache, rows, seen, prefill_chunk)
        logits = _feed(model, cache, rows, seen, open_rows)  # (B, vocab_size)
        _check_logits(logits[open_rows], open_rows)
        chosen = _pick(logits[open_rows], temperature, top_k, top_p, generator).tolist()
        if step == 0:
            first = time.perf_counter()
        for row, token in zip(open_rows, chosen, strict=True):
            rows[row].append(token)
            if on_token is not None:
                on_token(row, token)
        open_rows = [row for row in open_rows if rows[row][-1] not in eos_ids]
    if max_new_tokens == 0 and cache is not None:
        _prefill(model, cache, rows, seen, prefill_chunk)
        first = time.perf_counter()

    new = [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]
    return Generation(new, first - started, time.perf_counter() - first, cache)


def pick(
    logits: Tensor,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One token for each row of logits: the likeliest, or a draw. See `generate` for the arguments.

    Args:
        logits: (rows, vocab_size).

    Returns:
        (rows,) token ids.

    Raises:
        ValueError: a row contains NaN or +inf, or only -inf. (A single -inf is fine: it forbids its token.)
    """
    _check_logits(logits, range(len(logits)))
    return _pick(logits, temperature, top_k, top_p, generator)


def _pick(logits: Tensor, temperature, top_k, top_p, generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(dim=-1)
    place = torch.device("cpu") if generator is None else generator.device
    logits = logits.to(place, torch.promote_types(logits.dtype, torch.float32))
    # The largest becomes 0, which no small temperature can make infinite; -inf / inf would be NaN.
    temperature = min(max(temperature, torch.finfo(torch.float32).tiny), torch.finfo(torch.float32).max)
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if top_k is not None:
        smallest_kept = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, float("-inf"))
    if top_p is not None and top_p < 1:
        probabilities = logits.softmax(dim=-1, dtype=torch.float64)
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        reached = ordered.cumsum(dim=-1) >= top_p - NEARLY
        surplus = F.pad(reached[:, :-1], (1, 0))  # the set reaches top_p without this token
        out = torch.empty_like(surplus).scatter_(-1, order, surplus)
        logits = logits.masked_fill(out, float("-inf"))
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]


def _check_logits(logits: Tensor, rows: Sequence[int]) -> None:
    """Refuse logits from which no token can be chosen; `rows` are the row numbers, for the message."""
    largest = logits.amax(dim=-1)  # NaN where there is one
    for row, value, fine in zip(rows, largest.tolist(), largest.isfinite().tolist(), strict=True):
        if not fine:
            what = "only -inf" if value == -math.inf else "NaN" if math.isnan(value) else "+inf"
            raise ValueError(
                f"The logits of row {row} contain {what}, so no token can be chosen. Something went wrong in "
                "the model's computation: check its weights, your own attention or rope if it has one, "
                "and its dtype (float16 overflows above 65,504; load the model with dtype=torch.float32)."
            )


# Feeding ---------------------------------------------------------------------------------------------


def _feed(model: Decoder, cache, rows: list[list[int]], seen: list[int], open_rows: list[int]) -> Tensor:
    """Run what the cache has not seen of the open rows; return the logits of each row's last token."""
    ends = [len(row) if index in open_rows else seen[index] for index, row in enumerate(rows)]
    tokens, positions = _batch(rows, seen, ends, model.device)
    logits = model(tokens, cache, positions, last_only=True)[:, 0]
    if cache is not None:  # without one, nothing is ever seen
        seen[:] = ends
    return logits


def _prefill(model: Decoder, cache: KVCache, rows, seen: list[int], chunk: int | None) -> None:
    """Feed all but the last token of each row, `chunk` tokens at a time."""
    longest = max(len(row) - 1 - start for row, start in zip(rows, seen, strict=True))
    chunk = chunk or max(longest, 1)
    # The rows end together, so the shorter ones begin in a later piece.
    for left in range(longest, 0, -chunk):
        after = max(left - chunk, 0)
        ends = [max(len(row) - 1 - after, start) for row, start in zip(rows, seen, strict=True)]
        tokens, positions = _batch(rows, seen, ends, model.device)
        model(tokens, cache, positions, last_only=True)
        seen[:] = ends


def _batch(rows, starts: list[int], ends: list[int], device) -> tuple[Tensor, Tensor]:
    """The tokens `starts` to `ends` of each row as tensors (B, L), padded on the left, with positions."""
    length = max(end - start for start, end in zip(starts, ends, strict=True))
    tokens, positions = [], []
    for row, start, end in zip(rows, starts, ends, strict=True):
        padding = length - (end - start)
        tokens.append([0] * padding + row[start:end])
        positions.append([-1] * padding + list(range(start, end)))
    return torch.tensor(tokens, device=device), torch.tensor(positions, device=device)


def _step_back(cache: KVCache, rows, seen: list[int]) -> None:
    """Where the cache has seen a whole row, forget its last token, so that feeding it gives logits."""
    covered = [row for row, tokens in enumerate(rows) if seen[row] == len(tokens)]
    slots = [cache.length] * len(rows)
    while covered:
        for row in covered:
            slots[row] -= 1
        cache.truncate(slots)
        seen[:] = cache.next_position.tolist()
        # A row that ended before the others has slots of padding behind its last token.
        covered = [row for row in covered if seen[row] == len(rows[row])]
