"""absorbed_scores and absorbed_values: attention that reads the latents (MLA, arXiv 2405.04434)."""

import math

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_06.costs import observe_operations


def absorbed_scores(q_nope, q_rope, latent, rope_key, w_uk):
    """Oracle: the expanded form in float64, one text and one head after the other."""
    B, H, L, nope = q_nope.shape
    S, rope = rope_key.shape[2:]
    scores = torch.zeros(B, H, L, S, dtype=torch.float64)
    for b, h in torch.cartesian_prod(torch.arange(B), torch.arange(H)).tolist():
        made = torch.stack([w_uk[h].double() @ c for c in latent[b, 0].double()])  # (S, nope_dim)
        keys = torch.cat((made, rope_key[b, 0].double()), dim=1)
        queries = torch.cat((q_nope[b, h], q_rope[b, h]), dim=1).double()
        scores[b, h] = queries @ keys.T / math.sqrt(nope + rope)
    return scores.to(q_nope.dtype)


def _score_cases(generator):
    def draw(B, H, L, S, nope, rope, width, label, dtype=torch.float32):
        def numbers(*shape):
            return randn(generator, *shape, dtype=dtype)

        inputs = {
            "q_nope": numbers(B, H, L, nope),
            "q_rope": numbers(B, H, L, rope),
            "latent": numbers(B, 1, S, width),
            "rope_key": numbers(B, 1, S, rope),
            "w_uk": numbers(H, nope, width),
        }
        return Case(inputs, label)

    return [
        draw(3, 8, 2, 70, 16, 6, 24, "8 heads"),
        draw(2, 6, 1, 50, 20, 4, 10, "one query"),
        draw(1, 7, 3, 50, 22, 8, 14, "one row"),
        draw(2, 9, 3, 60, 26, 8, 12, "float64", torch.float64),
    ]


def _making_keys(case):
    """Operations that it takes to make every head's keys of all stored tokens."""
    return 2 * case["latent"].shape[0] * case["latent"].shape[2] * case["w_uk"].numel()


def _scores(q_nope, q_rope, latent, rope_key, w_uk, *, width=None, rope=True, nope=True):
    """The absorbed scores, scaled by the root of another width, or with one part left out."""
    width = q_nope.shape[-1] + q_rope.shape[-1] if width is None else width
    total = 0
    if nope:
        total = (q_nope @ w_uk) @ latent.mT
    if rope:
        total = total + q_rope @ rope_key.mT
    return total * width**-0.5


