"""Right answers to the exercises of lesson 01, written without looking at the course's own."""

import math

import einops
import torch
import torch.nn.functional as F


def weights_by_einsum(q, k):
    return F.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) * q.size(-1) ** -0.5, dim=3)


def weights_by_hand(q, k):
    """The softmax written out, moved by each row's maximum."""
    scores = torch.matmul(q / math.sqrt(q.shape[3]), k.mT)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def weights_by_loops(q, k):
    rows = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for query in q[b, h]:
                scores = torch.stack([torch.dot(query, key) for key in k[b, h]])
                rows.append(torch.softmax(scores / math.sqrt(len(query)), 0))
    return torch.stack(rows).reshape(*q.shape[:3], k.shape[2])


def weights_from_torch(q, k):
    """The attention of torch, with the identity for values, has the weights as its result."""
    eye = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    return F.scaled_dot_product_attention(q, k, eye)


def attention_by_loops(q, k, v):
    out = torch.empty_like(q)
    for b, h in pairs(q.shape[0], q.shape[1]):
        for i in range(q.shape[2]):
            weights = torch.softmax((k[b, h] @ q[b, h, i]) / q.shape[3] ** 0.5, dim=0)
            out[b, h, i] = (weights[:, None] * v[b, h]).sum(0)
    return out


def pairs(*sizes):
    return torch.cartesian_prod(*(torch.arange(n) for n in sizes)).tolist()


def attention_by_log_sum_exp(q, k, v):
    scores = torch.einsum("...ld,...sd->...ls", q, k).div(math.sqrt(q.size(-1)))
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


def attention_online(q, k, v):
    """One key after the other with a running maximum, as FlashAttention does."""
    top = torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for j in range(k.shape[2]):
        score = (q * k[:, :, j : j + 1]).sum(-1) / q.shape[-1] ** 0.5
        new_top = torch.maximum(top, score)
        keep, share = torch.exp(top - new_top), torch.exp(score - new_top)
        total = total * keep + share
        out = out * keep[..., None] + share[..., None] * v[:, :, j : j + 1]
        top = new_top
    return out / total[..., None]


def heads_by_torch(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (einops.rearrange(F.linear(x, w), "b l (h d) -> b h l d", h=num_heads) for w in (w_q, w_k, w_v))
    out = F.scaled_dot_product_attention(q, k, v)
    return F.linear(einops.rearrange(out, "b h l d -> b l (h d)"), w_o)


def heads_one_by_one(x, w_q, w_k, w_v, w_o, num_heads):
    """The output projection as a sum over heads; nothing is ever merged."""
    total = torch.zeros_like(x)
    parts = [w.chunk(num_heads, 0) for w in (w_q, w_k, w_v)] + [w_o.chunk(num_heads, 1)]
    for a, b, c, d in zip(*parts, strict=True):
        scores = (x @ a.T) @ (x @ b.T).transpose(1, 2) / math.sqrt(a.shape[0])
        total = total + scores.softmax(2) @ (x @ c.T) @ d.T
    return total


def heads_by_einsum(x, w_q, w_k, w_v, w_o, num_heads):
    w_q, w_k, w_v = (w.view(num_heads, -1, w.shape[1]) for w in (w_q, w_k, w_v))
    q, k, v = (torch.einsum("blw,hdw->blhd", x, w) for w in (w_q, w_k, w_v))
    weights = torch.einsum("blhd,bshd->bhls", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("bhls,bshd,whd->blw", weights, v, w_o.view(w_o.shape[0], num_heads, -1))


ALTERNATIVES = {
    "attention_weights": [weights_by_einsum, weights_by_hand, weights_by_loops, weights_from_torch],
    "scaled_dot_product_attention": [
        attention_by_loops,
        attention_by_log_sum_exp,
        attention_online,
        F.scaled_dot_product_attention,
    ],
    "multi_head_attention": [heads_by_torch, heads_one_by_one, heads_by_einsum],
}
