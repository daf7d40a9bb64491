"""Each kind of cache beside the others: its bytes at 4,096 tokens, and its milliseconds a token.

Bytes are those of the caches alone, in float16 and the shape of SmolLM2-135M: a prompt of 4,095 tokens in one
chunk, then one token more. What a step hands back counts: a quantised cache puts the keys and values of a
layer together as numbers, and of a prompt in one chunk it has a layer's numbers twice while it makes codes.

Times are those of the model in float32, which is what a CPU multiplies well. A text is read once; its keys
and values are written into every cache, and then the caches take turns, a run of some tokens each. They go
on from where they were, so that in each turn all have the same length.
"""

import time

import torch

import kvlearn
from benchmarks.decode import TEXT
from kvlearn import measure as m
from kvlearn import sizing
from kvlearn.cache import GrowingCache, LatentCache, QuantizedCache, SlidingWindowCache, StaticCache
from kvlearn.quantization import QuantSpec
from kvlearn.weights import fetch

TOKENS = 4096  # of the bytes
WINDOW = 1024
CODES = ("int8", "fp8", "int4", "int2")
RESIDUAL = 32
CONTEXTS = (512, 2048, 4096)
NEW_TOKENS = 8  # of a run
ROUNDS = 3


def specs(kind: str) -> tuple[QuantSpec, QuantSpec]:
    """Keys by channel, values by token (KIVI, arXiv 2402.02750), in groups of 32."""
    return QuantSpec(kind, axis="channel"), QuantSpec(kind, axis="token")


def caches(config, slots: int, dtype: torch.dtype) -> dict:
    """name -> a function that makes an empty cache for that many slots."""
    makers = {
        "growing": lambda: GrowingCache(config, dtype=dtype),
        "preallocated": lambda: StaticCache(config, max_length=slots, dtype=dtype),
        f"window of {WINDOW:,}": lambda: SlidingWindowCache(config, WINDOW, dtype=dtype),
    }
    for kind in CODES:
        makers[kind] = lambda kind=kind: QuantizedCache(config, *specs(kind), RESIDUAL, dtype=dtype)
    return makers


