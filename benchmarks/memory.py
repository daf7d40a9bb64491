"""Live memory while decoding: the growing cache's copy, and predicted against measured bytes.

Storages are counted, not processes. First the caches alone, where every byte can be predicted, then the same
caches in the real model.
"""

import torch

import kvlearn
from kvlearn import measure as m
from kvlearn.weights import fetch

PROMPT, STEPS = 256, 64


def measure() -> dict:
    """Bytes of both caches, alone and in the model."""
    model, tokenizer = kvlearn.load(fetch("smollm2-135m"))
    total = PROMPT + STEPS
    makers = {
        "growing": lambda: kvlearn.GrowingCache(model.config),
        "preallocated": lambda: kvlearn.StaticCache(model.config, 1, total),
    }
    stored = m.kv_bytes(model, total)
    # While one layer's keys (or values) are copied, the old tensor is alive beside the new one.
    old_keys = m.kv_bytes(model, total - 1) // (2 * model.config.num_layers)
    predicted = {"growing": stored + old_keys, "preallocated": stored}
    prompt = (tokenizer.encode("One line of text that is repeated. ") * PROMPT)[:PROMPT]
    rows = {}
    for name, make in makers.items():
        alone, used = _alone(model, make)
        rows[name] = {
            "used_bytes": used,
            "predicted_used_bytes": stored,
            "peak_bytes": alone,
            "predicted_peak_bytes": predicted[name],
            "peak_bytes_in_the_model": _in_the_model(model, prompt, make),
        }
    return {"prompt_tokens": PROMPT, "steps": STEPS, "caches": rows}


def _alone(model, make) -> tuple[int, int]:
    """(peak bytes, used bytes) of a cache that a model's steps are written into, without the model."""
    heads, dim, layers = model.config.num_kv_heads, model.config.head_dim, model.config.num_layers
    prompt, token = torch.zeros(1, heads, PROMPT, dim), torch.zeros(1, heads, 1, dim)
    with m.StorageMeter(torch.float32) as meter:  # positions are integers
        cache = make()
        for new in (prompt, *[token] * STEPS):
            for layer in range(layers):
                cache.update(layer, new, new)
    return meter.peak, cache.used_bytes


def _in_the_model(model, prompt, make) -> int:
    """Peak bytes of one decode step with activations, the largest of all decode steps."""
    with m.StorageMeter(torch.float32) as meter:
        kvlearn.generate(model, prompt, STEPS + 1, cache=make(), on_token=meter.mark)
    return max(meter.peaks[1:])  # the first mark ends the prefill


def table(figures: dict) -> str:
    """A Markdown table of the figures."""
    lines = [
        "## Memory while decoding, bytes",
        "",
        f"Live storages of SmolLM2-135M's cache in float32: a prompt of {figures['prompt_tokens']} tokens "
        f"and {figures['steps']} steps. The last column adds the activations of a decode step.",
        "",
        "| cache | used, predicted | used | peak, predicted | peak | peak in the model |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    names = (
        "predicted_used_bytes",
        "used_bytes",
        "predicted_peak_bytes",
        "peak_bytes",
        "peak_bytes_in_the_model",
    )
    for cache, row in figures["caches"].items():
        lines.append(f"| {cache} | " + " | ".join(f"{row[name]:,}" for name in names) + " |")
    return "\n".join(lines)
