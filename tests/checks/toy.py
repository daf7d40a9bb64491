"""A small exercise to try the checker on: double(x, times) gives times * x."""

import torch

from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception, judge


def right(x, times):
    return x * times


def _cases(generator):
    return [
        Case({"x": randn(generator, 2, 3), "times": 2}, "two rows"),
        Case({"x": randn(generator, 4, 5, dtype=torch.float64), "times": 3}, "float64"),
    ]


def only_once(x, times):
    return x + x


def breaks_on_three(x, times):
    if times == 3:
        raise IndexError("three")
    return x * 0


DOUBLE = Exercise(
    name="double",
    lesson=0,
    title="Double",
    minutes=1,
    difficulty=1,
    why="To try the checker.",
    signature="double(x, times)",
    reference=right,
    cases=_cases,
    axes={"x": "row column", "return": "row column"},
    misconceptions=(
        Misconception("only once", only_once, "It always doubles."),
        Misconception("three breaks it", breaks_on_three, "It gives zeros.", raises=True),
    ),
    hints=("First.", "Second."),
)


def message(answer, exercise=DOUBLE, seed=0):
    """What a wrong answer is told."""
    result = judge(exercise, answer, seed)
    assert not result.passed
    return result.message
