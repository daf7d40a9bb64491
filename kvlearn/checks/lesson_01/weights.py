"""attention_weights: from queries and keys to weights that add up to 1.

"Attention Is All You Need" (Vaswani et al., arXiv 1706.03762), section 3.2.1. The oracle is a
loop over single dot products of Python floats, which are float64.
"""

import math

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception


def _scores(q, k):
    """q . k for each pair, not scaled: (B, H, L, S)."""
    return torch.einsum("bhld,bhsd->bhls", q, k)


def _softmax_by_hand(row):
    """Softmax of a list of Python floats."""
    top = max(row)
    shares = [math.exp(score - top) for score in row]
    return [share / sum(shares) for share in shares]


def attention_weights(q, k):
    """Oracle: one query, one key, one product at a time."""
    B, H, L, D = q.shape
    S = k.shape[2]
    out = torch.zeros(B, H, L, S, dtype=torch.float64)
    queries, keys = q.double().tolist(), k.double().tolist()
    for b in range(B):
        for h in range(H):
            for i in range(L):
                query = queries[b][h][i]
                row = [sum(a * c for a, c in zip(query, key, strict=True)) / D**0.5 for key in keys[b][h]]
                out[b, h, i] = torch.tensor(_softmax_by_hand(row), dtype=torch.float64)
    return out.to(q.dtype)


def _weights_cases(generator):
    return [Case({"q": q, "k": k}, label, equal) for (q, k, _), label, equal in draw_qkv(generator)]


def draw_qkv(generator):
    """((query, key, value), label, equal axes) for every case; in one of them S, L and D are the same."""
    draws = [
        ((2, 3, 4, 5, 6), torch.float32, 2.0, "more keys than queries"),
        ((3, 2, 1, 70, 4), torch.float32, 2.0, "one query over 70 keys"),
        ((1, 2, 5, 3, 8), torch.float64, 2.0, "float64"),
        ((2, 3, 4, 5, 6), torch.bfloat16, 0.5, "bfloat16"),
        ((2, 1, 3, 6, 5), torch.float64, 60.0, "large scores"),
        ((3, 2, 4, 4, 4), torch.float32, 2.0, "as many keys as queries"),
    ]
    for (B, H, L, S, D), dtype, size, label in draws:
        q = randn(generator, B, H, L, D, dtype=dtype, size=size)
        k = randn(generator, B, H, S, D, dtype=dtype, size=size)
        v = randn(generator, B, H, S, D, dtype=dtype)
        if label == "large scores":  # all of query 0 near 40,000, all of query 1 near -40,000
            q[:, :, 0, 0], q[:, :, 1, 0], k[..., 0] = 300, -300, 300
        yield (q, k, v), label, "query key channel" if L == S else ""
    yield _by_hand(), "the example by hand", ""


def _by_hand():
    """The assignment's query, its two keys, and the values of the exercise after."""
    q = torch.ones(1, 1, 1, 4)
    k = torch.tensor([[[[1.0, 1, 0, 0], [0, 0, 0, 0]]]])
    return q, k, torch.tensor([[[[10.0, 0, 0, 0], [0, 100, 0, 0]]]])


def _explain_weights(case, got, want):
    """A row that does not add up to 1 says more than a single number."""
    sums = got.double().sum(-1)
    bad = ((sums - 1).abs() > 1e-2) | ~sums.isfinite()  # more than bfloat16 rounds
    if not bad.any():
        return None
    b, h, i = bad.nonzero()[0].tolist()
    return (
        f"The weights of one query over all keys add up to 1. At batch {b}, head {h}, query {i} "
        f"yours add up to {sums[b, h, i].item():.4g}."
    )


def unscaled(q, k):
    return _scores(q, k).softmax(-1)


def scaled_by_d(q, k):
    return (_scores(q, k) / q.shape[-1]).softmax(-1)


def _scaled_by_length(q, k):
    return (_scores(q, k) / k.shape[-2] ** 0.5).softmax(-1)


def _scaled_by_heads(q, k):
    return (_scores(q, k) / q.shape[1] ** 0.5).softmax(-1)


def _multiplied_by_root(q, k):
    return (_scores(q, k) * q.shape[-1] ** 0.5).softmax(-1)


def scaled(q, k):
    return _scores(q, k) / q.shape[-1] ** 0.5


def over_queries(q, k):
    return scaled(q, k).softmax(-2)


def over_heads(q, k):
    return scaled(q, k).softmax(1)


def causal(q, k):
    scores = scaled(q, k)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1)


def causal_square(q, k):
    return causal(q, k) if q.shape[2] == k.shape[2] else scaled(q, k).softmax(-1)


def keys_not_transposed(q, k):
    return (q @ k / q.shape[-1] ** 0.5).softmax(-1)


def scaled_after(q, k):
    return unscaled(q, k) / q.shape[-1] ** 0.5


def _never_normalised(q, k):
    return scaled(q, k)


def _divided_by_sum(q, k):
    scores = scaled(q, k)
    return scores / scores.sum(-1, keepdim=True)


def overflowing(q, k):
    shares = scaled(q, k).exp()
    return shares / shares.sum(-1, keepdim=True)


def one_maximum(q, k):
    scores = scaled(q, k)
    shares = (scores - scores.max()).exp()
    return shares / shares.sum(-1, keepdim=True)