def measure() -> dict:
    """Bytes of each kind, and seconds a token at each context."""
    model, tokenizer = kvlearn.load(fetch("smollm2-135m"))
    text = tokenizer.encode(TEXT)
    contexts = {}
    for context in CONTEXTS:
        contexts[context] = _seconds(model, (text * (context // len(text) + 1))[:context])
    return {"tokens": TOKENS, "bytes": _bytes(model.config), "rounds": ROUNDS, "contexts": contexts}


# Bytes -----------------------------------------------------------------------------------------------


def _bytes(config) -> dict:
    dtype = torch.float16
    shape = sizing.ModelShape.from_config(config)
    rows = {name: _alone(make) for name, make in caches(config, TOKENS, dtype).items()}
    predicted = dict.fromkeys(rows, sizing.cache_bytes(shape, TOKENS, dtype=dtype))
    predicted[f"window of {WINDOW:,}"] = sizing.cache_bytes(shape.but(windows=WINDOW), TOKENS, dtype=dtype)
    for kind in CODES:
        layout = sizing.from_specs(*specs(kind), RESIDUAL, dtype)
        predicted[kind] = sizing.cache_bytes(shape, TOKENS, dtype=layout)
    # Latent attention in DeepSeek-V2's proportions (arXiv 2405.04434): 4 and 1/2 head_dims a token.
    latent, rope = 4 * config.head_dim, config.head_dim // 2
    rows["latent"] = _alone(lambda: LatentCache(config, latent_dim=latent, rope_dim=rope, dtype=dtype))
    shape = shape.but(latent_dim=latent, rope_dim=rope)
    predicted["latent"] = sizing.cache_bytes(shape, TOKENS, dtype=dtype)
    return {name: {"predicted_used_bytes": predicted[name], **row} for name, row in rows.items()}


def _alone(make) -> dict:
    """Bytes of a cache that the steps of a model are written into, without the model."""
    sides = (make().key_shape, make().value_shape)
    steps = [[torch.zeros(1, heads, n, dim, dtype=torch.float16) for heads, dim in sides]
             for n in (TOKENS - 1, 1)]  # fmt: skip
    with m.StorageMeter() as meter:  # which does not count what was there before it
        cache = make()
        for step in steps:
            for layer in range(cache.num_layers):
                cache.update(layer, *step)
            meter.mark()
    return {
        "used_bytes": cache.used_bytes,
        "allocated_bytes": cache.allocated_bytes,
        "peak_bytes_of_the_prompt": meter.peaks[0],
        "peak_bytes_of_a_step": meter.peaks[1],
    }


# Time ------------------------------------------------------------------------------------------------


def _seconds(model, prompt: list[int]) -> dict:
    """Median seconds a token of each kind, and of each round."""
    exact = Prefilled(model.config)
    model(torch.tensor([prompt]), exact, last_only=True)
    room = len(prompt) + (ROUNDS + 1) * NEW_TOKENS
    filled = {}
    for name, make in caches(model.config, room, torch.float32).items():
        filled[name] = make()
        for layer in range(model.config.num_layers):
            filled[name].update(layer, *exact.layer(layer))
    rounds = {name: [] for name in filled}
    for turn in range(ROUNDS + 1):
        for name, cache in filled.items():
            seconds = _run(model, cache, prompt[-1])
            if turn:  # the first turn warms up
                rounds[name].append(seconds)
    return {"seconds_per_token": {name: m.median(times) for name, times in rounds.items()}, "each": rounds}


def _run(model, cache, token: int) -> float:
    """Median seconds of the steps of one run. Which token is fed makes no difference to the time."""
    seconds = []
    for _ in range(NEW_TOKENS):
        start = time.perf_counter()
        model(torch.tensor([[token]]), cache, last_only=True)
        seconds.append(time.perf_counter() - start)
    return m.median(seconds)


class Prefilled(GrowingCache):
    """A cache whose keys and values can be taken out."""

    def layer(self, layer: int):
        """(keys, values), (B, Hkv, S, D) each."""
        return self._keys[layer], self._values[layer]


# The page --------------------------------------------------------------------------------------------


def table(figures: dict) -> str:
    """Two Markdown tables of the figures."""
    tokens = figures["tokens"]
    lines = [
        f"## Each kind of cache: bytes at {tokens:,} tokens",
        "",
        "SmolLM2-135M's shape in float16, batch 1, the caches alone. Quantised: keys by channel, values by "
        f"token, groups of 32, the newest {RESIDUAL} exact. Latent: 4 and 1/2 head_dims a token and layer.",
        "",
        "| cache | bytes a token | used, predicted | used | allocated | peak, a step | peak, the prompt |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    names = ("predicted_used_bytes", "used_bytes", "allocated_bytes", "peak_bytes_of_a_step",
             "peak_bytes_of_the_prompt")  # fmt: skip
    for kind, row in figures["bytes"].items():
        cells = [f"{row['used_bytes'] / tokens:,.0f}", *(f"{row[name]:,}" for name in names)]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    contexts = figures["contexts"]
    lines += [
        "",
        "## Each kind of cache: milliseconds a token",
        "",
        "SmolLM2-135M in float32, batch 1; in brackets, times what the growing cache takes.",
        "",
        f"| cache | {' | '.join(f'{int(context):,} tokens' for context in contexts)} |",
        "|---|" + "--:|" * len(contexts),
    ]
    for kind in next(iter(contexts.values()))["seconds_per_token"]:
        cells = []
        for row in contexts.values():
            seconds = row["seconds_per_token"]
            cells.append(f"{1e3 * seconds[kind]:.1f} ({seconds[kind] / seconds['growing']:.2f})")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)
