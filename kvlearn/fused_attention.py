"""Attention through torch's fused kernel: what `kvlearn.attention` computes, without storing all the scores.

torch's `scaled_dot_product_attention` reads the keys in blocks and keeps a running softmax (FlashAttention,
arXiv 2205.14135), so the L x S scores are never in memory all at once. This module adds two things:

- The query heads of a group read the same keys. They are stacked as extra queries of one head, so no key is
  copied or read twice (GQA, arXiv 2305.13245).
- Queries are taken in blocks. Each block gets only the keys from the first to the last that one of its
  queries may see. This halves the work under a causal mask, and under a window it limits the keys per block.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kvlearn.attention import position_mask

BLOCK = 256  # queries


class Block(NamedTuple):
    """Some queries, and the keys that they may see."""

    queries: slice
    keys: slice  # from the first to the last key that one of the queries sees
    mask: Tensor | None  # (B, 1, group_size * L, S) to add to the scores: 0 or -inf; None = all keys are seen
    blind: Tensor | None  # (B, 1, L, 1), True = the query sees no key; None = each sees at least one


def blocks_of(
    query_positions: Tensor, key_positions: Tensor, window: int | None, group_size: int, dtype: torch.dtype
) -> Iterator[Block]:
    """Split the queries into blocks, each with its part of `position_mask`; positions are (B, L), (B, S)."""
    for start in range(0, query_positions.shape[1], BLOCK):
        queries = slice(start, start + BLOCK)
        mask = position_mask(query_positions[:, queries], key_positions, window)  # (B, 1, L, S)
        seen = mask.any(dim=2).any(dim=0)[0].nonzero()  # (keys that at least one query sees, 1)
        keys = slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)
        mask = mask[..., keys]
        if mask.all():
            yield Block(queries, keys, None, None)
            continue
        blind = ~mask.any(dim=-1, keepdim=True)
        added = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))
        yield Block(queries, keys, added.repeat(1, 1, group_size, 1), blind if blind.any() else None)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Iterable[Block]) -> Tensor:
    """Compute `attention` under the mask of the positions that `blocks_of` was given.

    Args:
        q: (B, Hq, L, D).
        k, v: (B, Hkv, S, D).

    Returns:
        (B, Hq, L, D). A query that sees no key gives zeros.
    """
    parts = [_attend(q[:, :, b.queries], k[:, :, b.keys], v[:, :, b.keys], b) for b in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _attend(q: Tensor, k: Tensor, v: Tensor, block: Block) -> Tensor:
    if k.shape[2] == 0 or q.numel() == 0:
        return torch.zeros_like(q)
    grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])  # (B, Hkv, group_size * L, D)
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=block.mask).reshape(q.shape)
    return out if block.blind is None else out.masked_fill(block.blind, 0.0)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a whole sequence to itself: query i sees keys 0 to i, and no mask is stored."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
