"""changed_layers: the proof by experiment that past keys and values are final, and when they are not.

The oracle reads the projections of K and V through hooks, the answer through whatever it likes.
"""

from kvlearn.checks.compare import as_number
from kvlearn.checks.engine import Exercise, Misconception, WrongAnswer
from kvlearn.checks.lesson_02 import experiment_mistakes as mistakes
from kvlearn.checks.lesson_02.decoders import differences, draw_cases


def _oracle(decoder, tokens, new_token):
    return [i for i, sizes in enumerate(differences(decoder, tokens, new_token)) if max(sizes) > 1e-9]


def _observe(answer, case):
    """For each layer, whether the answer says that it changed."""
    decoder = case["decoder"]
    own, layers, hooks = decoder.attention, decoder.config.num_layers, _hooks(decoder)
    said = answer(decoder, case["tokens"], case["new_token"])
    if said is None or said is ...:
        return said
    if decoder.attention is not own:
        raise WrongAnswer(
            f"After your function the decoder of {layers} layers does not have its own attention any more: "
            "whoever uses it next gets yours. Put back what you found."
        )
    if _hooks(decoder) != hooks:
        raise WrongAnswer(
            f"After your function the decoder of {layers} layers still has your hooks: they run again "
            "whenever somebody uses it. `handle.remove()` takes a hook off."
        )
    numbers = [as_number(layer, int) for layer in said] if type(said) in (list, tuple, set) else [None]
    if None in numbers:
        raise WrongAnswer(
            "A list of layer numbers is wanted, such as [0, 2], or [] if none changed. "
            f"Yours is {_shown(said)}."
        )
    beyond = [layer for layer in numbers if not 0 <= layer < layers]
    if beyond:
        raise WrongAnswer(
            f"The decoder has layers 0 to {layers - 1}, and your list has layer {beyond[0]} in it."
        )
    return [layer in numbers for layer in range(layers)]


def _hooks(decoder) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in decoder.modules())


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
            mistakes.different_tokens,
            "Layer 0 of most decoders is reported. It cannot have changed: its K and V come from each "
            "token alone. The second run has one token more; which of its places does the first have too?",
        ),
        Misconception(
            "the new token was put in front of the text",
            mistakes.put_in_front,
            "A token in front moves every old token one position on, and a key depends on its position. The "
            "new token is appended: it comes last.",
        ),
        Misconception(
            "every layer was reported",
            mistakes.every_layer,
            "Every layer of every decoder is reported, and some of these decoders are causal.",
        ),
        Misconception(
            "every layer above the first changed one was reported",
            mistakes.from_the_first_one_on,
            "Above a changed layer most layers change, and not all: in one of these decoders a layer in "
            "between keeps its K and V. Compare each layer's own.",
        ),
        Misconception(
            "only the first changed layer was reported",
            mistakes.only_the_first_one,
            "The list ends after one layer. The question is in which layers K or V change: in all of them.",
        ),
        Misconception(
            "new_token was not used",
            mistakes.without_the_new_token,
            "Here the text was compared with itself less its last token. Whether K and V move may depend on "
            "the token that comes: append new_token.",
            raises=True,
        ),
        Misconception(
            "the old tokens were not computed again",
            mistakes.never_recomputed,
            "No layer of any decoder is reported. If the second run takes the old K and V from a "
            "cache (or from the first run), it finds what was put there, whatever the decoder does.",
        ),
        Misconception(
            "only the keys were compared",
            mistakes.only_the_keys,
            "A layer may change its values alone. A cache stores both, so both must stay.",
        ),
        Misconception(
            "only the values were compared",
            mistakes.only_the_values,
            "A layer may change its keys alone. A cache stores both, so both must stay.",
        ),
        Misconception(
            "a layer counts only if its keys and its values changed",
            mistakes.both_must_move,
            "One of the two is enough to make what is stored wrong.",
        ),
        Misconception(
            "only the first token was compared",
            mistakes.only_the_first_token,
            "In one of these decoders a token sees a single token ahead, so news from the end does "
            "not reach the beginning. All old tokens must stay.",
        ),
        Misconception(
            "only the last of the old tokens was compared",
            mistakes.only_the_last_token,
            "In one of these decoders only the first token looks ahead, so it alone changes. All old "
            "tokens must stay.",
        ),
        Misconception(
            "a layer counts only if all of its numbers changed",
            mistakes.all_numbers_must_move,
            "One changed number is enough to make what is stored wrong. In some of these decoders "
            "only a few tokens change.",
        ),
        Misconception(
            "only one row of the batch was compared",
            mistakes.only_the_first_row,
            "In one of these inputs the second row alone changes, and the first and the last stay. "
            "Every row is a text of its own, and all must stay.",
        ),
        Misconception(
            "only the first head was compared",
            mistakes.only_the_first_head,
            "In one of these decoders a layer changes in its other key/value head alone. A cache stores all "
            "heads, so all must stay.",
        ),
        Misconception(
            "the heads were averaged before they were compared",
            mistakes.heads_averaged,
            "In one of these decoders two heads change by opposite amounts, and their mean stays as it was. "
            "A cache stores each head, so each must stay.",
        ),
        Misconception(
            "small changes were taken for none",
            mistakes.loosely,
            "In one of these decoders K and V move by 1e-7, a hundred times what the assignment calls "
            "rounding: your tolerance is too wide. (torch.allclose has a relative one besides atol: 1e-5 of "
            "each number, unless you say otherwise.)",
        ),
        Misconception(
            "the sign of a difference was kept",
            mistakes.without_the_sign,
            "The largest of the differences is not the largest change: where all numbers go down, each "
            "difference is negative, or none is above your tolerance. Which sign do you get?",
        ),
        Misconception(
            "compared to the last bit",
            mistakes.to_the_last_bit,
            "A longer text is multiplied in other blocks, and sums in another order differ in the "
            "last digits. That is rounding and no change: compare up to a small tolerance.",
        ),
        Misconception(
            "what the layers put out was compared",
            mistakes.outputs,
            "A layer stores the K and V that it makes of its input. Its output is the input of the "
            "next one, so this is ahead by a layer.",
        ),
        Misconception(
            "layers counted from 1",
            mistakes.counted_from_one,
            "The layers are the right ones and their numbers are one too high: the first layer is layer 0.",
        ),
        Misconception(
            "the layers that did not change were reported",
            mistakes.unchanged,
            "The experiment is right and its answer is turned around.",
        ),
        Misconception(
            "the decoder ran without its mask",
            mistakes.without_its_mask,
            "A causal decoder is reported to change, because the attention that you put in loses the "
            "mask. It should hand on everything that it is given.",
        ),
        Misconception(
            "the decoder ran with the library's attention in place of its own",
            mistakes.with_the_librarys_attention,
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
