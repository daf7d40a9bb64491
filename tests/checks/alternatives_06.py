"""Right answers to the exercises of lesson 06, written in other ways."""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce

from kvlearn import attention
from kvlearn.pooling import mean_pool_heads

# attend_in_groups


def groups_by_einsum(q, k, v):
    q = rearrange(q, "b (h g) l d -> b h g l d", h=k.shape[1])
    scores = einsum(q, k, "b h g l d, b h s d -> b h g l s") / q.shape[-1] ** 0.5
    out = einsum(scores.softmax(-1), v, "b h g l s, b h s d -> b h g l d")
    return rearrange(out, "b h g l d -> b (h g) l d")


def groups_in_float64(q, k, v):
    return groups_by_einsum(q.double(), k.double(), v.double()).to(q.dtype)


def groups_one_by_one(q, k, v):
    group = q.shape[1] // k.shape[1]
    out = []
    for h in range(q.shape[1]):
        keys, values = k[:, h // group], v[:, h // group]
        shares = torch.softmax(q[:, h] @ keys.mT * q.shape[-1] ** -0.5, dim=-1)
        out.append(shares @ values)
    return torch.stack(out, dim=1)


def groups_with_stretched_queries(q, k, v):
    B, Hq, L, D = q.shape
    tall = rearrange(q, "b (h g) l d -> b h (g l) d", h=k.shape[1])
    return F.scaled_dot_product_attention(tall, k, v).reshape(B, Hq, L, v.shape[-1])


def groups_with_bmm(q, k, v):
    tall = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    scores = torch.baddbmm(
        torch.zeros(1, dtype=q.dtype),
        tall.flatten(0, 1),
        k.flatten(0, 1).mT,
        alpha=q.shape[-1] ** -0.5,
    )
    return torch.bmm(torch.softmax(scores, 2), v.flatten(0, 1)).reshape(q.shape)


# mean_pool_heads


def pool_with_einops(weight, head_dim, num_kv_heads):
    return reduce(weight, "(new group d) hidden -> (new d) hidden", "mean", new=num_kv_heads, d=head_dim)


def pool_by_slices(weight, head_dim, num_kv_heads):
    heads = weight.split(head_dim)
    group = len(heads) // num_kv_heads
    return torch.cat([sum(heads[i : i + group]) / group for i in range(0, len(heads), group)])


def pool_by_a_matrix(weight, head_dim, num_kv_heads):
    old = weight.shape[0] // head_dim
    groups = torch.eye(num_kv_heads).repeat_interleave(old // num_kv_heads, dim=1) * num_kv_heads / old
    return torch.kron(groups, torch.eye(head_dim)).to(weight.dtype) @ weight


# expand_latents


def expand_at_once(latent, up, num_heads, nope_dim):
    both = F.linear(latent[:, 0], up)
    both = rearrange(both, "b s (h d) -> b h s d", h=num_heads)
    return both[..., :nope_dim], both[..., nope_dim:]


def expand_head_by_head(latent, up, num_heads, nope_dim):
    keys, values = [], []
    for rows in up.chunk(num_heads):
        keys.append(latent[:, 0] @ rows[:nope_dim].T)
        values.append(latent[:, 0] @ rows[nope_dim:].T)
    return torch.stack(keys, 1), torch.stack(values, 1)


def expand_with_einsum(latent, up, num_heads, nope_dim):
    both = einsum(latent.squeeze(1), up.view(num_heads, -1, up.shape[1]), "b s c, h d c -> b h s d")
    return tuple(both.split((nope_dim, both.shape[-1] - nope_dim), dim=-1))


# absorbed_scores


def scores_by_einsum(q_nope, q_rope, latent, rope_key, w_uk):
    moved = einsum(q_nope, w_uk, "b h l n, h n c -> b h l c")
    scores = einsum(moved, latent[:, 0], "b h l c, b s c -> b h l s")
    scores = scores + einsum(q_rope, rope_key[:, 0], "b h l r, b s r -> b h l s")
    return scores / (q_nope.shape[-1] + q_rope.shape[-1]) ** 0.5


def scores_without_a_product(q_nope, q_rope, latent, rope_key, w_uk):
    moved = (q_nope[..., None] * w_uk[:, None]).sum(dim=-2)
    query, key = torch.cat((moved, q_rope), dim=-1), torch.cat((latent, rope_key), dim=-1)
    scores = (query[:, :, :, None] * key[:, :, None]).sum(dim=-1)
    return scores / (q_nope.shape[-1] + q_rope.shape[-1]) ** 0.5


def scores_as_one_key(q_nope, q_rope, latent, rope_key, w_uk):
    q = torch.cat((q_nope @ w_uk, q_rope), dim=-1)
    k = torch.cat((latent, rope_key), dim=-1)[:, 0]
    tall = q.flatten(1, 2)  # all heads' queries below one another
    return (tall @ k.mT).view(*q.shape[:3], -1) * (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5


def scores_scaled_first(q_nope, q_rope, latent, rope_key, w_uk):
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    heads = [
        (q_nope[:, h] * scale) @ w_uk[h] @ latent[:, 0].mT + (q_rope[:, h] * scale) @ rope_key[:, 0].mT
        for h in range(q_nope.shape[1])
    ]
    return torch.stack(heads, dim=1)


# absorbed_values


def values_by_einsum(weights, latent, w_uv):
    mixed = einsum(weights, latent[:, 0], "b h l s, b s c -> b h l c")
    return einsum(mixed, w_uv, "b h l c, h d c -> b h l d")


def values_head_by_head(weights, latent, w_uv):
    heads = [weights[:, h] @ latent[:, 0] @ w_uv[h].T for h in range(len(w_uv))]
    return torch.stack(heads, dim=1)


# decode_intensity


def intensity_in_short(num_heads, num_kv_heads, key_width, value_width, bits):
    return 16 * num_heads / num_kv_heads / bits


def intensity_counted(num_heads, num_kv_heads, key_width, value_width, bits):
    flops = num_heads * (2 * key_width + 2 * value_width)
    stored = num_kv_heads * key_width + num_kv_heads * value_width
    return torch.tensor(flops / (stored * bits / 8))


ALTERNATIVES = {
    "attend_in_groups": [
        groups_in_float64,
        groups_by_einsum,
        groups_one_by_one,
        groups_with_stretched_queries,
        groups_with_bmm,
        attention,
    ],
    "mean_pool_heads": [pool_with_einops, pool_by_slices, pool_by_a_matrix, mean_pool_heads],
    "expand_latents": [expand_at_once, expand_head_by_head, expand_with_einsum],
    "absorbed_scores": [scores_by_einsum, scores_without_a_product, scores_as_one_key, scores_scaled_first],
    "absorbed_values": [values_by_einsum, values_head_by_head],
    "decode_intensity": [intensity_in_short, intensity_counted],
}
