"""grouped_attention: several query heads read one key/value head (GQA, arXiv 2305.13245)."""

import math

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception


def grouped_attention(q, k, v, mask=None):
    """Oracle: every query alone, over the keys that it may see."""
    B, Hq, L, D = q.shape
    Hkv, S = k.shape[1:3]
    if mask is None:
        mask = torch.ones(L, S, dtype=torch.bool)
    mask = mask.expand(B, Hq, L, S)
    out = torch.zeros_like(q)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in (B, Hq, L))).tolist():
        seen = mask[b, h, i].nonzero().flatten()
        if len(seen):
            kv_head = h // (Hq // Hkv)
            keys, values = k[b, kv_head, seen].double(), v[b, kv_head, seen].double()
            weights = torch.softmax(keys @ q[b, h, i].double() / math.sqrt(D), dim=0)
            out[b, h, i] = (weights @ values).to(q.dtype)
    return out


def _cases(generator):
    def draw(B, Hq, Hkv, L, S, D, mask, label, dtype=torch.float32, loud=False, equal=""):
        q = randn(generator, B, Hq, L, D, dtype=dtype)
        k, v = (randn(generator, B, Hkv, S, D, dtype=dtype) for _ in range(2))
        if loud:  # the last key has a score of 5 x 100 / sqrt(D) with every query, far above all others
            q[..., 0] = 5
            k[:, :, -1] = 0
            k[:, :, -1, 0] = 100
        return Case({"q": q, "k": k, "v": v, "mask": mask}, label, equal)

    triangle = torch.ones(1, 1, 5, 7, dtype=torch.bool).tril(2)
    # Two rows, the second padded on the left by two: its first query is padding too, and may see nothing.
    keys, queries = torch.tensor([[0, 1, 2, 3, 4, 5], [-1, -1, -1, 0, 1, 2]]), [[2, 3, 4, 5], [-1, 0, 1, 2]]
    padded = (keys >= 0)[:, None, None] & (keys[:, None, None] <= torch.tensor(queries)[:, None, :, None])
    # One query, as a cache makes it: the second row is padded on the left, the third is nothing but padding.
    decode = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]).bool()[:, None, None]
    one_key = torch.tensor([True, False, True, True])[None, None, :, None].expand(2, 1, 4, 1)
    return [
        draw(3, 8, 4, 5, 7, 6, triangle.expand(3, 1, 5, 7), "8 query heads on 4"),
        draw(1, 9, 3, 4, 5, 2, None, "9 on 3, no mask"),
        draw(2, 10, 5, 4, 6, 8, padded, "a padded row"),
        draw(2, 6, 1, 1, 5, 4, None, "one key/value head, one query"),
        draw(3, 8, 2, 1, 6, 5, decode, "one query, with padding"),
        draw(2, 9, 3, 5, 5, 4, None, "as many keys as queries, no mask", equal="query key"),
        draw(1, 12, 4, 5, 7, 2, triangle, "float16", torch.float16),
        draw(5, 6, 2, 3, 7, 4, torch.rand(5, 1, 3, 7, generator=generator) < 0.6, "any mask"),
        draw(2, 9, 3, 4, 1, 5, one_key, "one key, not for all"),
        draw(1, 6, 3, 5, 7, 4, triangle, "float64", torch.float64),
        draw(1, 8, 2, 5, 7, 4, triangle.tril(1), "a forbidden key with the largest score", loud=True),
    ]


