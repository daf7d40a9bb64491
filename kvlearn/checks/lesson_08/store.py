"""quantized_cache: the learner's cache with codes for old tokens and a window of exact ones.

The scenario plays a decoder: a prompt, steps, a roll-back into the codes, a step, other rows, a reset.
"""

from functools import partial
from types import SimpleNamespace

import torch

from kvlearn.cache import KVCache, QuantizedCache
from kvlearn.checks.caches import explain_first, require_two_tensors
from kvlearn.checks.compare import tensors
from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception, WrongAnswer
from kvlearn.checks.lesson_08 import store_mistakes as mistakes
from kvlearn.quantization import QuantSpec

AXES = {"k": "layer batch head token channel", "v": "layer batch head token channel"}
TOLERANCE = 1e-4  # relative and absolute


class Reference(QuantizedCache):
    """The oracle: the library's cache, of this one scheme."""

    def __init__(self, config, residual=4, batch_size=1, dtype=None, device=None):
        scheme = QuantSpec("int8", axis="token", quant_group=None, symmetric=True, scale_dtype=torch.float32)
        super().__init__(config, scheme, scheme, residual, batch_size, dtype=dtype, device=device)


# The scenario ----------------------------------------------------------------------------------------


def _cases(generator):
    def case(label, sizes, residual, chunks):
        layers, batch, heads, dim = sizes
        config = SimpleNamespace(num_layers=layers, num_kv_heads=heads, head_dim=dim, max_position=90)
        shape = layers, batch, heads, sum(chunks) + 3, dim
        k, v = (randn(generator, *shape) * torch.arange(1.0, batch + 1)[:, None, None, None] for _ in "kv")
        k[:, 0, :, 2] = v[:, -1, :, 1] = 0  # such as padding
        return Case({"config": config, "k": k, "v": v, "residual": residual, "chunks": list(chunks)}, label)

    return [
        case("a prompt and steps of one token", (3, 2, 5, 7), 4, (21, *[1] * 6)),
        case("one row, and chunks", (2, 1, 3, 6), 3, (2, 5, 7, 1)),
        case("no window", (2, 3, 1, 8), 0, (4, 1, 2)),
    ]


def _observe(answer, case):
    k, residual = case["k"], case["residual"]
    cache = answer(case["config"], residual=residual, batch_size=k.shape[1], dtype=k.dtype, device=k.device)
    if not isinstance(cache, KVCache):
        raise WrongAnswer(
            "Your class should inherit from kvlearn.KVCache, which keeps positions and lengths."
        )
    seen, tokens = {}, 0
    for length in case["chunks"]:
        _step(cache, case, range(tokens, tokens + length), f"at {tokens + length} tokens", seen)
        tokens += length
        seen[f"bytes used at {tokens} tokens"] = cache.used_bytes
        _count_what_is_kept(cache, case, tokens, seen)
    kept = max(1, tokens - residual - 3)
    cache.truncate(kept)
    seen[f"bytes used when {kept} tokens were kept"] = cache.used_bytes
    when = f"when {kept} tokens were kept and one came"
    _step(cache, case, [tokens], when, seen)
    seen[f"bytes used {when}"] = cache.used_bytes
    rows = list(range(k.shape[1]))[::-1] + [0]
    cache.reorder(rows)
    _step(cache, case, [tokens + 1], f"when the rows had become {rows} and a token came", seen, rows)
    cache.reset()
    _step(cache, case, [tokens + 2], "after a reset and one token", seen)
    seen["dtype that comes back from a cache in bfloat16"] = _dtype_of_a_narrow_one(answer, case)
    return seen


def _dtype_of_a_narrow_one(answer, case) -> str:
    """Numbers in bfloat16 are too coarse to be compared; their kind is not."""
    k = case["k"].bfloat16()
    cache = answer(case["config"], residual=1, batch_size=k.shape[1], dtype=k.dtype, device=k.device)
    for layer in range(len(k)):
        cache.update(layer, k[layer][:, :, :4].clone(), k[layer][:, :, :4].clone())
    keys, values = cache.update(0, k[0][:, :, 4:5].clone(), k[0][:, :, 4:5].clone())
    return str(keys.dtype if keys.dtype != k.dtype else values.dtype)


def _step(cache, case, tokens, when, seen, rows=slice(None)):
    for layer in range(case["config"].num_layers):
        new = [case[letter][layer][rows][:, :, list(tokens)] for letter in "kv"]  # copies
        back = cache.update(layer, *new)
        require_two_tensors(back)
        for name, tensor in zip(("keys", "values"), back, strict=True):
            seen[f"{name} of layer {layer} {when}"] = tensor.clone()
        for tensor in new:
            tensor.fill_(torch.nan)  # as a model that reuses its memory


def _count_what_is_kept(cache, case, tokens, seen):
    """Whether the cache keeps more than it says, behind its tensors or beside them.

    Twice the need may be allocated (room to grow), and one layer kept (in which a result is put together).
    """
    allocated, most = cache.allocated_bytes, 2 * cache.used_bytes
    seen[f"bytes allocated at {tokens} tokens"] = f"at most {most}" if allocated <= most else str(allocated)
    exact = [t for t in tensors(vars(cache)) if t.dtype == case["k"].dtype]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in exact}
    hidden, layer = sum(storages.values()) - allocated, 2 * tokens * case["k"][0, :, :, 0].nbytes
    name = f"bytes of tensors kept alive, and not named by `_tensors`, at {tokens} tokens"
    seen[name] = f"at most {layer}" if hidden <= layer else str(hidden)


