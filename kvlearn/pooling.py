"""Fewer key/value heads for a model that is trained already: each group of heads becomes its mean.

This is how grouped-query models have been made from multi-head ones (Ainslie et al. 2023, arXiv 2305.13245):
the projections of the key heads that are to share are averaged, and so are those of the value heads; the
queries stay. The result is where further training starts, not where it ends: without that training (the
paper's "uptraining", 5 % of the original compute) the model has lost what its heads did differently.
"""

import copy
from dataclasses import replace

from torch import Tensor, nn

from kvlearn.decoder import Decoder
from kvlearn.values import is_plain, is_whole, kind_of


def mean_pool_heads(projection: Tensor, head_dim: int, num_kv_heads: int) -> Tensor:
    """The mean of neighbouring heads, in a matrix that projects to keys or to values.

    Heads that are neighbours are pooled, because query heads that are neighbours share: with 6 heads and 2
    to come, new head 0 is the mean of heads 0 to 2.

    Args:
        projection: (Hkv * D, hidden_size) as `torch.nn.Linear` keeps it, or (Hkv * D,) for its bias.
        head_dim: D.
        num_kv_heads: how many heads remain; a divisor of Hkv.

    Returns:
        (num_kv_heads * D, hidden_size) or (num_kv_heads * D,), a new tensor.

    Raises:
        ValueError: no matrix of floats, rows that are not whole heads, or heads that do not make even groups.
    """
    if not is_plain(projection) or projection.ndim == 0 or not projection.is_floating_point():
        raise ValueError(f"A projection is a matrix of floating-point numbers; got {kind_of(projection)}.")
    rows = projection.shape[0]
    if rows == 0 or not is_whole(head_dim) or head_dim < 1 or rows % head_dim:
        raise ValueError(f"{rows} rows are not a whole number of heads of head_dim={head_dim!r}.")
    _check_groups(rows // head_dim, num_kv_heads)
    heads = projection.unflatten(0, (num_kv_heads, -1, head_dim))  # (new heads, heads in a group, D, ...)
    return heads.mean(dim=1).flatten(0, 1)


def pool_kv_heads(decoder: Decoder, num_kv_heads: int) -> Decoder:
    """A copy of a decoder with fewer key/value heads, each the mean of neighbours; its cache shrinks alike.

    Everything else is copied as it is. RoPE turns all heads of a position alike, so the turned mean is the
    mean of the turned keys; what is lost is what the heads of a group did differently.

    Args:
        decoder: with Hkv key/value heads; it is not touched.
        num_kv_heads: how many remain, a divisor of Hkv; 1 makes multi-query attention (arXiv 1911.02150).

    Raises:
        ValueError: no decoder, or heads that do not make even groups.
    """
    if not isinstance(decoder, Decoder):
        raise ValueError(f"pool_kv_heads takes a Decoder; got a {type(decoder).__name__}.")
    config = decoder.config
    _check_groups(config.num_kv_heads, num_kv_heads)
    pooled = copy.deepcopy(decoder)
    pooled.config = replace(config, num_kv_heads=num_kv_heads)
    for layer in pooled.layers:
        for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            for name, weights in list(projection.named_parameters()):
                mean = mean_pool_heads(weights.detach(), config.head_dim, num_kv_heads)
                setattr(projection, name, nn.Parameter(mean, weights.requires_grad))
            projection.out_features = len(projection.weight)
    return pooled


def _check_groups(old: int, new) -> None:
    if not is_whole(new) or new < 1 or old % new:
        raise ValueError(
            f"{old} key/value heads make even groups for {_divisors(old)} new ones; got num_kv_heads={new!r}."
        )


def _divisors(number: int) -> str:
    return " or ".join(str(n) for n in range(1, number + 1) if number % n == 0)
