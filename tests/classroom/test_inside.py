"""The checks as they were, whatever a notebook has put in their place."""

import builtins
import math
import sys

import pytest
import torch

import kvlearn
import kvlearn.checks.compare
from kvlearn.classroom import inside
from kvlearn.classroom.results import MIME

EXERCISE = kvlearn.checks.find("split_heads")
OUTCOME_EQ = kvlearn.checks.engine.Outcome.__eq__


@pytest.fixture(autouse=True)
def as_it_was():
    """The checks of this process again, after those that were imported afresh."""
    check, checks = kvlearn.check, kvlearn.checks
    modules = {name: module for name, module in sys.modules.items() if name.startswith("kvlearn.checks")}
    held = [(module, dict(vars(module))) for module in modules.values()]
    code, reference = kvlearn.checks.engine.judge.__code__, EXERCISE.reference
    yield
    inside._kept.restore()
    for module, attributes in held:
        vars(module).update(attributes)
    kvlearn.checks.engine.judge.__code__ = code
    object.__setattr__(EXERCISE, "reference", reference)
    kvlearn.checks.engine.Outcome.__eq__ = OUTCOME_EQ
    for name in [name for name in sys.modules if name.startswith("kvlearn.checks")]:
        del sys.modules[name]
    sys.modules |= modules
    kvlearn.check, kvlearn.checks = check, checks


def wrong(x, num_heads):
    return x


def right(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def always(*_, **__):
    return True


def nothing(*_):
    return None


TRICKS = {
    "kvlearn.check replaced": lambda: setattr(kvlearn, "check", always),
    "the engine's judge": lambda: setattr(kvlearn.checks.engine, "judge", always),
    "what the engine took from compare": lambda: setattr(kvlearn.checks.engine, "compare", nothing),
    "compare itself": lambda: setattr(kvlearn.checks.compare, "compare", nothing),
    "the registry": lambda: setattr(kvlearn.checks, "REGISTRY", {}),
    "an exercise's class": lambda: setattr(kvlearn.checks.engine.Outcome, "__eq__", always),
    "torch.equal": lambda: setattr(torch, "equal", always),
    "torch.allclose": lambda: setattr(torch, "allclose", always),
    "a tensor's equality": lambda: setattr(torch.Tensor, "__eq__", always),
    "a tensor's shape": lambda: setattr(torch.Tensor, "equal", always),
    "all of Python": lambda: setattr(builtins, "all", always),
    "isclose of Python": lambda: setattr(math, "isclose", always),
    "the truth of an exercise": lambda: object.__setattr__(EXERCISE, "reference", wrong),
    "the code of judge": lambda: setattr(
        kvlearn.checks.engine.judge,
        "__code__",
        (lambda exercise, answer, seed=0: kvlearn.Result(True, None, "passed")).__code__,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("trick", TRICKS)
def test_what_was_replaced_is_put_back(trick, capsys):
    """A submission that passes because it has replaced what judges it."""
    TRICKS[trick]()
    checks = inside.afresh((1,)).checks
    with pytest.raises(checks.CheckFailed, match="not right yet"):
        kvlearn.check("split_heads", wrong)
    assert "not right yet" in capsys.readouterr().out  # what is sent along


class Anything:
    def __eq__(self, other):
        return True

    def __getattr__(self, name):
        return Anything()


def test_an_object_that_equals_everything_is_not_right():
    """`__eq__` that is always true passes where results are compared with ==."""
    checks = inside.afresh(()).checks
    with pytest.raises(checks.CheckFailed):
        kvlearn.check("split_heads", lambda x, num_heads: Anything())


def test_what_a_student_adds_to_torch_stays():
    """A right answer that uses a method of its own fails: every new attribute of a class was taken away."""
    torch.Tensor.in_heads = lambda x, number: x.unflatten(-1, (number, -1)).transpose(1, 2)
    try:
        inside.afresh((1,)).check("split_heads", lambda x, num_heads: x.in_heads(num_heads))
    finally:
        del torch.Tensor.in_heads


def test_a_right_answer_passes_and_says_so(monkeypatch):
    """A grading check that fails what is right, or that forgets a seed."""
    sent = []
    monkeypatch.setattr(inside, "publish_display_data", lambda data: sent.append(data[MIME]))
    check = inside.grading_check((5, 6), kvlearn.checks)
    check("split_heads", right)
    check("split_heads", right, seed=7)
    # The class's seeds come once, with the check that students see.
    assert [found["seeds"] for found in sent] == [[0, 5, 6], [7]]
    assert all(found["passed"] is True for found in sent)


def test_an_answer_that_is_right_on_the_seen_seed_alone_is_wrong():
    """Answers that know the seed that students see: the class's own seeds are for them."""
    known = {}

    def remembers(x, num_heads):
        return right(x, num_heads) if x.flatten()[0].item() in known else x

    def remember(x, num_heads):
        known[x.flatten()[0].item()] = True
        return right(x, num_heads)

    kvlearn.check("split_heads", remember)
    kvlearn.check("split_heads", remembers)
    with pytest.raises(kvlearn.checks.CheckFailed):
        inside.grading_check((5,), kvlearn.checks)("split_heads", remembers)
