"""The decoders of the experiment: tiny, in float64, with weights from the case's generator alone.

Some are causal, some are not, and one loses its mask half way up. `differences` looks at what happens to K
and V through hooks on the projections.
"""

import torch

from kvlearn.attention import attention
from kvlearn.checks.engine import Case
from kvlearn.decoder import Decoder, DecoderConfig

LEAK = 2e-5  # moves a K or V by 1e-5 to 1e-4, where what a lost mask moves is near 1


def _decoder(generator, num_layers, attention):
    config = DecoderConfig(
        vocab_size=23, hidden_size=12, num_layers=num_layers, num_heads=4, num_kv_heads=2, head_dim=8,
        intermediate_size=10,
    )  # fmt: skip
    decoder = Decoder(config, attention=attention).double().requires_grad_(False)
    for weight in decoder.parameters():
        if weight.ndim == 2:
            numbers = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(numbers / weight.shape[1] ** 0.5)
    return decoder


def without_mask(q, k, v, mask=None):
    """Every token sees every token."""
    return attention(q, k, v)


def peeking(q, k, v, mask=None):
    """Every token sees one token too many, the next."""
    ahead = torch.ones(mask.shape, dtype=torch.bool).tril(1)
    return attention(q, k, v, mask | ahead)


def first_sees_all(q, k, v, mask=None):
    """Causal; only the first token sees the whole text."""
    first = torch.zeros(mask.shape, dtype=torch.bool)
    first[:, :, 0] = True
    return attention(q, k, v, mask | first)


def second_row_sees_all(q, k, v, mask=None):
    """Causal in the first and in the last row of the batch; in the second every token sees every token."""
    second = torch.zeros(mask.shape, dtype=torch.bool)
    second[1] = True
    return attention(q, k, v, mask | second)


def leaking(q, k, v, mask=None):
    """Causal, but for a very small share of what comes without a mask: far more than rounding."""
    return (1 - LEAK) * attention(q, k, v, mask) + LEAK * attention(q, k, v)


def rounding(q, k, v, mask=None):
    """Causal; but the last digits depend on the number of keys, as in kernels that add in another order."""
    return attention(q, k, v, mask) * (1 + 1e-11 * k.shape[2])


def _lose_mask(layer, args):
    """Hook: this layer's attention gets no mask."""
    x, positions, cache, own, rope = args
    return x, positions, cache, lambda q, k, v, mask=None: own(q, k, v, mask=None), rope


def _losing_the_mask(generator):
    """Causal in layer 0, without a mask from layer 1 on."""
    decoder = _decoder(generator, 3, attention)
    for layer in decoder.layers[1:]:
        layer.self_attn.register_forward_pre_hook(_lose_mask)
    return decoder


def _half_blind(generator):
    """No mask; layer 1 cannot change in its values, nor layer 2 in its keys."""
    decoder = _decoder(generator, 3, without_mask)
    decoder.layers[1].self_attn.v_proj.weight.zero_()
    decoder.layers[2].self_attn.k_proj.weight.zero_()
    return decoder


def _one_head_of_two(generator):
    """No mask; of two heads only the second can change in layer 1, only the first in layer 2; in layer 3 they
    are opposite."""
    decoder = _decoder(generator, 4, without_mask)
    D = decoder.config.head_dim
    for name in ("k_proj", "v_proj"):
        _, one, two, three = (getattr(layer.self_attn, name).weight for layer in decoder.layers)
        one[:D] = 0
        two[D:] = 0
        three[D:] = -three[:D]
    return decoder


def _unmixed(generator):
    """Causal, and attention adds nothing: a lost mask shows nowhere, rounding does, but not in layer 0."""
    decoder = _decoder(generator, 2, attention)
    for layer in decoder.layers:
        layer.self_attn.o_proj.weight.zero_()
    decoder.layers[0].self_attn.k_proj.weight.zero_()
    decoder.layers[0].self_attn.v_proj.weight.zero_()
    return decoder


def draw_cases(generator):
    decoders = [
        (_decoder(generator, 2, attention), "causal"),
        (_decoder(generator, 2, without_mask), "no mask"),
        (_losing_the_mask(generator), "mask lost in layer 1"),
        (_decoder(generator, 2, peeking), "one token ahead"),
        (_decoder(generator, 2, first_sees_all), "first token sees all"),
        (_decoder(generator, 2, second_row_sees_all), "no mask in the second row"),
        (_decoder(generator, 2, leaking), "a little of the future"),
        (_half_blind(generator), "no mask and zero projections"),
        (_one_head_of_two(generator), "no mask and one head of two"),
        (_unmixed(generator), "causal with zero projections"),
        (_decoder(generator, 2, rounding), "causal with rounding"),
    ]
    cases = []
    for decoder, label in decoders:
        tokens = torch.randint(decoder.config.vocab_size, (3, 6), generator=generator)
        new_token = torch.randint(decoder.config.vocab_size, (3, 1), generator=generator)
        cases.append(Case({"decoder": decoder, "tokens": tokens, "new_token": new_token}, label))
    return cases


def differences(decoder, tokens, new_token):
    """For each layer the largest difference of K and of V at the old positions: [(k, v), ...]."""
    before = _projections(decoder, tokens)
    after = _projections(decoder, torch.cat((tokens, new_token), dim=1))
    old = tokens.shape[1]
    sizes = [(a - b[:, :old]).abs().amax().item() for a, b in zip(before, after, strict=True)]
    return list(zip(sizes[::2], sizes[1::2], strict=True))


def _projections(decoder, tokens):
    """K and V of each layer in turn, each (B, L, width), before they are turned by position."""
    seen, hooks = [], []
    for layer in decoder.layers:
        for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            hooks.append(projection.register_forward_hook(lambda module, args, out: seen.append(out)))
    decoder(tokens)
    for hook in hooks:
        hook.remove()
    return seen
