"""Seconds a token while decoding: naive, two caches, and transformers, against what memory allows.

The real model in float32, batch 1, all in one process with the same threads. A run continues a prompt of
`context` tokens greedily; a step is the time from one new token to the next, and a run's figure is the
median of its steps. The runs take turns, and the median of the turns counts.

A decode step must read all the weights and the whole cache once, so it cannot take less time than these bytes
over the bandwidth with which this machine reads memory. The table gives bound / measured.
"""

import copy
import inspect
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

import kvlearn
from kvlearn import measure as m
from kvlearn.weights import fetch

CONTEXTS = (128, 512, 2048)
NEW_TOKENS = 16  # of a run
ROUNDS = 3
# The argument was renamed in transformers 5.24.
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
TEXT = "The cat sat on the mat and looked at the rain. Then the dog came in, wet, and shook itself. "


def measure() -> dict:
    """The figures of all contexts."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = fetch("smollm2-135m")
    model, tokenizer = kvlearn.load(folder)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = tokenizer.encode(TEXT)
    contexts = {}
    bandwidth = [m.read_bandwidth()]
    for context in CONTEXTS:
        prompt = (text * (context // len(text) + 1))[:context]
        contexts[context] = _one_context(model, peer, prompt)
        bandwidth.append(m.read_bandwidth())
    best = max(bandwidth)
    for context, figures in contexts.items():
        figures["bytes_read"] = m.decode_bytes(model, context + NEW_TOKENS // 2)
        figures["bound_seconds"] = figures["bytes_read"] / best
    return {"read_bandwidth_bytes_per_second": best, "rounds": ROUNDS, "contexts": contexts}


def _one_context(model, peer, prompt) -> dict:
    length, config = len(prompt) + NEW_TOKENS, model.config
    growing, preallocated = kvlearn.GrowingCache(config), kvlearn.StaticCache(config, 1, length)
    steps = {name: [] for name in ("naive", "growing", "preallocated", "transformers")}
    texts = {}
    prefilled = _prefilled(peer, prompt)

    def ours(name, new_tokens, cache):
        ticks = [time.perf_counter()]
        made = kvlearn.generate(
            model, prompt, new_tokens, cache=cache, on_token=lambda *_: ticks.append(time.perf_counter())
        )
        texts[name] = made.tokens[0]
        if cache is not None:
            cache.truncate(len(prompt))  # the next turn starts where this one did
        return ticks

    def theirs():
        ticks = Ticks()
        out = peer.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            streamer=ticks,
            **{CACHE: copy.deepcopy(prefilled)},
        )
        texts["transformers"] = out[0, len(prompt) :].tolist()
        return ticks.times

    runs = {
        # Without a cache the first new token costs what every other does: a whole pass.
        "naive": lambda: ours("naive", 1, None),
        "growing": lambda: ours("growing", NEW_TOKENS, growing)[1:],
        "preallocated": lambda: ours("preallocated", NEW_TOKENS, preallocated)[1:],
        "transformers": theirs,
    }
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            ticks = run()
            if turn:  # the first turn warms up, and prefills
                between = [after - before for before, after in zip(ticks, ticks[1:], strict=False)]
                steps[name].append(m.median(between))
    return {
        "seconds_per_token": {name: m.median(times) for name, times in steps.items()},
        "rounds": steps,
        "naive_starts_alike": texts["growing"][:1] == texts["naive"],
        "same_tokens_as_transformers": texts["growing"] == texts["preallocated"] == texts["transformers"],
    }


def _prefilled(peer, prompt) -> DynamicCache:
    """transformers' cache after all of the prompt but its last token."""
    cache = DynamicCache(config=peer.config)
    with torch.no_grad():
        peer(torch.tensor([prompt[:-1]]), logits_to_keep=1, **{CACHE: cache})
    return cache


class Ticks(BaseStreamer):
    """Notes when each new token comes out of transformers' generate."""

    def __init__(self):
        self.times = []
        self._prompt_seen = False

    def put(self, value):
        if self._prompt_seen:
            self.times.append(time.perf_counter())
        self._prompt_seen = True

    def end(self):
        pass


def table(figures: dict) -> str:
    """A Markdown table of the figures."""
    bandwidth = figures["read_bandwidth_bytes_per_second"]
    lines = [
        "## Decoding, milliseconds a token",
        "",
        f"SmolLM2-135M in float32, batch 1. This machine reads {bandwidth / 1e9:.1f} GB/s (10^9 bytes).",
        "",
        "| context | naive | growing | preallocated | transformers | memory's bound | bound / preallocated "
        "| naive / preallocated | transformers / preallocated |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for context, row in figures["contexts"].items():
        seconds = row["seconds_per_token"]
        best, bound = seconds["preallocated"], row["bound_seconds"]
        cells = [f"{1e3 * s:.1f}" for s in (*seconds.values(), bound)]
        cells += [
            f"{bound / best:.2f}",
            f"{seconds['naive'] / best:.1f}",
            f"{seconds['transformers'] / best:.2f}",
        ]
        lines.append(f"| {context} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