def _keys_ask(q, k):
    return scaled(k, q).softmax(-1)


NO_SCALE = (
    "the scores were not scaled",
    "The softmax sees raw dot products. Their spread grows with the square root of the number "
    "of channels, so with wide heads one key takes nearly all the weight.",
)
BY_D = (
    "scaled by d instead of sqrt(d)",
    "A dot product of d random products has a spread of sqrt(d), not d. Divided by d the scores "
    "are all close to zero, and every key gets nearly the same weight.",
)
AFTER = (
    "scaled after the softmax",
    "Dividing the weights only makes them all smaller, so that they no longer add up to 1. The "
    "scale must act on what the softmax compares.",
)
QUERIES = (
    "the softmax ran over the queries",
    "Here each key shares out 1 among the queries. It is each query that has 1 to share out among the keys.",
)
HEADS = (
    "the softmax ran over the heads",
    "Here the heads compete with each other for every pair of query and key. Heads know nothing "
    "of each other; a query's keys compete.",
)
CAUSAL = (
    "later keys were hidden",
    "Nothing is hidden in this lesson: each query takes from all keys. Hiding what comes later is a step of "
    "its own, for texts that are written from left to right; lesson 02 is about it.",
)
OVERFLOW = (
    "exp of a large score overflowed",
    "The formula is right on paper, and exp of a large number is inf, which makes inf / inf = "
    "NaN. A softmax does not change if every score of a row is moved by the same amount.",
)
NO_SOFTMAX = (
    "the scores were used as weights, without a softmax",
    "Scores can be negative and add up to anything. Without the softmax the result is not an average of "
    "values.",
)
SQUARE = (
    "later keys were hidden where there are as many keys as queries",
    "With as many keys as queries, each query was given only the keys up to its own place. Nothing is hidden "
    "in this lesson, whatever the two numbers are.",
)
NOT_TRANSPOSED = (
    "the keys were not transposed",
    "A matrix product runs over the last axis of the one and the last but one of the other: here over the "
    "channels of q and over the tokens of k. Where these have the same size, no error says so.",
)
ONE_MAXIMUM = (
    "the largest score of all was subtracted, and not each row's own",
    "A row whose scores all lie far below that maximum gets nothing but zeros from exp, and 0 / 0 = NaN. "
    "What may be subtracted from a row is one number for that row.",
)

ATTENTION_WEIGHTS = Exercise(
    name="attention_weights",
    lesson=1,
    title="From queries and keys to weights",
    minutes=15,
    difficulty=2,
    why="These weights are all that attention decides: how much each query takes from each "
    "token. They need the keys of every earlier token, and that is why keys are cached.",
    signature="attention_weights(q, k)",
    reference=attention_weights,
    cases=_weights_cases,
    explain=_explain_weights,
    axes={
        "q": "batch head query channel",
        "k": "batch head key channel",
        "return": "batch head query key",
    },
    misconceptions=(
        Misconception(NO_SCALE[0], unscaled, NO_SCALE[1]),
        Misconception(BY_D[0], scaled_by_d, BY_D[1]),
        Misconception(
            "scaled by the square root of the number of keys",
            _scaled_by_length,
            "The length of the text is not what makes dot products large: each is a sum over "
            "the channels of one head. With this scale, a longer text would get flatter weights.",
        ),
        Misconception(
            "scaled by the square root of the number of heads",
            _scaled_by_heads,
            "How many heads there are has no say in what one of them computes. A dot product is a sum over "
            "the channels of one head: which axis of q counts those?",
        ),
        Misconception(
            "multiplied by sqrt(d)",
            _multiplied_by_root,
            "This makes the spread larger, not smaller: the weights become nearly all 0 and 1.",
        ),
        Misconception(QUERIES[0], over_queries, QUERIES[1]),
        Misconception(HEADS[0], over_heads, HEADS[1]),
        Misconception(CAUSAL[0], causal, CAUSAL[1]),
        Misconception(SQUARE[0], causal_square, SQUARE[1]),
        Misconception(NOT_TRANSPOSED[0], keys_not_transposed, NOT_TRANSPOSED[1], raises=True),
        Misconception(AFTER[0], scaled_after, AFTER[1]),
        Misconception(
            "these are scores; they were never made into weights",
            _never_normalised,
            "Scores can be negative and add up to anything. Weights are positive, and those of "
            "one query add up to 1.",
        ),
        Misconception(
            "the scores were divided by their sum, without exp",
            _divided_by_sum,
            "Scores can be negative, so some weights are, and a sum near zero blows them up.",
        ),
        Misconception(OVERFLOW[0], overflowing, OVERFLOW[1]),
        Misconception(ONE_MAXIMUM[0], one_maximum, ONE_MAXIMUM[1]),
        Misconception(
            "queries and keys changed places",
            _keys_ask,
            "The rows of this result belong to keys. Each row should belong to one query.",
        ),
    ),
    hints=(
        "Three steps: compare each query with each key, scale, normalise. What shape does each step give?",
        "To compare all pairs at once, matrix multiplication needs the channels of the keys in "
        "the last axis but one.",
        "Which axis of (batch, head, query, key) must add up to 1? The softmax runs over that.",
    ),
)
