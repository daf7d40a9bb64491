"""What goes wrong in changed_layers: experiments that measure something else, each as an answer."""

from contextlib import contextmanager

import torch

from kvlearn.attention import attention
from kvlearn.cache import GrowingCache
from kvlearn.checks.lesson_02.decoders import without_mask


@contextmanager
def _recorded(decoder, inner=None):
    """The (k, v) of each layer that runs inside, with another attention if you like."""
    own, seen = decoder.attention, []

    def recording(q, k, v, mask=None):
        seen.append((k, v))
        return (inner or own)(q, k, v, mask=mask)

    decoder.attention = recording
    try:
        yield seen
    finally:
        decoder.attention = own


def _two_runs(decoder, tokens, new_token, inner=None):
    """[(k, v, k of the second run, v of the second run), ...], the second cut to the old tokens."""
    before = _run(decoder, tokens, inner)
    after = _run(decoder, torch.cat((tokens, new_token), dim=1), inner)
    old = tokens.shape[1]
    return [(*a, *(x[:, :, :old] for x in b)) for a, b in zip(before, after, strict=True)]


def _run(decoder, tokens, inner=None):
    with _recorded(decoder, inner) as seen:
        decoder(tokens)
    return seen


def _moved(a, b):
    return bool((a - b).abs().max() > 1e-9)


def _by(compare, inner=None):
    """The answer that reports the layers where compare(k, v, k2, v2) is true."""

    def answer(decoder, tokens, new_token):
        runs = _two_runs(decoder, tokens, new_token, inner)
        return [layer for layer, run in enumerate(runs) if compare(*run)]

    return answer


def _by_part(part, moved=_moved, inner=None):
    """The answer that compares part(K) and part(V) of (B, Hkv, L, D) tensors."""
    return _by(lambda k, v, k2, v2: moved(part(k), part(k2)) or moved(part(v), part(v2)), inner)


def _whole(x):
    return x


_right = _by_part(_whole)

# What was compared, and how.
only_the_keys = _by(lambda k, v, k2, v2: _moved(k, k2))
only_the_values = _by(lambda k, v, k2, v2: _moved(v, v2))
both_must_move = _by(lambda k, v, k2, v2: _moved(k, k2) and _moved(v, v2))
only_the_first_token = _by_part(lambda x: x[:, :, 0])
only_the_last_token = _by_part(lambda x: x[:, :, -1])
only_the_first_row = _by_part(lambda x: x[:1])
only_the_first_head = _by_part(lambda x: x[:, :1])
heads_averaged = _by_part(lambda x: x.mean(dim=1))
all_numbers_must_move = _by_part(_whole, lambda a, b: bool(((a - b).abs() > 1e-9).all()))
loosely = _by_part(_whole, lambda a, b: not torch.allclose(a, b))
without_the_sign = _by_part(_whole, lambda a, b: bool((a - b).max() > 1e-9))
to_the_last_bit = _by_part(_whole, lambda a, b: not torch.equal(a, b))

# What ran: the wrong attention.
without_its_mask = _by_part(_whole, inner=without_mask)
with_the_librarys_attention = _by_part(_whole, inner=attention)


def different_tokens(decoder, tokens, new_token):
    """The second run is cut at the wrong end."""
    before, after = _run(decoder, tokens), _run(decoder, torch.cat((tokens, new_token), dim=1))
    runs = enumerate(zip(before, after, strict=True))
    return [i for i, (a, b) in runs if any(_moved(x, y[:, :, 1:]) for x, y in zip(a, b, strict=True))]


def put_in_front(decoder, tokens, new_token):
    before, after = _run(decoder, tokens), _run(decoder, torch.cat((new_token, tokens), dim=1))
    runs = enumerate(zip(before, after, strict=True))
    return [i for i, (a, b) in runs if any(_moved(x, y[:, :, 1:]) for x, y in zip(a, b, strict=True))]


def every_layer(decoder, tokens, new_token):
    return list(range(decoder.config.num_layers))


def from_the_first_one_on(decoder, tokens, new_token):
    changed = _right(decoder, tokens, new_token)
    return list(range(changed[0], decoder.config.num_layers)) if changed else []


def only_the_first_one(decoder, tokens, new_token):
    return _right(decoder, tokens, new_token)[:1]


def without_the_new_token(decoder, tokens, new_token):
    """The text with and without its own last token."""
    return _right(decoder, tokens[:, :-1], tokens[:, -1:])


def another_new_token(decoder, tokens, new_token):
    return _right(decoder, tokens, torch.zeros_like(new_token) + 1)


def never_recomputed(decoder, tokens, new_token):
    """The second run takes the old K and V from a cache that the first run filled."""
    cache = GrowingCache(decoder.config, len(tokens), dtype=decoder.dtype)
    with _recorded(decoder) as before:
        decoder(tokens, cache)
    with _recorded(decoder) as after:
        decoder(new_token, cache)
    old = tokens.shape[1]
    pairs = zip(before, after, strict=True)
    return [
        i
        for i, (a, b) in enumerate(pairs)
        if any(_moved(x, y[:, :, :old]) for x, y in zip(a, b, strict=True))
    ]


def outputs(decoder, tokens, new_token):
    """What each layer puts out, instead of the K and V that it stores."""
    seen = []
    hooks = [
        layer.register_forward_hook(lambda module, args, out: seen.append(out)) for layer in decoder.layers
    ]
    decoder(tokens)
    decoder(torch.cat((tokens, new_token), dim=1))
    for hook in hooks:
        hook.remove()
    layers = decoder.config.num_layers
    return [i for i in range(layers) if _moved(seen[i], seen[layers + i][:, : tokens.shape[1]])]


def counted_from_one(decoder, tokens, new_token):
    return [layer + 1 for layer in _right(decoder, tokens, new_token)]


def unchanged(decoder, tokens, new_token):
    changed = _right(decoder, tokens, new_token)
    return [layer for layer in range(decoder.config.num_layers) if layer not in changed]
