"""apply_rope: turn pairs of coordinates by position (arXiv 2104.09864), half-split as in HF's Llama."""

import cmath
import math

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_03 import rope_mistakes as mistakes


def apply_rope(x, positions, theta):
    """Oracle: each pair is one of Python's complex numbers, multiplied by one of length 1."""
    out = x.tolist()
    half = x.shape[-1] // 2
    for row, places in zip(out, positions.tolist(), strict=True):
        for head in row:
            for vector, position in zip(head, places, strict=True):
                for i in range(half):
                    angle = position / theta ** (i / half)
                    pair = complex(vector[i], vector[i + half]) * cmath.exp(1j * angle)
                    vector[i], vector[i + half] = pair.real, pair.imag
    return torch.tensor(out, dtype=x.dtype)


def _cases(generator):
    def draw(B, H, L, D, positions, theta, label, dtype=torch.float32):
        x = randn(generator, B, H, L, D, dtype=dtype)
        return Case({"x": x, "positions": torch.tensor(positions), "theta": theta}, label)

    return [
        draw(2, 3, 5, 8, [[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]], 10000.0, "two rows at other places"),
        draw(2, 3, 5, 8, [[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]], 300.0, "the same with another theta"),
        draw(2, 3, 5, 8, [[4, 5, 6, 7, 8], [1, 2, 3, 4, 5]], 300.0, "the same at other places"),
        draw(3, 2, 1, 6, [[5], [0], [9]], 100.0, "one token"),
        draw(1, 3, 4, 10, [[2, 3, 6, 7]], 500.0, "positions with a gap"),
        draw(1, 2, 3, 4, [[4999, 5000, 5001]], 10000.0, "positions around 5,000"),
        Case(
            {
                "x": torch.tensor([[[[1.0, 1.0, 0.0, 0.0]]]]),
                "positions": torch.tensor([[2]]),
                "theta": 16.0,
            },
            "the example by hand",
        ),
        draw(2, 3, 4, 12, [[299, 300, 301, 302], [500, 501, 502, 503]], 10000.0, "bfloat16", torch.bfloat16),
    ]


def _explain(case, got, want):
    """The first pair that was not turned as it should be: by how much it should, and by how much it was."""
    x, positions = case["x"].double(), case["positions"]
    got, want = got.double(), want.double()
    half = x.shape[-1] // 2
    wrong = (got - want).abs() > (0.1 if case["x"].dtype is torch.bfloat16 else 1e-4)
    if not wrong.any():
        return None
    b, h, token, channel = wrong.nonzero()[0].tolist()
    pair = [channel % half, channel % half + half]
    before, after, right = (torch.view_as_complex(t[b, h, token, pair].contiguous()) for t in (x, got, want))
    where = (
        f"Batch {b}, head {h}, the token at position {int(positions[b, token])}: pair {pair[0]} "
        f"(coordinates {pair[0]} and {pair[1]})"
    )
    if not math.isclose(before.abs(), after.abs(), rel_tol=3e-2):
        return (
            f"{where} had length {before.abs():.3f} and has {after.abs():.3f}. A turn leaves the length "
            "of each pair as it was."
        )
    if abs((after / right).angle()) < 1e-3:
        return None
    turned, wanted = (_three_digits((t / before).angle().item()) for t in (after, right))
    # The cases in float32 come first, so whoever hears of the one in bfloat16 has them right.
    coarse = " In float32 all is right: was something that makes the angle rounded to bfloat16's 8 bits?"
    return (
        f"{where} should be turned by {wanted} radians (full turns left out); yours is by {turned}."
        f"{coarse if case['x'].dtype is torch.bfloat16 else ''}"
    )


def _three_digits(angle):
    """Without the minus of a zero."""
    return f"{round(angle, 3) + 0.0:.3f}"


