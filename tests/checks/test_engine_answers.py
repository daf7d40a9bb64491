"""The checker on a toy exercise: strange answers, each kind of wrong result, scenarios, classes."""

import linecache
from dataclasses import replace

import pytest
import torch
from toy import DOUBLE, message, only_once, right

from kvlearn.checks.engine import Case, Misconception, WrongAnswer, judge


def test_answers_that_want_gradients_are_fine():
    """Parameters, gradients, no_grad, inference mode, tensor subclasses: the numbers decide."""

    def inferred(x, times):
        with torch.inference_mode():
            return x * times

    for answer in (
        lambda x, times: (x * times).requires_grad_(),
        lambda x, times: torch.nn.Parameter(x * times),
        torch.no_grad()(right),
        inferred,
    ):
        assert judge(DOUBLE, answer).passed


def test_an_answer_cannot_vote_for_itself():
    """An __eq__ that is always true, a class that claims to be Tensor, a subclass that forges comparisons."""

    class Yes:
        def __eq__(self, other):
            return True

    class Spoof(Yes):
        __class__ = property(lambda self: torch.Tensor)

    class Forger(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if getattr(function, "__name__", "") in ("isclose", "eq", "equal", "allclose"):
                return torch.ones(args[0].shape, dtype=torch.bool)
            return super().__torch_function__(function, types, args, kwargs or {})

    assert "Yes; expected a torch tensor" in message(lambda x, times: Yes())
    assert "Spoof; expected a torch tensor" in message(lambda x, times: Spoof())
    text = message(lambda x, times: torch.ones_like(x).as_subclass(Forger))
    assert "First difference" in text
    assert judge(DOUBLE, lambda x, times: right(x, times).as_subclass(Forger)).passed


@pytest.mark.parametrize(
    "give, words",
    [
        (lambda t: t.numpy(), "a numpy array"),
        (lambda t: t.tolist(), "a list"),
        (lambda t: (t,), "a tuple"),
        (lambda t: t.sum().item(), "a float"),
        (lambda t: "text", "a string"),
        (lambda t: (i for i in t), "a generator"),
        (lambda t: t.to_sparse(), "layout torch.sparse_coo"),
        (lambda t: t[None], "has shape (1, 2, 3); expected (2, 3) = (row, column)"),
        (lambda t: t[:1, :1], "has shape (1, 1)"),
        (lambda t: t.bfloat16(), "has dtype bfloat16; expected float32"),
        (lambda t: t.to(torch.complex64), "has dtype complex64"),
        (lambda t: t.to("meta"), "is on device meta; expected cpu"),
        (lambda t: t * float("nan"), "got nan (6 of 6 values differ)"),
        (lambda t: t / 0, "inf (6 of 6 values differ)"),
    ],
)
def test_each_kind_of_wrong_result_has_its_sentence(give, words):
    """numpy, lists, tuples, shapes that would broadcast, dtypes, devices, NaN."""
    assert words in message(lambda x, times: give(x * times))


def test_float64_inputs_find_a_float32_answer():
    """An answer that builds float32 tensors loses half of its digits on float64 inputs."""
    text = message(lambda x, times: (x * times).float())
    assert "has dtype float32; expected float64" in text


def test_fewer_digits_are_called_by_their_name():
    """ "expected 0.6308, got 0.6308" helps nobody: float32 arithmetic inside a float64 answer."""
    text = message(lambda x, times: (x.float() * (times / 7) * 7).to(x.dtype))
    assert "agree to about" in text and "float64" in text and "expected" not in text


def test_the_explanation_of_the_exercise_comes_first_and_may_pass():
    """The subject's words where the exercise has them, the default where it says None."""
    own = replace(DOUBLE, explain=lambda case, got, want: f"row sums {got.shape}")
    assert "row sums torch.Size([2, 3])" in message(lambda x, times: x, own)
    none = replace(DOUBLE, explain=lambda case, got, want: None)
    assert "First difference" in message(lambda x, times: x, none)
    assert "has shape" in message(lambda x, times: x[0], own)


def test_an_explanation_that_fails_is_left_out():
    """A strange answer that the exercise's own sentence did not reckon with: no traceback of ours."""

    def stumbles(case, got, want):
        return next(iter(()))

    assert "First difference" in message(lambda x, times: x, replace(DOUBLE, explain=stumbles))


def test_a_scenario_is_not_shown_as_what_the_answer_gave_back():
    """ "The result is None; expected a dict", of an answer that was to give a list."""

    def observe(answer, case):
        out = answer(case["x"], case["times"])
        return None if out is None else {"return": out, "calls": 2}

    exercise = replace(DOUBLE, observe=observe, misconceptions=())
    text = message(lambda x, times: right(x, times) if times == 2 else None, exercise)
    assert "The result is None (is a `return` missing?).\n" in text
    assert "First difference at row 0, column 0: expected" in message(lambda x, times: x + 0.5, exercise)
    assert "The result has shape (1, 2, 3)" in message(lambda x, times: x[None], exercise)


def test_a_long_line_is_cut():
    """Everything on one line, and the error somewhere in it."""
    source = f"lambda x, times: x + [{', '.join(['times'] * 40)}]"
    linecache.cache["<cell>"] = len(source), None, [source], "<cell>"
    text = message(eval(compile(source, "<cell>", "eval")))
    (line,) = [line for line in text.splitlines() if "in <lambda>" in line]
    assert line.endswith("...") and len(line) < 160


def test_a_scenario_may_say_what_it_saw():
    """An observe that raises WrongAnswer speaks to the learner in its own words."""

    def observe(answer, case):
        value = answer(case["x"], case["times"])
        if value.sum() == 0:
            raise WrongAnswer("Everything is zero.")
        return value

    exercise = replace(DOUBLE, observe=observe, misconceptions=())
    text = message(lambda x, times: torch.zeros_like(x), exercise)
    assert "Everything is zero." in text and "raised" not in text
    named = replace(exercise, misconceptions=(Misconception("all zero", lambda x, t: x * 0, "Why."),))
    assert judge(named, lambda x, times: torch.zeros_like(x)).misconception == "all zero"


def test_a_broken_oracle_is_our_error_not_the_learners():
    """An exercise whose reference raises must not blame the answer."""

    def broken(x, times):
        raise ValueError("ours")

    with pytest.raises(RuntimeError, match="oracle of double"):
        judge(replace(DOUBLE, reference=broken), right)


def test_misconceptions_are_not_run_for_a_right_answer():
    """They are the slow part, and only a wrong answer needs them."""

    def bomb(x, times):
        raise AssertionError("was run")

    exercise = replace(DOUBLE, observe=lambda answer, case: answer(*case.inputs.values()))
    exercise = replace(exercise, misconceptions=(Misconception("bomb", bomb, "No."),))
    calls = []
    judge(replace(exercise, observe=lambda a, c: calls.append(a) or a(*c.inputs.values())), right)
    assert bomb not in calls
    judge(replace(exercise, observe=lambda a, c: calls.append(a) or a(*c.inputs.values())), only_once)
    assert bomb in calls


def test_an_answer_that_is_right_only_the_first_time_is_rejected():
    """State kept in a global between calls."""
    calls = []

    def answer(x, times):
        calls.append(1)
        return x * times if len(calls) == 1 else torch.zeros(1)

    assert "has shape (1,)" in message(answer)


class Good:
    def __init__(self, config, batch_size=1):
        self.value = config * batch_size

    def get(self):
        return self.value


CLASS = replace(
    DOUBLE,
    kind="class",
    signature="Double(config, batch_size=1)",
    methods=("get",),
    cases=lambda generator: [Case({"config": 3})],
    reference=Good,
    observe=lambda answer, case: answer(case["config"], batch_size=2).get(),
    misconceptions=(),
)


def test_a_class_is_checked_as_a_class():
    """Instances, functions, missing methods, methods that nobody has written."""

    class Empty(Good):
        get = None

    class Unwritten(Good):
        def get(self):
            raise NotImplementedError()

    class Narrow:
        def __init__(self):
            pass

        get = Good.get

    class WithoutTheOption(Good):
        def __init__(self, config):
            super().__init__(config)

    assert judge(CLASS, Good).passed
    assert "A class is wanted, without brackets" in message(Good(1), CLASS)
    assert "an instance of Good" in message(Good(1), CLASS)
    assert "the function right" in message(right, CLASS)
    assert "has no method get" in message(Empty, CLASS)
    assert "is not written yet" in message(Unwritten, CLASS)
    assert "The parameters differ" in message(Narrow, CLASS)
    assert "yours takes (config)" in message(WithoutTheOption, CLASS)
