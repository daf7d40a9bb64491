"""changed_layers: the proof by experiment that past keys and values are final, and when they are not.

The oracle reads the projections of K and V through hooks, the answer through whatever it likes.
"""

from contextlib import contextmanager

import torch

from kvlearn.attention import attention
from kvlearn.cache import GrowingCache
from kvlearn.checks.engine import Exercise, Misconception, WrongAnswer
from kvlearn.checks.lesson_02.decoders import differences, draw_cases, without_mask


def _oracle(decoder, tokens, new_token):
    return [i for i, sizes in enumerate(differences(decoder, tokens, new_token)) if max(sizes) > 1e-9]


# -- what an answer says -------------------------------------------------------------------


def _observe(answer, case):
    """For each layer, whether the answer says that it changed."""
    decoder = case["decoder"]
    own, layers = decoder.attention, decoder.config.num_layers
    said = answer(decoder, case["tokens"], case["new_token"])
    if said is None or said is ...:
        return said
    if decoder.attention is not own:
        raise WrongAnswer(
            f"After your function the decoder of {layers} layers does not have its own attention any more: "
            "whoever uses it next gets yours. Put back what you found."
        )
    if type(said) not in (list, tuple, set) or not all(type(layer) is int for layer in said):
        raise WrongAnswer(
            "A list of layer numbers is wanted, such as [0, 2], or [] if none changed. "
            f"Yours is {_shown(said)}."
        )
    beyond = [layer for layer in said if not 0 <= layer < layers]
    if beyond:
        raise WrongAnswer(
            f"The decoder has layers 0 to {layers - 1}, and your list has layer {beyond[0]} in it."
        )
    return [layer in said for layer in range(layers)]


