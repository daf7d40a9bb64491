"""What goes wrong in masked_attention: each mistake as an answer."""

import torch


def _scores(q, k):
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def _masked(scores, mask):
    """The right weights for given scores."""
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)


def struck_after(q, k, v, mask):
    return (_scores(q, k).softmax(-1) * mask) @ v


def divided_after(q, k, v, mask):
    weights = _scores(q, k).softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True) @ v


def divided_after_and_mended(q, k, v, mask):
    weights = _scores(q, k).softmax(-1) * mask
    return (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0) @ v


def overflowing(q, k, v, mask):
    powers = _scores(q, k).exp() * mask
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total == 0, 1, total) @ v


def overflowing_and_mended(q, k, v, mask):
    powers = _scores(q, k).exp() * mask
    return (powers / powers.sum(-1, keepdim=True)).nan_to_num(0.0) @ v


def zero_means_forbidden(q, k, v, mask):
    scores = _scores(q, k) * mask
    return _masked(scores, scores != 0) @ v


def zeroed_scores(q, k, v, mask):
    return (_scores(q, k) * mask).softmax(-1) @ v


def nan_rows(q, k, v, mask):
    return _scores(q, k).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def large_negative(q, k, v, mask):
    return _scores(q, k).masked_fill(~mask, -1e9).softmax(-1) @ v


def not_low_enough(q, k, v, mask):
    return _scores(q, k).masked_fill(~mask, -1e4).softmax(-1).masked_fill(~mask, 0) @ v


def large_negative_added(q, k, v, mask):
    return (_scores(q, k) + (1 - mask.to(q.dtype)) * -1e9).softmax(-1) @ v


def zero_times_infinity(q, k, v, mask):
    return (_scores(q, k) + ~mask * -torch.inf).softmax(-1) @ v


def wrong_way_round(q, k, v, mask):
    return _masked(_scores(q, k), ~mask) @ v


def wrong_sign(q, k, v, mask):
    return (_scores(q, k) + 1e9 * ~mask).softmax(-1) @ v


def added_as_a_number(q, k, v, mask):
    return (_scores(q, k) + mask).softmax(-1) @ v


def not_used(q, k, v, mask):
    return _scores(q, k).softmax(-1) @ v


def own_triangle(q, k, v, mask):
    L, S = mask.shape[-2:]
    return _masked(_scores(q, k), torch.ones(L, S, dtype=torch.bool).tril(S - L)) @ v


def triangle_too(q, k, v, mask):
    L, S = mask.shape[-2:]
    return _masked(_scores(q, k), mask & torch.ones(L, S, dtype=torch.bool).tril(S - L)) @ v


def triangle_if_square(q, k, v, mask):
    return (own_triangle if q.shape[2] == k.shape[2] else _right)(q, k, v, mask)


def _right(q, k, v, mask):
    return _masked(_scores(q, k), mask) @ v


def unscaled(q, k, v, mask):
    return _masked(q @ k.transpose(-1, -2), mask) @ v


def over_queries(q, k, v, mask):
    scores = _scores(q, k).masked_fill(~mask, -torch.inf)
    return scores.softmax(-2).nan_to_num(0.0) @ v
