"""kvlearn's quantised cache beside those of transformers, in transformers' own model, in one process.

    python3 dev.py python -m pip install optimum-quanto hqq
    python3 dev.py bench peers

(These two are backends of transformers' `QuantizedCache`; nothing else here needs them. quanto compiles an
extension in C++ the first time.) SmolLM2-135M in float32; of each cache

    bytes    of its tensors after a text: codes, scales, zeros, and what is still exact
    error    of the keys and of the values that the next step is given, over their norm
    recall   of five digits in the text, and the log-probability of a digit (`kvlearn.recall`)
    time     of a decode step, the caches taking turns

A text is read once, exactly, and its keys and values are given to every cache in one piece, as a prompt is.
transformers' caches then quantise all of it, and keep the next tokens exact until there are 128. kvlearn's
have no exact tokens here either, but for one scheme, which has the usual 32.
"""

import time

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, QuantizedCache
from transformers.utils import logging

import kvlearn
from benchmarks import recall_summary as summary
from benchmarks.decode import CACHE, TEXT
from kvlearn import measure as m
from kvlearn import recall
from kvlearn.hf import HFCache, cache_config, to_hf
from kvlearn.quantization import QuantSpec
from kvlearn.weights import fetch

LENGTHS, SAMPLES = (512, 1024), 12  # of the texts with digits
CONTEXTS, NEW_TOKENS, ROUNDS = (512, 2048), 8, 3  # of the times


def caches(model) -> dict:
    """name -> a function that makes an empty cache for one row."""
    config = cache_config(model)

    def ours(kind, group, keys="channel", residual=0):
        specs = QuantSpec(kind, keys, group), QuantSpec(kind, "token", group)
        return lambda: to_hf(kvlearn.QuantizedCache(config, *specs, residual), model)

    def theirs(backend, **options):
        return lambda: QuantizedCache(backend, model.config, **options)

    return {
        "DynamicCache, exact": lambda: DynamicCache(config=model.config),
        "fp8 transformers, one scale a layer": theirs("fp8"),
        "fp8 kvlearn, groups of 64": ours("fp8", 64),
        "int8 hqq, groups of 64": theirs("hqq", nbits=8, axis_key=1, axis_value=1),
        "int8 kvlearn, groups of 64": ours("int8", 64),
        "int4 quanto, groups of 64": theirs("quanto", nbits=4),
        "int4 hqq, groups of 64": theirs("hqq", nbits=4, axis_key=1, axis_value=1),
        "int4 kvlearn, groups of 64": ours("int4", 64),
        "int4 kvlearn, groups of 32, 32 exact": ours("int4", 32, residual=32),
        "int2 quanto, groups of 64": theirs("quanto", nbits=2),
        "int2 quanto, groups of 64, keys by channel": theirs("quanto", nbits=2, axis_key=-1),
        "int2 hqq, groups of 64": theirs("hqq", nbits=2, axis_key=1, axis_value=1),
        "int2 kvlearn, groups of 64": ours("int2", 64),
        "int2 kvlearn, groups of 32": ours("int2", 32),
    }


def measure() -> dict:
    """Bytes, errors, recall and seconds of each cache."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = fetch("smollm2-135m")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = kvlearn.load(folder)[1]
    filler, text = tokenizer.encode(recall.filler_text()), tokenizer.encode(TEXT)
    threads = torch.get_num_threads()
    with torch.inference_mode():
        torch.set_num_threads(1)  # the machine may be shared here; the numbers are the same
        texts = {length: _texts(model, tokenizer, filler, length) for length in LENGTHS}
        torch.set_num_threads(threads)
        print("Now the times: the machine should do nothing else.", flush=True)
        contexts = {n: _seconds(model, (text * (n // len(text) + 1))[:n]) for n in CONTEXTS}
    return {"samples": SAMPLES, "texts": texts, "rounds": ROUNDS, "contexts": contexts}


# Bytes, error, recall --------------------------------------------------------------------------------


def _texts(model, tokenizer, filler, length: int) -> dict:
    """name -> its figures over all texts of this length."""
    samples = {name: [] for name in caches(model)}
    for seed in range(SAMPLES):
        generator = torch.Generator().manual_seed(seed)
        drawn = recall.draw_passkey(tokenizer, length, filler, generator)
        exact = _read(model, drawn.context)
        for name, make in caches(model).items():
            cache = _filled(make(), exact)
            nbytes = stored_bytes(cache)
            right, log_probability = drawn.score(model(drawn.rest, **{CACHE: cache}).logits)
            keys, values = _errors(_filled(make(), exact), exact)
            samples[name].append((nbytes, keys, values, bool(right), float(log_probability)))
        print(f"{length} tokens: {seed + 1} of {SAMPLES} texts", flush=True)
    columns = {name: list(zip(*rows, strict=True)) for name, rows in samples.items()}
    *_, rights, log_probabilities = columns["DynamicCache, exact"]
    return {
        name: {
            "bytes": nbytes[0],
            "bits_of_a_number": 8 * nbytes[0] / _numbers(model.config, length),
            "relative_error_of_keys": m.median(keys),
            "relative_error_of_values": m.median(values),
            **summary.passkey_cell(*scores, (rights, log_probabilities)),
        }
        for name, (nbytes, keys, values, *scores) in columns.items()
    }


def _read(model, context: Tensor) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    model(context, logits_to_keep=1, **{CACHE: cache})
    return cache


def _filled(cache, exact: DynamicCache):
    """The cache, after it was given the keys and values of a text in one piece."""
    for layer, kept in enumerate(exact.layers):
        cache.update(kept.keys, kept.values, layer)
    return cache


def _errors(cache, exact: DynamicCache) -> tuple[float, float]:
    """Of keys and of values, the norm of all errors over the norm of all numbers."""
    errors, norms = torch.zeros(2), torch.zeros(2)
    for layer, kept in enumerate(exact.layers):
        one_more = kept.keys[:, :, -1:]
        given = cache.update(one_more, one_more, layer)
        for side, (back, right) in enumerate(zip(given, (kept.keys, kept.values), strict=True)):
            errors[side] += (back[:, :, :-1] - right).square().sum()
            norms[side] += right.square().sum()
    keys, values = (errors / norms).sqrt().tolist()
    return keys, values


def _numbers(config, length: int) -> int:
    """Numbers in the keys and values of a text."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * length


