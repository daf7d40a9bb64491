"""quantize_int8: codes with a scale for each token; and what the next exercises share with it.

The oracle goes through Python's numbers, one token at a time.
"""

import torch
from torch.overrides import TorchFunctionMode

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception, WrongAnswer
from kvlearn.checks.explain import kind_of

AXES = {"x": "batch head token channel", "return": "batch head token channel"}


class NanInCodes(TorchFunctionMode):
    """A NaN that is cast to whole numbers becomes one that no right answer has.

    What a machine makes of it is not defined: often 0, which here would hide that something was divided by 0.
    """

    WRITES = (torch.Tensor.__setitem__, torch.Tensor.copy_)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in self.WRITES and _whole(args[0]) and _floating(args[-1]):
            args = (*args[:-1], args[-1].nan_to_num(_strange(args[0].dtype)))
        result = function(*args, **(kwargs or {}))
        given = args[0] if args else None
        if _whole(result) and _floating(given) and result.shape == given.shape:
            return result.masked_fill(given.isnan(), _strange(result.dtype))
        return result


def _whole(x) -> bool:
    return isinstance(x, torch.Tensor) and not x.is_floating_point() and x.dtype != torch.bool


def _floating(x) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _strange(dtype) -> int:
    return torch.iinfo(dtype).min or torch.iinfo(dtype).max  # -128 or 255


def tensors(back, count, names):
    """What came back as so many tensors, or a sentence; None for nothing."""
    if back is None or back is ...:
        return None
    if not isinstance(back, tuple | list) or len(back) != count:
        raise WrongAnswer(f"{count} tensors are wanted back: {names}. What came back is {kind_of(back)}.")
    for item in back:
        if not isinstance(item, torch.Tensor):
            raise WrongAnswer(f"{count} tensors are wanted back: {names}. One of them is {kind_of(item)}.")
    return back


def stretched(*shape, generator, dtype=torch.float32):
    """Random numbers in which some tokens are far larger than others, none of them half-way between codes."""
    x = randn(generator, *shape, dtype=torch.float64)
    sizes = torch.logspace(-2, 2, shape[-2], dtype=torch.float64)[:, None]
    return (x * sizes).to(dtype)


# -- one scale a token -----------------------------------------------------------------------------------


def by_token(x, one):
    """Codes and what belongs to them of each token, by a function of a list of numbers."""
    rows = [one(row) for row in x.double().flatten(0, -2).tolist()]
    codes, *metadata = zip(*rows, strict=True)
    shape = (*x.shape[:-1], 1)
    return torch.tensor(codes).reshape(x.shape), *(
        torch.tensor(m, dtype=torch.float64).reshape(shape).to(x.dtype) for m in metadata
    )


def quantize_int8(x):
    """Oracle: one token at a time."""

    def one(row):
        scale = max(abs(number) for number in row) / 127
        return [round(number / scale) if scale else 0 for number in row], scale

    codes, scale = by_token(x, one)
    return codes.to(torch.int8), scale


def _int8_cases(generator):
    with_zeros = stretched(2, 3, 5, 7, generator=generator)
    with_zeros[1, 2, 3] = 0.0
    return [
        Case({"x": stretched(2, 3, 4, 6, generator=generator)}, "tokens of different sizes"),
        Case({"x": with_zeros}, "a token of zeros"),
        Case({"x": stretched(3, 2, 1, 8, generator=generator)}, "one token"),
        Case({"x": stretched(2, 3, 4, 6, generator=generator) * 1e-6}, "tiny numbers"),
        Case({"x": stretched(1, 2, 5, 4, generator=generator, dtype=torch.float64)}, "float64"),
    ]


def _observe_int8(answer, case):
    with NanInCodes():
        back = tensors(answer(case["x"]), 2, "the codes and the scales")
    if back is None:
        return None
    codes, scale = back
    used = (case["x"] != 0).any(dim=-1, keepdim=True)  # the scale of a token of zeros is free
    seen = scale.where(used, 0.0) if scale.shape == used.shape else scale
    if not scale.isfinite().all():
        seen = scale
    return {"codes": codes, "scale": seen}


def _explain_int8(case, got, want):
    if not got["scale"].isfinite().all():
        return "A scale is not a finite number, and so will be all that its token gives back."
    return explain_codes(case, got["codes"], want["codes"])