def _attend(q, k, v, mask, scale=None):
    """Attention with as many key/value heads as query heads."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        return torch.softmax(scores, dim=-1) @ v
    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)
    return weights.masked_fill(~mask, 0) @ v


def _spread(q, *tensors):
    """Each key/value head repeated for the query heads that read it."""
    return [t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in tensors]


def _tiled(q, *tensors):
    return [t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in tensors]


def _tile(q, k, v, mask=None):
    return _attend(q, *_tiled(q, k, v), mask)


def _values_tiled(q, k, v, mask=None):
    return _attend(q, *_spread(q, k), *_tiled(q, v), mask)


def _divided_by_the_number_of_heads(q, k, v, mask=None):
    heads = torch.arange(q.shape[1]) // k.shape[1]
    return _attend(q, k[:, heads], v[:, heads], mask)


def _first_head_for_all(q, k, v, mask=None):
    return _attend(q, k[:, :1], v[:, :1], mask)


def _mean_head_for_all(q, k, v, mask=None):
    return _attend(q, k.mean(1, keepdim=True), v.mean(1, keepdim=True), mask)


def _only_the_first_of_each_group(q, k, v, mask=None):
    return _attend(q[:, :: q.shape[1] // k.shape[1]], k, v, mask)


def _queries_averaged(q, k, v, mask=None):
    grouped = q.unflatten(1, (k.shape[1], -1))
    return _attend(grouped.mean(2), k, v, mask)


def _outputs_averaged(q, k, v, mask=None):
    out = _attend(q, *_spread(q, k, v), mask)
    return out.unflatten(1, (k.shape[1], -1)).mean(2)


def _scaled_by_the_group(q, k, v, mask=None):
    scale = (q.shape[-1] * (q.shape[1] // k.shape[1])) ** -0.5
    return _attend(q, *_spread(q, k, v), mask, scale)


def _unscaled(q, k, v, mask=None):
    return _attend(q, *_spread(q, k, v), mask, 1.0)


def _mask_ignored(q, k, v, mask=None):
    return _attend(q, *_spread(q, k, v), None)


def _mask_ignored_for_one_query(q, k, v, mask=None):
    return _attend(q, *_spread(q, k, v), None if q.shape[2] == 1 else mask)


def _causal_without_a_mask(q, k, v, mask=None):
    if mask is None:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return _attend(q, *_spread(q, k, v), mask)


def _causal_where_square(q, k, v, mask=None):
    if mask is None and q.shape[2] == k.shape[2]:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    return _attend(q, *_spread(q, k, v), mask)


def _mask_inverted(q, k, v, mask=None):
    return _attend(q, *_spread(q, k, v), None if mask is None else ~mask)


def _nan_on_an_empty_row(q, k, v, mask=None):
    k, v = _spread(q, k, v)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def _even_on_an_empty_row(q, k, v, mask=None):
    k, v = _spread(q, k, v)
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return torch.softmax(scores, dim=-1) @ v


def _struck_out_after(q, k, v, mask=None):
    k, v = _spread(q, k, v)
    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    return (weights if mask is None else weights * mask) @ v


def _divided_after(q, k, v, mask=None):
    k, v = _spread(q, k, v)
    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    if mask is not None:
        weights = weights * mask
        weights = (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)
    return weights @ v


def _heads_merged(q, k, v, mask=None):
    return _attend(q, *_spread(q, k, v), mask).transpose(1, 2).flatten(2)


GROUPED_ATTENTION = Exercise(
    name="grouped_attention",
    lesson=3,
    title="Attention with grouped heads",
    minutes=15,
    difficulty=2,
    why="The real model has 9 query heads and 3 key/value heads. Fewer key/value heads mean a smaller "
    "cache, and in lesson 04 that model runs on this function.",
    signature="grouped_attention(q, k, v, mask=None)",
    reference=grouped_attention,
    cases=_cases,
    axes={
        "q": "batch head query channel",
        "k": "batch kv_head key channel",
        "v": "batch kv_head key channel",
        "mask": "batch one query key",
        "return": "batch head query channel",
    },
    misconceptions=(
        Misconception(
            "the key/value heads were laid out 0 1 2 0 1 2 instead of 0 0 1 1 2 2",
            _tile,
            "Query head h then reads head h % num_kv_heads. The shapes are right and the model babbles: "
            "the query heads that share keys are neighbours (apple/axlearn#842).",
        ),
        Misconception(
            "the keys go to the right query heads and the values do not",
            _values_tiled,
            "The weights come from one key/value head and are spent on the values of another.",
        ),
        Misconception(
            "query head h reads head h // num_kv_heads",
            _divided_by_the_number_of_heads,
            "h is divided by the size of a group, not by how many groups there are "
            "(rasbt/LLMs-from-scratch#922 is the same mix-up of the two numbers).",
            raises=True,
        ),
        Misconception(
            "all query heads read key/value head 0",
            _first_head_for_all,
            "With one key/value head that would be right (multi-query attention). Here there are more, and "
            "all but the first went unread.",
        ),
        Misconception(
            "all query heads read the mean of the key/value heads",
            _mean_head_for_all,
            "Each query head reads one of the key/value heads as it is; nothing is averaged over heads.",
        ),
        Misconception(
            "one query head of each group was used, the others dropped",
            _only_the_first_of_each_group,
            "Heads of a group share keys and values and nothing else: each asks its own question and has "
            "its own result. There are as many results as query heads.",
        ),
        Misconception(
            "the queries of a group were averaged",
            _queries_averaged,
            "Heads of a group share keys and values and nothing else: each asks its own question. An "
            "average of the questions gets one answer for all.",
        ),
        Misconception(
            "the results of a group were averaged",
            _outputs_averaged,
            "Each query head keeps its own result, and the output projection reads all of them.",
        ),
        Misconception(
            "the scale counts the group in",
            _scaled_by_the_group,
            "A score is one dot product over D numbers, however many query heads share the key. The scale "
            "knows only D.",
        ),
        Misconception(
            "the scores were not scaled",
            _unscaled,
            "The division by the root of D is missing, as in lesson 01.",
        ),
        Misconception(
            "the mask was ignored",
            _mask_ignored,
            "The heads are right, and every query sees every key, those of later tokens and of padding too.",
        ),
        Misconception(
            "the mask was ignored for a single query",
            _mask_ignored_for_one_query,
            "The newest token may see all that came before it, but in a batch not all that lies there: the "
            "mask also hides the padding of the shorter rows.",
        ),
        Misconception(
            "with no mask given, a causal one was put in",
            _causal_without_a_mask,
            "None means that every query sees every key. Who wants a causal mask hands it over.",
        ),
        Misconception(
            "with no mask given and as many keys as queries, a causal one was put in",
            _causal_where_square,
            "None means that every query sees every key, also where the two lengths agree: `is_causal` "
            "must not be guessed from a shape.",
        ),
        Misconception(
            "the mask was read the wrong way round",
            _mask_inverted,
            "True means: may attend. Here the allowed keys were struck out.",
        ),
        Misconception(
            "a query that may see nothing gives NaN",
            _nan_on_an_empty_row,
            "A softmax of nothing but minus infinity is 0 / 0. One such row of padding becomes a NaN key "
            "in the next layer, and a weight of zero times NaN is NaN (pytorch/pytorch#103749).",
        ),
        Misconception(
            "a query that may see nothing takes an even share of everything",
            _even_on_an_empty_row,
            "A large negative number in place of minus infinity leaves such a query with equal scores, so "
            "it mixes exactly what the mask forbids. Its result is zeros.",
        ),
        Misconception(
            "forbidden weights were struck out after the softmax",
            _struck_out_after,
            "The shares of a row no longer add up to 1: what is left was divided by a sum that has seen the "
            "forbidden keys.",
        ),
        Misconception(
            "struck out after the softmax, then divided by what was left",
            _divided_after,
            "It is too late to mask: where a forbidden score is far larger than the allowed ones, the "
            "softmax has already rounded all that is allowed to zero.",
        ),
        Misconception(
            "the heads were merged at the end",
            _heads_merged,
            "The numbers are right. Merging the heads is the next step, and the decoder does it: the "
            "result stays (batch, heads, length, head_dim).",
        ),
    ),
    hints=(
        "Everything but one step is your masked attention of lesson 02. The step: before the scores, give "
        "every query head its own copy of the right key/value head.",
        "There are two ways to repeat along an axis: the whole row of heads over and over, or each head "
        "several times before the next comes. Which of the two puts neighbours together?",
        "For 6 query heads on 2 write down which head each one reads. Then print what your repetition "
        "makes of `torch.arange(2)`.",
    ),
)
