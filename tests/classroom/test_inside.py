"""The checks as they were, whatever a notebook has put in their place."""

import pytest
import torch

import kvlearn
import kvlearn.checks.compare
from kvlearn.checks.engine import CheckFailed
from kvlearn.classroom import inside


@pytest.fixture(autouse=True)
def as_it_was():
    check = kvlearn.check
    yield
    inside._kept.restore()
    kvlearn.check = check


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
}


@pytest.mark.parametrize("trick", TRICKS)
def test_what_was_replaced_is_put_back(trick, capsys):
    """A submission that passes because it has replaced what judges it."""
    TRICKS[trick]()
    with pytest.raises(CheckFailed, match="not right yet"):
        inside.afresh((1,)).check("split_heads", wrong)
    assert "not right yet" in capsys.readouterr().out  # what is sent along


class Anything:
    def __eq__(self, other):
        return True

    def __getattr__(self, name):
        return Anything()


def test_an_object_that_equals_everything_is_not_right():
    """`__eq__` that is always true passes where results are compared with ==."""
    with pytest.raises(CheckFailed):
        inside.afresh(()).check("split_heads", lambda x, num_heads: Anything())


def test_a_right_answer_passes_and_says_so(capsys):
    """A grading check that fails what is right, or that forgets a seed."""
    seeds = []
    real = inside.judge
    inside.judge = lambda exercise, answer, seed: (seeds.append(seed), real(exercise, answer, seed))[1]
    try:
        inside.grading_check((5, 6))("split_heads", right)
        inside.grading_check((5, 6))("split_heads", right, seed=7)
    finally:
        inside.judge = real
    assert seeds == [0, 5, 6, 7]  # the class's seeds come once, with the check that students see


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
    with pytest.raises(CheckFailed):
        inside.grading_check((5,))("split_heads", remembers)
