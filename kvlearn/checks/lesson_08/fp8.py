"""to_fp8: a clamp before the cast, on a torch whose cast does not do it itself.

Recent versions of torch turn 500 into 448, the largest e4m3; older ones turn it into NaN. So that an answer
without the clamp is seen on every version, the cast behaves as in older ones while the check runs.
"""

import torch
from torch.overrides import TorchFunctionMode

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception, WrongAnswer
from kvlearn.checks.explain import kind_of

E4M3, E4M3_MAX, NAN = torch.float8_e4m3fn, 448.0, 0x7F


class _OldCast(TorchFunctionMode):
    """What is too large for e4m3 becomes NaN, as it did before torch saturated."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        writes = function in (torch.Tensor.copy_, torch.Tensor.__setitem__)
        given = args[-1 if writes else 0] if args else None
        wide = isinstance(given, torch.Tensor) and given.dtype.is_floating_point and given.itemsize > 1
        if writes and wide and args[0].dtype == E4M3:
            return function(*args[:-1], _cast(given), **(kwargs or {}))
        result = function(*args, **(kwargs or {}))
        if wide and isinstance(result, torch.Tensor) and result.dtype == E4M3 and result.shape == given.shape:
            return _cast(given)
        return result


def _cast(x):
    lost = (x.abs() > 464) | x.isnan()  # 464 is half-way to what would follow 448
    return x.to(E4M3).view(torch.uint8).masked_fill(lost, NAN).view(E4M3)


def to_fp8(x, scale):
    """Oracle: every number of e4m3, and the nearest of them for each x."""
    steps = (x.double() / scale.double()).clamp(-E4M3_MAX, E4M3_MAX)
    grid = torch.arange(256, dtype=torch.uint8).view(E4M3).double()
    grid = grid[grid.isfinite()]
    nearest = (steps[..., None] - grid).abs().argmin(dim=-1)
    return grid[nearest].to(torch.float32).to(E4M3)


def _cases(generator):
    def case(label, shape, size, dtype=torch.float32, largest=None):
        x = randn(generator, *shape, dtype=torch.float64, size=size)
        if largest:
            x[..., [0, -1], 0] = largest  # at the smallest scale, and at the largest
            x[..., [0, -1], -1] = -largest
        scale = torch.linspace(0.5, 2, shape[-2], dtype=torch.float64)[:, None]
        x[0, 0, 1] = scale[0, 0] * (17 / 16 + 1e-4)  # a little above half-way: in float16 just half-way
        return Case({"x": x.to(dtype), "scale": scale.to(dtype)}, label)

    return [
        case("numbers that fit", (2, 3, 5), 20.0),
        case("numbers beyond 448", (3, 4, 6), 30.0, largest=900.0),
        case("one token, in float64", (4, 1, 7), 0.3, torch.float64),
        case("numbers far beyond 448", (2, 5, 4), 40.0, largest=1e6),
    ]


def _observe(answer, case):
    with _OldCast():
        back = answer(*case.inputs.values())
    if back is None or back is ...:
        return None
    if not isinstance(back, torch.Tensor):
        raise WrongAnswer(f"A tensor is wanted back; what came back is {kind_of(back)}.")
    return {"dtype": str(back.dtype), "numbers": back.double()}


def _explain(case, got, want):
    lost = got["numbers"].isnan()
    if lost.any():
        at = tuple(lost.nonzero()[0].tolist())
        number, right = case["x"][at].item(), want["numbers"][at].item()
        return f"The number {number:.4g} has become NaN; it should be {right}."
    return None


def _scales(x, scale):
    return (x / scale).clamp(-E4M3_MAX, E4M3_MAX)


def _clamp_first(x, scale):
    return (x.clamp(-E4M3_MAX, E4M3_MAX) / scale).to(E4M3)


def _one_side(x, scale):
    return (x / scale).clamp(max=E4M3_MAX).to(E4M3)


TO_FP8 = Exercise(
    name="to_fp8",
    lesson=8,
    title="Eight bits with a point",
    minutes=5,
    difficulty=1,
    why="A cast that overflows tells nobody. On some versions of torch it saturates and on others it makes "
    "NaN, and one NaN key spoils every later token.",
    signature="to_fp8(x, scale)",
    reference=to_fp8,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    axes={"x": "head token channel", "scale": "token one", "numbers": "head token channel"},
    misconceptions=(
        Misconception(
            "there is no clamp before the cast, or it comes too late",
            lambda x, scale: (x / scale).to(E4M3),
            "What is beyond 448 becomes NaN. (Your torch may do otherwise; this check casts as older "
            "versions do, pytorch/ao#1912.)",
        ),
        Misconception(
            "the clamp comes before the scale",
            _clamp_first,
            "It is the number of steps, x / scale, that must fit into e4m3, and not x.",
        ),
        Misconception(
            "only the positive side is clamped",
            _one_side,
            "-500 does not fit either.",
        ),
        Misconception(
            "the scale is left out",
            lambda x, scale: x.clamp(-E4M3_MAX, E4M3_MAX).to(E4M3),
            "The codes count in steps of the scale; whoever reads them multiplies by it.",
        ),
        Misconception(
            "multiplied by the scale",
            lambda x, scale: (x * scale).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3),
            "Dequantising multiplies by the scale, so quantising divides.",
        ),
        Misconception(
            "e5m2 in the place of e4m3",
            lambda x, scale: _scales(x, scale).to(torch.float8_e5m2),
            "Both have 8 bits. e5m2 reaches further and has one bit less behind the point; here e4m3 is "
            "asked for.",
        ),
        Misconception(
            "rounded to whole numbers first",
            lambda x, scale: _scales(x, scale).round().to(E4M3),
            "The cast rounds by itself, and e4m3 has numbers between 0 and 1.",
        ),
    ),
    hints=(
        "Three things happen, in this order: scale, clamp, cast.",
        "torch.float8_e4m3fn is the dtype; its largest number is 448.",
    ),
)
