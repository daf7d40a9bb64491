"""quantize_by_group: scales that belong to a channel over some tokens, or to a token over some channels.

The oracle cuts out one group after the other.
"""

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_08.integers import NanInCodes, tensors

AXES = {"x": "batch head token channel", "return": "batch head token channel"}


def quantize_by_group(x, bits, quant_group, axis):
    """Oracle: group by group, each a list of numbers."""
    B, H, T, D = x.shape
    tokens, channels = (quant_group, 1) if axis == "channel" else (1, quant_group)
    codes = torch.zeros_like(x, dtype=torch.uint8)
    scale = torch.zeros(B, H, T // tokens, D // channels, dtype=torch.float64)
    zero = torch.zeros_like(scale)
    numbers = x.double()
    for b in range(B):
        for h in range(H):
            for t in range(T // tokens):
                for d in range(D // channels):
                    place = b, h, slice(t * tokens, (t + 1) * tokens), slice(d * channels, (d + 1) * channels)
                    group = numbers[place]
                    low, step = group.min(), (group.max() - group.min()) / (2**bits - 1)
                    codes[place] = ((group - low) / (step or 1.0)).round().to(torch.uint8)
                    scale[b, h, t, d], zero[b, h, t, d] = step, low
    return codes, scale.to(x.dtype), zero.to(x.dtype)


def _draw(generator, *shape, dtype=torch.float32):
    x = randn(generator, *shape, dtype=torch.float64)
    x = x * torch.linspace(0.5, 5, shape[2])[:, None] * torch.linspace(3, 0.2, shape[3])
    return (x + torch.arange(shape[0])[:, None, None, None]).to(dtype)


def _cases(generator):
    def case(label, shape, bits, group, axis, dtype=torch.float32):
        x = _draw(generator, *shape, dtype=dtype)
        return Case({"x": x, "bits": bits, "quant_group": group, "axis": axis}, label)

    zeros = case("a group of zeros", (2, 3, 8, 5), 4, 4, "channel")
    zeros["x"][1, 2, 4:, 3] = 0.0
    constant = case("groups of one number", (3, 2, 6, 8), 4, 4, "token")
    constant["x"][2, 1, 4, :4] = 3.5
    constant["x"][0, 0, 1, 4:] = -0.25
    tiny = case("tiny numbers", (2, 3, 10, 4), 3, 5, "channel")
    tiny["x"].mul_(1e-7)
    return [
        case("by channel", (2, 3, 12, 8), 4, 4, "channel"),
        case("by token", (3, 2, 4, 12), 4, 6, "token"),
        zeros,
        constant,
        tiny,
        case("by channel, one group", (2, 4, 6, 3), 2, 6, "channel"),
        case("by token, float64", (1, 2, 5, 4), 8, 2, "token", torch.float64),
    ]


def _observe(answer, case):
    with NanInCodes():
        back = tensors(answer(*case.inputs.values()), 3, "the codes, the scales and the zeros")
    if back is None:
        return None
    codes, scale, zero = back
    want = quantize_by_group(*case.inputs.values())[1]
    if scale.shape == want.shape and scale.isfinite().all():
        scale = scale.where(want != 0, 0.0)  # of a group without spread any finite scale will do
    return {"scale": scale, "zero": zero, "codes": codes}


def _explain(case, got, want):
    if not got["scale"].isfinite().all():
        return "A scale is not a finite number, and so will be all that its group gives back."
    for name in ("scale", "zero"):
        different = ~torch.isclose(got[name].double(), want[name].double(), rtol=1e-4, atol=1e-6)
        if different.any():
            b, h, t, d = different.nonzero()[0].tolist()
            whose = f"group {t} of channel {d}" if case["axis"] == "channel" else f"group {d} of token {t}"
            return (
                f"The {name} of {whose} (row {b}, head {h}) should be {want[name][b, h, t, d].item():.4g}; "
                f"it is {got[name][b, h, t, d].item():.4g}."
            )
    return None


def _grouped(
    x, bits, quant_group, axis, reduce=None, guard=True, steps=lambda bits: 2**bits - 1, round_=torch.round
):
    """A right answer whose parts the misconceptions replace."""
    dim = -2 if axis == "channel" else -1
    groups = x.unflatten(dim, (-1, quant_group))
    low, high = groups.amin(dim, keepdim=True), groups.amax(dim, keepdim=True)
    if reduce is not None:
        low, high = (
            end.amin(reduce, keepdim=True).expand_as(end) if end is low
            else end.amax(reduce, keepdim=True).expand_as(end)
            for end in (low, high)
        )  # fmt: skip
    scale = (high - low) / steps(bits)
    codes = round_((groups - low) / (scale.masked_fill(scale == 0, 1) if guard else scale))
    codes = codes.clamp(max=2**bits - 1).to(torch.uint8).flatten(dim - 1, dim)
    return codes, scale.squeeze(dim).clone(), low.squeeze(dim).clone()


def _other_axis(x, bits, quant_group, axis):
    """The axis that is named is the one that is divided."""
    other = {"channel": "token", "token": "channel"}[axis]
    size = x.shape[-2 if other == "channel" else -1]
    group = quant_group if size % quant_group == 0 else size
    return _grouped(x, bits, group, other)


def _all_of_the_axis(x, bits, quant_group, axis):
    size = x.shape[-2 if axis == "channel" else -1]
    codes, scale, zero = _grouped(x, bits, size, axis)
    dim = -2 if axis == "channel" else -1
    return codes, *(m.repeat_interleave(size // quant_group, dim=dim) for m in (scale, zero))


def _strided(x, bits, quant_group, axis):
    """Groups of every n-th token in the place of neighbours."""
    dim = -2 if axis == "channel" else -1
    size = x.shape[dim]
    order = torch.arange(size).reshape(quant_group, -1).T.flatten()
    codes, scale, zero = _grouped(x.index_select(dim, order), bits, quant_group, axis)
    return codes.index_select(dim, order.argsort()), scale, zero


def _no_zero(x, bits, quant_group, axis):
    codes, scale, zero = _grouped(x, bits, quant_group, axis)
    return codes, scale, torch.zeros_like(zero)


def _no_zero_without_spread(x, bits, quant_group, axis):
    codes, scale, zero = _grouped(x, bits, quant_group, axis)
    return codes, scale, zero.where(scale != 0, 0.0)


def _not_squeezed(x, bits, quant_group, axis):
    codes, scale, zero = _grouped(x, bits, quant_group, axis)
    dim = -2 if axis == "channel" else -1
    return codes, *(m.repeat_interleave(quant_group, dim=dim) for m in (scale, zero))


QUANTIZE_BY_GROUP = Exercise(
    name="quantize_by_group",
    lesson=8,
    title="Scales by channel, scales by token",
    minutes=20,
    difficulty=3,
    why="Which numbers share a scale decides how much is lost. Keys have a few large channels, and a scale "
    "of their own keeps them from spoiling the rest.",
    signature="quantize_by_group(x, bits, quant_group, axis)",
    reference=quantize_by_group,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    axes=AXES,
    misconceptions=(
        Misconception(
            "a group of one number lost its zero",
            _no_zero_without_spread,
            "All its codes are 0, so the zero alone says which number it was: codes times scale, plus the "
            "zero.",
        ),
        Misconception(
            "the two axes changed places",
            _other_axis,
            "The axis owns the scale: by channel, each channel has a scale of its own, over some tokens. "
            "Here channels share a scale in which each was to have its own.",
        ),
        Misconception(
            "one group along the whole axis",
            _all_of_the_axis,
            "Each group of quant_group numbers has its own scale. Over all tokens a scale would have to "
            "change with every token that comes.",
        ),
        Misconception(
            "the rows of the batch share their scales",
            lambda *a: _grouped(*a, reduce=0),
            "A group over the batch: what one text gets depends on the others. No scale crosses rows.",
        ),
        Misconception(
            "the heads share their scales",
            lambda *a: _grouped(*a, reduce=1),
            "Each head has channels of its own; channel 3 of one has nothing to do with channel 3 of the "
            "next.",
        ),
        Misconception(
            "the groups are made of every n-th number",
            _strided,
            "A group is quant_group neighbours. The order of the two new axes in the reshape decides which "
            "ones are put together.",
        ),
        Misconception(
            "a group of zeros divides by zero",
            lambda *a: _grouped(*a, guard=False),
            "Without spread the scale is 0, and 0 / 0 is NaN (openvinotoolkit/openvino#28326). (Your torch "
            "may cast it to 0; this check makes it 255.)",
        ),
        Misconception(
            "as many steps as there are codes",
            lambda *a: _grouped(*a, steps=lambda bits: 2**bits),
            "Between 16 codes there are 15 steps. With 16 the largest number has no code and is cut off.",
        ),
        Misconception(
            "the steps are cut off, not rounded",
            lambda *a: _grouped(*a, round_=torch.floor),
            "Converting to an integer throws the fraction away; the error is then up to a whole step.",
        ),
        Misconception(
            "the zeros are dropped",
            _no_zero,
            "The codes count from each group's smallest number. Without it nobody can tell where they begin.",
        ),
        Misconception(
            "a scale for every number",
            _not_squeezed,
            "Spread out like that, the scales take more room than what was to be made smaller. One for "
            "each group is kept.",
        ),
    ),
    hints=(
        "Cut the axis along which numbers share a scale into two: which group, and where in it. "
        "unflatten does that.",
        "By channel, the tokens (axis -2) are cut: (B, H, groups, quant_group, D). The smallest and the "
        "largest are taken along the new axis of quant_group.",
        "Once the groups have an axis, this is quantize_asymmetric along it; then codes go back to the "
        "shape of x, and scale and zero lose the axis.",
    ),
)