def _expanded(q_nope, q_rope, latent, rope_key, w_uk):
    keys = latent @ w_uk.mT  # (B, Hq, S, nope_dim)
    return (q_nope @ keys.mT + q_rope @ rope_key.mT) * (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5


def _each_part_scaled(q_nope, q_rope, latent, rope_key, w_uk):
    one = _scores(q_nope, q_rope, latent, rope_key, w_uk, width=q_nope.shape[-1], rope=False)
    return one + _scores(q_nope, q_rope, latent, rope_key, w_uk, width=q_rope.shape[-1], nope=False)


def _head_0s_matrix(q_nope, q_rope, latent, rope_key, w_uk):
    return _scores(q_nope, q_rope, latent, rope_key, w_uk[:1].expand_as(w_uk))


def _matrices_reversed(q_nope, q_rope, latent, rope_key, w_uk):
    return _scores(q_nope, q_rope, latent, rope_key, w_uk.flip(0))


SCORE_AXES = {
    "q_nope": "batch head query key_channel",
    "q_rope": "batch head query rope_channel",
    "latent": "batch one token latent",
    "rope_key": "batch one token rope_channel",
    "w_uk": "head key_channel latent",
    "return": "batch head query key",
}

ABSORBED_SCORES = Exercise(
    name="absorbed_scores",
    lesson=6,
    title="Scores without keys",
    minutes=20,
    difficulty=3,
    why="Making every head's keys at every step would cost more than storing them saved. The matrix that "
    "makes them can be moved to the query instead, and that is done once a step.",
    signature="absorbed_scores(q_nope, q_rope, latent, rope_key, w_uk)",
    reference=absorbed_scores,
    cases=_score_cases,
    observe=observe_operations(
        absorbed_scores,
        _making_keys,
        "But it took as much work as making every head's keys of all stored tokens, which absorbing avoids.",
    ),
    axes=SCORE_AXES,
    misconceptions=(
        Misconception(
            "scaled by the width of what is read: the latent and the rotary key",
            lambda *a: _scores(*a, width=a[2].shape[-1] + a[3].shape[-1]),
            "Absorbing computes the same scores in another order. They are dot products over nope_dim + "
            "rope_dim numbers, and the scale stays theirs.",
        ),
        Misconception(
            "scaled by the width of the part without positions alone",
            lambda *a: _scores(*a, width=a[0].shape[-1]),
            "A key is both parts together, nope_dim + rope_dim numbers wide, and so the scale knows both.",
        ),
        Misconception(
            "scaled by the width of the latent",
            lambda *a: _scores(*a, width=a[2].shape[-1]),
            "Absorbing computes the same scores in another order. What sets the scale is the width of the "
            "keys that are no longer made.",
        ),
        Misconception(
            "the scores were not scaled",
            lambda *a: _scores(*a, width=1),
            "The division by a square root is missing, as in lesson 01.",
        ),
        Misconception(
            "each part was scaled by its own width",
            _each_part_scaled,
            "The score is one dot product over both parts, so there is one scale for their sum.",
        ),
        Misconception(
            "only the rotary part was scaled",
            lambda *a: _scores(*a, width=1, rope=False) + _scores(*a, nope=False),
            "The division binds more closely than the plus before it. The scale is one for the sum of both "
            "parts.",
        ),
        Misconception(
            "only the part without positions was scaled",
            lambda *a: _scores(*a, rope=False) + _scores(*a, width=1, nope=False),
            "The score is one dot product over both parts, and all of it is divided.",
        ),
        Misconception(
            "the rotary part was left out",
            lambda *a: _scores(*a, rope=False),
            "The latent knows nothing of positions. Without the rotary part a score is the same wherever the "
            "token stands.",
        ),
        Misconception(
            "only the rotary part was scored",
            lambda *a: _scores(*a, nope=False),
            "The rotary part says where a token stands. What it says of itself is in the latent.",
        ),
        Misconception(
            "head 0's matrix was used for all heads",
            _head_0s_matrix,
            "The latent is shared; what a head makes of it is not. Each query takes in the matrix of its own "
            "head.",
        ),
        Misconception(
            "the matrices went to the heads in reverse order",
            _matrices_reversed,
            "Each query takes in the matrix of its own head.",
        ),
        Misconception(
            "every head's keys were made first",
            _expanded,
            "The numbers are right, and that is the expanded form. It makes nope_dim numbers for each head "
            "and stored token at every step, which is what absorbing is there to avoid.",
        ),
    ),
    hints=(
        "A key is W c: a matrix times the latent. The score is q · (W c). Where else could the brackets "
        "stand?",
        "After that the query is as wide as the latent. Look at the shapes: which axis of `w_uk` meets the "
        "query's last one?",
        "Two sums are added, one over the latent's width and one over rope_dim. The scale comes last, once, "
        "and it is that of the key which you did not make.",
    ),
)


def absorbed_values(weights, latent, w_uv):
    """Oracle: the expanded form in float64, one text and one head after the other."""
    B, H, L, S = weights.shape
    out = torch.zeros(B, H, L, w_uv.shape[1], dtype=torch.float64)
    for b, h in torch.cartesian_prod(torch.arange(B), torch.arange(H)).tolist():
        values = torch.stack([w_uv[h].double() @ c for c in latent[b, 0].double()])  # (S, value_dim)
        out[b, h] = weights[b, h].double() @ values
    return out.to(weights.dtype)


def _value_cases(generator):
    def draw(B, H, L, S, value, width, label, dtype=torch.float32):
        scores = randn(generator, B, H, L, S, dtype=dtype)
        inputs = {
            "weights": torch.softmax(scores, dim=-1),
            "latent": randn(generator, B, 1, S, width, dtype=dtype),
            "w_uv": randn(generator, H, value, width, dtype=dtype),
        }
        return Case(inputs, label)

    return [
        draw(3, 8, 2, 70, 20, 24, "8 heads"),
        draw(2, 6, 1, 50, 22, 10, "one query"),
        draw(1, 7, 3, 60, 22, 14, "one row"),
        draw(2, 9, 3, 60, 26, 12, "float64", torch.float64),
    ]


def _making_values(case):
    """Operations that it takes to make every head's values of all stored tokens."""
    return 2 * case["latent"].shape[0] * case["latent"].shape[2] * case["w_uv"].numel()


def _values(weights, latent, w_uv):
    return (weights @ latent) @ w_uv.mT


VALUE_AXES = {
    "weights": "batch head query token",
    "latent": "batch one token latent",
    "w_uv": "head value latent",
    "return": "batch head query channel",
}

ABSORBED_VALUES = Exercise(
    name="absorbed_values",
    lesson=6,
    title="A sum without values",
    minutes=10,
    difficulty=2,
    why="The other half of absorbing. With it a decode step reads the latents twice and makes nothing for "
    "the stored tokens.",
    signature="absorbed_values(weights, latent, w_uv)",
    reference=absorbed_values,
    cases=_value_cases,
    observe=observe_operations(
        absorbed_values,
        _making_values,
        "But it took as much work as making every head's values of all tokens, which absorbing avoids.",
    ),
    axes=VALUE_AXES,
    misconceptions=(
        Misconception(
            "the weighted latents were given back as they are",
            lambda weights, latent, w_uv: weights @ latent,
            "That is a mean of latents. A head's own matrix makes a value of it, and each head has another.",
        ),
        Misconception(
            "head 0's matrix was used for all heads",
            lambda weights, latent, w_uv: _values(weights, latent, w_uv[:1].expand_as(w_uv)),
            "The latent is shared; what a head makes of it is not.",
        ),
        Misconception(
            "the mean of the heads' matrices was used for all",
            lambda weights, latent, w_uv: _values(weights, latent, w_uv.mean(0, keepdim=True)),
            "The latent is shared; what a head makes of it is not. Nothing is averaged over heads.",
        ),
        Misconception(
            "the weights were ignored: every token counts the same",
            lambda weights, latent, w_uv: _values(
                torch.full_like(weights, 1 / weights.shape[-1]), latent, w_uv
            ),
            "The weights say how much of each token is taken; they differ from query to query.",
        ),
        Misconception(
            "the heads were merged at the end",
            lambda weights, latent, w_uv: _values(weights, latent, w_uv).transpose(1, 2).flatten(2),
            "The numbers are right. Merging the heads is the next step: the result stays (batch, heads, "
            "queries, value_dim).",
        ),
        Misconception(
            "every head's values were made first",
            lambda weights, latent, w_uv: weights @ (latent @ w_uv.mT),
            "The numbers are right, and that is the expanded form. It makes value_dim numbers for each head "
            "and stored token at every step.",
        ),
    ),
    hints=(
        "A value is W c. The result is a sum of w[s] · W c[s] over the tokens. W is the same in every term.",
        "First sum, then multiply: how many vectors does W then meet, S or L?",
    ),
)
