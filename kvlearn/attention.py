"""Masks, and scaled dot-product attention with grouped heads.

Attention lets each new token (a query) take a weighted average of what earlier tokens offer (their
values), with weights that say how well the query matches each token's key:

    attention(q, k, v) = softmax(q k^T / sqrt(head_dim)) v          (Vaswani et al. 2017, arXiv 1706.03762)

Shapes, everywhere: `(batch, heads, length, head_dim)`.

    B  batch      Hq  query heads      Hkv  key/value heads      D  head_dim
    L  new tokens (queries)            S    stored tokens (keys)

There is one mask rule, and it speaks of positions: a query at position p may see the keys at positions
0 to p. A slot that holds nothing has position -1 and is seen by nobody. Decode, chunked prefill, left
padding and windows are all this rule.
"""

import math

import torch
from torch import Tensor


def position_mask(query_positions: Tensor, key_positions: Tensor, window: int | None = None) -> Tensor:
    """Which query may see which key, from their positions.

    Args:
        query_positions: (B, L) integers; -1 marks padding, which sees nothing.
        key_positions: (B, S) integers, in any order; -1 marks an empty slot, which nobody sees.
        window: None, or W: a query sees itself and the W - 1 positions before it
            (Mistral 7B, arXiv 2310.06825).

    Returns:
        (B, 1, L, S) booleans, True = may attend; the 1 broadcasts over heads.
    """
    if query_positions.ndim != 2 or key_positions.ndim != 2:
        raise ValueError(
            "position_mask takes positions of shape (batch, length); got "
            f"{tuple(query_positions.shape)} for the queries and {tuple(key_positions.shape)} for the keys."
        )
    if query_positions.shape[0] != key_positions.shape[0]:
        raise ValueError(
            f"position_mask got {query_positions.shape[0]} rows of query positions and "
            f"{key_positions.shape[0]} rows of key positions; they must be the same rows."
        )
    if window is not None and window < 1:
        raise ValueError(f"A window holds at least the query itself; got window={window}.")
    query = query_positions[:, None, :, None]  # (B, 1, L, 1)
    key = key_positions[:, None, None, :]  # (B, 1, 1, S)
    mask = (key >= 0) & (key <= query)
    if window is not None:
        mask = mask & (key > query - window)
    return mask


def causal_mask(
    query_length: int,
    key_length: int | None = None,
    window: int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The causal mask of `query_length` new tokens over `key_length` tokens, the new ones last.

    The last query sees the last key, so that queries may be fewer than keys: with 2 queries and 5 keys
    the first sees 4 keys and the second sees 5. (torch's `is_causal=True` aligns the first query with the
    first key instead: pytorch/pytorch#108108.)

    Args:
        query_length: L.
        key_length: S; L when left out.
        window: None, or W: a query sees itself and the W - 1 tokens before it.

    Returns:
        (L, S) booleans, True = may attend.
    """
    key_length = query_length if key_length is None else key_length
    if not 0 <= query_length <= key_length:
        raise ValueError(
            f"The queries are the last of the keys, so there are at most as many; got "
            f"query_length={query_length} and key_length={key_length}."
        )
    keys = torch.arange(key_length, device=device)
    queries = keys[key_length - query_length :]
    return position_mask(queries[None], keys[None], window)[0, 0]


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Scaled dot-product attention (arXiv 1706.03762) with grouped heads (GQA, arXiv 2305.13245).

    Query head h reads key/value head h // group_size, where group_size = Hq // Hkv.

    Args:
        q: (B, Hq, L, D).
        k: (B, Hkv, S, D).
        v: (B, Hkv, S, Dv); Dv is D in most models.
        mask: booleans that broadcast to (B, Hq, L, S), True = may attend; None = every query sees
            every key.
        scale: what the scores are multiplied by; 1 / sqrt(D) when left out.

    Returns:
        (B, Hq, L, Dv). A query that may see no key gives zeros.

    Raises:
        ValueError: the shapes do not fit, or the mask is not boolean.
    """
    if k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3]:
        raise ValueError(
            "Each key has its value: k and v are (batch, kv heads, length, head_dim) and agree but in "
            f"head_dim; got {tuple(k.shape)} and {tuple(v.shape)}."
        )
    weights = attention_weights(q, k, mask, scale).to(v.dtype)  # (B, Hq, L, S)
    out = _by_group(weights, k.shape[1]) @ v  # (B, Hkv, group_size * L, Dv)
    return out.view(*q.shape[:3], v.shape[-1])


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """How much each query takes from each key: softmax(scale * q k^T) over what the mask lets through.

    Args:
        q: (B, Hq, L, D).
        k: (B, Hkv, S, D).
        mask, scale: as for `attention`.

    Returns:
        (B, Hq, L, S), in float32 or better. The scores are computed in that precision too: in bfloat16, a
        score near 60 could be off by 0.125 and its weight by 13 %; in float16, scores could overflow. Each
        row sums to 1, or is all zeros where the mask lets nothing through (a softmax of nothing but -inf
        would be NaN: pytorch/pytorch#103749).

    Raises:
        ValueError: the shapes do not fit, or the mask is not boolean.
    """
    _check(q, k, mask)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    precise = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(precise), k.to(precise)  # copies only half-precision tensors
    scores = _by_group(q * scale, k.shape[1]) @ k.transpose(-2, -1)  # (B, Hkv, group_size * L, S)
    scores = scores.view(*q.shape[:3], k.shape[2])
    if mask is None:
        return torch.softmax(scores, dim=-1)
    hidden = ~mask
    # The lowest number and not -inf: in a row of nothing but -inf the gradients would be NaN as well.
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)


def _by_group(x: Tensor, num_kv_heads: int) -> Tensor:
    """(B, Hq, L, X) -> (B, Hkv, group_size * L, X).

    The query heads of a group read the same keys. Laid one below the other they are one tall matrix, and
    no key needs to be copied.
    """
    batch, num_heads, length, width = x.shape
    return x.reshape(batch, num_kv_heads, num_heads // num_kv_heads * length, width)


def _check(q: Tensor, k: Tensor, mask: Tensor | None) -> None:
    shapes = f"q {tuple(q.shape)} and k {tuple(k.shape)}"
    if q.ndim != 4 or k.ndim != 4:
        raise ValueError(f"attention takes (batch, heads, length, head_dim); got {shapes}.")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must agree in batch and head_dim; got {shapes}.")
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly; "
            "num_heads must be a multiple of num_kv_heads."
        )
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ValueError(f"The mask is boolean, True = may attend; got {mask.dtype}.")
        full = (*q.shape[:3], k.shape[2])
        try:
            mask.expand(full)
        except RuntimeError:
            raise ValueError(
                f"The mask {tuple(mask.shape)} does not broadcast to (B, Hq, L, S) = {full}."
            ) from None
