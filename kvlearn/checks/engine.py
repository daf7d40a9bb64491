"""The checker: run an answer on seeded inputs, compare with an oracle, name the mistake.

The words of this file: an `Exercise` draws `Case`s; `observe` runs an answer on one case and
gives an observation (a tensor, a number, or tuples, lists and dicts of them); the answer's
observations are compared with those of the exercise's `reference`. Only if they differ are
the `Misconception`s run, to see whether one of them explains what was observed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kvlearn.checks import explain as say
from kvlearn.checks.call import call_function, explain_unusable, returned_nothing
from kvlearn.checks.compare import compare, identical, is_tensor, shares_memory, snapshot
from kvlearn.checks.isolate import MAX_SECONDS, TookTooLong, limited, modes_left, undisturbed


@dataclass(frozen=True)
class Case:
    """Inputs by parameter name, in the order of the signature, and what is special here.

    equal   names of axes that have the same size here on purpose, such as "width inner"
    """

    inputs: dict[str, Any]
    label: str = ""
    equal: str = ""

    def __getitem__(self, name):
        return self.inputs[name]


@dataclass(frozen=True)
class Misconception:
    """A named wrong answer that can be run.

    name    what was done, in words: "scaled by d instead of sqrt(d)"
    answer  what a learner who believes that would have written
    says    what is wrong and why, in one to three sentences; never the solution
    raises  True if an answer that raises the same error on the same cases is this one too
    """

    name: str
    answer: Callable
    says: str
    raises: bool = False


@dataclass(frozen=True)
class Exercise:
    """Everything that is known about one exercise; see `kvlearn.checks` for a guide."""

    name: str
    lesson: int
    title: str
    minutes: int
    difficulty: int
    why: str
    signature: str
    reference: Callable
    cases: Callable[[torch.Generator], list[Case]]
    misconceptions: tuple[Misconception, ...]
    hints: tuple[str, ...]
    observe: Callable[[Callable, Case], Any] = call_function
    explain: Callable[[Case, Any, Any], str | None] | None = None
    kind: str = "function"
    axes: dict[str, str] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    own_memory: bool = False
    few: str = ""


@dataclass(frozen=True)
class Result:
    """What a check found. `misconception` is the name of the mistake, or None."""

    passed: bool
    misconception: str | None
    message: str

    def _ipython_display_(self):
        """Nothing: a notebook has already been told, in one printed line."""


class ShortMessage(Exception):
    """An exception that a notebook shows as its text alone, without a traceback."""

    def _render_traceback_(self):
        return str(self).splitlines()


class CheckFailed(ShortMessage, AssertionError):
    """An answer is not right yet. `.result` says more; str() is the message."""

    def __init__(self, result: Result):
        super().__init__(result.message)
        self.result = result


class WrongAnswer(Exception):
    """Raised by an `observe` that has seen something wrong; its text is shown as it is."""


@dataclass(frozen=True)
class Outcome:
    """What one answer did on one case: a value or an error, and the inputs it changed."""

    value: Any = None
    error: BaseException | None = None
    changed: tuple[str, ...] = ()
    aliases: bool = False


def judge(exercise: Exercise, answer, seed: int = 0) -> Result:
    """Say whether `answer` is right. Prints nothing, raises nothing, leaves no state."""
    unusable = explain_unusable(exercise, answer)
    if unusable:
        return _failed(exercise, unusable)
    with undisturbed(seed):
        cases = exercise.cases(torch.Generator().manual_seed(seed))
        try:
            with limited():
                got = [run(exercise, answer, case) for case in cases]
                again = run(exercise, answer, cases[0])
        except TookTooLong as error:
            return _failed(exercise, say.explain_too_long(error, MAX_SECONDS))
        if is_unwritten(got):
            return _unwritten(exercise, got)
        want = [run(exercise, exercise.reference, case) for case in cases]
        for case, outcome in zip(cases, want, strict=True):
            if outcome.error:
                raise RuntimeError(f"the oracle of {exercise.name} failed on {case.label!r}") from (
                    outcome.error
                )
        problems = (problem(exercise, *these) for these in zip(cases, got, want, strict=True))
        first, text = next(((i, text) for i, text in enumerate(problems) if text), (None, None))
        if text is None and problem(exercise, cases[0], again, want[0]):
            return _failed(exercise, REMEMBERS)
        if text is None:
            return _passed(exercise, cases)
        for count, more in ((len(cases), ""), (first + 1, SOMETHING_ELSE)):
            if more and not is_telling(got[first].value):
                break
            for misconception in exercise.misconceptions:
                if matches(exercise, misconception, cases[:count], got[:count], first, want[first]):
                    named = f"Looks like: {misconception.name}.\n{misconception.says}{more}"
                    return _failed(exercise, named, misconception.name)
        return _failed(exercise, f"{text}\nInputs: {say.describe_inputs(cases[first].inputs)}.")


REMEMBERS = (
    "It is right the first time it is called, and wrong when it is called with the same inputs again. Does "
    "it keep something between two calls, in a global variable or a default argument?"
)
SOMETHING_ELSE = " (Something else is not right yet either: check again afterwards.)"


def run(exercise: Exercise, answer, case: Case) -> Outcome:
    """Observe an answer on copies of a case's inputs."""
    copies = replace(case, inputs=snapshot(case.inputs))
    value = error = None
    aliases = False
    try:
        with modes_left():
            value = exercise.observe(answer, copies)
        aliases = exercise.own_memory and shares_memory(value, copies.inputs)
        value = snapshot(value)
    except (KeyboardInterrupt, TookTooLong):
        raise
    except BaseException as caught:  # SystemExit, and whatever an answer has made for itself
        error = caught
    changed = [n for n in case.inputs if not identical(case.inputs[n], copies.inputs[n])]
    return Outcome(value, error, tuple(changed), aliases)


