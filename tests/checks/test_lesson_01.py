"""Answers to lesson 01 that are nearly right, and what they are told."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from seeds import at_seeds

from kvlearn.checks import REGISTRY, judge


def scores(q, k):
    return q @ k.mT / q.shape[-1] ** 0.5


def best_64(scores):
    """All scores but the 64 largest of a row at minus infinity."""
    least = scores.topk(min(64, scores.shape[-1]), -1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf)


def shares(powers, floor=0.0):
    return powers / (powers.sum(-1, keepdim=True) + floor)


def multi_head(attend=F.scaled_dot_product_attention, project=F.linear, project_back=F.linear):
    """Multi-head attention from parts."""

    def answer(x, w_q, w_k, w_v, w_o, num_heads):
        q, k, v = (project(x, w).unflatten(-1, (num_heads, -1)).transpose(1, 2) for w in (w_q, w_k, w_v))
        return project_back(attend(q, k, v).transpose(1, 2).flatten(2), w_o)

    return answer


def size_from_width(x, w_q, w_k, w_v, w_o, num_heads):
    B, L, width = x.shape
    q, k, v = ((x @ w.T).view(B, L, num_heads, width // num_heads).transpose(1, 2) for w in (w_q, w_k, w_v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, L, width) @ w_o.T


def merged_into_the_shape_of_x(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (F.linear(x, w).unflatten(-1, (num_heads, -1)).transpose(1, 2) for w in (w_q, w_k, w_v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape) @ w_o.T


WRONG = {
    "attention_weights": [
        (lambda q, k: (q @ k / q.shape[-1] ** 0.5).softmax(-1), "the keys were not transposed"),
        (
            lambda q, k: F.scaled_dot_product_attention(
                q,
                k,
                torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1),
                is_causal=q.shape[2] == k.shape[2],
            ),
            "later keys were hidden where there are as many keys as queries",
        ),
        (
            lambda q, k: shares((scores(q, k) - scores(q, k).max()).exp()),
            "the largest score of all was subtracted, and not each row's own",
        ),
        (
            lambda q, k: scores(q, k).masked_fill(scores(q, k) == 0, -torch.inf).softmax(-1),
            "expected 0.7311, got 1",
        ),
        (
            lambda q, k: (scores(q, k) + torch.zeros(1)).softmax(-1),
            "has dtype float32; expected bfloat16, as q has",
        ),
        (lambda q, k: best_64(scores(q, k)).softmax(-1), "k (3, 2, 70, 4) float32"),
    ],
    "scaled_dot_product_attention": [
        (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2]),
            "later keys were hidden where there are as many keys as queries",
        ),
        (lambda q, k, v: (q @ k).softmax(-1) @ v, "Your code raised RuntimeError"),
        (
            lambda q, k, v: torch.zeros(*q.shape) + scores(q, k).softmax(-1) @ v,
            "has dtype float32; expected bfloat16, as q has",
        ),
    ],
    "multi_head_attention": [
        (size_from_width, "the width of x was taken for the width of all heads together"),
        (merged_into_the_shape_of_x, "the width of x was taken for the width of all heads together"),
        (multi_head(project_back=lambda x, w: x @ w), "w_o alone was used the wrong way round"),
        (
            multi_head(attend=lambda q, k, v: shares(scores(q, k).exp()) @ v),
            "exp of a large score overflowed",
        ),
        (multi_head(attend=lambda q, k, v: scores(q, k).softmax(-2) @ v), "the softmax ran over the queries"),
        (
            lambda *inputs: multi_head(project_back=F.linear if inputs[-1] > 1 else lambda x, w: x)(*inputs),
            "has shape (1, 3, 8); expected (1, 3, 5)",
        ),
        (
            lambda *inputs: multi_head()(*inputs) + torch.zeros(1),
            "has dtype float32; expected bfloat16, as x has",
        ),
    ],
}  # fmt: skip
ROWS = [(name, answer, words) for name, rows in WRONG.items() for answer, words in rows]


@pytest.mark.parametrize("name, answer, words", ROWS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(ROWS)])
def test_what_used_to_slip_past_is_named(name, answer, words):
    """Would catch checks without as many keys as queries, zero scores, bfloat16, one head or large scores."""
    result = judge(REGISTRY[name], answer)
    assert not result.passed and words in result.message, result.message


def test_the_parts_of_these_answers_are_right():
    """Would catch a table whose answers are wrong for another reason than the one it says."""
    assert judge(REGISTRY["multi_head_attention"], multi_head()).passed


@at_seeds(20)
def test_right_answers_in_half_precision_pass(seed):
    """Would catch bfloat16 inputs so large that rounding alone is further off than the tolerance."""

    def weights(q, k):
        root = q.shape[-1] ** 0.25
        return ((q / root) @ (k / root).mT).softmax(-1)

    other = {
        "attention_weights": weights,
        "scaled_dot_product_attention": lambda q, k, v: weights(q, k) @ v,
        "multi_head_attention": multi_head(attend=lambda q, k, v: scores(q, k).softmax(-1) @ v),
    }
    for name, answer in other.items():
        result = judge(REGISTRY[name], answer, seed)
        assert result.passed, result.message


def test_the_transpose_of_a_matrix_is_not_blamed():
    """Would catch "`.T` reverses all axes" beside `x @ w_q.T`, which is right: something else is not."""

    def answer(x, w_q, w_k, w_v, w_o, num_heads):
        return (x @ w_q.T).view(3, 4, 2, 5, 1) @ w_o.T

    message = judge(REGISTRY["multi_head_attention"], answer).message
    assert "RuntimeError" in message and "`.T` reverses" not in message
    with warnings.catch_warnings():  # torch's own, of .T on more than two axes
        warnings.simplefilter("ignore")
        reversed_keys = judge(REGISTRY["attention_weights"], lambda q, k: (q @ k.T).softmax(-1)).message
    assert "`.T` reverses all axes" in reversed_keys


def test_the_examples_by_hand_are_cases():
    """Would catch a check that leaves out what the assignment works out by hand."""
    for name, want in (
        ("attention_weights", [0.73, 0.27]),
        ("scaled_dot_product_attention", [7.3, 27, 0, 0]),
        ("multi_head_attention", [1.96, 1]),
    ):
        exercise = REGISTRY[name]
        case = exercise.cases(torch.Generator().manual_seed(3))[-1]
        assert case.label == "the example by hand"
        first = exercise.reference(*case.inputs.values()).flatten()[: len(want)]
        assert torch.allclose(first, torch.tensor(want), rtol=0.01)
