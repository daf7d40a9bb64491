"""decode_intensity: how much arithmetic a byte of cache brings."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_05.amounts import pick


def decode_intensity(num_heads, num_kv_heads, key_width, value_width, bits):
    """Oracle: every multiplication and every addition of one query and one stored token, counted."""
    operations = 0
    for _head in range(num_heads):
        operations += len(["times", "plus"]) * key_width  # a score
        operations += len(["times", "plus"]) * value_width  # its part of the sum
    stored = [torch.empty(num_kv_heads, width, device="meta").numel() for width in (key_width, value_width)]
    return operations / (sum(stored) * bits / 8)


def _cases(generator):
    def case(label, heads, kv_heads, key_width, value_width, bits, equal=""):
        inputs = {"num_heads": heads, "num_kv_heads": kv_heads, "key_width": key_width,
                  "value_width": value_width, "bits": bits}  # fmt: skip
        return Case(inputs, label, equal)

    heads, kv_heads = pick(generator, [(24, 8), (40, 8), (28, 4), (64, 4)])
    return [
        case("grouped heads in 16 bits", heads, kv_heads, 128, 128, 16),
        case("one key/value head for 71", 71, 1, 64, 64, 16),
        case("one head each, in 32 bits", 9, 9, 80, 80, 32, "heads kv_heads"),
        case("narrow values, in 8 bits", 32, 2, 192, 128, 8),
        case("a quotient that is not round", 32, 2, 112, 96, 6),
        case("the example by hand", 2, 1, 4, 4, 16),
    ]


def _intensity(heads, kv_heads, key, value, bits, *, each=2):
    return each * heads * (key + value) / (kv_heads * (key + value) * bits / 8)


DECODE_INTENSITY = Exercise(
    name="decode_intensity",
    lesson=6,
    title="Operations a byte",
    minutes=10,
    difficulty=2,
    why="A GPU can do hundreds of operations in the time in which it reads one byte. This number says "
    "how far below that decoding stays, and why fewer key/value heads make it faster.",
    signature="decode_intensity(num_heads, num_kv_heads, key_width, value_width, bits)",
    reference=decode_intensity,
    cases=_cases,
    axes={"num_heads": "heads", "num_kv_heads": "kv_heads", "key_width": "key_width", "bits": "bits"},
    misconceptions=(
        Misconception(
            "a multiplication and its addition were counted as one",
            lambda *sizes: _intensity(*sizes, each=1),
            "They are two operations. The peak that a data sheet gives counts them as two.",
        ),
        Misconception(
            "the same number of heads was taken for the work and for the bytes",
            lambda heads, kv_heads, key, value, bits: _intensity(heads, heads, key, value, bits),
            "Each query head does work of its own, and the heads of a group read the same bytes. That there "
            "are more of the one than of the other is what sharing brings.",
        ),
        Misconception(
            "bits were taken for bytes",
            lambda heads, kv_heads, key, value, bits: _intensity(heads, kv_heads, key, value, 8 * bits),
            "`bits` is the width of a number in bits; eight of them are a byte.",
        ),
        Misconception(
            "the bits were divided by 8 before anything else, and the rest was dropped",
            lambda heads, kv_heads, key, value, bits: _intensity(heads, kv_heads, key, value, bits // 8 * 8),
            "A number of 6 bits takes three quarters of a byte. With `//` nothing is left of it.",
            raises=True,
        ),
        Misconception(
            "the result was rounded",
            lambda *sizes: round(_intensity(*sizes), 2),
            "The exact quotient is wanted. Rounding is for showing a number, not for working with it.",
        ),
        Misconception(
            "every number was taken to be two bytes",
            lambda heads, kv_heads, key, value, bits: _intensity(heads, kv_heads, key, value, 16),
            "A cache need not be in 16 bits. How wide a number is stands in `bits`.",
        ),
        Misconception(
            "the keys were read and the values were not",
            lambda heads, kv_heads, key, value, bits: 2 * heads * (key + value) / (kv_heads * key * bits / 8),
            "Both are read at every step: the keys for the scores and the values for the sum.",
        ),
        Misconception(
            "the scores were counted and the sum of values was not",
            lambda heads, kv_heads, key, value, bits: 2 * heads * key / (kv_heads * (key + value) * bits / 8),
            "After the softmax every weight multiplies a whole value, and the products are added up.",
        ),
        Misconception(
            "bytes for each operation, not operations for each byte",
            lambda *sizes: 1 / _intensity(*sizes),
            "Upside down: it is operations over bytes.",
        ),
    ),
    hints=(
        "Take one stored token and one query. What does a head compute with that token's key, and what with "
        "its value?",
        "Operations belong to query heads, bytes to key/value heads. A dot product of n numbers takes n "
        "multiplications and n additions.",
    ),
)
