"""What can be called as an exercise calls it, and what is said of the rest."""

import functools
from dataclasses import replace

import pytest
import torch
from toy import DOUBLE, right

from kvlearn.checks.call import explain_unusable, parameters, returned_nothing


class Callable(torch.nn.Module):
    def forward(self, x, times):
        return x * times


@pytest.mark.parametrize(
    "answer",
    [
        right,
        lambda a, b: a,
        lambda *all: all[0],
        functools.partial(right),
        Callable(),
        torch.mul,
        max,
    ],
)
def test_usable(answer):
    """Other names, *args, partials, modules and builtins can all be called with two arguments."""
    assert explain_unusable(DOUBLE, answer) is None


@pytest.mark.parametrize(
    "answer, words",
    [
        ("double", "This is a string"),
        (7, "This is an int"),
        (None, "This is None"),
        (object(), "an object of type object"),
        (torch.Generator(), "an instance of Generator"),
        (torch.ones(2, 3), "without calling it"),
        (Callable, "This is the class Callable"),
        (lambda: 0, "yours takes ()"),
        (lambda x: x, "yours takes (x)"),
        (lambda times, x: x, "yours takes (times, x)"),
        (lambda x, times, more: x, "yours takes (x, times, more)"),
        (lambda x, *, times: x, "yours takes (x, *, times)"),
        (functools.partial(right, 2), "yours takes (times)"),
    ],
)
def test_unusable(answer, words):
    """Each thing that is no function with these parameters has a sentence of its own."""
    text = explain_unusable(DOUBLE, answer)
    assert words in text and "double(x, times)" in text


def test_a_default_must_stay_a_default():
    """An exercise may leave an optional parameter out; an answer that then wants it cannot be called."""
    exercise = replace(DOUBLE, signature="double(x, times=2)")
    assert "yours takes (x, times)" in explain_unusable(exercise, lambda x, times: x)
    assert "yours takes (x)" in explain_unusable(exercise, lambda x: x)
    assert explain_unusable(exercise, lambda x, times=3: x) is None


def test_parameters_are_read_from_the_signature():
    """Required ones, those with a default, keyword-only ones."""
    assert parameters("f(a, b, c=1, *, d=2)") == (["a", "b"], ["c", "d"])
    assert parameters("f()") == ([], [])


def test_what_counts_as_nothing():
    """A scenario that collected only Nones saw an unwritten answer; 0, False and [] are answers."""
    assert returned_nothing(None) and returned_nothing(...)
    assert returned_nothing([None, (None, ...)]) and returned_nothing({"K": None})
    for answer in (0, False, [], {}, (), "", [None, 1], torch.zeros(0)):
        assert not returned_nothing(answer)
