"""Rules that every exercise keeps, whatever it is about. The registry alone says which there are."""

import importlib
import itertools
import sys

import pytest
import torch
from course_answers import course_answers
from seeds import at_seeds

from kvlearn.checks import REGISTRY, judge
from kvlearn.checks.call import call_function, parameters
from kvlearn.checks.compare import is_tensor
from kvlearn.checks.isolate import undisturbed

EXERCISES = list(REGISTRY.values())
# Those whose bank of mistakes takes more than half a second.
HEAVY = {
    *("changed_layers", "your_own_llm", "greedy_decode", "windowed_prefill"),
    *("growing_cache", "static_cache", "sliding_window_cache", "quantized_cache"),
    *("grouped_attention", "attend_in_groups", "absorbed_scores", "absorbed_values", "quantize_by_group"),
}


MAX_CALLS = 2_000_000  # in a check: about two seconds


def each(exercises):
    """One test for each exercise; those of heavy ones are slow."""
    slow = {True: [pytest.mark.slow], False: []}
    given = [pytest.param(e, id=e.name, marks=slow[e.name in HEAVY]) for e in exercises]
    return pytest.mark.parametrize("exercise", given)


every_exercise = each(EXERCISES)
every_function = each([e for e in EXERCISES if e.kind == "function"])


def cases_of(exercise, seed=0):
    with undisturbed(seed):
        return exercise.cases(torch.Generator().manual_seed(seed))


def alternatives(exercise):
    return importlib.import_module(f"alternatives_{exercise.lesson:02}").ALTERNATIVES[exercise.name]


def test_there_are_enough_exercises():
    """Lessons 00 to 04 have at least 16 exercises, and each lesson has some."""
    spine = [e for e in EXERCISES if e.lesson <= 4]
    assert len(spine) >= 16
    assert {e.lesson for e in spine} == {0, 1, 2, 3, 4}


def test_every_exercise_has_its_place_in_an_assignment():
    """An exercise without an answer cell would never be met; an answer cell without one never checked."""
    assert {name: a.file[:2] for name, a in course_answers().items()} == {
        e.name: f"{e.lesson:02}" for e in EXERCISES
    }


@every_exercise
def test_it_is_complete(exercise):
    """Title, reason, minutes, difficulty, two hints, four misconceptions or the reason why not."""
    assert exercise.title and exercise.why and exercise.minutes > 0
    assert exercise.difficulty in (1, 2, 3)
    assert len(exercise.hints) >= 2
    assert len(exercise.misconceptions) >= 4 or exercise.few
    names = [m.name for m in exercise.misconceptions]
    assert len(set(names)) == len(names)
    for text in (exercise.why, *exercise.hints, *(m.says for m in exercise.misconceptions)):
        assert text.endswith((".", "?", ")")) and len(text) < 400


@every_exercise
def test_the_assignment_says_the_same(exercise):
    """Minutes, difficulty and parameters stand in two places; they must not drift apart."""
    answer = course_answers()[exercise.name]
    assert f"{exercise.minutes} minutes" in answer.text
    assert f"difficulty {exercise.difficulty} of 3" in answer.text
    if exercise.kind == "function":
        names = sum(parameters(exercise.signature), [])
        written = answer.run().__code__
        assert list(written.co_varnames[: written.co_argcount + written.co_kwonlyargcount]) == names


@every_exercise
def test_the_sizes_of_the_inputs_differ(exercise):
    """Equal sizes let a wrong axis pass. A size of 1 is exempt, and what a case says it has equal."""
    for case in cases_of(exercise):
        sizes = {}
        for name, value in case.inputs.items():
            if is_tensor(value):
                assert name in exercise.axes, f"axes says nothing of the input {name}"
                axes = exercise.axes[name].split()
                assert len(axes) == value.ndim, f"{name} has shape {tuple(value.shape)} and axes {axes}"
                shape = value.shape
            elif name in exercise.axes and type(value) is int:
                axes, shape = exercise.axes[name].split(), [value]
            else:
                continue
            for axis, size in zip(axes, shape, strict=True):
                assert sizes.setdefault(axis, size) == size, f"{case.label}: two sizes of {axis}"
        on_purpose = set(case.equal.split())
        for (a, n), (b, m) in itertools.combinations(sizes.items(), 2):
            if n == m and n != 1:
                assert {a, b} <= on_purpose, f"{case.label}: {a} and {b} are both {n}"


@every_exercise
@at_seeds(3)
def test_the_course_answer_passes(exercise, seed):
    """A change of the checker or of the assignment that breaks the course's own answer."""
    result = judge(exercise, course_answers()[exercise.name].run(), seed)
    assert result.passed, result.message


