"""Decoding and prefilling with the real model, compared with transformers and with the memory's bound.

SmolLM2-135M in float32 and bfloat16, batch 1, with one thread and with all, in one process. The runs take
turns, and the figures are medians over the turns.

Decoding: the median time from one new token to the next, after a prompt of `context` tokens. A step must read
all the weights and the whole cache once, so it cannot take less time than these bytes divided by this
machine's read bandwidth; the table gives bound / measured. Prefilling: the time from the call to the logits
of the last token, in one piece or in chunks.
"""

import inspect
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaForCausalLM
from transformers.utils import logging

import kvlearn
from kvlearn import measure as m
from kvlearn.weights import fetch

CONTEXTS = (128, 512, 2048)
PREFILLS = ((512, 512), (2048, 2048), (2048, 512))  # tokens, tokens per chunk
DTYPES = (torch.float32, torch.bfloat16)
NEW_TOKENS = 16  # of a run
ROUNDS = 3
ENOUGH_SECONDS = 20  # rounds of longer runs are not repeated
# The argument was renamed in transformers 5.24.
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
TEXT = "The cat sat on the mat and looked at the rain. Then the dog came in, wet, and shook itself. "


@torch.inference_mode()
def measure() -> dict:
    """Measure every setting."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder, cores = fetch("smollm2-135m"), torch.get_num_threads()
    settings = []
    for threads in sorted({1, cores}, reverse=True):
        torch.set_num_threads(threads)
        bandwidth = m.read_bandwidth()
        for dtype in DTYPES:
            model, tokenizer = kvlearn.load(folder, dtype=dtype)
            peer = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
            text = tokenizer.encode(TEXT)
            prompt = (text * (max(CONTEXTS) // len(text) + 1))[: max(CONTEXTS)]
            naive = threads == cores and dtype == torch.float32
            settings.append({
                "threads": threads,
                "dtype": str(dtype).removeprefix("torch."),
                "read_bandwidth_bytes_per_second": bandwidth,
                "decode": {n: decode(model, peer, prompt[:n], bandwidth, naive) for n in CONTEXTS},
                "prefill": [prefill(model, peer, prompt[:length], chunk) for length, chunk in PREFILLS],
            })  # fmt: skip
    torch.set_num_threads(cores)
    return {"rounds": ROUNDS, "settings": settings}


def decode(model, peer, prompt: list[int], bandwidth: float, naive: bool) -> dict:
    """Seconds per token after the prompt. Each new token is the likeliest; both models must agree on it."""
    place = {"dtype": model.dtype}
    caches = {
        "growing": kvlearn.GrowingCache(model.config, **place),
        "preallocated": kvlearn.StaticCache(model.config, 1, len(prompt) + NEW_TOKENS, **place),
    }
    filled = DynamicCache(config=peer.config)
    start = torch.tensor([prompt[:-1]])
    for cache in caches.values():
        model(start, cache, last_only=True)
    peer(start, logits_to_keep=1, **{CACHE: filled})
    texts = {}

    def ours(name):
        cache = caches[name]
        seconds, texts[name] = steps(lambda token: model(token, cache, last_only=True), prompt[-1])
        cache.truncate(len(prompt) - 1)
        return seconds

    def theirs():
        seconds, texts["transformers"] = steps(
            lambda token: peer(token, logits_to_keep=1, **{CACHE: filled}).logits, prompt[-1]
        )
        filled.crop(-NEW_TOKENS)
        return seconds

    runs = {name: lambda name=name: ours(name) for name in caches} | {"transformers": theirs}
    if naive:  # each new token costs a pass over the whole sequence
        whole = torch.tensor([prompt])
        runs = {"naive": lambda: timed(lambda: model(whole, last_only=True))} | runs
    rounds = in_turns(runs)
    bytes_read = m.decode_bytes(model, len(prompt) + NEW_TOKENS // 2)
    return {
        "seconds_per_token": {name: m.median(seconds) for name, seconds in rounds.items()},
        "each_round": rounds,
        "same_tokens": texts["growing"] == texts["preallocated"] == texts["transformers"],
        "bytes_read": bytes_read,
        "bound_seconds": bytes_read / bandwidth,
    }


def steps(model, token: int) -> tuple[float, list[int]]:
    """Median seconds of the steps of one run, and its tokens."""
    seconds, tokens = [], [token]
    for _ in range(NEW_TOKENS):
        start = time.perf_counter()
        tokens.append(int(model(torch.tensor([tokens[-1:]])).argmax()))
        seconds.append(time.perf_counter() - start)
    return m.median(seconds), tokens


def prefill(model, peer, prompt: list[int], chunk: int) -> dict:
    """Seconds to read the prompt, `chunk` tokens at a time."""
    pieces = torch.tensor([prompt]).split(chunk, dim=1)

    def ours():
        cache = kvlearn.StaticCache(model.config, 1, len(prompt), dtype=model.dtype)
        return timed(lambda: [model(piece, cache, last_only=True) for piece in pieces])

    def theirs():
        cache = DynamicCache(config=peer.config)
        return timed(lambda: [peer(piece, logits_to_keep=1, **{CACHE: cache}) for piece in pieces])

    rounds = in_turns({"kvlearn": ours, "transformers": theirs})
    seconds = {name: m.median(times) for name, times in rounds.items()}
    return {"tokens": len(prompt), "chunk": chunk, "seconds": seconds, "each_round": rounds}


def timed(run) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def in_turns(runs: dict) -> dict[str, list[float]]:
    """The results of the runs, taken in turns. The first turn is a warm-up, dropped unless it was long."""
    rounds, started = {name: [] for name in runs}, time.perf_counter()
    for _ in range(ROUNDS + 1):
        for name, run in runs.items():
            rounds[name].append(run())
        if time.perf_counter() - started > ENOUGH_SECONDS:
            break
    return {name: times[1:] or times for name, times in rounds.items()}


def seconds(figures: dict) -> dict[str, float]:
    """The times that a later record of the same processor is compared with."""
    named = {}
    for setting in figures["settings"]:
        where = f"{setting['dtype']}, {setting['threads']} threads"
        for context, row in setting["decode"].items():
            named[f"decode at {context} ({where})"] = row["seconds_per_token"]["preallocated"]
        for row in setting["prefill"]:
            named[f"prefill of {row['tokens']} by {row['chunk']} ({where})"] = row["seconds"]["kvlearn"]
    return named


def table(figures: dict) -> str:
    """Markdown tables of the figures."""
    lines = [
        "## Decoding, milliseconds per token",
        "",
        "SmolLM2-135M, batch 1. The last three columns are ratios.",
        "",
        "| threads | dtype | context | naive | growing | preallocated | transformers | memory's bound "
        "| bound / preallocated | naive / preallocated | transformers / preallocated |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for setting in figures["settings"]:
        for context, row in setting["decode"].items():
            seconds = {"naive": None, **row["seconds_per_token"]}
            best = seconds["preallocated"]
            cells = [setting["threads"], setting["dtype"], context]
            cells += [
                "" if s is None else f"{1e3 * s:.1f}" for s in (*seconds.values(), row["bound_seconds"])
            ]
            cells += [f"{row['bound_seconds'] / best:.2f}"]
            cells += ["" if seconds["naive"] is None else f"{seconds['naive'] / best:.1f}"]
            cells += [f"{seconds['transformers'] / best:.2f}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        "## Prefilling, seconds",
        "",
        "| threads | dtype | tokens | tokens per chunk | kvlearn | transformers | transformers / kvlearn |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for setting in figures["settings"]:
        for row in setting["prefill"]:
            ours, theirs = row["seconds"]["kvlearn"], row["seconds"]["transformers"]
            cells = [setting["threads"], setting["dtype"], row["tokens"], row["chunk"]]
            cells += [f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.2f}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    speeds = {s["threads"]: s["read_bandwidth_bytes_per_second"] / 1e9 for s in figures["settings"]}
    said = ", ".join(f"{speed:.1f} GB/s with {threads} threads" for threads, speed in sorted(speeds.items()))
    return "\n".join([*lines, "", f"This machine reads {said} (10^9 bytes)."])
