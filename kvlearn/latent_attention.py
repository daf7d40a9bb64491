"""Latent attention (MLA, DeepSeek-V2, arXiv 2405.04434): what is cached is not keys and values.

A token leaves one short vector, its latent c. Each head h makes its own key and value from it:

    k_h = W_UK[h] c        v_h = W_UV[h] c            "up": latent_dim -> nope_dim and value_dim

A rotated key cannot come from the latent (a rotation that differs at every position would stand between W_UK
and c), so positions travel in a second small key that all heads share. A score is the sum of both parts:

    score = (q_nope . k_h + q_rope . k_rope) / sqrt(nope_dim + rope_dim)

The same numbers can be computed in two ways:

    expanded   make k_h and v_h of every stored token, then attend as ever
    absorbed   q_nope . (W_UK c) = (W_UK^T q_nope) . c: move the matrix to the query. All heads then read the
               latents themselves, as keys and as values, like one key/value head; W_UV comes after the sum.

The scale is that of the expanded keys in both: the latents are wider, but the scores are the same numbers.

Letters: B batch, Hq heads, L new tokens, S stored tokens; latent_dim is DeepSeek's kv_lora_rank.
"""

from dataclasses import dataclass, fields

import torch
from einops import rearrange
from torch import Tensor, nn

from kvlearn.attention import attention, position_mask
from kvlearn.cache import arguments
from kvlearn.decoder import RMSNorm
from kvlearn.decoder_config import check_theta_and_eps
from kvlearn.linear import Linear
from kvlearn.rope import apply_rope
from kvlearn.values import keep_whole


@dataclass(frozen=True)
class LatentConfig:
    """The sizes of latent attention; in brackets what DeepSeek's config.json calls them."""

    hidden_size: int
    num_heads: int
    latent_dim: int  # (kv_lora_rank)
    nope_dim: int  # of a key head, the part without positions (qk_nope_head_dim)
    rope_dim: int  # of the rotary key, even (qk_rope_head_dim)
    value_dim: int  # of a value head (v_head_dim)
    query_latent_dim: int | None = None  # queries come through a latent too; None: directly (q_lora_rank)
    num_layers: int = 1
    max_position: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6

    def __post_init__(self):
        for field in fields(self):
            may_be_none = field.name == "query_latent_dim" and self.query_latent_dim is None
            if field.type is not float and not may_be_none:
                keep_whole(self, field.name)
        if self.rope_dim % 2:
            raise ValueError(f"RoPE turns pairs of coordinates, so rope_dim is even; got {self.rope_dim}.")
        check_theta_and_eps(self)

    @property
    def head_dim(self) -> int:
        """Width of an expanded key, which sets the scale of the scores."""
        return self.nope_dim + self.rope_dim

    @property
    def num_kv_heads(self) -> int:
        """Expanded, every head has keys and values of its own."""
        return self.num_heads