def _explain(case, got, want):
    """The first thing that differs, in words; or None."""
    sentence = "The {label} should be {right}, and they are {mine}."
    same = partial(torch.allclose, rtol=TOLERANCE, atol=TOLERANCE)
    return explain_first(got, want, sentence, partial(_explain_numbers, case), same)


def _explain_numbers(case, label, mine, right):
    wrong = ~torch.isclose(mine, right, rtol=TOLERANCE, atol=TOLERANCE)
    row, slot = wrong.any(dim=3).any(dim=1).nonzero()[0].tolist()
    if mine[row, :, slot].isnan().any():
        return (
            f"The {label}: slot {slot} of row {row} holds NaN. Was a token of zeros divided by its scale? Or "
            "is what was given kept itself, and not a copy? The check writes NaN into it afterwards."
        )
    return f"The {label}: slot {slot} of row {row} differs. {_kind(case, label, mine, right, row, slot)}"


def _kind(case, label, mine, value, row, slot):
    """Is it exact where it should be a code, or the other way round?"""
    letter, layer = ("k" if label.startswith("keys") else "v"), int(label.split()[3])
    given = case[letter][layer].flatten(0, 1).transpose(0, 1).reshape(-1)

    def exact(tensor):
        return bool(torch.isin(tensor[row, :, slot].flatten(), given).all())

    if exact(mine) and not exact(value):
        return "It is exact, and should come out of its codes by now."
    if exact(value) and not exact(mine):
        return "It should still be exact."
    return "It should be its codes times its scale."


QUANTIZED_CACHE = Exercise(
    name="quantized_cache",
    lesson=8,
    title="A quantised cache",
    minutes=30,
    difficulty=3,
    why="Codes for what is old, exact numbers for what is new, and one rule for where the border lies. The "
    "real model will run on it at the end of this assignment.",
    signature="MyQuantizedCache(config, residual=4, batch_size=1, dtype=None, device=None)",
    kind="class",
    methods=("update", "truncate", "reset"),
    reference=Reference,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    axes=AXES,
    misconceptions=(
        Misconception(
            "the tokens of this step come back from their codes",
            mistakes.OwnTokensAsCodes,
            "What is new comes back exactly and is quantised after the step. Else a prompt attends to its "
            "own rounded keys.",
        ),
        Misconception(
            "the window is one token too small",
            mistakes.OneExactTooFew,
            "The last `residual` tokens are exact, all of them.",
        ),
        Misconception(
            "the window is one token too large",
            mistakes.OneExactTooMany,
            "With one token more than `residual` in the window, the oldest becomes a code at once.",
        ),
        Misconception(
            "the window goes by the length of this call",
            mistakes.LengthOfThisCall,
            "One token at a time never exceeds the residual, and so nothing ever becomes a code "
            "(VeloxQuant-MLX#86). What counts is how many are exact in all.",
        ),
        Misconception(
            "the window is emptied whole when it overflows",
            mistakes.EmptiedWhole,
            "Then no token at all is exact for a moment, not even the newest "
            "(huggingface/transformers#34189).",
        ),
        Misconception(
            "a prompt is quantised whole",
            mistakes.PromptAtOnce,
            "The end of a prompt is as recent as anything. What is quantised goes by the length alone, "
            "however the tokens came.",
        ),
        Misconception(
            "there is no window",
            mistakes.NoWindow,
            "The last `residual` tokens stay as they came.",
        ),
        Misconception(
            "nothing ever becomes a code",
            mistakes.NeverCodes,
            "The numbers are exact, and the bytes are those of a cache that is not quantised.",
        ),
        Misconception(
            "the scale is dropped on the way back",
            mistakes.ScaleDropped,
            "Codes count steps. A key of codes points in the right direction and is a hundred times too "
            "long.",
        ),
        Misconception(
            "the recent tokens are a slice of what they were cut from",
            mistakes.SliceKept,
            "A slice is a view: the whole of a prompt stays in memory behind it. A copy lets the rest go.",
        ),
        Misconception(
            "the codes are kept as floating-point numbers",
            mistakes.FloatCodes,
            "They have been rounded, and take as many bytes as before (sgl-project/sglang#22777). A code "
            "is an int8.",
        ),
        Misconception(
            "the scales are not counted",
            mistakes.ScalesUncounted,
            "They are kept, so they take memory; `_tensors` names all that is kept.",
        ),
        Misconception(
            "a scale that is shared by the rows of the batch",
            mistakes.BatchScale,
            "What one text gets depends on who sits beside it. No scale crosses rows.",
        ),
        Misconception(
            "the whole history is quantised again at every step",
            mistakes.QuantisedAgain,
            "When the newest are forgotten the window fills up from old codes, which become exact numbers "
            "again: more bytes, and none is nearer to what it was. A code stays a code "
            "(huggingface/transformers#34189).",
        ),
        Misconception(
            "going back cuts the window and never the codes",
            mistakes.CutsTheWindowOnly,
            "When more is forgotten than the window holds, codes and scales have to go, too "
            "(huggingface/transformers#48700).",
        ),
        Misconception(
            "going back cuts the codes before the window",
            mistakes.ExactAgainNever,
            "The newest tokens are forgotten first, and those are in the window.",
        ),
    ),
    hints=(
        "Three tensors for each layer and side: codes, scales, and the recent tokens. In the beginning all "
        "three are empty (a length of 0), or not there.",
        "In _append: first put the new tokens behind the recent ones, then build what comes back, and only "
        "then move what is no longer recent to the codes.",
        "The codes hold the first tokens. To keep `length` tokens, cut the codes at `length`; of the "
        "recent ones stay as many as are left.",
    ),
)