def _shown(said):
    text = " ".join(repr(said).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _explain(case, got, want):
    layer = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
    k, v = differences(*case.inputs.values())[layer]
    yours = "changed" if got[layer] else "did not change"
    text = (
        f"The decoder “{case.label}”: you say that layer {layer} {yours}. From one run to the other "
        f"its K of old tokens moved by up to {k:.1g}, its V by up to {v:.1g}."
    )
    small = got[layer] and 0 < max(k, v) < 1e-9
    return text + (" That is rounding, not change." if small else "")


# -- what goes wrong -----------------------------------------------------------------------


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
    with _recorded(decoder, inner) as before:
        decoder(tokens)
    with _recorded(decoder, inner) as after:
        decoder(torch.cat((tokens, new_token), dim=1))
    old = tokens.shape[1]
    return [(*a, *(x[:, :, :old] for x in b)) for a, b in zip(before, after, strict=True)]


def _by(compare, inner=None):
    """The answer that reports the layers where compare(k, v, k2, v2) is true."""

    def answer(decoder, tokens, new_token):
        runs = _two_runs(decoder, tokens, new_token, inner)
        return [layer for layer, run in enumerate(runs) if compare(*run)]

    return answer


def _moved(a, b):
    return not torch.allclose(a, b)


def _right(decoder, tokens, new_token):
    return _by(lambda k, v, k2, v2: _moved(k, k2) or _moved(v, v2))(decoder, tokens, new_token)


def _every_layer(decoder, tokens, new_token):
    return list(range(decoder.config.num_layers))


def _never_recomputed(decoder, tokens, new_token):
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


def _outputs(decoder, tokens, new_token):
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


def _from_one(decoder, tokens, new_token):
    return [layer + 1 for layer in _right(decoder, tokens, new_token)]


def _unchanged(decoder, tokens, new_token):
    changed = _right(decoder, tokens, new_token)
    return [layer for layer in range(decoder.config.num_layers) if layer not in changed]


def _each_number_moved(a, b):
    return bool(((a - b).abs() > 1e-9).all())


CHANGED_LAYERS = Exercise(
    name="changed_layers",
    lesson=2,
    title="The proof by experiment",
    minutes=20,
    difficulty=2,
    why="A cache is right only if the keys and values of old tokens never change. You need not believe it: "
    "this function tells, for any decoder, in which layers that holds.",
    signature="changed_layers(decoder, tokens, new_token)",
    reference=_oracle,
    cases=draw_cases,
    observe=_observe,
    explain=_explain,
    axes={"tokens": "batch token", "new_token": "batch new"},
    misconceptions=(
        Misconception(
            "different tokens were compared",
            _every_layer,
            "Every layer of every decoder is reported. Layer 0 cannot have changed: its K and V come "
            "from each token alone. The second run has one token more; which of its places does the "
            "first run have too?",
        ),
        Misconception(
            "the old tokens were not computed again",
            _never_recomputed,
            "No layer of any decoder is reported. If the second run takes the old K and V from a "
            "cache (or from the first run), it finds what was put there, whatever the decoder does.",
        ),
        Misconception(
            "only the keys were compared",
            _by(lambda k, v, k2, v2: _moved(k, k2)),
            "A layer may change its values alone. A cache stores both, so both must stay.",
        ),
        Misconception(
            "only the values were compared",
            _by(lambda k, v, k2, v2: _moved(v, v2)),
            "A layer may change its keys alone. A cache stores both, so both must stay.",
        ),
        Misconception(
            "a layer counts only if its keys and its values changed",
            _by(lambda k, v, k2, v2: _moved(k, k2) and _moved(v, v2)),
            "One of the two is enough to make what is stored wrong.",
        ),
        Misconception(
            "only the first token was compared",
            _by(lambda k, v, k2, v2: _moved(k[:, :, 0], k2[:, :, 0]) or _moved(v[:, :, 0], v2[:, :, 0])),
            "In one of these decoders a token sees a single token ahead, so news from the end does "
            "not reach the beginning. All old tokens must stay.",
        ),
        Misconception(
            "only the last of the old tokens was compared",
            _by(lambda k, v, k2, v2: _moved(k[:, :, -1], k2[:, :, -1]) or _moved(v[:, :, -1], v2[:, :, -1])),
            "In one of these decoders only the first token looks ahead, so it alone changes. All old "
            "tokens must stay.",
        ),
        Misconception(
            "a layer counts only if all of its numbers changed",
            _by(lambda k, v, k2, v2: _each_number_moved(k, k2) or _each_number_moved(v, v2)),
            "One changed number is enough to make what is stored wrong. In some of these decoders "
            "only a few tokens change.",
        ),
        Misconception(
            "compared to the last bit",
            _by(lambda k, v, k2, v2: not (torch.equal(k, k2) and torch.equal(v, v2))),
            "A longer text is multiplied in other blocks, and sums in another order differ in the "
            "last digits. That is rounding and no change: compare up to a small tolerance.",
        ),
        Misconception(
            "what the layers put out was compared",
            _outputs,
            "A layer stores the K and V that it makes of its input. Its output is the input of the "
            "next one, so this is ahead by a layer.",
        ),
        Misconception(
            "layers counted from 1",
            _from_one,
            "The layers are the right ones and their numbers are one too high: the first layer is layer 0.",
        ),
        Misconception(
            "the layers that did not change were reported",
            _unchanged,
            "The experiment is right and its answer is turned around.",
        ),
        Misconception(
            "the decoder ran without its mask",
            _by(lambda k, v, k2, v2: _moved(k, k2) or _moved(v, v2), inner=without_mask),
            "A causal decoder is reported to change, because the attention that you put in loses the "
            "mask. It should hand on everything that it is given.",
        ),
        Misconception(
            "the decoder ran with the library's attention in place of its own",
            _by(lambda k, v, k2, v2: _moved(k, k2) or _moved(v, v2), inner=attention),
            "Then it is always the library that is examined. The decoder brings its own attention, "
            "and that one is the question.",
        ),
    ),
    hints=(
        "An experiment: run, change one thing, run again, compare. What is the one thing, and what "
        "must both runs have in common?",
        "The second run's text is the first one's with new_token behind it (torch.cat over the "
        "tokens). Its K and V are longer; which slots belong to the old tokens?",
        "For each layer compare the old part of K, and the old part of V, with torch.allclose. A "
        "layer is in the list as soon as one of the two moved. enumerate gives the number.",
    ),
)
