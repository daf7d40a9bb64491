"""Right answers to the exercises of lesson 02, written without looking at the course's own."""

import math

import torch
import torch.nn.functional as F

from kvlearn import GrowingCache
from kvlearn.attention import causal_mask as library_causal_mask
from kvlearn.attention import position_mask as library_position_mask


def causal_by_comparison(query_length, key_length):
    token = torch.arange(key_length)
    return token[None, :] <= token[key_length - query_length :, None]


def causal_by_upper_triangle(query_length, key_length):
    future = torch.ones(query_length, key_length).triu(1 + key_length - query_length)
    return future == 0


def causal_by_rows(query_length, key_length):
    mask = torch.zeros(query_length, key_length, dtype=torch.bool)
    for from_the_end in range(query_length):
        mask[-1 - from_the_end, : key_length - from_the_end] = True
    return mask


def causal_from_the_square(query_length, key_length):
    return torch.tril(torch.full((key_length, key_length), True))[key_length - query_length :]


def position_by_loops(query_positions, key_positions):
    B, L = query_positions.shape
    mask = torch.empty(B, 1, L, key_positions.shape[1], dtype=torch.bool)
    for b in range(B):
        for i in range(L):
            for j, key in enumerate(key_positions[b].tolist()):
                mask[b, 0, i, j] = key != -1 and key <= query_positions[b, i].item()
    return mask


def position_by_distance(query_positions, key_positions):
    distance = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)
    hidden = (distance < 0) | key_positions.lt(0).unsqueeze(-2)
    return ~hidden.unsqueeze(1)


def position_by_far_keys(query_positions, key_positions):
    """An empty slot is put beyond every query."""
    far = torch.where(key_positions < 0, torch.iinfo(torch.long).max, key_positions)
    return (far[:, None, :] <= query_positions[:, :, None])[:, None]


def attention_by_torch(q, k, v, mask):
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return torch.where(mask.any(-1, keepdim=True), out, torch.zeros_like(out))


def attention_nan_to_num(q, k, v, mask):
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask.logical_not(), -math.inf)
    weights = torch.softmax(torch.einsum("bhld,bhsd->bhls", q, k) / math.sqrt(q.shape[-1]) + bias, dim=-1)
    return torch.nan_to_num(weights) @ v


def attention_by_sums(q, k, v, mask):
    """The softmax written out; an empty sum divides by 1."""
    scores = torch.where(mask, q @ k.mT / q.shape[-1] ** 0.5, -math.inf)
    top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).min)
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True)
    return powers @ v / torch.where(total == 0, 1.0, total)


def attention_query_by_query(q, k, v, mask):
    out = torch.zeros_like(q)
    for b, i in mask.any(-1)[:, 0].nonzero().tolist():
        seen = mask[b, 0, i]
        scores = (k[b][:, seen] @ q[b, :, i, :, None])[..., 0] / q.shape[-1] ** 0.5
        out[b, :, i] = (scores.softmax(-1)[..., None] * v[b][:, seen]).sum(1)
    return out


def layers_by_hooks(decoder, tokens, new_token):
    """Hooks on the projections: K and V before they are turned."""
    runs = []
    for text in (tokens, torch.cat([tokens, new_token], 1)):
        seen, handles = {}, []

        def keep(module, args, out, seen=seen):
            seen[module] = out[:, : tokens.shape[1]].detach()

        for layer in decoder.layers:
            handles += [
                p.register_forward_hook(keep) for p in (layer.self_attn.k_proj, layer.self_attn.v_proj)
            ]
        decoder(text)
        for handle in handles:
            handle.remove()
        runs.append(seen)
    largest = [(a - b).abs().max().item() for a, b in zip(runs[0].values(), runs[1].values(), strict=True)]
    return sorted({place // 2 for place, size in enumerate(largest) if size > 1e-8})


class KeepsWhatItWasGiven(GrowingCache):
    """A cache that can be read afterwards."""

    def layer(self, number):
        return torch.stack((self._keys[number], self._values[number]))


def layers_by_cache(decoder, tokens, new_token):
    """Two caches, each filled in one go."""
    caches = [KeepsWhatItWasGiven(decoder.config, len(tokens), dtype=decoder.dtype) for _ in range(2)]
    decoder(tokens, caches[0])
    decoder(torch.cat((tokens, new_token), dim=-1), caches[1])
    found = set()
    for layer in range(decoder.config.num_layers):
        before, after = (cache.layer(layer) for cache in caches)
        if not torch.allclose(before, after[..., : tokens.shape[1], :], rtol=0, atol=1e-9):
            found.add(layer)
    return found


def layers_by_recording(decoder, tokens, new_token):
    """Everything that attention receives, of both runs, in one list."""
    received, own = [], decoder.attention

    def listen(*tensors, **options):
        received.extend(tensors[1:])
        return own(*tensors, **options)

    decoder.attention = listen
    decoder(tokens)
    decoder(torch.hstack((tokens, new_token)))
    decoder.attention = own
    half, old = len(received) // 2, tokens.shape[1]
    pairs = [(a, b[:, :, :old]) for a, b in zip(received[:half], received[half:], strict=True)]
    moved = [bool((a - b).abs().gt(1e-8).any()) for a, b in pairs]
    return [layer for layer in range(half // 2) if moved[2 * layer] or moved[2 * layer + 1]]


ALTERNATIVES = {
    "causal_mask": [
        causal_by_comparison,
        causal_by_upper_triangle,
        causal_by_rows,
        causal_from_the_square,
        library_causal_mask,
    ],
    "position_mask": [position_by_loops, position_by_distance, position_by_far_keys, library_position_mask],
    "masked_attention": [
        attention_by_torch,
        attention_nan_to_num,
        attention_by_sums,
        attention_query_by_query,
    ],
    "changed_layers": [layers_by_hooks, layers_by_cache, layers_by_recording],
}