def stored_bytes(cache) -> int:
    """Bytes of the storages of all keys and values, codes, scales and zeros that the cache holds."""
    if isinstance(cache, HFCache):
        return cache.cache.allocated_bytes
    storages = {}
    for layer in cache.layers:
        for tensor in _tensors([value for name, value in vars(layer).items() if name != "device"]):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def _tensors(kept):
    """The plain tensors in lists, dictionaries, and tensors that are made of tensors (quanto's)."""
    if isinstance(kept, Tensor) and hasattr(kept, "__tensor_flatten__"):
        yield from _tensors([getattr(kept, name) for name in kept.__tensor_flatten__()[0]])
    elif isinstance(kept, Tensor):
        yield kept
    elif isinstance(kept, dict | list | tuple):
        for part in kept.values() if isinstance(kept, dict) else kept:
            yield from _tensors(part)


# Time ------------------------------------------------------------------------------------------------


def _seconds(model, prompt: list[int]) -> dict:
    """Median seconds a token of each cache, and of each round."""
    exact = _read(model, torch.tensor([prompt]))
    filled = {name: _filled(make(), exact) for name, make in caches(model).items()}
    rounds = {name: [] for name in filled}
    for turn in range(ROUNDS + 1):
        for name, cache in filled.items():
            seconds = []
            for _ in range(NEW_TOKENS):
                start = time.perf_counter()
                model(torch.tensor([prompt[-1:]]), **{CACHE: cache})
                seconds.append(time.perf_counter() - start)
            if turn:  # the first turn warms up
                rounds[name].append(m.median(seconds))
    return {"seconds_per_token": {name: m.median(times) for name, times in rounds.items()}, "each": rounds}


# The page --------------------------------------------------------------------------------------------


def table(figures: dict) -> str:
    """A Markdown table of the figures."""
    lengths, contexts = list(figures["texts"]), list(figures["contexts"])
    longest = lengths[-1]
    heads = ["cache", "bits", "error of keys", "of values"]
    for length in lengths:
        heads += [f"recall {length}", f"log-probability {length}"]
    heads += [f"ms {context}" for context in contexts]
    lines = [
        "## Quantised caches in transformers' model",
        "",
        "SmolLM2-135M of transformers in float32. Bits of a stored number, scales and zeros included (which "
        "transformers keeps in the model's dtype, here 32 bits, and kvlearn in 16), and errors, relative to "
        f"the norm, after {longest} tokens; pass keys recalled in {figures['samples']} texts a length; the "
        "mean log-probability of a digit; and milliseconds a token. Without one of its own, a scheme has "
        "scales by token; kvlearn's keys have them by channel.",
        "",
        f"| {' | '.join(heads)} |",
        "|---|" + "--:|" * (len(heads) - 1),
    ]
    for name, row in figures["texts"][longest].items():
        cells = [name, f"{row['bits_of_a_number']:.2f}"]
        cells += [f"{row[f'relative_error_of_{side}']:.3f}" for side in ("keys", "values")]
        for length in lengths:
            cell = figures["texts"][length][name]
            cells += [f"{cell['recall']:.2f}", f"{cell['log_probability']:.2f}"]
        cells += [f"{1e3 * figures['contexts'][n]['seconds_per_token'][name]:.0f}" for n in contexts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
