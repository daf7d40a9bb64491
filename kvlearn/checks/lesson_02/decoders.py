"""The decoders of the experiment: tiny, in float64, with weights from the case's generator alone.

Some are causal, some are not, and one loses its mask half way up. Nothing depends on the number of rows: an
answer may run them one by one. `differences` looks at what happens to K
and V through hooks on the projections.
"""

import copy

import torch

from kvlearn import decoder as library
from kvlearn.attention import attention
from kvlearn.checks.engine import Case

LEAK = 1e-7  # how far K and V move: a hundred times what the assignment calls rounding


class Decoder(library.Decoder):
    """A decoder whose deepcopy is quick: a check copies each one for the answer and for every mistake."""

    def __deepcopy__(self, memo):
        return _copied(self, memo)


def _copied(module, memo):
    new = type(module).__new__(type(module))
    # Hooks, parameters and modules lie in dicts. All else is shared: nothing there changes in place.
    new.__dict__.update({k: v.copy() if isinstance(v, dict) else v for k, v in vars(module).items()})
    for name, weight in module._parameters.items():
        new._parameters[name] = copy.deepcopy(weight, memo)
    for name, part in module._modules.items():
        new._modules[name] = _copied(part, memo)
    return new


def _decoder(generator, num_layers, attention):
    config = library.DecoderConfig(
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


def leaks(share):
    """Causal, but for a share of what comes without a mask."""

    def leaking(q, k, v, mask=None):
        return (1 - share) * attention(q, k, v, mask) + share * attention(q, k, v)

    return leaking


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
    """No mask; layer 1 cannot change in its values, nor layer 2 in its keys, nor layer 3 in either."""
    decoder = _decoder(generator, 5, without_mask)
    _, one, two, three, _ = (layer.self_attn for layer in decoder.layers)
    for projection in (one.v_proj, two.k_proj, three.k_proj, three.v_proj):
        projection.weight.zero_()
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


def _leaking(generator):
    """Layers 1 and 2 move in their values alone, by LEAK, one up and the other down.

    Their values are far from zero, more than a million times the change: a tolerance that is relative to the
    numbers hides it. All tokens of the text are the same, and so all move alike.
    """
    decoder = _decoder(generator, 3, leaks(1e-5))
    decoder.embed_tokens.weight.add_(3)
    _, one, two = decoder.layers
    one.self_attn.o_proj.weight.zero_()
    one.mlp.down_proj.weight.zero_()  # so that layer 2 is given what layer 1 is given
    for layer in decoder.layers:  # so that every head of every token takes the same from the new one
        layer.self_attn.k_proj.weight.zero_()
    one.self_attn.v_proj.weight.copy_(one.self_attn.v_proj.weight[:1].abs())
    two.self_attn.v_proj.weight.copy_(-one.self_attn.v_proj.weight)
    token, new_token = _ids([0], [1])
    text = token.repeat(1, 6)
    _, (_, moved), _ = differences(decoder, text, new_token)
    decoder.attention = leaks(1e-5 * LEAK / moved)
    return decoder, text, new_token


def _unmixed(generator):
    """Causal, and attention adds nothing: a lost mask shows nowhere, rounding does, but not in layer 0.

    Layer 1 has values alone, which do not depend on positions: these shift if a token is put in front.
    """
    decoder = _decoder(generator, 2, attention)
    for layer in decoder.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.self_attn.k_proj.weight.zero_()
    decoder.layers[0].self_attn.v_proj.weight.zero_()
    return decoder


def draw_cases(generator):
    decoders = [
        (_decoder(generator, 2, rounding), "causal with rounding"),
        (_decoder(generator, 2, without_mask), "no mask"),
        (_decoder(generator, 2, peeking), "one token ahead"),
        (_decoder(generator, 2, first_sees_all), "first token sees all"),
        (_half_blind(generator), "no mask and zero projections"),
        (_one_head_of_two(generator), "no mask and one head of two"),
        (_unmixed(generator), "causal with zero projections"),
    ]
    cases = []
    for decoder, label in decoders:
        tokens = torch.randint(decoder.config.vocab_size, (3, 6), generator=generator)
        new_token = torch.randint(decoder.config.vocab_size, (3, 1), generator=generator)
        cases.append(_case(decoder, tokens, new_token, label))
    return [
        *cases,
        _case(_losing_the_mask(generator), *_ids([0], [3]), "mask lost in layer 1, and a text of one token"),
        _case(*_leaking(generator), "a leak of 1e-7"),
        *_repeating(generator),
    ]


def _ids(*columns):
    return [torch.tensor(column)[:, None] for column in columns]


def _case(decoder, tokens, new_token, label):
    return Case({"decoder": decoder, "tokens": tokens, "new_token": new_token}, label)


def _repeating(generator):
    """Texts of one token, again and again: if the new one is the same too, nothing changes without a mask."""
    decoder = _decoder(generator, 2, without_mask)
    same, other = _ids([4, 0, 9], [4, 5, 9])
    tokens = same.repeat(1, 6)
    return [
        _case(decoder, tokens, same, "no mask and one token repeated"),
        _case(decoder, tokens, other, "no mask and a new token in the second row"),
    ]


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