class LatentAttention(nn.Module):
    """One layer of latent attention, with the parameter names of DeepSeek's checkpoints.

    Args:
        config: the sizes.
        layer: its number in the cache, 0 to num_layers - 1.

    Raises:
        ValueError: another kind of config, or a layer that it does not have.
    """

    def __init__(self, config: LatentConfig, layer: int = 0):
        super().__init__()
        if not isinstance(config, LatentConfig):
            raise ValueError(f"LatentAttention is made with a LatentConfig; got a {type(config).__name__}.")
        arguments.check_layer(layer, config.num_layers)
        self.config, self.layer = config, layer
        hidden, heads, query_width = config.hidden_size, config.num_heads, config.head_dim
        if config.query_latent_dim is None:
            self.q_proj = Linear(hidden, heads * query_width)
        else:
            self.q_a_proj = Linear(hidden, config.query_latent_dim)
            self.q_a_layernorm = RMSNorm(config.query_latent_dim, config.norm_eps)
            self.q_b_proj = Linear(config.query_latent_dim, heads * query_width)
        self.kv_a_proj_with_mqa = Linear(hidden, config.latent_dim + config.rope_dim)  # down
        self.kv_a_layernorm = RMSNorm(config.latent_dim, config.norm_eps)
        self.kv_b_proj = Linear(config.latent_dim, heads * (config.nope_dim + config.value_dim))  # up
        self.o_proj = Linear(heads * config.value_dim, hidden)

    def forward(
        self, x: Tensor, positions: Tensor | None = None, cache=None, absorbed: bool = True
    ) -> Tensor:
        """Attend from the new tokens to themselves and to what the cache holds.

        Args:
            x: (B, L, hidden_size).
            positions: (B, L), -1 = padding; left out, they go on from the cache, or from 0.
            cache: a `LatentCache`, or None: then x is the whole text.
            absorbed: read the latents themselves; False: make every stored token's keys and values first.

        Returns:
            (B, L, hidden_size), the same numbers either way up to rounding.

        Raises:
            ValueError: x of another width or dtype, positions that do not fit, or what the cache refuses.
        """
        positions = self._check(x, positions, cache)
        q_nope, q_rope = self.queries(x, positions)
        latent, rope_key = self.latents(x, positions)
        key_positions = positions
        if cache is not None:
            latent, rope_key = cache.update(self.layer, latent, rope_key, positions)
            key_positions = cache.key_positions(self.layer)
        mask = position_mask(positions, key_positions, getattr(cache, "window", None))
        attend = self.attend_absorbed if absorbed else self.attend_expanded
        out = attend(q_nope, q_rope, latent, rope_key, mask)  # (B, Hq, L, value_dim)
        return self.o_proj(rearrange(out, "b h l d -> b l (h d)"))

    def queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Both parts of the queries, (B, Hq, L, nope_dim) and (B, Hq, L, rope_dim), the second turned."""
        config = self.config
        if config.query_latent_dim is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = rearrange(q, "b l (h d) -> b h l d", h=config.num_heads)
        q_nope, q_rope = q.split((config.nope_dim, config.rope_dim), dim=-1)
        return q_nope, self._turn(q_rope, positions)

    def latents(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What the cache stores: latents (B, 1, L, latent_dim) and turned rotary keys (B, 1, L, rope_dim)."""
        widths = self.config.latent_dim, self.config.rope_dim
        latent, rope_key = self.kv_a_proj_with_mqa(x)[:, None].split(widths, dim=-1)
        return self.kv_a_layernorm(latent), self._turn(rope_key, positions)

    def up_projections(self) -> tuple[Tensor, Tensor]:
        """W_UK (Hq, nope_dim, latent_dim) and W_UV (Hq, value_dim, latent_dim), views of one matrix."""
        both = self.kv_b_proj.weight.unflatten(0, (self.config.num_heads, -1))
        return both.split((self.config.nope_dim, self.config.value_dim), dim=1)

    def attend_expanded(self, q_nope, q_rope, latent, rope_key, mask=None) -> Tensor:
        """(B, Hq, L, value_dim), by every head's keys and values of all S tokens."""
        w_uk, w_uv = self.up_projections()
        k_nope, v = latent @ w_uk.mT, latent @ w_uv.mT  # (B, Hq, S, nope_dim), (B, Hq, S, value_dim)
        shared = rope_key.expand(-1, self.config.num_heads, -1, -1)
        return attention(torch.cat((q_nope, q_rope), -1), torch.cat((k_nope, shared), -1), v, mask)

    def attend_absorbed(self, q_nope, q_rope, latent, rope_key, mask=None) -> Tensor:
        """(B, Hq, L, value_dim), by queries that have taken W_UK in: one key/value head for all."""
        w_uk, w_uv = self.up_projections()
        q = torch.cat((q_nope @ w_uk, q_rope), dim=-1)  # (B, Hq, L, latent_dim + rope_dim)
        # A copy of the latents beside the rotary keys, where a fused kernel would read both in place.
        k = torch.cat((latent, rope_key), dim=-1)  # (B, 1, S, latent_dim + rope_dim)
        mixed = attention(q, k, latent, mask, scale=self.config.head_dim**-0.5)  # (B, Hq, L, latent_dim)
        return mixed @ w_uv.mT

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """RoPE. DeepSeek's checkpoints pair neighbours, `apply_rope` pairs halves: put the pairs apart.

        Queries and keys come out in the same other order, and their dot products do not see it.
        """
        halves = rearrange(x, "... (pair two) -> ... (two pair)", two=2)
        return apply_rope(halves, positions, self.config.rope_theta)

    def _check(self, x: Tensor, positions: Tensor | None, cache) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[-1] != self.config.hidden_size:
            got = tuple(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ValueError(
                "LatentAttention takes hidden states (batch, length, hidden_size) with hidden_size="
                f"{self.config.hidden_size}; got {got}."
            )
        if x.dtype != self.o_proj.weight.dtype:
            raise ValueError(f"x is {x.dtype} and the layer's weights are {self.o_proj.weight.dtype}.")
        batch, length = x.shape[:2]
        if cache is not None:
            self._check_cache(cache, batch)
        if positions is None:
            start = torch.zeros(batch, dtype=torch.long, device=x.device)
            start = start if cache is None else cache.next_position
            positions = start[:, None] + torch.arange(length, device=x.device)
        else:
            arguments.check_positions(positions, (batch, length))
            if cache is None:
                arguments.check_order(positions)
        arguments.check_last_position(positions, self.config.max_position)
        return positions

    def _check_cache(self, cache, batch: int) -> None:
        arguments.check_is_cache(cache)
        wanted = (1, self.config.latent_dim), (1, self.config.rope_dim)
        if (cache.key_shape, cache.value_shape) != wanted:
            raise ValueError(
                f"This layer stores latents {wanted[0]} and rotary keys {wanted[1]}, (heads, width); "
                f"the cache stores {cache.key_shape} and {cache.value_shape}. LatentCache(layer.config) fits."
            )
        if len(cache.next_position) != batch:
            raise ValueError(
                f"The cache has {len(cache.next_position)} rows and x has {batch}; make the cache with "
                f"batch_size={batch}."
            )
