"""The scenario that both caches of lesson 04 are put through.

It plays a decoder: chunks of new keys and values for every layer, a step back, one more token, a reset, and
then a batch of another size. It spoils the tensors that it gave once the cache has had them, as a model that
reuses its memory does.
"""

from types import SimpleNamespace

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, WrongAnswer

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
        case(generator, "chunks in float64", 2, 3, 1, 4, (2, 3, 1), torch.float64),
    ]


def play(make, case):
    """The cache after the scenario, and what it gave back on the way."""
    cache, other = make(), make()
    seen, tokens = {"bytes used by the empty cache": cache.used_bytes}, 0
    for length in case["chunks"]:
        new = range(tokens, tokens + length)
        tokens += length
        _step(cache, case, list(new), f"after {tokens} tokens", seen)
        seen[f"bytes used after {tokens} tokens"] = cache.used_bytes
    cache.truncate(tokens - 2)
    _step(cache, case, [tokens], "after two tokens were taken back and one came", seen)
    _step(other, case, [tokens], SECOND, seen)
    if seen[f"number of slots in the keys of layer 0 {SECOND}"] == cache.length + 1 > 1:
        raise WrongAnswer(
            "Two caches share one shelf: the second, made separately, holds the first one's tokens. A list "
            "that belongs to the class, or is a default argument, is one list for all objects."
        )
    cache.reset()
    _step(cache, case, [tokens], "after a reset and one token", seen)
    rows = [0] * (cache.batch_size + 1)
    cache.reorder(rows)
    _step(cache, case, [0], "after the first row was copied over all and one more", seen, rows)
    return cache, seen


def _step(cache, case, tokens, when, seen, rows=slice(None)):
    for layer in range(case["config"].num_layers):
        given = {
            name: case[letter][layer][rows][:, :, tokens] for name, letter in (("keys", "k"), ("values", "v"))
        }
        back = cache.update(layer, *given.values())
        if not isinstance(back, tuple) or not all(isinstance(tensor, torch.Tensor) for tensor in back):
            raise WrongAnswer("`_append` should give back two tensors: all keys of the layer, all values.")
        slots = cache.key_positions(layer).shape[1]
        for name, tensor in zip(given, back, strict=True):
            if tensor.ndim != 4:
                raise WrongAnswer(
                    f"The {name} that came back have the shape {tuple(tensor.shape)}; they should be (batch, "
                    "kv heads, slots, head_dim)."
                )
            label = f"{name} of layer {layer} {when}"
            # What lies in slots that nobody has written is chance, so it is counted and not compared.
            seen[f"number of slots in the {label}"] = tensor.shape[2]
            seen[label] = tensor[:, :, :slots].clone()
        for tensor in given.values():
            tensor.fill_(torch.nan)


def explain(case, got, want):
    """The first count that differs, in words; or None."""
    for label, value in want.items():
        if isinstance(value, torch.Tensor):
            if got[label].shape != value.shape or not torch.allclose(got[label], value):
                return None  # the engine says where
        elif got[label] != value:
            return f"The {label} should be {value}, and it is {got[label]}."
    return None
