"""quantised_bytes: codes, scales, zeros, and the tokens that are not quantised yet."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_05.amounts import explain_size, observe_size, pick

META = 4  # bytes of a scale and a zero


def quantised_bytes(tokens, head_dim, bits, quant_group, residual):
    """Oracle: tokens come one by one, and move into codes as the scheme says."""
    recent_keys = recent_values = 0
    used = 0
    for _token in range(tokens):
        recent_keys, recent_values = recent_keys + 1, recent_values + 1
        if recent_keys == residual + quant_group:  # a whole group has left the window
            recent_keys -= quant_group
            used += quant_group * head_dim * bits // 8 + head_dim * META
        if recent_values > residual:
            recent_values -= 1
            used += head_dim * bits // 8 + head_dim // quant_group * META
    return used + (recent_keys + recent_values) * head_dim * 2


def _cases(generator):
    def drawn(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    def case(label, tokens, head_dim, bits, group, residual):
        inputs = {
            "tokens": tokens,
            "head_dim": head_dim,
            "bits": bits,
            "quant_group": group,
            "residual": residual,
        }
        return Case(inputs, label)

    residual = pick(generator, [40, 100, 136])
    return [
        case(
            "4 bits and a residual window", residual + 32 * drawn(4, 9) + drawn(3, 30), 128, 4, 32, residual
        ),
        case("2 bits, groups of 16", 48 + 16 * drawn(6, 12) + drawn(2, 14), 96, 2, 16, 48),
        case("a text inside the window", drawn(20, 60), 128, 4, 32, 72),
    ]


def _one_scale_a_token(tokens, dim, bits, group, residual):
    more = max(tokens - residual, 0) * (dim // group - 1) * META
    return _bytes(tokens, dim, bits, group, residual) - more


def _bytes(tokens, head_dim, bits, group, residual, *, keys=None, values=None, meta=META, unit=8, full=None):
    """The scheme, with one part exchanged: tokens in codes on each side, bytes of a group, tokens in full."""
    outside = max(tokens - residual, 0)
    keys = outside // group * group if keys is None else keys(outside)
    values = outside if values is None else values(outside)
    codes = (keys + values) * head_dim * bits // unit
    scales = (keys // group * head_dim + values * (head_dim // group)) * meta
    full = 2 * tokens - keys - values if full is None else full(tokens, keys, values)
    return codes + scales + full * head_dim * 2


MISCONCEPTIONS = (
    Misconception(
        "scales and zeros were forgotten",
        lambda *sizes: _bytes(*sizes, meta=0),
        "Codes alone cannot be turned back: each group also keeps a scale and a zero, and at few bits "
        "they are a good "
        "part of the whole.",
    ),
    Misconception(
        "only the scales were counted, not the zeros",
        lambda *sizes: _bytes(*sizes, meta=2),
        "Each group has two numbers of its own: a scale, and a zero where its codes begin.",
    ),
    Misconception(
        "all tokens were taken to be codes",
        lambda tokens, dim, bits, group, residual: _bytes(tokens, dim, bits, group, 0),
        "The most recent tokens are kept in full, and they cost 16 bits a number.",
    ),
    Misconception(
        "the recent tokens were counted in full and as codes too",
        lambda tokens, dim, bits, group, residual: _bytes(
            tokens, dim, bits, group, residual,
            keys=lambda outside: tokens // group * group, values=lambda outside: tokens,
            full=lambda n, keys, values: 2 * min(n, residual),
        ),
        "A token is either in the residual window, in full, or outside it, as codes. It is not stored "
        "twice.",
    ),
    Misconception(
        "keys became codes token by token, as values do",
        lambda *sizes: _bytes(*sizes, keys=lambda outside: outside),
        "A scale of the keys covers a whole group of tokens. While a group is not full its keys stay "
        "as they are.",
    ),
    Misconception(
        "values waited for a whole group, as keys do",
        lambda tokens, dim, bits, group, residual: _bytes(
            tokens, dim, bits, group, residual, values=lambda outside: outside // group * group
        ),
        "A scale of the values lies within one token, so each token can become codes as soon as it "
        "leaves the window.",
    ),
    Misconception(
        "scales and zeros were taken to be four bytes each",
        lambda *sizes: _bytes(*sizes, meta=8),
        "Here a scale and a zero are in 16 bits, two bytes each.",
    ),
    Misconception(
        "a token's values were given one scale and one zero",
        _one_scale_a_token,
        "A scale covers `quant_group` channels of a value, and a value has several such groups.",
    ),
    Misconception(
        "bits were taken for bytes",
        lambda *sizes: _bytes(*sizes, unit=1),
        "A code of 4 bits takes half a byte: two of them share one.",
    ),
    Misconception(
        "the residual window was one token too short",
        lambda tokens, dim, bits, group, residual: _bytes(tokens, dim, bits, group, residual - 1),
        "The last `residual` tokens are in full, all of them.",
    ),
)  # fmt: skip

QUANTISED_BYTES = Exercise(
    name="quantised_bytes",
    lesson=5,
    title="What 4 bits really cost",
    minutes=20,
    difficulty=3,
    why="A 4-bit cache is not a quarter of a 16-bit one. What comes on top decides whether it is worth "
    "it, and how long "
    "a text must be until it is.",
    signature="quantised_bytes(tokens, head_dim, bits, quant_group, residual)",
    reference=quantised_bytes,
    cases=_cases,
    misconceptions=MISCONCEPTIONS,
    observe=observe_size(quantised_bytes, MISCONCEPTIONS),
    explain=explain_size,
    hints=(
        "Do the keys and the values apart. For each: how many tokens are codes, and how many are in full?",
        "A text that fits into the residual window has no codes at all. max(..., 0) says so.",
        "Count the groups. Of the keys there is one for each channel and each whole group of tokens; "
        "of the values "
        "there are a few in each token.",
    ),
)
EXERCISES = (QUANTISED_BYTES,)
