"""Right answers to the exercises of lesson 05, written in other ways and in other units."""

import math
from fractions import Fraction

import torch

from kvlearn.sizing.units import show_bytes

GIB = 2**30


# read_sizes


def read_by_questions(config):
    for inner in config.values():
        if isinstance(inner, dict) and "num_attention_heads" in inner:
            config = inner
    kv_heads, width = config.get("num_key_value_heads"), config.get("head_dim")
    if kv_heads is None:
        kv_heads = config["num_attention_heads"]
    if width is None:
        width = int(config["hidden_size"] / config["num_attention_heads"])
    return [config["num_hidden_layers"], kv_heads, width]


def read_with_tensors(config):
    c = {k: v for k, v in {**config, **config.get("text_config", {})}.items() if v is not None}
    heads = c["num_attention_heads"]
    found = (
        c["num_hidden_layers"],
        c.get("num_key_value_heads", heads),
        c.get("head_dim", c["hidden_size"] // heads),
    )
    return tuple(torch.tensor(number) for number in found)


# bytes_per_token


def token_in_kib(num_layers, num_heads, num_kv_heads, head_dim, hidden_size, bits):
    return f"~{num_layers * num_kv_heads * head_dim * bits / 4 / 1024:.4f} KiB per token"


def token_in_both_units(num_layers, num_heads, num_kv_heads, head_dim, hidden_size, bits):
    return show_bytes(num_layers * num_kv_heads * head_dim * bits // 4)


def token_in_floats(num_layers, num_heads, num_kv_heads, head_dim, hidden_size, bits):
    return 2.0 * num_layers * num_kv_heads * head_dim * (bits / 8)


def token_with_torch(num_layers, num_heads, num_kv_heads, head_dim, hidden_size, bits):
    keys = torch.zeros(num_layers, num_kv_heads, head_dim, dtype=torch.float16)
    return torch.tensor((keys.nbytes + torch.zeros_like(keys).nbytes) * bits // 16)


# cache_size


def size_in_gib(token_bytes, prompt, new_tokens, batch):
    return f"about {batch * (prompt + new_tokens - 1) * token_bytes / GIB:.6g} GiB"


def size_in_gb(token_bytes, prompt, new_tokens, batch):
    return (round(batch * (prompt + new_tokens - 1) * token_bytes / 10**9, 7), "GB")


def size_in_mib(token_bytes, prompt, new_tokens, batch):
    return f"{batch * (prompt + new_tokens - 1) * token_bytes / 2**20:,.3f} MiB"


def size_step_by_step(token_bytes, prompt, new_tokens, batch):
    total = batch * prompt * token_bytes
    while new_tokens > 1:
        total, new_tokens = total + batch * token_bytes, new_tokens - 1
    return total


# hybrid_bytes


def hybrid_of_layers(windows, num_kv_heads, head_dim, tokens):
    total = 0
    for window in windows:
        kept = min(tokens, window or tokens)
        total += 4 * kept * num_kv_heads * head_dim
    return total


def hybrid_in_mb(windows, num_kv_heads, head_dim, tokens):
    kept = torch.tensor([tokens if w is None else w for w in windows]).clamp(max=tokens).sum()
    return f"{int(kept) * 4 * num_kv_heads * head_dim / 1e6:.3f} MB"


# latent_bytes


def latent_in_kb(num_layers, num_heads, latent_dim, rope_dim, tokens):
    return f"{2 * tokens * num_layers * (latent_dim + rope_dim) / 1000:.3f} kB"


def latent_as_two(num_layers, num_heads, latent_dim, rope_dim, tokens):
    return sum(2 * tokens * width * num_layers for width in (latent_dim, rope_dim))


# quantised_bytes


def quantised_by_loop(tokens, head_dim, bits, quant_group, residual):
    total = 0
    full_groups = max(tokens - residual, 0) // quant_group
    for position in range(tokens):
        exact = 2 * head_dim
        codes = Fraction(head_dim * bits, 8) + Fraction(4 * head_dim, quant_group)
        total += codes if position < full_groups * quant_group else exact
        total += codes if position < tokens - residual else exact
    return int(total)


def quantised_by_bits(tokens, head_dim, bits, quant_group, residual):
    each = bits + 32 / quant_group  # bits of a number, scale and zero included
    values = max(tokens - residual, 0)
    keys = math.floor(values / quant_group) * quant_group
    return float(head_dim * sum(n * each + (tokens - n) * 16 for n in (keys, values)) / 8)


# sequences_that_fit


def fit_in_blocks(memory, weight_bytes, token_bytes, tokens, block):
    blocks = (memory - weight_bytes) // (block * token_bytes)
    return max(0, blocks // math.ceil(tokens / block))


def fit_by_rounding_up(memory, weight_bytes, token_bytes, tokens, block):
    if weight_bytes >= memory:
        return 0
    taken = tokens + (-tokens) % block
    return math.floor(Fraction(memory - weight_bytes, taken * token_bytes))


# crossover_batch


def crossover_with_floor(parameters, weight_bits, token_bytes, tokens):
    return math.floor(Fraction(parameters * weight_bits, 8 * token_bytes * tokens)) + 1


def crossover_by_search(parameters, weight_bits, token_bytes, tokens):
    batch = 1
    while 8 * batch * token_bytes * tokens <= parameters * weight_bits:
        batch += 1
    return torch.tensor(batch)


ALTERNATIVES = {
    "read_sizes": [read_by_questions, read_with_tensors],
    "bytes_per_token": [token_in_kib, token_in_both_units, token_in_floats, token_with_torch],
    "cache_size": [size_in_gib, size_in_gb, size_in_mib, size_step_by_step],
    "hybrid_bytes": [hybrid_of_layers, hybrid_in_mb],
    "latent_bytes": [latent_in_kb, latent_as_two],
    "quantised_bytes": [quantised_by_loop, quantised_by_bits],
    "sequences_that_fit": [fit_in_blocks, fit_by_rounding_up],
    "crossover_batch": [crossover_with_floor, crossover_by_search],
}
