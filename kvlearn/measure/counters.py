"""Counters on a running decoder, by forward hooks: nothing of the model is changed, nothing stays behind.

Each is a context manager. A step is one forward pass of the decoder: the prompt is step 0, and each pass for
one more token is the next.

    with count_projections(decoder) as count:
        generate(decoder, prompt, 5)
    count.positions(0), count.per_step()
"""

import functools

import torch
from torch import Tensor, nn

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_PARTS = ("gate_proj", "up_proj", "down_proj")


class _Hooks:
    """Forward hooks that live as long as the `with` block."""

    def __init__(self, decoder: nn.Module):
        if not hasattr(decoder, "layers"):
            raise ValueError(
                f"The counters hook the layers of a decoder, and {type(decoder).__name__} has no `layers`."
            )
        self.decoder, self._handles = decoder, []
        self.num_layers = len(decoder.layers)

    def __enter__(self):
        self._handles.append(self.decoder.register_forward_pre_hook(lambda *_: self._new_step()))
        for layer, block in enumerate(self.decoder.layers):
            self._hook(layer, block)
        return self

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _new_step(self):
        raise NotImplementedError

    def _hook(self, layer: int, block: nn.Module):
        raise NotImplementedError


class count_projections(_Hooks):  # noqa: N801 - reads as what it does: with count_projections(decoder) as ...
    """Count the token-positions that go through one matrix of each layer.

    Args:
        decoder: a `Decoder`, or any module with its layout.
        part: "k_proj", "v_proj", "q_proj", "o_proj", "gate_proj", "up_proj", "down_proj", or "mlp".

    One token-position is one row of one text through the matrix once: B x L of them in a pass over tokens
    (B, L), padding included, because padding is projected too.
    """

    def __init__(self, decoder: nn.Module, part: str = "k_proj"):
        super().__init__(decoder)
        if part not in (*ATTENTION_PARTS, *MLP_PARTS, "mlp"):
            raise ValueError(f"Unknown part {part!r}; choose among {(*ATTENTION_PARTS, *MLP_PARTS, 'mlp')}.")
        self.part = part
        self._steps: list[list[int]] = []  # one list a step, one number a layer

    def _new_step(self):
        self._steps.append([0] * self.num_layers)

    def _hook(self, layer, block):
        def count(_module, args):
            self._steps[-1][layer] += args[0].shape[:-1].numel()  # (B, L, hidden) -> B * L

        module = block.mlp
        if self.part in ATTENTION_PARTS:
            module = getattr(block.self_attn, self.part)
        elif self.part in MLP_PARTS:
            module = getattr(block.mlp, self.part)
        self._handles.append(module.register_forward_pre_hook(count))

    def positions(self, layer: int = 0) -> int:
        """Token-positions that this layer projected, over all steps."""
        return sum(self.per_step(layer))

    def per_step(self, layer: int = 0) -> list[int]:
        """Token-positions that this layer projected, step by step."""
        return [step[layer] for step in self._steps]

    @property
    def total(self) -> int:
        """Over all layers and steps."""
        return sum(map(sum, self._steps))


class count_pairs(_Hooks):  # noqa: N801
    """Count the (query, key) pairs that attention scores, for one head: the heads all score the same pairs.

    `pairs` counts those that the mask allows, `computed` the whole L x S rectangle that a dense kernel works
    through, forbidden cells included. Both sum over the rows of the batch.
    """

    def __init__(self, decoder: nn.Module):
        super().__init__(decoder)
        self._steps: list[list[tuple[int, int]]] = []

    def _new_step(self):
        self._steps.append([(0, 0)] * self.num_layers)

    def _hook(self, layer, block):
        # The attention function is an argument of the layer: hand it in wrapped.
        def wrap(_module, args):
            x, positions, cache, attention, rope = args
            return x, positions, cache, self._counting(layer, attention), rope

        self._handles.append(block.self_attn.register_forward_pre_hook(wrap))

    def _counting(self, layer, attention):
        @functools.wraps(attention)
        def counted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **kwargs):
            rows, computed = q.shape[0], q.shape[0] * q.shape[2] * k.shape[2]
            allowed = computed
            if mask is not None:
                allowed = int(mask.expand(rows, mask.shape[1], q.shape[2], k.shape[2])[:, 0].sum())
            before = self._steps[-1][layer]
            self._steps[-1][layer] = (before[0] + allowed, before[1] + computed)
            return attention(q, k, v, mask=mask, **kwargs)

        return counted

    def pairs(self, layer: int = 0) -> int:
        """Pairs that the mask allowed in this layer, over all steps, for one head."""
        return sum(self.per_step(layer))

    def per_step(self, layer: int = 0) -> list[int]:
        """Pairs that the mask allowed in this layer, step by step."""
        return [step[layer][0] for step in self._steps]

    def computed(self, layer: int = 0) -> int:
        """L x S summed over all steps: what a dense kernel computes, forbidden cells included."""
        return sum(step[layer][1] for step in self._steps)


class trace_cache(_Hooks):  # noqa: N801
    """Record which positions each step projects and which it reads, for `kvlearn.figures.cache_frames`.

    Args:
        decoder: a `Decoder`.
        layer: which layer to watch; they all do the same.
        row: which row of the batch.

    `steps` is the record: {"projected": [positions], "read": [positions]} for each step, padding left out.
    """

    def __init__(self, decoder: nn.Module, layer: int = 0, row: int = 0):
        super().__init__(decoder)
        self.layer, self.row = layer, row
        self.steps: list[dict[str, list[int]]] = []

    def _new_step(self):
        self.steps.append({"projected": [], "read": []})

    def _hook(self, layer, block):
        if layer == self.layer:
            self._handles.append(block.self_attn.register_forward_hook(self._record))

    def _record(self, _module, args, _output):
        positions, cache = args[1], args[2]
        keys = positions if cache is None else cache.key_positions(self.layer)
        self.steps[-1]["projected"] += _stored(positions[self.row])
        self.steps[-1]["read"] += _stored(keys[self.row])


def _stored(positions: Tensor) -> list[int]:
    return torch.sort(positions[positions >= 0]).values.tolist()
