"""hybrid_bytes and latent_bytes: two kinds of model for which the plain formula is wrong."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_05.amounts import explain_size, observe_size, pick


def hybrid_bytes(windows, num_kv_heads, head_dim, tokens):
    """Oracle: which tokens each layer still needs when all have been fed, one layer after another."""
    slots = 0
    for window in windows:
        needed = range(tokens) if window is None else range(tokens)[-window:]
        slots += len(needed)
    return slots * 2 * num_kv_heads * head_dim * 2


def _hybrid_cases(generator):
    window = pick(generator, [128, 512, 1024])
    every = pick(generator, [3, 4, 6])
    layers = 2 * every + 1
    kv_heads, width = pick(generator, [(4, 64), (2, 128), (16, 96)])
    windows = [None if (i + 1) % every == 0 else window for i in range(layers)]

    def case(label, tokens, windows=windows):
        return Case(
            {"windows": windows, "num_kv_heads": kv_heads, "head_dim": width, "tokens": tokens}, label
        )

    more = 3 * window + int(torch.randint(200, 900, (1,), generator=generator))
    return [
        case("a text longer than the window", more),
        case("a text shorter than the window", window - 60),
        case("windows everywhere, and a short text", window - 60, [window, window - 9, window]),
        case("two kinds of window", more, [window, None, window - 40, None, window]),
    ]


def _hybrid(keeps):
    """An answer that keeps keeps(window, tokens, windows) slots in a layer."""

    def answer(windows, num_kv_heads, head_dim, tokens):
        return sum(keeps(w, tokens, windows) for w in windows) * 4 * num_kv_heads * head_dim

    return answer


def _size_of(windows):
    return [w for w in windows if w is not None][0]


HYBRID_MISCONCEPTIONS = (
    Misconception(
        "the window was ignored",
        _hybrid(lambda w, tokens, windows: tokens),
        "A layer with a window never reads what lies further back, so it need not keep it.",
    ),
    Misconception(
        "every layer was given the window",
        _hybrid(lambda w, tokens, windows: min(tokens, _size_of(windows) if w is None else w)),
        "Where the list says None the layer looks back without limit, and keeps every token.",
    ),
    Misconception(
        "a layer with a window was charged for the whole window while the text is shorter",
        _hybrid(lambda w, tokens, windows: tokens if w is None else w),
        "A window is a limit and not a size: while the text is shorter the layer holds the text.",
    ),
    Misconception(
        "the larger of text and window was kept, not the smaller",
        _hybrid(lambda w, tokens, windows: tokens if w is None else max(w, tokens)),
        "A window throws old tokens away. It never makes a layer hold more than the text.",
    ),
    Misconception(
        "a layer with a window was charged for two windows",
        _hybrid(lambda w, tokens, windows: tokens if w is None else min(2 * w, tokens)),
        "Some engines keep more than they need. Here each layer keeps the last W tokens and no more.",
    ),
    Misconception(
        "a layer with a window was charged for what is left over from whole windows",
        _hybrid(lambda w, tokens, windows: tokens if w is None or tokens < w else tokens % w),
        "A window slides: it does not start again after every W tokens. Once the text is longer, the layer "
        "always holds W of them.",
    ),
    Misconception(
        "the window was one too narrow",
        _hybrid(lambda w, tokens, windows: tokens if w is None else min(w - 1, tokens)),
        "The newest token is one of the W, and its key and value are in the cache as well: W are held.",
    ),
    Misconception(
        "the window was one too wide",
        _hybrid(lambda w, tokens, windows: tokens if w is None else min(w + 1, tokens)),
        "A window of W is the token itself and the W - 1 before it, W together.",
    ),
    Misconception(
        "only the keys (or only the values) were counted",
        lambda *sizes: hybrid_bytes(*sizes) // 2,
        "A token leaves a key and a value in each layer that holds it, and each of their numbers takes two "
        "bytes. One of these two factors is missing.",
    ),
    Misconception(
        "layers without a window were left out",
        _hybrid(lambda w, tokens, windows: 0 if w is None else min(w, tokens)),
        "None is not zero: such a layer has no limit, and for long texts it holds most of the cache.",
    ),
)

HYBRID_BYTES = Exercise(
    name="hybrid_bytes",
    lesson=5,
    title="Some layers forget",
    minutes=10,
    difficulty=2,
    why="Gemma, gpt-oss and others let most of their layers look back a little way only. The plain "
    "formula is then "
    "several times too high.",
    signature="hybrid_bytes(windows, num_kv_heads, head_dim, tokens)",
    reference=hybrid_bytes,
    cases=_hybrid_cases,
    misconceptions=HYBRID_MISCONCEPTIONS,
    observe=observe_size(hybrid_bytes, HYBRID_MISCONCEPTIONS),
    explain=explain_size,
    hints=(
        "Go layer by layer: how many tokens does this one hold?",
        "There are two cases for a layer with a window: the text is longer than it, or it is not.",
    ),
)


def latent_bytes(num_layers, num_heads, latent_dim, rope_dim, tokens):
    """Oracle: one latent and one rotary key, as tensors without memory."""
    total = 0
    for _layer in range(num_layers):
        latent = torch.empty(tokens, latent_dim, dtype=torch.bfloat16, device="meta")
        rotary = torch.empty(tokens, rope_dim, dtype=torch.bfloat16, device="meta")
        total += latent.nbytes + rotary.nbytes
    return total


def _latent_cases(generator):
    def case(label, layers, heads, latent, rope):
        tokens = int(torch.randint(300, 900, (1,), generator=generator))
        inputs = {"num_layers": layers, "num_heads": heads, "latent_dim": latent, "rope_dim": rope,
                  "tokens": tokens}  # fmt: skip
        return Case(inputs, label)

    return [
        case("DeepSeek's widths", pick(generator, [27, 60, 61]), pick(generator, [16, 128]), 512, 64),
        case("other widths", pick(generator, [24, 47]), 20, pick(generator, [192, 256]), 32),
    ]


LATENT_MISCONCEPTIONS = (
    Misconception(
        "the factor 2 was kept",
        lambda layers, heads, latent, rope, tokens: 2 * layers * (latent + rope) * tokens * 2,
        "Keys and values are both made from the one latent, so it is stored once. There is nothing to "
        "double.",
    ),
    Misconception(
        "the latent was multiplied by the number of heads",
        lambda layers, heads, latent, rope, tokens: layers * heads * (latent + rope) * tokens * 2,
        "All heads read the same latent. That is what makes it small.",
    ),
    Misconception(
        "the rotary key was forgotten",
        lambda layers, heads, latent, rope, tokens: layers * latent * tokens * 2,
        "Positions are not in the latent. They come in a small key of their own, and that is stored "
        "beside it.",
    ),
    Misconception(
        "each head was given a rotary key of its own",
        lambda layers, heads, latent, rope, tokens: layers * (latent + heads * rope) * tokens * 2,
        "The rotary key is one for all heads, as the latent is.",
    ),
    Misconception(
        "only one layer was counted",
        lambda layers, heads, latent, rope, tokens: (latent + rope) * tokens * 2,
        "Every layer has a latent of its own.",
    ),
)

LATENT_BYTES = Exercise(
    name="latent_bytes",
    lesson=5,
    title="One latent for all heads",
    minutes=5,
    difficulty=1,
    why="DeepSeek's models have 128 heads and a cache smaller than that of many a model with 8. The "
    "plain formula "
    "is off by a factor of seventy.",
    signature="latent_bytes(num_layers, num_heads, latent_dim, rope_dim, tokens)",
    reference=latent_bytes,
    cases=_latent_cases,
    misconceptions=LATENT_MISCONCEPTIONS,
    observe=observe_size(latent_bytes, LATENT_MISCONCEPTIONS),
    explain=explain_size,
    hints=(
        "What does one token leave in one layer? The text above the answer cell names the two things.",
        "One of the five parameters does not matter.",
    ),
)
EXERCISES = (HYBRID_BYTES, LATENT_BYTES)
