"""Right answers to the exercises of lesson 03, written without looking at the course's own."""

import itertools
import math

import torch
import torch.nn.functional as F
from einops import rearrange, repeat


def norm_by_torch(x, weight, eps):
    return F.rms_norm(x, weight.shape, weight, eps)


def norm_by_length(x, weight, eps):
    """The mean square from the vector's length: |x|^2 / width."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.rsqrt(length**2 / x.shape[-1] + eps) * weight


def norm_by_einsum(x, weight, eps):
    squares = torch.einsum("...d,...d->...", x, x) / x.size(-1)
    return torch.einsum("...d,...,d->...d", x, (squares + eps) ** -0.5, weight)


def norm_by_loops(x, weight, eps):
    rows = []
    for vector in x.reshape(-1, x.shape[-1]):
        rows.append(vector / (vector.dot(vector) / len(vector) + eps).sqrt() * weight)
    return torch.stack(rows).view_as(x)


def rope_as_transformers(x, positions, theta):
    """Cosine and sine as wide as the head, and a helper that swaps the halves."""
    head_dim = x.shape[-1]
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.einsum("bl,i->bli", positions.float(), inverse)
    wide = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    swapped = torch.cat((-x[..., head_dim // 2 :], x[..., : head_dim // 2]), dim=-1)
    return x * wide.cos().to(x.dtype) + swapped * wide.sin().to(x.dtype)


def rope_by_complex_numbers(x, positions, theta):
    pairs = torch.complex(*x.float().chunk(2, dim=-1))
    speeds = torch.exp(-math.log(theta) * torch.linspace(0, 1, x.shape[-1] // 2 + 1)[:-1])
    turn = torch.polar(torch.tensor(1.0), positions[:, None, :, None] * speeds)
    return torch.cat(torch.view_as_real(pairs * turn).unbind(-1), dim=-1).to(x.dtype)


def rope_by_matrices(x, positions, theta):
    """Each token's own rotation matrix, D by D."""
    B, _, L, D = x.shape
    half, out = D // 2, torch.empty_like(x)
    for b, token in itertools.product(range(B), range(L)):
        matrix = torch.zeros(D, D, dtype=torch.float64)
        for i in range(half):
            angle = positions[b, token].item() * theta ** (-2 * i / D)
            matrix[i, i] = matrix[i + half, i + half] = math.cos(angle)
            matrix[i, i + half], matrix[i + half, i] = -math.sin(angle), math.sin(angle)
        out[b, :, token] = (x[b, :, token].double() @ matrix.T).to(x.dtype)
    return out


def grouped_by_torch(q, k, v, mask=None):
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out if mask is None else out.where(mask.any(-1, keepdim=True), torch.zeros_like(out))


def grouped_by_einsum(q, k, v, mask=None):
    """A group axis beside the head axis; nothing is repeated."""
    grouped = rearrange(q, "b (h g) l d -> b h g l d", h=k.shape[1])
    scores = torch.einsum("bhgld,bhsd->bhgls", grouped, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask[:, :, None], -torch.inf)
    out = torch.einsum("bhgls,bhsd->bhgld", scores.softmax(-1).nan_to_num(), v)
    return rearrange(out, "b h g l d -> b (h g) l d")


def grouped_by_repeat(q, k, v, mask=None):
    k, v = (repeat(t, "b h s d -> b (h g) s d", g=q.shape[1] // k.shape[1]) for t in (k, v))
    bias = 0.0 if mask is None else torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    weights = torch.exp(F.log_softmax(q @ k.mT * q.shape[-1] ** -0.5 + bias, dim=-1))
    return torch.where(weights.isnan(), 0, weights) @ v


def grouped_head_by_head(q, k, v, mask=None):
    out = []
    for head in range(q.shape[1]):
        source = head * k.shape[1] // q.shape[1]
        scores = q[:, head] @ k[:, source].mT / q.shape[-1] ** 0.5
        allowed = torch.ones_like(scores, dtype=torch.bool)
        if mask is not None:
            allowed = mask[:, 0]
        powers = torch.exp(scores.masked_fill(~allowed, -torch.inf))
        total = powers.sum(-1, keepdim=True)
        out.append(powers / total.clamp(min=1e-30) @ v[:, source])
    return torch.stack(out, dim=1)


def decode_with_a_list(model, tokens, max_new_tokens, eos_ids):
    text = list(tokens)
    while len(text) < len(tokens) + max_new_tokens:
        logits = model(torch.tensor(text).unsqueeze(0))
        text.append(logits[:, -1, :].argmax(dim=-1).item())
        if text[-1] in eos_ids:
            break
    return text[len(tokens) :]


def decode_by_recursion(model, tokens, max_new_tokens, eos_ids):
    if max_new_tokens == 0:
        return []
    token = model(torch.tensor([tokens]))[0, -1].topk(1).indices.item()
    if token in set(eos_ids):
        return [token]
    return [token, *decode_by_recursion(model, [*tokens, token], max_new_tokens - 1, eos_ids)]


def decode_as_a_generator(model, tokens, max_new_tokens, eos_ids):
    def new_tokens():
        text = torch.tensor(tokens)[None]
        while True:
            following = model(text).select(1, -1).argmax(-1, keepdim=True)  # (1, 1)
            yield int(following)
            if int(following) in eos_ids:
                return
            text = torch.cat((text, following), dim=-1)

    return list(itertools.islice(new_tokens(), max_new_tokens))


def count_in_a_loop(prompt_length, new_tokens):
    passes = [prompt_length + done for done in range(new_tokens)]
    return sum(passes), max(passes)


def count_as_a_trapezium(prompt_length, new_tokens):
    first, last = prompt_length, prompt_length + new_tokens - 1
    return new_tokens * (first + last) // 2, last


def count_positions(prompt_length, new_tokens):
    """Position by position: in how many passes does it take part?"""
    fed = prompt_length + new_tokens - 1
    return sum(new_tokens - max(0, p - prompt_length + 1) for p in range(fed)), fed


ALTERNATIVES = {
    "rms_norm": [norm_by_torch, norm_by_length, norm_by_einsum, norm_by_loops],
    "apply_rope": [rope_as_transformers, rope_by_complex_numbers, rope_by_matrices],
    "grouped_attention": [grouped_by_torch, grouped_by_einsum, grouped_by_repeat, grouped_head_by_head],
    "greedy_decode": [decode_with_a_list, decode_by_recursion, decode_as_a_generator],
    "count_projections": [count_in_a_loop, count_as_a_trapezium, count_positions],
}
