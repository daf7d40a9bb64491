"""tokens_in_codes: how many tokens are codes, and how many are still exact, at a given length."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception, WrongAnswer
from kvlearn.checks.explain import kind_of


def tokens_in_codes(length, residual, quant_group):
    """Oracle: one token after another, as a cache would see them."""
    keys = values = 0
    for stored in range(1, length + 1):
        while stored - keys - quant_group >= residual:
            keys += quant_group
        while stored - values - 1 >= residual:
            values += 1
    return keys, values


def _cases(generator):
    def draw(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    group, residual = draw(5, 9), draw(10, 20)
    cases = [
        (residual - draw(1, 5), residual, group, "shorter than the window"),
        (residual, residual, group, "as long as the window"),
        (residual + group - 1, residual, group, "one token before the first group"),
        (residual + group, residual, group, "the first group"),
        (residual + 3 * group + 2, residual, group, "three groups and some"),
        (4 * group + 1, 0, group, "no window"),
        (1000 + draw(0, 100), 128, 32, "a long text"),
        (residual + draw(20, 40), residual, 1, "groups of one token"),
        (0, residual, group, "nothing"),
    ]
    names = ("length", "residual", "quant_group")
    return [Case(dict(zip(names, numbers, strict=True)), label) for *numbers, label in cases]


def _observe(answer, case):
    back = answer(*case.inputs.values())
    if back is None or back is ...:
        return None
    if not isinstance(back, tuple | list) or len(back) != 2:
        raise WrongAnswer(f"Two numbers are wanted back, of keys and of values; this is {kind_of(back)}.")
    return {"keys in codes": back[0], "values in codes": back[1]}


def _explain(case, got, want):
    for name, value in want.items():
        if got[name] != value:
            exact = case["length"] - got[name]
            return (
                f"With {case['length']} tokens, a residual of {case['residual']} and groups of "
                f"{case['quant_group']}, the {name} should be {value}, and yours are {got[name]}: {exact} "
                "would be exact."
            )
    return None


def _after(exact, group):
    return max(0, exact) // group * group


def _values_in_groups(length, residual, quant_group):
    keys = _after(length - residual, quant_group)
    return keys, keys


def _flushed_whole(length, residual, quant_group):
    block = max(residual, 1)
    return length // block * block // quant_group * quant_group, max(0, length - residual)


TOKENS_IN_CODES = Exercise(
    name="tokens_in_codes",
    lesson=8,
    title="What is still exact",
    minutes=10,
    difficulty=2,
    why="The classic bug of a quantised cache is off by one here, and nothing shows it: the text is nearly "
    "as good.",
    signature="tokens_in_codes(length, residual, quant_group)",
    reference=tokens_in_codes,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    misconceptions=(
        Misconception(
            "the window is one token too small",
            lambda n, r, g: (_after(n - r + 1, g), max(0, n - r + 1)) if n else (0, 0),
            "The last `residual` tokens stay exact, so that many and not one fewer are left when the "
            "others have become codes.",
        ),
        Misconception(
            "the window is one token too large",
            lambda n, r, g: (_after(n - r - 1, g), max(0, n - r - 1)),
            "When `residual` tokens are exact besides a whole group, that group becomes codes; it does not "
            "wait for one more.",
        ),
        Misconception(
            "values wait for a whole group, too",
            _values_in_groups,
            "A value's scale is its own token's. It needs no other token, and becomes a code as soon as it "
            "leaves the window.",
        ),
        Misconception(
            "keys do not wait for a whole group",
            lambda n, r, g: (max(0, n - r), max(0, n - r)),
            "A scale over `quant_group` tokens needs all of them: half a group would have to be quantised "
            "again when the rest comes.",
        ),
        Misconception(
            "keys and values changed places",
            lambda n, r, g: (max(0, n - r), _after(n - r, g)),
            "Keys come first. It is they that wait for a whole group, because their scales run over tokens.",
        ),
        Misconception(
            "there is no window",
            lambda n, r, g: (_after(n, g), n),
            "The newest tokens are those that are looked at most, and they are kept as they are "
            "(huggingface/transformers#34189 asked for it).",
        ),
        Misconception(
            "the window is emptied whole when it is full",
            _flushed_whole,
            "That is how KIVI's own code treats keys, and then no key at all is exact for a moment. Here "
            "the last `residual` are exact at every length.",
        ),
        Misconception(
            "a text shorter than the window has codes below 0",
            lambda n, r, g: ((n - r) // g * g, n - r),
            "Nothing is in codes then, and nothing is 0.",
        ),
    ),
    hints=(
        "Values first: all but the last `residual`, but never fewer than none.",
        "For keys, of the same tokens only whole groups.",
        "// divides and throws the rest away.",
    ),
)
