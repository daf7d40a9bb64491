"""expand_latents: the keys and values that every head makes from one latent (MLA, arXiv 2405.04434)."""

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception


def expand_latents(latent, up, num_heads, nope_dim):
    """Oracle: one head and one token at a time, in float64."""
    rows = up.unflatten(0, (num_heads, -1)).double()  # (Hq, nope_dim + value_dim, latent_dim)
    B, _, S, _ = latent.shape
    keys = torch.zeros(B, num_heads, S, nope_dim, dtype=latent.dtype)
    values = torch.zeros(B, num_heads, S, rows.shape[1] - nope_dim, dtype=latent.dtype)
    for b, h, s in torch.cartesian_prod(*(torch.arange(n) for n in (B, num_heads, S))).tolist():
        both = rows[h] @ latent[b, 0, s].double()
        keys[b, h, s], values[b, h, s] = both[:nope_dim], both[nope_dim:]
    return keys, values


def _cases(generator):
    def draw(B, S, width, heads, nope, value, label, dtype=torch.float32):
        latent = randn(generator, B, 1, S, width, dtype=dtype)
        up = randn(generator, heads * (nope + value), width, dtype=dtype)
        return Case({"latent": latent, "up": up, "num_heads": heads, "nope_dim": nope}, label)

    return [
        draw(2, 5, 9, 4, 6, 3, "narrow values"),
        draw(3, 4, 10, 2, 5, 7, "wide values, float64", torch.float64),
        draw(2, 1, 8, 3, 4, 6, "one token"),
    ]


def _split(latent, up, num_heads, nope_dim):
    rows = up.unflatten(0, (num_heads, -1))
    return latent @ rows[:, :nope_dim].mT, latent @ rows[:, nope_dim:].mT


def _swapped(latent, up, num_heads, nope_dim):
    return _split(latent, up, num_heads, nope_dim)[::-1]


def _values_first(latent, up, num_heads, nope_dim):
    rows = up.unflatten(0, (num_heads, -1))
    value_dim = rows.shape[1] - nope_dim
    return latent @ rows[:, value_dim:].mT, latent @ rows[:, :value_dim].mT


def _all_keys_then_all_values(latent, up, num_heads, nope_dim):
    keys, values = up[: num_heads * nope_dim], up[num_heads * nope_dim :]
    return tuple(latent @ part.unflatten(0, (num_heads, -1)).mT for part in (keys, values))


def _rows_every_nth(latent, up, num_heads, nope_dim):
    rows = up.unflatten(0, (-1, num_heads)).transpose(0, 1)
    return latent @ rows[:, :nope_dim].mT, latent @ rows[:, nope_dim:].mT


def _tokens_first(latent, up, num_heads, nope_dim):
    return tuple(side.transpose(1, 2) for side in _split(latent, up, num_heads, nope_dim))


def _one_head_for_all(latent, up, num_heads, nope_dim):
    return tuple(
        side[:, :1].expand(-1, num_heads, -1, -1) for side in _split(latent, up, num_heads, nope_dim)
    )


def _values_are_the_latent(latent, up, num_heads, nope_dim):
    keys, _ = _split(latent, up, num_heads, nope_dim)
    return keys, latent.expand(-1, num_heads, -1, -1)


EXPAND_LATENTS = Exercise(
    name="expand_latents",
    lesson=6,
    title="From one latent to every head",
    minutes=15,
    difficulty=2,
    why="This is what latent attention stores one vector for: from it all heads make their keys and their "
    "values again, when they need them.",
    signature="expand_latents(latent, up, num_heads, nope_dim)",
    reference=expand_latents,
    cases=_cases,
    axes={
        "latent": "batch one token latent",
        "up": "row latent",
        "num_heads": "head",
        "nope_dim": "key_channel",
        "return": "batch head token channel",
    },
    items=("keys", "values"),
    misconceptions=(
        Misconception(
            "keys and values were given back the wrong way round",
            _swapped,
            "The keys come first, as everywhere in this course.",
        ),
        Misconception(
            "the first rows of each head were taken for the values",
            _values_first,
            "Within the rows of a head the key's come first, nope_dim of them, and then the value's.",
        ),
        Misconception(
            "all heads' keys were taken to come first, and then all heads' values",
            _all_keys_then_all_values,
            "The rows lie head by head: head 0 has its key's rows and its value's rows before head 1 begins.",
        ),
        Misconception(
            "the heads were taken from every n-th row",
            _rows_every_nth,
            "The rows of one head lie together. The head is the slow one of the two indices.",
        ),
        Misconception(
            "the axes of heads and tokens were left the wrong way round",
            _tokens_first,
            "The layout is (batch, heads, length, width), as for every key and value.",
        ),
        Misconception(
            "every head was given head 0's keys and values",
            _one_head_for_all,
            "The latent is shared and the up-projections are not: each head makes something else of it.",
        ),
        Misconception(
            "the latent was taken for the values",
            _values_are_the_latent,
            "A value is made from the latent by rows of its own. (The absorbed form reads the latent itself, "
            "and applies those rows after the sum.)",
        ),
    ),
    hints=(
        "`up` is a linear layer's weight: its rows are what comes out. Give the axis of rows the names that "
        "are hidden in it.",
        "(num_heads, nope_dim + value_dim). What value_dim is, the number of rows tells.",
        "One product can make all of it: a matrix with an axis of heads meets a latent whose axis of heads "
        "is 1. Then the last axis is split.",
    ),
)
