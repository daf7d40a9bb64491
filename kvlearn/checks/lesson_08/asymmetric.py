"""quantize_asymmetric: a grid with a beginning of its own. The oracle goes one token at a time."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_08.integers import AXES, NanInCodes, by_token, explain_codes, stretched, tensors


def quantize_asymmetric(x, bits):
    """Oracle: one token at a time."""

    def one(row):
        low, high = min(row), max(row)
        scale = (high - low) / (2**bits - 1)
        return [round((number - low) / scale) if scale else 0 for number in row], scale, low

    codes, scale, zero = by_token(x, one)
    return codes.to(torch.uint8), scale, zero


def _asymmetric_cases(generator):
    constant = stretched(2, 3, 5, 7, generator=generator) + 1
    constant[0, 1, 2] = 3.5
    constant[1, 0, 4] = 0.0
    one_sided = stretched(3, 2, 4, 9, generator=generator).abs() + 5
    return [
        Case({"x": stretched(2, 3, 4, 6, generator=generator), "bits": 4}, "4 bits"),
        Case({"x": constant, "bits": 8}, "tokens of one number"),
        Case({"x": stretched(3, 2, 4, 7, generator=generator) * 1e-6, "bits": 5}, "tiny numbers"),
        Case({"x": one_sided, "bits": 2}, "2 bits, all numbers far from 0"),
        Case({"x": stretched(1, 2, 5, 8, generator=generator, dtype=torch.float64), "bits": 3}, "float64"),
    ]


def _observe_asymmetric(answer, case):
    with NanInCodes():
        back = tensors(answer(case["x"], case["bits"]), 3, "the codes, the scales and the zeros")
    if back is None:
        return None
    codes, scale, zero = back
    x = case["x"]
    spread = x.amax(dim=-1, keepdim=True) != x.amin(dim=-1, keepdim=True)
    seen = scale
    if scale.shape == spread.shape and scale.isfinite().all():
        seen = scale.where(spread, 0.0)  # without spread any finite scale will do
    return {"codes": codes, "scale": seen, "zero": zero}


def _explain_asymmetric(case, got, want):
    if not got["scale"].isfinite().all():
        return "A scale is not a finite number, and so will be all that its token gives back."
    return explain_codes(case, got["codes"], want["codes"])


def _asymmetric(x, bits, codes=lambda bits: 2**bits - 1, dim=-1, include_zero=False, round_=torch.round):
    low, high = x.amin(dim=dim, keepdim=True), x.amax(dim=dim, keepdim=True)
    if include_zero:
        low, high = low.clamp(max=0), high.clamp(min=0)
    scale = (high - low) / codes(bits)
    steps = round_((x - low) / scale.masked_fill(scale == 0, 1)).clamp(0, 2**bits - 1)
    shape = (*x.shape[:-1], 1)
    return steps.to(torch.uint8), scale.expand(shape).clone(), low.expand(shape).clone()


def _wraps(x, bits):
    _, scale, zero = _asymmetric(x, bits)
    steps = (x / scale.masked_fill(scale == 0, 1)).round().nan_to_num().double()
    return (steps % 256).to(torch.uint8), scale, zero


def _constant_divides(x, bits):
    zero = x.amin(dim=-1, keepdim=True)
    scale = (x.amax(dim=-1, keepdim=True) - zero) / (2**bits - 1)
    return ((x - zero) / scale).round().to(torch.uint8), scale, zero


def _constant_forgotten(x, bits):
    codes, scale, zero = _asymmetric(x, bits)
    return codes, scale, zero.where(scale != 0, torch.zeros_like(zero))


QUANTIZE_ASYMMETRIC = Exercise(
    name="quantize_asymmetric",
    lesson=8,
    title="A scale and a zero",
    minutes=15,
    difficulty=2,
    why="With four or two bits a code is too dear to be spent on numbers that a group does not have. Here "
    "the grid begins at the smallest number and ends at the largest.",
    signature="quantize_asymmetric(x, bits)",
    reference=quantize_asymmetric,
    cases=_asymmetric_cases,
    observe=_observe_asymmetric,
    explain=_explain_asymmetric,
    axes=AXES,
    misconceptions=(
        Misconception(
            "a token of one number divides by zero",
            _constant_divides,
            "Its largest and its smallest number are the same, so its scale is 0, and 0 / 0 is NaN. (Your "
            "torch may cast it to 0; this check makes it 255.) Every number is then the zero, and a code of "
            "0 says so.",
        ),
        Misconception(
            "a token of one number becomes zeros",
            _constant_forgotten,
            "A token without spread is not a token of zeros: its number is the zero of its grid.",
        ),
        Misconception(
            "as many steps as there are codes",
            lambda x, bits: _asymmetric(x, bits, lambda bits: 2**bits),
            "Between 16 codes there are 15 steps. With 16 the largest number has no code and is cut off.",
        ),
        Misconception(
            "the zero was not subtracted, and uint8 wraps round",
            _wraps,
            "A code counts steps from the smallest number. Counted from 0, the negative ones come out as "
            "codes near 255.",
        ),
        Misconception(
            "the grid always reaches 0",
            lambda x, bits: _asymmetric(x, bits, include_zero=True),
            "Where all numbers lie on one side of 0, codes are spent on numbers that nobody has.",
        ),
        Misconception(
            "a scale that is shared by the rows of the batch",
            lambda x, bits: _asymmetric(x, bits, dim=(0, 3)),
            "What one text gets then depends on who sits beside it in the batch. No scale crosses rows.",
        ),
        Misconception(
            "the steps are cut off, not rounded",
            lambda x, bits: _asymmetric(x, bits, round_=torch.floor),
            "Converting to an integer throws the fraction away; the error is then up to a whole step.",
        ),
    ),
    hints=(
        "Two numbers describe the grid of a token: where it begins, and how far apart its points are.",
        "A code of `bits` bits goes from 0 to 2**bits - 1. The smallest number should get the first, the "
        "largest the last.",
        "Subtract first, then divide, then round, then make it uint8.",
    ),
)