def is_unwritten(outcomes: list[Outcome]) -> bool:
    """Nobody has written this answer: it raises NotImplementedError or only gives nothing."""
    if any(o.error is not None and say.is_unwritten(o.error) for o in outcomes):
        return True
    return all(o.error is None and returned_nothing(o.value) for o in outcomes)


def problem(exercise: Exercise, case: Case, got: Outcome, want: Outcome) -> str | None:
    """What is wrong with one outcome, or None if it is right."""
    if isinstance(got.error, WrongAnswer):
        return str(got.error)
    if got.error is not None:
        return say.explain_error(got.error)
    if got.changed:
        names = " and ".join(got.changed)
        plain = all(is_tensor(case.inputs[name]) for name in got.changed)
        instead = "compute a new tensor instead" if plain else "work on a copy of it"
        return f"It changes its input {names} in place. The caller still needs what was in it: {instead}."
    difference = compare(got.value, want.value)
    if difference is not None:
        text = _explained(exercise, case, got.value, want.value) if difference.kind == "value" else None
        if text is None:
            difference = replace(difference, path=_named(difference.path, exercise.items))
            text = say.explain_difference(difference, exercise.axes, case.inputs)
        return text
    if got.aliases:
        return (
            "The numbers are right, but the result shares its memory with an input: whoever "
            "writes to one changes the other. Give back memory of its own."
        )
    return None


def _named(path: tuple, items: tuple[str, ...]) -> tuple:
    """The path to a difference, with the names of a result's items in the place of their numbers."""
    start = 1 if path[:1] == ("return",) else 0
    if items and len(path) > start and type(path[start]) is int:
        return (*path[:start], items[path[start]], *path[start + 1 :])
    return path


def _explained(exercise: Exercise, case: Case, got, want) -> str | None:
    """The exercise's own sentence. One that fails on a strange answer is ours to mend, not the learner's."""
    try:
        return exercise.explain(case, got, want) if exercise.explain else None
    except Exception:
        return None


def is_telling(value) -> bool:
    """Whether to equal this on one case is a sign: at least three numbers, which do not agree by chance."""
    return _numbers(value) >= 3


def _numbers(value) -> int:
    if is_tensor(value):
        return value.numel() if value.is_floating_point() else 0
    if type(value) in (list, tuple):
        return sum(map(_numbers, value))
    if type(value) is dict:
        return _numbers(list(value.values()))
    return 1 if type(value) in (int, float) else 0


def matches(exercise, misconception: Misconception, cases, got: list[Outcome], first: int, want: Outcome):
    """True if a misconception does on each of these cases what the answer did, and is wrong on case `first`.

    At least one case must have a value or a WrongAnswer: equal errors alone are too weak a sign.
    """
    if all(outcome.error is not None and type(outcome.error) is not WrongAnswer for outcome in got):
        return False
    for i, (case, outcome) in enumerate(zip(cases, got, strict=True)):
        theirs = run(exercise, misconception.answer, case)
        if not same(outcome, theirs, misconception.raises):
            return False
        if i == first and not problem(exercise, case, theirs, want):
            return False  # it gives the right numbers here, and the answer has spoilt an input
    return True


def same(ours: Outcome, theirs: Outcome, raises: bool) -> bool:
    """Do two outcomes look alike? Inputs that `theirs` changes, `ours` must change too."""
    if not set(theirs.changed) <= set(ours.changed) or theirs.aliases > ours.aliases:
        return False
    if (ours.error is None) != (theirs.error is None):
        return False
    if ours.error is None:
        return compare(ours.value, theirs.value) is None
    if isinstance(theirs.error, WrongAnswer):
        return type(ours.error) is WrongAnswer and str(ours.error) == str(theirs.error)
    return raises and type(ours.error) is type(theirs.error)


def _passed(exercise, cases) -> Result:
    labels = ", ".join(case.label for case in cases if case.label)
    count = f"{len(cases)} input{'s' if len(cases) > 1 else ''}"
    text = f"{exercise.name}: right on {count}{f' ({labels})' if labels else ''}."
    return Result(True, None, text)


def _unwritten(exercise, got) -> Result:
    gave = "" if any(outcome.error for outcome in got) else ", or has no return: it gives nothing back"
    text = (
        f"{exercise.name} is not written yet{gave}. Fill in the answer cell above, run it, and run this "
        f'cell again.\nFor a first idea: kvlearn.hint("{exercise.name}")'
    )
    return Result(False, None, text)


def _failed(exercise, text, misconception=None) -> Result:
    message = f'{exercise.name}: not right yet.\n{text}\nStuck? kvlearn.hint("{exercise.name}")'
    return Result(False, misconception, message)
