"""What goes wrong in multi_head_attention: each mistake as an answer."""

import torch

from kvlearn.checks.lesson_01 import weights as w


def _split(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _merge(x):
    return x.transpose(1, 2).flatten(2)


def _right_weights(q, k):
    return w.scaled(q, k).softmax(-1)


def _mha(x, w_q, w_k, w_v, w_o, num_heads, split=_split, merge=_merge, weights=_right_weights):
    """Multi-head attention with parts that a misconception exchanges."""
    q, k, v = (split(x @ matrix.T, num_heads) for matrix in (w_q, w_k, w_v))
    return merge(weights(q, k) @ v) @ w_o.T


def with_parts(**parts):
    """The answer that exchanges some parts of the right one."""

    def answer(x, w_q, w_k, w_v, w_o, num_heads):
        return _mha(x, w_q, w_k, w_v, w_o, num_heads, **parts)

    return answer


def with_scale(scale):
    """The answer that scales its scores by scale(channels of a head, number of heads, width of x)."""

    def answer(x, w_q, w_k, w_v, w_o, num_heads):
        by = scale(w_q.shape[0] // num_heads, num_heads, x.shape[-1])
        parts = {"weights": lambda q, k: (q @ k.mT * by).softmax(-1)}
        return _mha(x, w_q, w_k, w_v, w_o, num_heads, **parts)

    return answer


def with_matrices(choose):
    """The answer that takes choose(w_q, w_k, w_v, w_o) for its four matrices."""

    def answer(x, w_q, w_k, w_v, w_o, num_heads):
        return _mha(x, *choose(w_q, w_k, w_v, w_o), num_heads)

    return answer


def scrambled_split(x, num_heads):
    B, L, inner = x.shape
    return x.reshape(B, num_heads, L, inner // num_heads)


def scrambled_merge(x):
    B, H, L, D = x.shape
    return x.reshape(B, L, H * D)


def channel_by_channel(x, num_heads):
    return x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)


def channels_outside(x):
    return x.permute(0, 2, 3, 1).flatten(2)


def never_moved(x, num_heads):
    return x.unflatten(-1, (num_heads, -1))


def merged_where_they_stood(x):
    return x.flatten(2)


def no_output_projection(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_k, w_v, torch.eye(w_o.shape[1], dtype=x.dtype), num_heads)


def one_wide_head(x, w_q, w_k, w_v, w_o, num_heads):
    return _mha(x, w_q, w_k, w_v, w_o, 1)


def size_from_the_width(x, w_q, w_k, w_v, w_o, num_heads):
    """The size of a head as width // heads, where it is inner // heads."""
    B, L, width = x.shape

    def split(projected, num_heads):
        return projected.view(B, L, num_heads, width // num_heads).transpose(1, 2)

    return _mha(x, w_q, w_k, w_v, w_o, num_heads, split=split)


def x_added(x, *rest):
    return x + _mha(x, *rest)
