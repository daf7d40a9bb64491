"""Exercises that know the wrong answers: `check`, `hint`, and the registry behind them.

    kvlearn.check("split_heads", split_heads)   one line, or CheckFailed that says what is wrong
    kvlearn.hint("split_heads")                 a first hint; again for the next one
    kvlearn.checks.check_cache(MyCache)         a cache against every rule of the contract (`conformance`)

Guide for authors
-----------------
One module a lesson, `lesson_NN.py`, ends with `EXERCISES = (...)`; where it would pass 300
lines it is a package of that name with one file an exercise. `lesson_00.py` is the shortest
model, `lesson_01/` the fuller one. An exercise is

    Exercise(
        name="split_heads", lesson=0, title="Split the heads", minutes=10, difficulty=1,
        why="...one or two sentences...",
        signature="split_heads(x, num_heads)",   as in the answer cell; defaults allowed
        reference=_split_heads,      the oracle: float64, an explicit slow loop, or torch;
                                     it gives the dtype that a right answer gives
        cases=_split_cases,          generator -> [Case({"x": ..., "num_heads": 3}, "label")]
        misconceptions=(Misconception(name, answer, says), ...),   four at least (or few="why")
        hints=("...", "..."),        two at least, from a push to nearly there; not the answer
        axes={"x": "batch token width", "return": "batch head token channel"},
    )

cases     Inputs by parameter name in the signature's order. Values from the generator alone
          (`draw.randn`); sizes all different: a test reads `axes` and holds this. A size of 1
          is exempt, and so are axes that a case names in `equal="width inner"`, on purpose.
          One case in float64 finds answers that build float32 tensors; one with a length of
          1 finds bare squeezes. Labels are for the line that a pass prints: "one token".
axes      Names of the axes of inputs (by parameter; an int may be one: "num_heads": "head")
          and of the result ("return", or the key when the observation is a dict).
items     Where the result is a tuple, the names of its parts in messages: ("keys", "values").
observe   observe(answer, case) -> observation, when one call is not enough: build a cache and
          run a scenario, run a loop on a tiny decoder. It gets copies of the inputs. It gives
          tensors, numbers, strings, or tuples, lists, dicts of them; a snapshot is taken at
          the end, so clone what later steps may overwrite. It must not catch the answer's
          errors. `raise WrongAnswer("Your update gave back one tensor; ...")` is shown as is.
          A scenario stays honest if its last observed value depends on every step.
explain   explain(case, got, want) -> a sentence in the subject's words about the first place
          that differs, or None for the default. Called only when shapes and dtypes agree.
kind      "class" when the answer is a class; `methods` then names what it must have.
own_memory  True where the result must not share memory with an input.

A misconception is matched by what it does: same values, same shape, same dtype, on every
case. So the cases must tell all of them apart (a test holds that each is named as itself,
at several seeds), and one that equals the right answer on all cases is a gap in the cases.
Order matters only if two could be equal. `says` tells what is wrong and why it is wrong, in
the subject's words, in one to three sentences; it never shows how to do it. `name` completes
"Looks like: ...". One that raises on some cases and gives values on others may set
`raises=True`, which accepts another answer's error of the same type on the same cases.

In the assignment, the markdown before the answer cell says "10 minutes" and "difficulty 1 of 3"
as the exercise does, and the answer has the signature's parameters: a test holds both.

Tests: two or more independent right answers in `tests/checks/alternatives_NN.py`, as
`ALTERNATIVES = {"split_heads": [by_loop, by_einops]}`; `tests/checks/test_exercises.py` holds
every rule over every exercise: `python -m pytest tests/checks -k split_heads`.
"""

import difflib

from kvlearn.checks import (
    lesson_00,
    lesson_01,
    lesson_02,
    lesson_03,
    lesson_04,
    lesson_05,
    lesson_06,
    lesson_07,
    lesson_08,
)
from kvlearn.checks.conformance import check_cache
from kvlearn.checks.engine import (
    Case,
    CheckFailed,
    Exercise,
    Misconception,
    Result,
    ShortMessage,
    WrongAnswer,
    judge,
)

__all__ = [
    "Case",
    "CheckFailed",
    "Exercise",
    "LESSONS",
    "Misconception",
    "REGISTRY",
    "Result",
    "UnknownExercise",
    "WrongAnswer",
    "check",
    "check_cache",
    "find",
    "hint",
    "judge",
]

LESSONS = (lesson_00, lesson_01, lesson_02, lesson_03, lesson_04, lesson_05, lesson_06, lesson_07, lesson_08)
REGISTRY: dict[str, Exercise] = {}
for _lesson in LESSONS:
    for _exercise in _lesson.EXERCISES:
        if _exercise.name in REGISTRY:
            raise ValueError(f"two exercises are called {_exercise.name!r}")
        REGISTRY[_exercise.name] = _exercise

_hints_given: dict[str, int] = {}


class UnknownExercise(ShortMessage, ValueError):
    """There is no exercise of that name."""


def find(name: str) -> Exercise:
    """The exercise called `name`. Raises UnknownExercise, which says what is near."""
    if isinstance(name, str) and name in REGISTRY:
        return REGISTRY[name]
    if not isinstance(name, str):
        raise UnknownExercise(
            "The exercise's name comes first, as a string: "
            f'kvlearn.check("split_heads", split_heads). This is a {type(name).__name__}.'
        )
    near = difflib.get_close_matches(name, REGISTRY, n=3)
    others = f"Do you mean {' or '.join(near)}?" if near else f"There are: {', '.join(REGISTRY)}."
    raise UnknownExercise(f"There is no exercise called {name!r}. {others}")


def check(name: str, answer, seed: int = 0) -> Result:
    """Check an answer; prints one line when it is right.

    name    the exercise's name, such as "split_heads"
    answer  your function (or class), itself and not called
    seed    chooses the random inputs; another seed than 0 is another, equally good, check,
            and its line is short: that the answer is right for this seed too

    Raises CheckFailed when the answer is not right; it carries the `Result`, and its text
    says what is wrong and, where it is a known one, which misconception it is.
    """
    result = judge(find(name), answer, seed)
    if not result.passed:
        raise CheckFailed(result)
    print(result.message if seed == 0 else f"{name}: right for seed {seed} too.")
    return result


def hint(name: str) -> None:
    """Print the next hint for an exercise; after the last one, the last one again."""
    exercise = find(name)
    total = len(exercise.hints)
    number = min(_hints_given.get(name, 0) + 1, total)
    _hints_given[name] = number
    left = total - number
    more = f"{left} more: call hint again" if left else "that was the last one"
    print(f"Hint {number} of {total}: {exercise.hints[number - 1]} ({more})")
