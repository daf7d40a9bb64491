"""sequences_that_fit and crossover_batch: what the sizes are for."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_05.amounts import pick

GIB = 2**30


def _drawn(generator, low, high):
    return int(torch.randint(low, high, (1,), generator=generator))


def sequences_that_fit(memory, weight_bytes, token_bytes, tokens, block):
    """Oracle: one sequence after another takes its blocks, while there are some."""
    free = (memory - weight_bytes) // (block * token_bytes)  # whole blocks
    each = len(range(0, tokens, block))
    count = 0
    while free >= each:
        free, count = free - each, count + 1
    return count


def _fit_cases(generator):
    def case(label, memory, weights, token_bytes, tokens, block=16):
        inputs = {"memory": memory, "weight_bytes": weights, "token_bytes": token_bytes, "tokens": tokens,
                  "block": block}  # fmt: skip
        return Case(inputs, label)

    token_bytes = pick(generator, [57_344, 131_072, 147_456])
    tokens = 16 * _drawn(generator, 20, 40) + 1  # one token in its last block
    # So many that a pool without blocks, or a block more for each, holds another number of them.
    count = tokens // 15 + _drawn(generator, 3, 9)
    room = count * (tokens + 15) * token_bytes + token_bytes * _drawn(generator, 8, 15)
    full = 64 * _drawn(generator, 4, 8)  # no token in a block that is not full
    most = _drawn(generator, 30, 50) + 0.01 * _drawn(generator, 60, 90)  # and most of one more
    return [
        case("a card with room", 15 * GIB + room, 15 * GIB, token_bytes, tokens),
        case("full blocks of 64", 6 * GIB + int(most * full) * token_bytes, 6 * GIB, token_bytes, full, 64),
        # A pool that could be shared out to the last token would hold one sequence more.
        case("blocks of 256", 8 * GIB + 10 * 1280 * token_bytes, 8 * GIB, token_bytes, 1100, 256),
        case("weights that do not fit", 14 * GIB, 15 * GIB + _drawn(generator, 1, 9), token_bytes, 500),
    ]


def _fit(memory, weights, token_bytes, tokens, block, *, blocks=None):
    each = -(-tokens // block) if blocks is None else blocks(tokens, block)
    return int(max(memory - weights, 0) // (each * block * token_bytes))


FIT_MISCONCEPTIONS = (
    Misconception(
        "the weights were forgotten",
        lambda memory, weights, *sizes: _fit(memory, 0, *sizes),
        "The weights lie in the same memory, and they are there first. Only what they leave is for "
        "sequences.",
    ),
    Misconception(
        "a sequence was given part of a block",
        lambda memory, weights, token, tokens, block: max(memory - weights, 0) // (tokens * token),
        "Memory is handed out in whole blocks. A sequence with one token in its last block has taken "
        "that block.",
    ),
    Misconception(
        "a sequence was given part of a block, and too heavy weights a negative number",
        lambda memory, weights, token, tokens, block: (memory - weights) // (tokens * token),
        "Memory is handed out in whole blocks: a sequence with one token in its last block has taken that "
        "block. And where the weights alone are too large no sequence fits: that is 0.",
    ),
    Misconception(
        "every block was taken to have 16 tokens",
        lambda memory, weights, token, tokens, block: _fit(memory, weights, token, tokens, 16),
        "How many tokens a block has stands in `block`. In larger blocks more of the last one is wasted.",
    ),
    Misconception(
        "the number was rounded to the nearest",
        lambda memory, weights, token, tokens, block: round(
            max(memory - weights, 0) / (-(-tokens // block) * block * token)
        ),
        "A sequence that fits for the most part does not fit. It is served whole or not at all.",
    ),
    Misconception(
        "the last block of a sequence was left out",
        lambda *sizes: _fit(*sizes, blocks=lambda tokens, block: tokens // block),
        "Rounding down leaves the tokens of the last block without a place.",
    ),
    Misconception(
        "every sequence was given one block more, full or not",
        lambda memory, weights, token, tokens, block: max(memory - weights, 0) // ((tokens + block) * token),
        "A sequence takes the smallest number of whole blocks that hold it, not its length and a block "
        "on top.",
    ),
    Misconception(
        "a sequence that fits in part was counted",
        lambda memory, weights, token, tokens, block: (
            -(-max(memory - weights, 0) // (-(-tokens // block) * block * token))
        ),
        "A sequence is served whole or not at all, so the number is rounded down.",
    ),
    Misconception(
        "weights that do not fit gave a negative number of sequences",
        lambda memory, weights, token, tokens, block: (
            (memory - weights) // (-(-tokens // block) * block * token)
        ),
        "Where the weights alone are too large no sequence fits: that is 0.",
    ),
    Misconception(
        "the number of tokens that fit was given, not of sequences",
        lambda memory, weights, token, tokens, block: max(memory - weights, 0) // token,
        "The room in tokens is a step on the way. It is asked how many whole sequences they make.",
    ),
)


def _explain_count(case, got, want):
    return f"For {case.label} it is {want:,} and yours is {got:,}."


SEQUENCES_THAT_FIT = Exercise(
    name="sequences_that_fit",
    lesson=5,
    title="How many at once",
    minutes=10,
    difficulty=2,
    why="This is the number that a serving engine works out when it starts. It bounds how many people "
    "it serves at "
    "once.",
    signature="sequences_that_fit(memory, weight_bytes, token_bytes, tokens, block)",
    reference=sequences_that_fit,
    cases=_fit_cases,
    misconceptions=FIT_MISCONCEPTIONS,
    explain=_explain_count,
    hints=(
        "How many blocks does one sequence take? How many bytes are those?",
        "-(-a // b) is a divided by b, rounded up, in whole numbers.",
        "Then the rest of the memory, divided by that, rounded down, and never below 0.",
    ),
)


def crossover_batch(parameters, weight_bits, token_bytes, tokens):
    """Oracle: sequences are added until their caches together weigh more."""
    weights, cache, batch = parameters * weight_bits / 8, 0, 0
    while cache <= weights:
        cache, batch = cache + token_bytes * tokens, batch + 1
    return batch


def _crossover_cases(generator):
    token_bytes = pick(generator, [131_072, 147_456, 196_608])
    tokens = _drawn(generator, 700, 1500)

    def case(label, sequences, weight_bits, tokens=tokens):
        """Weights that are as heavy as so many sequences, whole or not."""
        parameters = int(sequences * token_bytes * tokens * 8 / weight_bits)
        inputs = {"parameters": parameters, "weight_bits": weight_bits, "token_bytes": token_bytes,
                  "tokens": tokens}  # fmt: skip
        return Case(inputs, label)

    return [
        case("weights in 16 bits", _drawn(generator, 7, 12) + 0.01 * _drawn(generator, 15, 45), 16),
        case("weights in 4 bits", _drawn(generator, 3, 6) + 0.01 * _drawn(generator, 55, 85), 4),
        case("a batch that weighs exactly as much", _drawn(generator, 5, 12), 8, tokens=500),
        case("a cache that is heavier at once", 0.01 * _drawn(generator, 15, 85), 16),
    ]


CROSSOVER_MISCONCEPTIONS = (
    Misconception(
        "rounded down: at this batch the weights still weigh more",
        lambda n, bits, token, tokens: n * bits // 8 // (token * tokens),
        "Divided and rounded down gives the last batch whose cache does not outweigh the weights.",
    ),
    Misconception(
        "equal was taken for more",
        lambda n, bits, token, tokens: -(-(n * bits // 8) // (token * tokens)),
        "Rounding up is right until a cache weighs exactly as much as the weights. Outweigh means more.",
    ),
    Misconception(
        "rounded to the nearest batch",
        lambda n, bits, token, tokens: max(round(n * bits / 8 / (token * tokens)), 1),
        "The first batch beyond is asked for. The nearest may still lie below.",
    ),
    Misconception(
        "bits were taken for bytes",
        lambda n, bits, token, tokens: n * bits // (token * tokens) + 1,
        "`weight_bits` are bits, and the cache is counted in bytes.",
    ),
    Misconception(
        "the weights were taken to be 16 bits wide",
        lambda n, bits, token, tokens: n * 2 // (token * tokens) + 1,
        "Weights in fewer bits are lighter, and the cache overtakes them earlier. That is the point of "
        "the question.",
    ),
    Misconception(
        "the number of tokens was given, not of sequences",
        lambda n, bits, token, tokens: n * bits // 8 // token + 1,
        "That many tokens weigh as much as the weights. Each sequence has `tokens` of them.",
    ),
)

CROSSOVER_BATCH = Exercise(
    name="crossover_batch",
    lesson=5,
    title="Where the cache takes over",
    minutes=10,
    difficulty=2,
    why="Far below this batch a decode step waits for the weights, and another sequence is nearly free. "
    "Above it most of what a step reads is cache.",
    signature="crossover_batch(parameters, weight_bits, token_bytes, tokens)",
    reference=crossover_batch,
    cases=_crossover_cases,
    misconceptions=CROSSOVER_MISCONCEPTIONS,
    explain=_explain_count,
    hints=(
        "How many bytes are the weights, and how many the cache of one sequence?",
        "Try it small: weights of 10 and sequences of 4 want 3 sequences; weights of 8 and sequences "
        "of 4 want 3 as well.",
    ),
)
EXERCISES = (SEQUENCES_THAT_FIT, CROSSOVER_BATCH)
