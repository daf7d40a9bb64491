"""scaled_dot_product_attention: the weights meet the values.

The wrong answers about weights are those of `weights.py`, carried on to the result.
"""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_01 import weights as w


def attention(q, k, v):
    """Oracle: each query's result is a sum over the keys, written out."""
    weights = w.attention_weights(q.double(), k.double())
    B, H, L, D = q.shape
    out = torch.zeros(B, H, L, v.shape[-1], dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(L):
                for j in range(k.shape[2]):
                    out[b, h, i] += weights[b, h, i, j] * v[b, h, j].double()
    return out.to(q.dtype)


def _attention_cases(generator):
    return [Case({"q": q, "k": k, "v": v}, label, equal) for (q, k, v), label, equal in w.draw_qkv(generator)]


def _with_values(weights):
    """The wrong attention that follows from wrong weights."""
    return lambda q, k, v: weights(q, k) @ v


def _sdpa(q, k, v):
    return w.scaled(q, k).softmax(-1) @ v


def _keys_and_values_swapped(q, k, v):
    return _sdpa(q, v, k)


def _mixed_keys(q, k, v):
    return _sdpa(q, k, k)


def _compared_with_values(q, k, v):
    return _sdpa(q, v, v)


def _scores_mixed(q, k, v):
    return w.scaled(q, k) @ v


def _softmax_last(q, k, v):
    return (w.scaled(q, k) @ v).softmax(-1)


def _plain_average(q, k, v):
    return v.mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1])


def _only_weights(q, k, v):
    return w.scaled(q, k).softmax(-1)


SCALED_DOT_PRODUCT_ATTENTION = Exercise(
    name="scaled_dot_product_attention",
    lesson=1,
    title="Attention",
    minutes=10,
    difficulty=1,
    why="The weights say where to look; the values are what is seen there. This one function is "
    "what every cache in this course feeds, and the real model will run on yours.",
    signature="scaled_dot_product_attention(q, k, v)",
    reference=attention,
    cases=_attention_cases,
    axes={
        "q": "batch head query channel",
        "k": "batch head key channel",
        "v": "batch head key channel",
        "return": "batch head query channel",
    },
    misconceptions=(
        Misconception(w.NO_SCALE[0], _with_values(w.unscaled), w.NO_SCALE[1]),
        Misconception(w.BY_D[0], _with_values(w.scaled_by_d), w.BY_D[1]),
        Misconception(w.QUERIES[0], _with_values(w.over_queries), w.QUERIES[1]),
        Misconception(w.HEADS[0], _with_values(w.over_heads), w.HEADS[1]),
        Misconception(w.CAUSAL[0], _with_values(w.causal), w.CAUSAL[1]),
        Misconception(w.SQUARE[0], _with_values(w.causal_square), w.SQUARE[1]),
        Misconception(
            w.NOT_TRANSPOSED[0], _with_values(w.keys_not_transposed), w.NOT_TRANSPOSED[1], raises=True
        ),
        Misconception(w.AFTER[0], _with_values(w.scaled_after), w.AFTER[1]),
        Misconception(w.OVERFLOW[0], _with_values(w.overflowing), w.OVERFLOW[1]),
        Misconception(w.ONE_MAXIMUM[0], _with_values(w.one_maximum), w.ONE_MAXIMUM[1]),
        Misconception(
            "keys and values changed places",
            _keys_and_values_swapped,
            "Here the queries are compared with the values and the keys are mixed. Keys are the "
            "labels that are compared, values the contents that are handed over.",
        ),
        Misconception(
            "the keys were mixed instead of the values",
            _mixed_keys,
            "The weights are right, and then the values are never used: the result is made of keys.",
        ),
        Misconception(
            "the queries were compared with the values",
            _compared_with_values,
            "The keys are never used here. What a token offers to be found by (its key) and what "
            "it hands over (its value) are two different vectors.",
        ),
        Misconception(w.NO_SOFTMAX[0], _scores_mixed, w.NO_SOFTMAX[1]),
        Misconception(
            "the softmax came after the values",
            _softmax_last,
            "The softmax ran over the channels of the result. It belongs to the weights, before "
            "they meet the values.",
        ),
        Misconception(
            "every value got the same weight",
            _plain_average,
            "This is the plain average of all values; queries and keys have no say in it.",
        ),
        Misconception(
            "the weights came back, without the values",
            _only_weights,
            "The weights are right. One step is missing: they have not been used yet.",
        ),
    ),
    hints=(
        "Start from the weights of the exercise before. What is left is one weighted sum.",
        "One query's result is a sum over the keys: its weight for each, times that key's value. "
        "Which axis disappears?",
        "Rows of weights times columns of values: (query, key) with (key, channel).",
    ),
)