APPLY_ROPE = Exercise(
    name="apply_rope",
    lesson=3,
    title="Rotary positions",
    minutes=20,
    difficulty=2,
    why="Without it the model cannot tell one word order from another. Keys go into the cache turned, so "
    "every wrong angle is kept there for good. In lesson 04 the real model runs on yours.",
    signature="apply_rope(x, positions, theta)",
    reference=apply_rope,
    cases=_cases,
    explain=_explain,
    axes={
        "x": "batch head token channel",
        "positions": "batch token",
        "return": "batch head token channel",
    },
    misconceptions=(
        Misconception(
            "neighbouring coordinates were paired",
            mistakes.neighbours,
            "Pairs (0, 1), (2, 3), ... are the layout of the paper and of Meta's own files. Here, as in "
            "Hugging Face's Llama checkpoints, a coordinate of the first half goes with its like in the "
            "second half.",
        ),
        Misconception(
            "the positions were not used: counting began at 0",
            mistakes.from_zero,
            "Every text was taken to begin with this chunk. A token that arrives alone, as it will with a "
            "cache, would always stand at position 0 (pytorch/executorch#2010).",
        ),
        Misconception(
            "positions beyond 2,047 were all taken for 2,047",
            mistakes.table_ends,
            "A table of cosines and sines was made for a fixed number of positions. A position beyond its "
            "end has an angle of its own, and not the last one of the table.",
        ),
        Misconception(
            "the first row's positions were used for all rows",
            mistakes.first_row,
            "The rows of a batch stand at their own places; with padding they nearly always do.",
        ),
        Misconception(
            "positions were counted from 1",
            mistakes.from_one,
            "The first token stands at position 0 and is not turned at all. Scores would survive this, "
            "since they feel only distances; a cache that mixes the two ways of counting would not.",
        ),
        Misconception(
            "the exponent was i/D instead of 2i/D",
            mistakes.half_exponent,
            "There are D/2 pairs, so i runs only to D/2. With i/D the slow pairs turn much too fast: the "
            "slowest should hardly move.",
        ),
        Misconception(
            "the exponent was doubled once too often",
            mistakes.double_exponent,
            "An index that already goes in steps of 2 was multiplied by 2 again. The slow pairs then stand "
            "still.",
        ),
        Misconception(
            "the frequencies grow from pair to pair",
            mistakes.growing_frequencies,
            "The sign of the exponent is the wrong way round: the first pair is the fastest, at one radian "
            "a position, and each later one is slower.",
        ),
        Misconception(
            "the slow pairs come first",
            mistakes.slow_first,
            "The speeds are right and their order is reversed: pair 0 is the fastest.",
        ),
        Misconception(
            "all pairs turn at the same speed",
            mistakes.one_speed,
            "theta had no say. With one speed the model could not tell a distance from one a full turn "
            "further.",
        ),
        Misconception(
            "the angles were taken for degrees",
            mistakes.degrees,
            "The angles are in radians, as `cos` and `sin` take them. A conversion made all of them 57 "
            "times smaller.",
        ),
        Misconception(
            "turned clockwise",
            mistakes.clockwise,
            "The sign of the angle is flipped. Scores between your own vectors stay right, since both are "
            "turned the same wrong way; a model trained the other way, or a cache filled by other code, no "
            "longer fits.",
        ),
        Misconception(
            "turned twice",
            mistakes.twice,
            "Every angle is double what it should be. It happens when keys are turned on their way into a "
            "cache and again on their way out (NeuraLegion/shainet#110): each token seems to stand twice "
            "as far away.",
        ),
        Misconception(
            "both halves got the minus sign",
            mistakes.two_minuses,
            "Then both coordinates lose at once, and the pair is squeezed instead of turned. In a turn one "
            "of the two sines is taken away and the other is added.",
        ),
        Misconception(
            "neither half got the minus sign",
            mistakes.two_pluses,
            "Then both coordinates gain at once, and the pair is stretched instead of turned. In a turn "
            "one of the two sines is added and the other is taken away.",
        ),
        Misconception(
            "cosine and sine changed places",
            mistakes.cos_and_sin_swapped,
            "At position 0 nothing may move, and here everything does: the cosine of 0 is 1.",
        ),
        Misconception(
            "only the first half was turned",
            mistakes.second_half_kept,
            "Both coordinates of a pair change in a turn. The second half was given back as it came.",
        ),
        Misconception(
            "sines and cosines were added instead of turning",
            mistakes.added,
            "That is how the first Transformer marked positions: a vector is added to the input. RoPE adds "
            "nothing; it turns queries and keys and leaves their lengths alone.",
        ),
        Misconception(
            "the positions were rounded to the dtype of x",
            mistakes.positions_rounded,
            "bfloat16 has 8 bits of mantissa: beyond position 256 it no longer knows odd numbers, and "
            "neighbours get the same angle. Only the result has x's dtype.",
        ),
        Misconception(
            "the speeds were rounded to the dtype of x",
            mistakes.speeds_rounded,
            "bfloat16 has 8 bits of mantissa. A speed that is a little wrong makes an angle that is wrong by "
            "500 times as much at position 500. Only the result has x's dtype.",
        ),
        Misconception(
            "the angles were rounded to the dtype of x",
            mistakes.angles_rounded,
            "bfloat16 has 8 bits of mantissa: angles beyond 256 radians are rounded to even numbers. Take "
            "cosine and sine first; they are small and bear it.",
        ),
        Misconception(
            "the angles were computed in the dtype of x",
            mistakes.coarse_angles,
            "bfloat16 has 8 bits of mantissa: beyond position 256 it no longer knows odd numbers, and "
            "neighbours get the same angle. Angles are computed in float32; only the result has x's dtype.",
        ),
    ),
    hints=(
        "Three steps: a speed for each of the D/2 pairs, an angle for each position and pair, and the turn "
        "itself. Print the shape after each step.",
        "The angles have no head axis and x has one. Which axis must be put in, and where, so that the two "
        "fit?",
        "A point (a, b) turned by an angle keeps a times the cosine and loses b times the sine; what does "
        "b become? The a's are the first half of the channels, the b's the second.",
        "For bfloat16: do the positions and the speeds meet in float32? The result goes back to x's dtype "
        "at the end.",
    ),
)