@every_exercise
@at_seeds(3)
def test_other_right_answers_pass(exercise, seed):
    """A checker that wants the course's own way of writing it, and not what it does."""
    answers = alternatives(exercise)
    assert len(answers) >= 2
    for answer in answers:
        result = judge(exercise, answer, seed)
        assert result.passed, result.message


@every_exercise
@at_seeds(2)
def test_every_misconception_is_named_as_itself(exercise, seed):
    """Two wrong answers that the inputs cannot tell apart, or one that passes."""
    for misconception in exercise.misconceptions:
        result = judge(exercise, misconception.answer, seed)
        assert not result.passed, f"not rejected: {misconception.name}"
        assert result.misconception == misconception.name, f"{misconception.name}: {result.message}"
        assert misconception.says in result.message


@every_exercise
def test_an_unwritten_answer_gets_a_friendly_message(exercise):
    """What a learner sees who runs the check before writing anything."""
    answer = course_answers()[exercise.name]
    result = judge(exercise, answer.run(answer.stubbed()))
    assert not result.passed and "is not written yet" in result.message
    assert "Error" not in result.message


@every_exercise
def test_an_error_is_shown_as_the_learners_own(exercise):
    """Hiding a learner's error behind the checker's own words."""

    def fails(*args, **kwargs):
        raise ZeroDivisionError("my own mistake")

    class Fails:
        __init__ = fails

    for method in exercise.methods:
        setattr(Fails, method, fails)
    result = judge(exercise, fails if exercise.kind == "function" else Fails)
    assert "ZeroDivisionError: my own mistake" in result.message
    assert "line " in result.message and "raise ZeroDivisionError" in result.message
    assert result.misconception is None


def tampered(good, change, changed):
    """The right answer, with every tensor in what it gives back changed (and noted in `changed`)."""

    def apply(value):
        if is_tensor(value):
            changed.append(True)
            return change(value)
        if type(value) in (list, tuple):
            return type(value)(apply(v) for v in value)
        return {k: apply(v) for k, v in value.items()} if type(value) is dict else value

    def answer(*args, **kwargs):
        return apply(good(*args, **kwargs))

    return answer


def to_another_dtype(tensor):
    return tensor.float() if tensor.dtype is torch.float16 else tensor.half()


@every_function
@pytest.mark.parametrize(
    "change, word", [(lambda t: t.unsqueeze(0), "shape"), (to_another_dtype, "dtype float16")]
)
def test_a_wrong_shape_or_dtype_is_said_as_such(exercise, change, word):
    """A comparison that broadcasts, or that casts, before it compares.

    Where an exercise's own scenario uses what the answer gives back, an error of the scenario may
    come first; it is a rejection all the same.
    """
    changed = []
    result = judge(exercise, tampered(course_answers()[exercise.name].run(), change, changed))
    if changed:
        assert not result.passed
        if exercise.observe is call_function:
            assert word in result.message and result.misconception is None


@every_function
def test_a_change_of_an_input_in_place_is_said_as_such(exercise):
    """An answer whose numbers are right and that spoils the caller's tensors."""
    good = course_answers()[exercise.name].run()
    spoilt = []

    def spoils(*args, **kwargs):
        out = good(*args, **kwargs)
        for tensor in [a for a in args if is_tensor(a)][:1]:
            tensor.logical_not_() if tensor.dtype is torch.bool else tensor.add_(1)
            spoilt.append(True)
        return out

    result = judge(exercise, spoils)
    if spoilt:
        assert not result.passed
        if exercise.observe is call_function:
            assert "in place" in result.message


@every_exercise
def test_what_is_no_answer_at_all_gets_a_sentence(exercise):
    """A string, a number, a tensor, an instance; a class for a function and the other way round."""
    for nothing in ("text", 3, torch.zeros(2), object(), None, [1]):
        result = judge(exercise, nothing)
        assert not result.passed and "is wanted" in result.message, result.message
    other = (lambda: None) if exercise.kind == "class" else dict
    assert "is wanted" in judge(exercise, other).message


@every_function
def test_wrong_parameters_are_said_as_such(exercise):
    """An answer that cannot be called as the exercise calls it."""
    required, _ = parameters(exercise.signature)
    if required:
        assert "The parameters differ" in judge(exercise, lambda: None).message
    many = eval(f"lambda {', '.join(f'a{i}' for i in range(12))}: None")
    assert "The parameters differ" in judge(exercise, many).message


def calls_of(run):
    """How many functions, Python's and C's, `run` calls: a measure of its work that no machine changes."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
@every_exercise
def test_a_check_is_quick(exercise):
    """A check is run again and again while writing, the whole bank of mistakes included."""

    def wrong(*args, **kwargs):
        return "nothing that is wanted"

    for answer in (course_answers()[exercise.name].run(), wrong, exercise.misconceptions[-1].answer):
        assert calls_of(lambda answer=answer: judge(exercise, answer)) < MAX_CALLS
