"""A decoder prepared for inference: the same numbers, from fewer and larger operations.

`kvlearn.load` returns one. It computes what `Decoder` spells out, with these shortcuts:

- One product computes q, k and v, and one computes gate and up: their weights are stored as one matrix.
- Each product is computed in the way that is fastest for its shape on this machine (`kvlearn.linear`).
- Each step computes once what all its layers share: the angles of RoPE, and which keys are visible.
- If the decoder uses the library's attention, `fused_attention` computes it without storing all the scores.

The parameters keep their names, shapes and values, and your own attention, RoPE or cache works as it does
in a plain `Decoder`. If a module was replaced, edited, hooked or given new weights after loading, or if the
step is differentiated or watched operation by operation, it runs exactly as a plain `Decoder` does.

A weight may lie in memory column by column: `reshape` it, because `view` may refuse.
"""

from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from kvlearn import linear
from kvlearn.attention import attention as library_attention
from kvlearn.attention import position_mask
from kvlearn.decoder import Block, Decoder, RMSNorm, SelfAttention, narrower
from kvlearn.fused_attention import Block as QueryBlock
from kvlearn.fused_attention import blocks_of, causal_attention, fused_attention
from kvlearn.linear import Linear, Product
from kvlearn.rope import apply_rope, rotary_angles

# torch's names for the hooks that `register_module_forward_hook` and its like set on all modules at once.
HOOKS_OF_ALL = [f"_global_{when}_hooks" for when in ("forward", "forward_pre", "backward", "backward_pre")]
KEPT_MASK = 4_000_000  # query-key pairs; larger masks are built again in each layer, one block at a time


class PreparedDecoder(Decoder):
    """A `Decoder` that takes shortcuts once `prepare` has been called."""

    _prepared = None

    def prepare(self) -> "PreparedDecoder":
        """Lay the weights out for inference. They must be frozen; returns the decoder itself."""
        layers = [PreparedLayer(block) for block in self.layers]
        head = joined(self.lm_head)
        many = linear.fastest_for_many(self.dtype, torch.get_num_threads())
        self._widens = self.device.type == "cpu" and many is linear.widened
        if self.config.tie_embeddings:
            self.embed_tokens.weight = self.lm_head.weight
        self._prepared = layers, head, AsPrepared(self)
        return self

    def __getstate__(self):
        return super().__getstate__() | {"_prepared": None}  # a copy has its own weights

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        if not self.is_prepared():
            self._prepared = None  # let go of the weights before `to`, `half` ...
        return self

    def is_prepared(self) -> bool:
        """Whether the model is still as it was prepared: the same modules and weights, and no hooks."""
        return self._prepared is not None and self._prepared[2].holds()

    def run(self, x: Tensor, positions: Tensor, cache, last_only: bool) -> Tensor:
        if is_watched(x) or not self.is_prepared():
            return super().run(x, positions, cache, last_only)
        layers, head, _ = self._prepared
        step, dtype = Step(self, positions, cache), x.dtype
        if positions.numel() > linear.FEW_TOKENS and self._widens:
            x = x.float()  # the products are computed in float32 anyway: no need to round between them
        for index, layer in enumerate(layers):
            x = x + layer.attention(normed(x, layer.attention_norm), step, index)
            x = x + layer.mlp(normed(x, layer.mlp_norm))
        if last_only:
            x = x[:, -1:]
        return head(normed(x.to(dtype), self.norm))


def is_watched(x: Tensor) -> bool:
    """Whether a step must consist of the operations that `Decoder` spells out.

    Autograd records them, FlopCounterMode and FakeTensorMode see each one, and autocast chooses its dtype.
    """
    return x.requires_grad or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_any_autocast_enabled()


