"""A Llama-family decoder (Touvron et al. 2023, arXiv 2302.13971), laid out to be read beside the paper.

    tokens -> embedding -> num_layers x [ x + attention(norm(x));  x + mlp(norm(x)) ] -> norm -> logits

Attention, the rotary function and the cache are arguments, so that your own can serve. The modules carry the
names that Hugging Face's Llama checkpoints use.

Shapes: tokens (B, L), hidden states (B, L, hidden_size), heads (B, heads, L, head_dim).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from kvlearn.attention import attention as library_attention
from kvlearn.attention import position_mask
from kvlearn.cache import arguments
from kvlearn.cache.base import KVCache
from kvlearn.linear import Linear
from kvlearn.rope import apply_rope


@dataclass(frozen=True)
class DecoderConfig:
    """The sizes of a decoder. `head_dim` is a number of its own: often it is not hidden_size / num_heads."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int  # Hq
    num_kv_heads: int  # Hkv, a divisor of num_heads
    head_dim: int  # D, even
    intermediate_size: int  # width of the MLP
    max_position: int = 2048  # positions 0 to max_position - 1
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = True  # the output head is the embedding table

    def __post_init__(self):
        for name in (
            "vocab_size hidden_size num_layers num_heads num_kv_heads head_dim intermediate_size max_position"
        ).split():
            size = getattr(self, name)
            if not arguments.is_whole(size):
                raise ValueError(f"{name} is a whole number; got {size!r}.")
            if size < 1:
                raise ValueError(f"{name} must be at least 1; got {size}.")
        if not arguments.is_number(self.rope_theta) or not 0 < self.rope_theta < float("inf"):
            raise ValueError(f"rope_theta is a number above 0; got {self.rope_theta!r}.")
        if not arguments.is_number(self.norm_eps) or not 0 <= self.norm_eps < float("inf"):
            raise ValueError(f"norm_eps is a number, 0 or above; got {self.norm_eps!r}.")
        if not isinstance(self.tie_embeddings, bool):
            raise ValueError(f"tie_embeddings is True or False; got {self.tie_embeddings!r}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}; "
                "the query heads share the key/value heads evenly."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"RoPE turns pairs of coordinates, so head_dim must be even; got {self.head_dim}."
            )

    @property
    def group_size(self) -> int:
        """Query heads that read one key/value head."""
        return self.num_heads // self.num_kv_heads


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis (arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class SelfAttention(nn.Module):
    """Project to heads, turn by position, keep in the cache, attend, project back."""

    def __init__(self, config: DecoderConfig, layer: int):
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.layer, self.head_dim, self.rope_theta = layer, head_dim, config.rope_theta
        self.q_proj = Linear(hidden, config.num_heads * head_dim)
        self.k_proj = Linear(hidden, config.num_kv_heads * head_dim)
        self.v_proj = Linear(hidden, config.num_kv_heads * head_dim)
        self.o_proj = Linear(config.num_heads * head_dim, hidden)

    def forward(self, x: Tensor, positions: Tensor, cache: KVCache | None, attention, rope) -> Tensor:
        q, k, v = (
            rearrange(proj(x), "b l (h d) -> b h l d", d=self.head_dim)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rope(q, positions, self.rope_theta), rope(k, positions, self.rope_theta)
        key_positions, window = positions, None
        if cache is not None:
            k, v = cache.update(self.layer, k, v, positions)
            key_positions, window = cache.key_positions(self.layer), getattr(cache, "window", None)
        mask = position_mask(positions, key_positions, window)
        out = attention(q, k, v, mask=mask)  # (B, Hq, L, D)
        return self.o_proj(rearrange(out, "b h l d -> b l (h d)"))


class MLP(nn.Module):
    """SwiGLU: a gate decides how much of each channel passes (arXiv 2002.05202)."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(hidden, intermediate)
        self.up_proj = Linear(hidden, intermediate)
        self.down_proj = Linear(intermediate, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer: attention, then the MLP, each behind a norm and added to the stream."""

    def __init__(self, config: DecoderConfig, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = SelfAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, positions: Tensor, cache: KVCache | None, attention, rope) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, cache, attention, rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A decoder-only language model.

    Args:
        config: the sizes.
        attention: `attention(q, k, v, mask=mask)`, see `kvlearn.attention`.
        rope: `rope(x, positions, theta)`, see `kvlearn.rope`.
    """

    def __init__(
        self,
        config: DecoderConfig,
        attention: Callable[..., Tensor] = library_attention,
        rope: Callable[..., Tensor] = apply_rope,
    ):
        super().__init__()
        self.config, self.attention, self.rope = config, attention, rope
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        if config.tie_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def forward(
        self,
        tokens: Tensor,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """The logits of the token that follows each of the given ones.

        Args:
            tokens: (B, L) token ids; at padding any id in the vocabulary.
            cache: what earlier tokens left behind, or None: then the tokens are the whole text.
            positions: (B, L), -1 = padding; left out, they go on from the cache, or from 0.
            last_only: compute the logits of the last token alone, which is all that generation reads.

        Returns:
            (B, L, vocab_size), or (B, 1, vocab_size) when `last_only`.

        Raises:
            ValueError: a token outside the vocabulary, a position past the last, or what the cache
                refuses. The cache is then as it was.
        """
        positions = self._check(tokens, cache, positions)
        x = self.embed_tokens(tokens)  # (B, L, hidden_size)
        for layer in self.layers:
            x = layer(x, positions, cache, self.attention, self.rope)
        if last_only:
            x = x[:, -1:]
        return self.lm_head(self.norm(x))

    def _check(self, tokens: Tensor, cache: KVCache | None, positions: Tensor | None) -> Tensor:
        if not isinstance(tokens, Tensor):
            raise ValueError(
                f"The decoder takes a tensor of token ids (batch, length); got a {type(tokens).__name__}. "
                "torch.tensor([ids]) makes one of a list of ids."
            )
        if tokens.ndim != 2 or tokens.numel() == 0 or tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                "The decoder takes at least one token, as int64 (or int32) of shape (batch, length); "
                f"got {tokens.dtype} of shape {tuple(tokens.shape)}."
            )
        smallest, largest = (int(end) for end in tokens.aminmax())
        if smallest < 0 or largest >= self.config.vocab_size:
            wrong = smallest if smallest < 0 else largest
            raise ValueError(f"Token {wrong} is not in the vocabulary of 0 to {self.config.vocab_size - 1}.")
        batch, length = tokens.shape
        if cache is not None:
            self._check_cache(cache, batch)
        if positions is None:
            start = torch.zeros_like(tokens[:, 0]) if cache is None else cache.next_position
            positions = start[:, None] + torch.arange(length, device=tokens.device)
        else:
            arguments.check_positions(positions, (batch, length))
            if cache is None:  # a cache looks at their order itself, once a step
                arguments.check_order(positions)
        arguments.check_last_position(positions, self.config.max_position)
        return positions

    def _check_cache(self, cache: KVCache, batch: int) -> None:
        arguments.check_is_cache(cache)
        if len(cache.next_position) != batch:
            raise ValueError(
                f"The cache has {len(cache.next_position)} rows and the tokens have {batch}; make the cache "
                f"with batch_size={batch}."
            )
        # A step ends with the cache's last layer: with one layer more it would never end, and be dropped.
        layers = getattr(cache, "num_layers", len(self.layers))
        if layers != len(self.layers):
            raise ValueError(
                f"The cache has {layers} layers and the model {len(self.layers)}; make the cache with "
                "the model's config."
            )
