"""bytes_per_token and cache_size: the formula that fits on a napkin."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_05.amounts import explain_size, observe_size, pick


def bytes_per_token(num_layers, num_heads, num_kv_heads, head_dim, hidden_size, bits):
    """Oracle: the keys and the values of one token as tensors without memory, layer by layer."""
    numbers = 0
    for _layer in range(num_layers):
        for _side in ("keys", "values"):
            numbers += torch.empty(num_kv_heads, head_dim, device="meta").numel()
    return numbers * bits // 8


def _token_cases(generator):
    def case(label, heads, kv_heads, head_dim, hidden, bits):
        layers = pick(generator, [22, 26, 30, 36, 42, 46])
        inputs = {"num_layers": layers, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim,
                  "hidden_size": hidden, "bits": bits}  # fmt: skip
        return Case(inputs, label)

    heads, kv_heads = pick(generator, [(24, 8), (28, 7), (40, 10), (48, 12)])
    head_dim = pick(generator, [64, 80, 96, 112])
    return [
        case("grouped heads in 16 bits", heads, kv_heads, head_dim, heads * head_dim, 16),
        case("heads wider than their share of the hidden size", 16, 8, 256, 3584, 16),
        case("one key/value head in 8 bits", heads, 1, 128, heads * head_dim, 8),
        case("4 bits", heads, kv_heads, 120, heads * 120, 4),
    ]


def _token(num_layers, num_heads, num_kv_heads, head_dim, hidden_size, bits, *, sides=2):
    return sides * num_layers * num_kv_heads * head_dim * bits // 8


TOKEN_MISCONCEPTIONS = (
    Misconception(
        "the query heads were counted, not the key/value heads",
        lambda layers, heads, kv_heads, dim, hidden, bits: _token(layers, heads, heads, dim, hidden, bits),
        "Queries are not stored. Where heads are grouped there are fewer key/value heads than query "
        "heads, and only "
        "what those give is kept.",
    ),
    Misconception(
        "head_dim was worked out from the hidden size",
        lambda layers, heads, kv_heads, dim, hidden, bits: _token(
            layers, heads, kv_heads, hidden // heads, hidden, bits
        ),
        "The width of a head is given, and it need not be the hidden size over the number of heads.",
    ),
    Misconception(
        "the hidden size was stored twice a layer",
        lambda layers, heads, kv_heads, dim, hidden, bits: 2 * layers * hidden * bits // 8,
        "A key is not as wide as the hidden state. It has the width of all key/value heads together, "
        "and those are "
        "fewer, or of another width.",
    ),
    Misconception(
        "the factor 2 was forgotten: keys or values, but not both",
        lambda *sizes: _token(*sizes, sides=1),
        "A token leaves a key and a value in every layer, and both are kept.",
    ),
    Misconception(
        "bits were taken for bytes",
        lambda *sizes: 8 * _token(*sizes),
        "`bits` counts bits, and a size is wanted in bytes: there are eight bits in one.",
    ),
    Misconception(
        "the bits were divided by 8 before anything else, and the rest was dropped",
        lambda layers, heads, kv_heads, dim, hidden, bits: _token(
            layers, heads, kv_heads, dim, hidden, 8 * (bits // 8)
        ),
        "A number of 4 bits takes half a byte, and two of them share one. Multiply first, and divide the "
        "whole by 8.",
    ),
    Misconception(
        "only one layer was counted",
        lambda layers, *sizes: _token(1, *sizes),
        "Every layer has keys and values of its own, and all of them are kept.",
    ),
    Misconception(
        "every number was taken to be two bytes",
        lambda layers, heads, kv_heads, dim, hidden, bits: _token(layers, heads, kv_heads, dim, hidden, 16),
        "A cache need not be in 16 bits. How wide a number is stands in `bits`.",
    ),
    Misconception(
        "the number of key/value heads was taken for the size of a group",
        lambda layers, heads, kv_heads, dim, hidden, bits: _token(
            layers, heads, heads // kv_heads, dim, hidden, bits
        ),
        "num_kv_heads is how many heads are stored. How many query heads share one of them is another "
        "number, and the "
        "cache does not depend on it.",
    ),
)

BYTES_PER_TOKEN = Exercise(
    name="bytes_per_token",
    lesson=5,
    title="Bytes of one token",
    minutes=10,
    difficulty=1,
    why="All other sizes are a multiple of this one. Whoever knows it for a model can do the rest in "
    "the head.",
    signature="bytes_per_token(num_layers, num_heads, num_kv_heads, head_dim, hidden_size, bits)",
    reference=bytes_per_token,
    cases=_token_cases,
    misconceptions=TOKEN_MISCONCEPTIONS,
    observe=observe_size(bytes_per_token, TOKEN_MISCONCEPTIONS),
    explain=explain_size,
    axes={"num_heads": "heads", "num_kv_heads": "kv_heads", "head_dim": "width", "num_layers": "layers"},
    hints=(
        "What does one token leave behind in one layer? Count numbers first and bytes at the end.",
        "Two of the six parameters do not matter at all.",
    ),
)


def cache_size(token_bytes, prompt, new_tokens, batch):
    """Oracle: every pass that a generation makes, and the tokens that it feeds."""
    fed = prompt
    for _ in range(new_tokens - 1):  # the first new token comes from the prompt's own pass
        fed += 1
    return token_bytes * fed * batch


def _size_cases(generator):
    def drawn(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    token_bytes = pick(generator, [22_528, 36_864, 57_344, 131_072, 327_680])
    return [
        Case({"token_bytes": token_bytes, "prompt": drawn(900, 1900), "new_tokens": drawn(100, 300),
              "batch": drawn(3, 9)}, "a batch with a prompt each"),
        Case({"token_bytes": token_bytes, "prompt": drawn(20, 40), "new_tokens": 1, "batch": 2},
             "one new token"),
        Case({"token_bytes": 819_200, "prompt": 1024, "new_tokens": 1025, "batch": 1},
             "a 13B model's 2,048 tokens"),
    ]  # fmt: skip


SIZE_MISCONCEPTIONS = (
    Misconception(
        "the last new token was counted as well",
        lambda token, prompt, new, batch: token * (prompt + new) * batch,
        "The last new token has been chosen, and nobody has fed it to the model yet: its key and value "
        "do not exist.",
    ),
    Misconception(
        "the batch was forgotten",
        lambda token, prompt, new, batch: token * (prompt + new - 1),
        "Each sequence of the batch has its own text, and so its own keys and values.",
    ),
    Misconception(
        "only the prompt was counted",
        lambda token, prompt, new, batch: token * prompt * batch,
        "Each new token that is fed leaves a key and a value too, as the prompt's tokens did.",
    ),
    Misconception(
        "only the new tokens were counted",
        lambda token, prompt, new, batch: token * new * batch,
        "The prompt is in the cache before the first new token is; that is what prefill is for.",
    ),
    Misconception(
        "the new tokens were counted once for the whole batch",
        lambda token, prompt, new, batch: token * (prompt * batch + new - 1),
        "Each sequence writes its own new tokens, so they are multiplied by the batch as the prompts are.",
    ),
    Misconception(
        "GB and GiB were mixed up",
        lambda token, prompt, new, batch: f"{token * (prompt + new - 1) * batch / 10**9:.6f} GiB",
        "GB is 10^9 bytes and GiB is 2^30, which is seven percent more. The number is that of one "
        "unit, and the "
        "name that of the other.",
    ),
)

CACHE_SIZE = Exercise(
    name="cache_size",
    lesson=5,
    title="A batch after its last token",
    minutes=10,
    difficulty=1,
    why="What a server holds while it generates is this: bytes a token, tokens fed, sequences. Off by "
    "one token or "
    "by seven percent, and the last request does not fit.",
    signature="cache_size(token_bytes, prompt, new_tokens, batch)",
    reference=cache_size,
    cases=_size_cases,
    misconceptions=SIZE_MISCONCEPTIONS,
    observe=observe_size(cache_size, SIZE_MISCONCEPTIONS),
    explain=explain_size,
    hints=(
        "How many tokens of one sequence have been fed to the model when its last new token is chosen?",
        "Lesson 04 counted the slots of a cache after a generation: they were one fewer than prompt "
        "and new tokens.",
    ),
)
EXERCISES = (BYTES_PER_TOKEN, CACHE_SIZE)