def explain_codes(case, got, want):
    """The first code that differs, with the number that it stands for."""
    different = (got != want).nonzero()
    if not len(different):
        return None
    at = tuple(different[0].tolist())
    b, h, t, d = at
    return (
        f"In row {b}, head {h}, token {t}, the number {case['x'][at].item():.4g} of channel {d} should "
        f"have the code {want[at].item()}; it has {got[at].item()}."
    )


def _int8(x, largest=127, round_=torch.round, dim=-1, dtype=torch.int8):
    scale = x.abs().amax(dim=dim, keepdim=True) / largest
    return round_(x / scale.masked_fill(scale == 0, 1)).to(dtype), scale


def _no_guard(x):
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


def _scale_kept_up(x):
    scale = (x.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=1e-5)
    return (x / scale).round().to(torch.int8), scale


def _one_scale(x):
    codes, scale = _int8(x, dim=(0, 1, 2, 3))
    return codes, scale.expand(*x.shape[:-1], 1).clone()


def _over_the_batch(x):
    codes, scale = _int8(x, dim=(0, 3))
    return codes, scale.expand(*x.shape[:-1], 1).clone()


def _without_abs(x):
    scale = x.amax(dim=-1, keepdim=True) / 127
    scale = scale.where(scale != 0, torch.ones_like(scale))
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


def _unsigned(x):
    codes, scale = _int8(x, dtype=torch.int16)
    return codes.bitwise_and(255).to(torch.uint8), scale


QUANTIZE_INT8 = Exercise(
    name="quantize_int8",
    lesson=8,
    title="Eight bits, one scale a token",
    minutes=10,
    difficulty=1,
    why="Everything in this lesson is this: a number is kept as a small whole number of steps, and the "
    "size of the step is kept beside it.",
    signature="quantize_int8(x)",
    reference=quantize_int8,
    cases=_int8_cases,
    observe=_observe_int8,
    explain=_explain_int8,
    axes=AXES,
    misconceptions=(
        Misconception(
            "the scale is kept above a fixed number",
            _scale_kept_up,
            "It guards against a division by zero, and it also takes the codes of a token whose numbers are "
            "all small: they become 0. Only a scale of exactly 0 needs a guard.",
        ),
        Misconception(
            "a token of zeros divides by zero",
            _no_guard,
            "Its largest number is 0, so its scale is 0, and 0 / 0 is NaN. What a cast to int8 makes of NaN "
            "is not defined: your torch may give 0, this check gives -128. A cache holds such tokens: "
            "padding, for one (openvinotoolkit/openvino#28326).",
        ),
        Misconception(
            "one scale for everything",
            _one_scale,
            "The largest token decides how coarse the steps of all the others are. The small ones here "
            "become zeros.",
        ),
        Misconception(
            "a scale that is shared by the rows of the batch",
            _over_the_batch,
            "What one text gets then depends on who sits beside it in the batch. No scale crosses rows.",
        ),
        Misconception(
            "the largest number, and not the largest distance from 0",
            _without_abs,
            "The scale has to reach the negative numbers, too. Where they are larger, they are cut off here.",
        ),
        Misconception(
            "the scale is the largest number divided by 128",
            lambda x: _int8(x, 128, lambda steps: steps.round().clamp(max=127)),
            "int8 ends at 127 on the positive side. With 128 the largest number would be step 128, and is "
            "cut.",
        ),
        Misconception(
            "the steps are cut off, not rounded",
            lambda x: _int8(x, round_=torch.trunc),
            "Converting to an integer throws the fraction away. The error is then up to a whole step, and "
            "always towards 0.",
        ),
        Misconception(
            "the steps are rounded down",
            lambda x: _int8(x, round_=torch.floor),
            "Negative numbers move away from 0 and positive ones towards it, so all come out too small. The "
            "nearest code is wanted.",
        ),
        Misconception(
            "the codes are uint8, and negative ones wrap round",
            _unsigned,
            "uint8 has no sign: -1 becomes 255. Symmetric codes lie on both sides of 0.",
        ),
    ),
    hints=(
        "The largest |number| of a token should become 127 steps. How large is one step?",
        "amax has keepdim=True, which makes the division fit each token.",
        "What do you divide by where the scale is 0? Any other number does: the token has only zeros.",
    ),
)
