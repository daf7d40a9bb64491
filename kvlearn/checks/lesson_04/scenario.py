"""The scenario that both caches of lesson 04 are put through.

It plays a decoder: chunks of new keys and values for every layer, a step back, one more token, a reset, and
then a batch of another size. It spoils the tensors that it gave once the cache has had them, as a model that
reuses its memory does.
"""

from functools import partial
from types import SimpleNamespace

import torch

from kvlearn.cache import KVCache
from kvlearn.checks.caches import explain_first, require_two_tensors
from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, WrongAnswer
from kvlearn.checks.explain import kind_of

SECOND = "of a second cache after its first token"
AXES = {"k": "layer batch head token channel", "v": "layer batch head token channel"}


def case(generator, label, layers, batch, heads, dim, chunks, dtype=torch.float32):
    config = SimpleNamespace(num_layers=layers, num_kv_heads=heads, head_dim=dim, max_position=64)
    shape = (layers, batch, heads, sum(chunks) + 1, dim)
    k, v = (randn(generator, *shape, dtype=dtype) for _ in "kv")
    return Case({"config": config, "k": k, "v": v, "chunks": list(chunks)}, label)


def cases(generator):
    return [
        case(generator, "a prompt and two steps", 3, 2, 5, 6, (7, 1, 1)),
        case(generator, "one layer, one row", 1, 1, 2, 8, (3, 1)),
        case(generator, "a prompt of 40", 2, 1, 3, 5, (40, 1)),
        case(generator, "chunks in bfloat16", 2, 3, 1, 4, (2, 3, 1), torch.bfloat16),
    ]


def play(make, case, see=lambda cache, back: None):
    """The cache after the scenario, and what it gave back on the way.

    `see` is shown the cache and what came back at each step of the text.
    """
    cache, other = make(), make()
    other.truncate(0)  # where nothing is stored yet
    seen, tokens = {"bytes used by the empty cache": _used_bytes(cache)}, 0
    for length in case["chunks"]:
        new = range(tokens, tokens + length)
        tokens += length
        _step(cache, case, list(new), f"after {tokens} tokens", seen, see=see)
        seen[f"bytes used after {tokens} tokens"] = _used_bytes(cache)
    cache.truncate(tokens - 2)
    _step(cache, case, [tokens], "after two tokens were taken back and one came", seen)
    _step(other, case, [tokens], SECOND, seen)
    if seen[f"number of slots in the keys of layer 0 {SECOND}"] == cache.length + 1 > 1:
        raise WrongAnswer(
            "Two caches share one shelf: the second, made separately, holds the first one's tokens. A list "
            "that belongs to the class, or is a default argument, is one list for all objects."
        )
    cache.truncate(0)
    _step(cache, case, [tokens], "after all tokens were taken back and one came", seen)
    _step(cache, case, [0], "after all tokens were taken back and two came", seen)
    cache.reset()
    _step(cache, case, [tokens], "after a reset and one token", seen)
    rows = [0] * (cache.batch_size + 1)
    cache.reorder(rows)
    _step(cache, case, [0], "after the first row was copied over all and one more", seen, rows)
    return cache, seen


def _step(cache, case, tokens, when, seen, rows=slice(None), see=lambda cache, back: None):
    for layer in range(case["config"].num_layers):
        given = {
            name: case[letter][layer][rows][:, :, tokens] for name, letter in (("keys", "k"), ("values", "v"))
        }
        back = cache.update(layer, *given.values())
        require_two_tensors(back)
        see(cache, back)
        slots = cache.key_positions(layer).shape[1]
        for name, tensor in zip(given, back, strict=True):
            if tensor.ndim != 4:
                raise WrongAnswer(
                    f"The {name} that came back have the shape {tuple(tensor.shape)}; they should be (batch, "
                    "kv heads, slots, head_dim)."
                )
            label = f"{name} of layer {layer} {when}"
            # What lies in slots that nobody has written is chance, so too many are counted and not compared.
            seen[f"number of slots in the {label}"] = tensor.shape[2]
            seen[label] = tensor.clone() if tensor.shape[2] == slots else None
        for tensor in given.values():
            tensor.fill_(torch.nan)


def _used_bytes(cache):
    """The cache's own count, once `_tensors` has been looked at."""
    if isinstance(cache, KVCache):
        named = cache._tensors()
        try:
            strangers = [item for item in named if not isinstance(item, torch.Tensor)]
        except TypeError:
            raise WrongAnswer(
                f"`_tensors` should give back a list of tensors; it is {kind_of(named)}."
            ) from None
        if strangers:
            raise WrongAnswer(
                "`_tensors` should give back a list of tensors, and in yours there is "
                f"{kind_of(strangers[0])}."
            )
    return cache.used_bytes


def explain(case, got, want):
    """The first thing that differs, in words; or None."""
    sentence = "The {label} should be {right}, and it is {mine}."
    return explain_first(got, want, sentence, partial(_explain_numbers, case))


def _explain_numbers(case, label, got, want):
    """The first token that is not the one that was given, and whose numbers it has."""
    row, slot = (got != want).any(dim=3).any(dim=1).nonzero()[0].tolist()
    token, right = got[row, :, slot], want[row, :, slot]
    where = f"The {label}: slot {slot} of row {row}"
    if token.isnan().any():
        return (
            f"{where} holds NaN. The check writes NaN into the tensors that it gave, once a layer has had "
            "them, as a model that reuses its memory does: is what was given kept itself, and not a copy?"
        )
    return f"{where} should hold {_owner(case, right)}; it holds {_owner(case, token)}."


def _owner(case, token):
    """Whose numbers these (heads, channels) are."""
    for name, letter in (("key", "k"), ("value", "v")):
        same = (case[letter] == token[None, None, :, None]).all(dim=4).all(dim=2)  # (layers, B, tokens)
        if same.any():
            layer, row, number = same.nonzero()[0].tolist()
            return f"the {name} that layer {layer} was given for token {number} of row {row}"
    return "numbers that were never given"