class PreparedLayer:
    """One `Block` with its weights joined."""

    def __init__(self, block: Block):
        part, mlp = block.self_attn, block.mlp
        self.attention_norm, self.mlp_norm = block.input_layernorm, block.post_attention_layernorm
        self.q_norm, self.k_norm = part.q_norm, part.k_norm
        self.head_dim, self.window = part.head_dim, part.window
        self.heads = [
            layer.out_features // part.head_dim for layer in (part.q_proj, part.k_proj, part.v_proj)
        ]
        self.qkv, self.out = joined(part.q_proj, part.k_proj, part.v_proj), joined(part.o_proj)
        self.o_proj = part.o_proj
        self.gate_up, self.down = joined(mlp.gate_proj, mlp.up_proj), joined(mlp.down_proj)

    def attention(self, x: Tensor, step: "Step", index: int) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, Hq + 2 Hkv, L, D)
        q, k, v = heads.split(self.heads, dim=1)
        if isinstance(self.q_norm, RMSNorm):
            q, k = normed(q, self.q_norm), normed(k, self.k_norm)
        q, k, v = step.rotate(q.to(step.dtype)), step.rotate(k.to(step.dtype)), v.to(step.dtype)
        out = step.attend(q, k, v, self.window, index)  # (B, L, Hq * D)
        if out.dtype != step.dtype:
            return self.o_proj(out)  # refuses it, as in a `Decoder`; `widened` would not
        return self.out(out)

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class Step:
    """What all layers share during one pass of the decoder."""

    def __init__(self, decoder: Decoder, positions: Tensor, cache):
        part = decoder.layers[0].self_attn
        self.theta, self.dtype, self.positions, self.cache = part.rope_theta, decoder.dtype, positions, cache
        self.own_attention, self.own_rope = decoder.attention, decoder.rope
        if decoder.attention is library_attention:
            self.own_attention = None
        rope = decoder.rope if isinstance(decoder.rope, partial) else partial(decoder.rope)
        if rope.func is apply_rope:  # perhaps with the scaling=
            angles = rotary_angles(positions, part.head_dim, self.theta, **rope.keywords)
            cos, sin = (
                table[:, None].to(self.dtype) for table in (angles.cos(), angles.sin())
            )  # (B, 1, L, D/2)
            self.own_rope, self.cos = None, torch.cat((cos, cos), dim=-1)
            self.sin = torch.cat((-sin, sin), dim=-1)
        self._kept, self._whole_text = (None, None, None), None

    def rotate(self, x: Tensor) -> Tensor:
        """`apply_rope` with the step's angles; a roll swaps the two halves."""
        if self.own_rope is not None:
            return self.own_rope(x, self.positions, self.theta)
        # The roll makes a contiguous tensor, as `apply_rope` does.
        return x.roll(x.shape[-1] // 2, dims=-1).mul_(self.sin).addcmul_(x, self.cos)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int | None, layer: int) -> Tensor:
        key_positions, kv_heads = self.positions, k.shape[1]
        if self.cache is not None:
            k, v = self.cache.update(layer, k, v, self.positions)
            key_positions = self.cache.key_positions(layer)
            window = narrower(window, getattr(self.cache, "window", None))
        # The kernel takes less than `attention` does, and not what `attention` refuses with a sentence.
        shape = (q.shape[0], kv_heads, key_positions.shape[-1], q.shape[-1])
        fits = k.shape == v.shape == shape and q.dtype == k.dtype == v.dtype and not q.requires_grad
        attention = self.own_attention or (None if fits else library_attention)
        if attention is not None:
            out = attention(q, k, v, mask=position_mask(self.positions, key_positions, window))
            return rearrange(out, "b h l d -> b l (h d)")
        if window is None and self.is_whole_text(key_positions):
            out = causal_attention(q, k, v)
        else:
            blocks = self.blocks(key_positions, window, q.shape[1] // kv_heads, q.dtype)
            out = fused_attention(q, k, v, blocks)
        return out.transpose(1, 2).flatten(2)

    def is_whole_text(self, key_positions: Tensor) -> bool:
        """Whether queries and keys are the same tokens, from position 0 on and without padding."""
        if key_positions.shape != self.positions.shape:
            return False
        if self._whole_text is None:
            plain = torch.arange(self.positions.shape[1], device=self.positions.device)
            self._whole_text = bool((self.positions == plain).all())
        return self._whole_text and torch.equal(key_positions, self.positions)

    def blocks(
        self, key_positions: Tensor, window: int | None, group_size: int, dtype
    ) -> Iterable[QueryBlock]:
        """`blocks_of` for this step, kept for the next layer if the masks are small."""
        args = self.positions, key_positions, window, group_size, dtype
        if self.positions.shape[1] * key_positions.numel() > KEPT_MASK:
            return blocks_of(*args)
        kept_for, settings, _ = self._kept
        if settings != (window, group_size) or not torch.equal(kept_for, key_positions):
            # A copy: a cache may write its next layer's positions into the same tensor.
            self._kept = key_positions.clone(), (window, group_size), list(blocks_of(*args))
        return self._kept[2]


def normed(x: Tensor, norm: RMSNorm) -> Tensor:
    """RMSNorm in few operations: x / sqrt(mean(x^2) + eps) * weight, computed in float32 or better."""
    wide = x if x.dtype.itemsize >= 4 else x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # sqrt(sum(x^2))
    scale = (length * length / x.shape[-1] + norm.eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(norm.weight)


def joined(*layers: Linear) -> Product:
    """One product for layers that read the same input. Their weights become views of one matrix."""
    weights = [layer.weight.detach() for layer in layers]
    rows, columns, first = sum(map(len, weights)), weights[0].shape[1], weights[0]
    few, many, columns_first = linear.whole, linear.whole, False
    if first.device.type == "cpu":
        few, columns_first = linear.fastest(rows, columns, first.dtype, torch.get_num_threads())
        many = linear.fastest_for_many(first.dtype, torch.get_num_threads())
    if columns_first:
        matrix = torch.cat([weight.T for weight in weights], dim=1).T
    else:
        matrix = torch.cat(weights) if len(weights) > 1 else first
    for layer, weight in zip(layers, matrix.split([len(weight) for weight in weights]), strict=True):
        layer.weight = nn.Parameter(weight, requires_grad=False)
    product = linear.by_length(few(matrix), many(matrix))
    if layers[0].bias is None:
        return product
    bias = torch.cat([layer.bias.detach() for layer in layers])
    for layer, part in zip(layers, bias.split([len(weight) for weight in weights]), strict=True):
        layer.bias = nn.Parameter(part, requires_grad=False)
    return lambda x: product(x) + bias


class AsPrepared:
    """The modules and weights of a decoder when it was prepared. Cheap to check, since every step does."""

    def __init__(self, decoder: Decoder):
        modules = list(decoder.modules())
        self.children = [(m._modules, dict(m._modules)) for m in modules if m._modules]
        self.settings = [(vars(m), dict(vars(m))) for m in modules if isinstance(m, SelfAttention)]
        self.attributes = [vars(m) for m in modules[1:]]
        parameters = [(m._parameters, name, p) for m in modules for name, p in m._parameters.items()]
        self.absent = [(now, name) for now, name, p in parameters if p is None]
        self.weights = [(now, name, p, p.data_ptr(), p.numel())
                        for now, name, p in parameters if p is not None]  # fmt: skip
        # Hooks on the decoder itself run around a step, whichever way it is computed.
        self.hooks = [hooks for m in modules[1:] for hooks in (m._forward_hooks, m._forward_pre_hooks,
                      m._backward_hooks, m._backward_pre_hooks)]  # fmt: skip
        self.hooks += [getattr(every_module, name) for name in HOOKS_OF_ALL]

    def holds(self) -> bool:
        """Whether the modules and weights are still these, frozen, and no hook is set."""
        return (
            not any(self.hooks)
            and not any("forward" in attributes for attributes in self.attributes)
            and all(now == then for now, then in self.children)
            and all(now == then for now, then in self.settings)
            and all(now.get(name) is None for now, name in self.absent)
            and all(
                now.get(name) is p and p.data_ptr() == place and p.numel() == size and not p.requires_grad
                for now, name, p, place, size in self.weights
            )
        )
