"""A Llama-family decoder (Touvron et al. 2023, arXiv 2302.13971), laid out to be read beside the paper.

    tokens -> embedding -> num_layers x [ x + attention(norm(x));  x + mlp(norm(x)) ] -> norm -> logits

Attention, the rotary function and the cache are arguments, so that your own can serve. The modules carry the
names that Hugging Face's Llama checkpoints use. What Mistral and Qwen add is in the config: windows, biases
of q, k and v, norms of q and k (`kvlearn.decoder_config`).

Shapes: tokens (B, L), hidden states (B, L, hidden_size), heads (B, heads, L, head_dim).
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from kvlearn.attention import attention as library_attention
from kvlearn.attention import position_mask
from kvlearn.cache import arguments
from kvlearn.cache.base import KVCache
from kvlearn.decoder_config import DecoderConfig
from kvlearn.linear import Linear
from kvlearn.rope import apply_rope


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
        self.window = config.window(layer)
        self.q_proj = Linear(hidden, config.num_heads * head_dim, bias=config.qkv_bias)
        self.k_proj = Linear(hidden, config.num_kv_heads * head_dim, bias=config.qkv_bias)
        self.v_proj = Linear(hidden, config.num_kv_heads * head_dim, bias=config.qkv_bias)
        self.q_norm = RMSNorm(head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.o_proj = Linear(config.num_heads * head_dim, hidden)

    def forward(self, x: Tensor, positions: Tensor, cache: KVCache | None, attention, rope) -> Tensor:
        q, k, v = (
            rearrange(proj(x), "b l (h d) -> b h l d", d=self.head_dim)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.q_norm(q), self.k_norm(k)
        q, k = rope(q, positions, self.rope_theta), rope(k, positions, self.rope_theta)
        key_positions, window = positions, self.window
        if cache is not None:
            k, v = cache.update(self.layer, k, v, positions)
            key_positions = cache.key_positions(self.layer)
            window = narrower(window, getattr(cache, "window", None))
        mask = position_mask(positions, key_positions, window)
        out = attention(q, k, v, mask=mask)  # (B, Hq, L, D)
        return self.o_proj(rearrange(out, "b h l d -> b l (h d)"))


def narrower(*windows: int | None) -> int | None:
    """The smallest of the windows that there are; None where there is none."""
    return min((window for window in windows if window is not None), default=None)


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
        rope: `rope(x, positions, theta)`, see `kvlearn.rope`; with `scaling=` where the config asks for it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        attention: Callable[..., Tensor] = library_attention,
        rope: Callable[..., Tensor] = apply_rope,
    ):
        super().__init__()
        self.config, self.attention, self.rope = config, attention, rope
        if config.rope_scaling is not None:
            self.rope = partial(rope, scaling=config.rope_scaling)
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
        return self.run(self.embed_tokens(tokens), positions, cache, last_only)

    def run(self, x: Tensor, positions: Tensor, cache: KVCache | None, last_only: bool) -> Tensor:
        """From embeddings (B, L, hidden_size) to logits: the layers in turn, the last norm, the head."""
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
