"""rms_norm: divide each token's vector by its root mean square (arXiv 1910.07467)."""

import math

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception


def rms_norm(x, weight, eps):
    """Oracle: one vector at a time, in Python's floats."""
    out = x.tolist()
    for row in out:
        for vector in row:
            mean_square = sum(number * number for number in vector) / len(vector)
            size = math.sqrt(mean_square + eps)
            vector[:] = (number / size * w for number, w in zip(vector, weight.tolist(), strict=True))
    return torch.tensor(out, dtype=x.dtype)


def _cases(generator):
    def draw(B, L, width, eps, label, dtype=torch.float32, size=1.0, quiet=False):
        # A mean away from 0, and a weight away from 1 and 0, so that neither can be forgotten unseen.
        x = randn(generator, B, L, width, dtype=dtype, size=size) + 0.7 * size
        if quiet:
            x[0, 1] = 0
        weight = randn(generator, width, dtype=dtype, size=0.4) + 1.5
        weight[1] *= -1
        return Case({"x": x, "weight": weight, "eps": eps}, label)

    return [
        draw(2, 3, 5, 1e-5, "2 x 3 vectors of 5"),
        draw(3, 4, 6, 1e-2, "small numbers and a vector of zeros", size=0.1, quiet=True),
        draw(3, 1, 8, 1e-5, "one token", size=20.0),
        # A result of the wrong dtype shows here as it would in float64; and Hugging Face's form passes,
        # which computes in float32 whatever x is.
        draw(1, 4, 7, 1e-6, "float16", dtype=torch.float16),
        Case(
            {"x": torch.tensor([[[1.0, 7.0]]]), "weight": torch.tensor([1.0, 2.0]), "eps": 0.0},
            "the example by hand",
        ),
    ]


def _mean_square(x, dim=-1):
    return x.square().mean(dim, keepdim=True)


def _layer_norm(x, weight, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(_mean_square(centred) + eps) * weight


def _no_eps(x, weight, eps):
    return x / torch.sqrt(_mean_square(x)) * weight


def _eps_outside(x, weight, eps):
    return x / (torch.sqrt(_mean_square(x)) + eps) * weight


def _sum_of_squares(x, weight, eps):
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + eps) * weight


def _unit_length(x, weight, eps):
    return torch.nn.functional.normalize(x, dim=-1) * weight


def _over_tokens(x, weight, eps):
    return x / torch.sqrt(_mean_square(x, dim=-2) + eps) * weight


def _over_everything(x, weight, eps):
    return x / torch.sqrt(x.square().mean() + eps) * weight


def _weight_plus_one(x, weight, eps):
    return x / torch.sqrt(_mean_square(x) + eps) * (1 + weight)


def _no_weight(x, weight, eps):
    return x / torch.sqrt(_mean_square(x) + eps)


def _weight_first(x, weight, eps):
    return _no_weight(x * weight, weight, eps)


def _no_root(x, weight, eps):
    return x / (_mean_square(x) + eps) * weight


def _multiplied(x, weight, eps):
    return x * torch.sqrt(_mean_square(x) + eps) * weight


def _standard_deviation(x, weight, eps):
    return x / torch.sqrt(x.var(-1, keepdim=True, correction=0) + eps) * weight


def _mean_magnitude(x, weight, eps):
    return x / (x.abs().mean(-1, keepdim=True) + eps) * weight


RMS_NORM = Exercise(
    name="rms_norm",
    lesson=3,
    title="RMSNorm",
    minutes=10,
    difficulty=1,
    why="Every layer of the decoder reads its input through this function, twice; without it the numbers "
    "in the stream would grow from layer to layer.",
    signature="rms_norm(x, weight, eps)",
    reference=rms_norm,
    cases=_cases,
    axes={"x": "batch token channel", "weight": "channel", "return": "batch token channel"},
    misconceptions=(
        Misconception(
            "the mean was subtracted first, as LayerNorm does",
            _layer_norm,
            "RMSNorm moves nothing, it only scales: the vector keeps its direction. That is what it leaves "
            "out of LayerNorm, and the model was trained without it.",
        ),
        Misconception(
            "the standard deviation was used for the root mean square",
            _standard_deviation,
            "A standard deviation measures from the mean, a root mean square from zero. They agree only "
            "where the mean is 0, and here it is not.",
        ),
        Misconception(
            "eps was left out",
            _no_eps,
            "A vector of zeros then gives 0 / 0, which is NaN, and small vectors come out too large.",
        ),
        Misconception(
            "eps was added outside the root",
            _eps_outside,
            "Under the root eps is compared with a mean square, outside it with a length: another number. "
            "Models are trained with the first, and small vectors tell the two apart.",
        ),
        Misconception(
            "the squares were added up and not averaged",
            _sum_of_squares,
            "This makes the length of each vector 1. The root of the *mean* square leaves each single "
            "number about 1 in size, however wide the vector is.",
        ),
        Misconception(
            "the vector was divided by its length (an L2 norm)",
            _unit_length,
            "The length is the root of the *sum* of the squares, and it grows with the width. The root of "
            "their mean does not.",
        ),
        Misconception(
            "the mean was taken over the tokens",
            _over_tokens,
            "A token's norm must not depend on its neighbours, least of all on those after it. The mean "
            "runs over the channels of one vector.",
        ),
        Misconception(
            "one mean was taken over the whole tensor",
            _over_everything,
            "Each token's vector has a size of its own and is divided by its own. Here one loud token "
            "makes all the others quiet, those of other rows too.",
        ),
        Misconception(
            "1 was added to the weight",
            _weight_plus_one,
            "Some models store the weight minus 1 (Gemma does). Llama's family stores it as it is used.",
        ),
        Misconception(
            "the weight was left out",
            _no_weight,
            "The scaling is right. The learned weight, one number for each channel, is still missing.",
        ),
        Misconception(
            "the weight came before the norm",
            _weight_first,
            "Then the weight changes the very size that is divided out. It belongs after the division.",
        ),
        Misconception(
            "the root was left out",
            _no_root,
            "Dividing by the mean square turns large vectors into small ones and small ones into large "
            "ones. The root brings it back to the size of the numbers.",
        ),
        Misconception(
            "multiplied by the root mean square instead of divided",
            _multiplied,
            "Large vectors got larger. A norm brings every vector to the same size.",
        ),
        Misconception(
            "the mean of the magnitudes was used",
            _mean_magnitude,
            "The size meant here is the root of the mean of the squares, in which large numbers count for "
            "more.",
        ),
    ),
    hints=(
        "The name read backwards is the recipe: square, mean, root. Then divide, and only then the weight.",
        "The mean runs over the last axis alone. Which argument of `mean` keeps that axis, with size 1, so "
        "that the division fits?",
        "eps is there for vectors near zero: it stands where a division by zero would otherwise begin, "
        "beside the mean square and under the root.",
    ),
)
