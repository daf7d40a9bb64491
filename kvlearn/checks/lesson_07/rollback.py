"""may_roll_back: is everything that the next query would see still stored?

Where more than that is wanted the evicted tokens must be recorded: huggingface/transformers PR#47447
(and described in the mask, or the output is silently wrong: huggingface/transformers PR#48280).
"""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception


def may_roll_back(stored, length, window):
    """Oracle: every position that the next query sees, one by one."""
    for position in range(length):
        if position > length - window and position not in stored:
            return False
    return True


def _cases(generator):
    window = int(torch.randint(5, 9, (1,), generator=generator))
    seen = 2 * window + int(torch.randint(1, window, (1,), generator=generator))
    cases = [
        ([8, 9, 6, 7], 10, 4, "10 tokens, a window of 4"),
        ([0, 1, 2, -1, -1], 3, 5, "nothing dropped yet"),
        ([5, 1, 2, 3, 4], 6, 5, "one token dropped"),
        ([8, -1, 6, 7], 9, 4, "rolled back once already"),
        ([11], 12, 1, "a window of 1"),
        ([5, 3, 4], 6, 3, "the example by hand"),
        (list(range(seen - window, seen)), seen, window, "several windows"),
    ]
    return [Case({"stored": s, "tokens seen": n, "window": w}, label) for s, n, w, label in cases]


def _observe(answer, case):
    """Ask about every length to which one might go back."""
    lengths = range(case["tokens seen"] + 1)
    answers = [answer(case["stored"], length, case["window"]) for length in lengths]
    return [
        bool(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else value for value in answers
    ]


def _explain(case, got, want):
    length = next(i for i, (ours, right) in enumerate(zip(got, want, strict=True)) if ours != right)
    window, held = case["window"], sorted(p for p in case["stored"] if p >= 0)
    seen = list(range(max(0, length - window + 1), length))
    text = f"positions {seen}" if seen else "nothing but itself"
    return (
        f"Window {window}, stored are positions {held}, and {length} tokens are to be left. The next query, "
        f"at position {length}, would see {text}: so {want[length]}, and yours says {got[length]}."
    )


MAY_ROLL_BACK = Exercise(
    name="may_roll_back",
    lesson=7,
    title="What a rollback may do",
    minutes=10,
    difficulty=2,
    why="Speculative decoding takes tokens back all the time, and a window has thrown away what the earlier "
    "queries saw. A cache that goes on without it gives wrong numbers and no error.",
    signature="may_roll_back(stored, length, window)",
    reference=may_roll_back,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    misconceptions=(
        Misconception(
            "always",
            lambda stored, length, window: True,
            "The counters go back, and the keys that the window has dropped do not come back. The next "
            "query would miss them without a word.",
        ),
        Misconception(
            "only as long as nothing has been dropped",
            lambda stored, length, window: 0 in stored or length == 0,
            "A ring of W slots keeps one position more than the next query needs. So something can still be "
            "taken back after the first token has gone.",
        ),
        Misconception(
            "to any token that is still stored",
            lambda stored, length, window: length == 0 or length - 1 in stored,
            "It is not enough that the last token is there. The next query looks back over a whole window "
            "from where it stands.",
        ),
        Misconception(
            "one position too many is asked for",
            lambda stored, length, window: all(p in stored for p in range(max(0, length - window), length)),
            "The query's own position is one of the window's, so it needs window - 1 stored ones. Asking for "
            "one more refuses what is possible.",
        ),
        Misconception(
            "one position too few is asked for",
            lambda stored, length, window: all(
                p in stored for p in range(max(0, length - window + 2), length)
            ),
            "The oldest position that the next query sees is length - window + 1, that one included.",
        ),
        Misconception(
            "positions before the text are asked for",
            lambda stored, length, window: all(p in stored for p in range(length - window + 1, length)),
            "Near the beginning the window reaches past position 0, where there is nothing to be missed.",
        ),
        Misconception(
            "going back to nothing is refused",
            lambda stored, length, window: length > 0 and may_roll_back(stored, length, window),
            "With no token left the next query, at position 0, sees nothing but itself. An empty cache "
            "needs nothing.",
        ),
        Misconception(
            "as many tokens as the window is wide may be taken back",
            lambda stored, length, window: length > max(stored) - window,
            "The window that counts is the next query's, and it begins further back than the ring does as "
            "soon as two tokens are taken back.",
        ),
    ),
    hints=(
        "`length` tokens are left, so the next query stands at position `length`. Which positions does it "
        "see besides its own?",
        "From length - window + 1 to length - 1, and none below 0. Are all of them in `stored`?",
    ),
)
