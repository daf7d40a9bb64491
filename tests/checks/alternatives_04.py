"""Right answers to lesson 04 that were written independently of the library and of the course."""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat

from kvlearn import KVCache


class OneTensorALayer(KVCache):
    """Grows; keys and values of a layer lie in one tensor (2, B, Hkv, S, D)."""

    def _start(self, batch_size):
        self.both = {}

    def _append(self, layer, k, v):
        new = torch.stack((k, v))
        if layer in self.both:
            new = torch.cat((self.both[layer], new), dim=3)
        self.both[layer] = new
        return new[0], new[1]

    def _truncate(self, layer, length):
        if layer in self.both:
            self.both[layer] = self.both[layer][:, :, :, :length].clone()

    def _tensors(self):
        return list(self.both.values())


class TokensFirst(KVCache):
    """Grows; tokens on the first axis, where they are appended as to a list, and back when they are read."""

    def _start(self, batch_size):
        self.sides = [[None, None] for _ in range(self.num_layers)]

    def _append(self, layer, k, v):
        for i, new in enumerate((k, v)):
            new = new.movedim(2, 0).contiguous().clone()
            old = self.sides[layer][i]
            self.sides[layer][i] = new if old is None else torch.vstack((old, new))
        return tuple(side.movedim(0, 2) for side in self.sides[layer])

    def _truncate(self, layer, length):
        self.sides[layer] = [None if side is None else side[:length].clone() for side in self.sides[layer]]

    def _tensors(self):
        return [side for layer in self.sides for side in layer if side is not None]


class RoomForEachLayer(KVCache):
    """Preallocated; a room of its own for each layer, and index_copy_ into it."""

    def __init__(self, config, batch_size=1, max_length=12, dtype=None, device=None):
        super().__init__(config, batch_size, max_length=max_length, dtype=dtype, device=device)

    def _start(self, batch_size):
        heads, head_dim = self.key_shape
        shape = (batch_size, heads, self.max_length, head_dim)
        self.room = [
            [torch.full(shape, torch.nan, dtype=self.dtype, device=self.device) for _ in "kv"]
            for _ in range(self.num_layers)
        ]
        self.written = [0] * self.num_layers

    def _append(self, layer, k, v):
        places = torch.arange(self.written[layer], self.written[layer] + k.shape[2], device=k.device)
        for room, new in zip(self.room[layer], (k, v), strict=True):
            room.index_copy_(2, places, new)
        self.written[layer] += k.shape[2]
        return tuple(room.narrow(2, 0, self.written[layer]) for room in self.room[layer])

    def _truncate(self, layer, length):
        self.written[layer] = length

    def _tensors(self):
        return [
            room[:, :, :length]
            for rooms, length in zip(self.room, self.written, strict=True)
            for room in rooms
        ]


class OneRoomForAll(KVCache):
    """Preallocated; one tensor for everything, tokens first, read back by permuting."""

    def __init__(self, config, batch_size=1, max_length=12, dtype=None, device=None):
        super().__init__(config, batch_size, max_length=max_length, dtype=dtype, device=device)

    def _start(self, batch_size):
        shape = (self.num_layers, 2, self.max_length, batch_size, *self.key_shape)
        self.room = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.ends = {}

    def _append(self, layer, k, v):
        start = self.ends.get(layer, 0)
        end = self.ends[layer] = start + k.shape[2]
        self.room[layer, 0, start:end] = rearrange(k, "b h l d -> l b h d")
        self.room[layer, 1, start:end] = rearrange(v, "b h l d -> l b h d")
        keys, values = rearrange(self.room[layer, :, :end], "two s b h d -> two b h s d")
        return keys, values

    def _truncate(self, layer, length):
        self.ends[layer] = length

    def _tensors(self):
        return [self.room[layer, :, :end] for layer, end in self.ends.items()]


def decode_by_recursion(model, tokens, max_new_tokens, cache):
    """Recursion in the place of the loop."""
    if max_new_tokens == 0:
        return []
    best = model(torch.tensor([tokens]), cache)[0, -1].topk(1).indices.tolist()
    return best + decode_by_recursion(model, best, max_new_tokens - 1, cache)


def decode_what_is_unseen(model, tokens, max_new_tokens, cache):
    """Always feed what the cache has not seen."""
    text = torch.tensor(tokens)
    while len(text) < len(tokens) + max_new_tokens:
        logits = model(text[None, cache.length :], cache)
        text = torch.cat((text, logits[:, -1].argmax(-1)))
    return text.tolist()[len(tokens) :]


def prefill_by_positions(attend, q, k, v, chunk):
    """The mask from positions; split in the place of slices."""
    done, outputs = 0, []
    for piece in q.split(chunk, dim=2):
        query = torch.arange(done, done + piece.shape[2])
        done += piece.shape[2]
        mask = query[:, None] >= torch.arange(done)
        outputs.append(attend(piece, k[:, :, :done], v[:, :, :done], mask))
    return torch.cat(outputs, dim=2)


def prefill_with_growing_keys(attend, q, k, v, chunk):
    """Keys kept as a cache keeps them; the mask cut out of the whole triangle."""
    whole = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    keys, values = k[:, :, :0], v[:, :, :0]
    out = torch.empty_like(v)
    for start in range(0, q.shape[2], chunk):
        part = slice(start, start + chunk)
        keys, values = torch.cat((keys, k[:, :, part]), 2), torch.cat((values, v[:, :, part]), 2)
        mask = whole[part, : keys.shape[2]]
        out[:, :, part] = attend(q[:, :, part], keys, values, mask=mask[None, None])
    return out


def _loop_attention(q, k, v, mask=None):
    group = q.shape[1] // k.shape[1]
    k, v = (repeat(x, "b h s d -> b (h g) s d", g=group) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _complex_rope(x, positions, theta):
    half = x.shape[-1] // 2
    angle = positions[:, None, :, None] * theta ** -(torch.arange(half, device=x.device) / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


def llm_with_a_loop(load, question, max_new_tokens):
    """No generate: a loop of its own, fed with what the cache has not seen."""
    model, tokenizer = load(attention=_loop_attention, rope=_complex_rope)
    prompt = text = tokenizer.chat([{"role": "user", "content": question}])
    cache = TokensFirst(model.config, dtype=model.dtype, device=model.device)
    while len(text) - len(prompt) < max_new_tokens:
        logits = model(torch.tensor([text[cache.length :]]), cache)
        text = [*text, int(logits[0, -1].argmax())]
        if text[-1] in tokenizer.eos_ids:
            break
    return text[len(prompt) :], cache


def llm_in_chunks(load, question, max_new_tokens):
    """generate with chunked prefill, and a preallocated cache."""
    import kvlearn

    model, tokenizer = load(rope=_complex_rope, attention=_loop_attention)
    prompt = tokenizer.chat([{"role": "user", "content": question}])
    cache = OneRoomForAll(model.config, max_length=100, dtype=model.dtype, device=model.device)
    made = kvlearn.generate(
        model, prompt, max_new_tokens, cache=cache, eos_ids=tokenizer.eos_ids, prefill_chunk=3
    )
    return made.tokens[0], cache


ALTERNATIVES = {
    "growing_cache": [OneTensorALayer, TokensFirst],
    "static_cache": [RoomForEachLayer, OneRoomForAll],
    "cached_decode": [decode_by_recursion, decode_what_is_unseen],
    "chunked_prefill": [prefill_by_positions, prefill_with_growing_keys],
    "your_own_llm": [llm_with_a_loop, llm_in_chunks],
}
