"""Known mistakes as other people write them: the name must not hang on how an answer is written."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange

from kvlearn.checks import REGISTRY, judge


def heads(x, num_heads):
    return rearrange(x, "b l (h d) -> b h l d", h=num_heads)


def multi_head(split=heads, attend=F.scaled_dot_product_attention, merge="b h l d -> b l (h d)"):
    """Multi-head attention with einops and torch's own attention, one part exchanged."""

    def answer(x, w_q, w_k, w_v, w_o, num_heads):
        mixed = attend(*(split(F.linear(x, w), num_heads) for w in (w_q, w_k, w_v)))
        merged = merge(mixed) if callable(merge) else rearrange(mixed, merge)
        return F.linear(merged, w_o)

    return answer


OTHER_WORDS = [
    (
        "split_heads",
        lambda x, num_heads: rearrange(x, "b l w -> b w l").reshape(len(x), num_heads, x.shape[1], -1),
        "tokens and width changed places before the width was split",
    ),
    (
        "split_heads",
        lambda x, num_heads: torch.stack(x.chunk(num_heads, dim=-1)),
        "batch and head changed places",
    ),
    (
        "attention_weights",
        lambda q, k: (torch.einsum("bhld,bhsd->bhls", q, k) / q.size(1) ** 0.5).softmax(dim=3),
        "scaled by the square root of the number of heads",
    ),
    (
        "attention_weights",
        lambda q, k: F.scaled_dot_product_attention(
            q, k, torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1), is_causal=True
        ),
        "later keys were hidden",
    ),
    (
        "scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "later keys were hidden",
    ),
    (
        "scaled_dot_product_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0),
        "the scores were not scaled",
    ),
    (
        "multi_head_attention",
        multi_head(attend=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        "later keys were hidden",
    ),
    (
        "multi_head_attention",
        multi_head(attend=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1 / q.shape[-1])),
        "scaled by d instead of sqrt(d)",
    ),
    (
        "multi_head_attention",
        multi_head(
            split=lambda x, num_heads: x.view(x.shape[0], num_heads, x.shape[1], -1),
            merge=lambda x: x.reshape(x.shape[0], x.shape[2], -1),
        ),
        "the heads were split and merged with views alone",
    ),
]


def test_the_parts_of_these_answers_are_right():
    assert judge(REGISTRY["split_heads"], heads).passed
    assert judge(REGISTRY["multi_head_attention"], multi_head()).passed


@pytest.mark.parametrize("name, answer, misconception", OTHER_WORDS, ids=[m for _, _, m in OTHER_WORDS])
def test_a_mistake_in_other_words_has_its_name(name, answer, misconception):
    for seed in (0, 1, 2):
        assert judge(REGISTRY[name], answer, seed).misconception == misconception
