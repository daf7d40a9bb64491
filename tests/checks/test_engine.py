"""The checker itself, on a toy exercise: what passes, what is named, what is said, what it leaves alone."""

from dataclasses import replace

import pytest
import torch
from toy import DOUBLE, message, right

from kvlearn.checks.engine import (
    Case,
    Misconception,
    Outcome,
    judge,
    matches,
    run,
)
from kvlearn.checks.isolate import undisturbed


def test_a_right_answer_passes_with_one_stable_line():
    """nbval compares this line: it must not hold a number that changes from run to run."""
    results = {judge(DOUBLE, right, seed).message for seed in (0, 1)}
    assert results == {"double: right on 2 inputs (two rows, float64)."}


def test_a_misconception_is_named_and_explained():
    """The wrong answer in other words and with a rounding of its own is still the same mistake."""
    result = judge(DOUBLE, lambda x, times: (2 * x.double() + 1e-12).to(x.dtype))
    assert result.misconception == "only once"
    assert "Looks like: only once.\nIt always doubles." in result.message


def test_an_answer_equal_on_one_case_only_is_not_named():
    """Naming a mistake that the learner did not make is worse than naming none."""
    result = judge(DOUBLE, lambda x, times: x + x if times == 2 else x)
    assert result.misconception is None
    assert "First difference at row 0, column 0" in result.message


def test_errors_match_only_where_the_misconception_says_so():
    """An error of the same type is a weak sign: it counts only on the same cases, values equal elsewhere."""

    def zeros_then(error):
        def answer(x, times):
            if times == 3:
                raise error
            return torch.zeros_like(x)

        return answer

    silent = replace(DOUBLE, misconceptions=tuple(replace(m, raises=False) for m in DOUBLE.misconceptions))
    for exercise, error, whole in (
        (DOUBLE, IndexError("other text"), True),
        (DOUBLE, KeyError("three"), False),
        (silent, IndexError("three"), False),
    ):
        result = judge(exercise, zeros_then(error))
        assert result.misconception == "three breaks it"
        assert ("Something else is not right yet either" in result.message) != whole


def test_two_slips_at_once_have_the_name_of_the_first():
    """A forgotten cast beside a usual mistake hid the mistake's name behind a number."""
    result = judge(DOUBLE, lambda x, times: (x + x).float() * (1 if times == 2 else 1.1))
    assert result.misconception is None  # the first inputs are right, and what fails has no name
    slips = replace(DOUBLE, cases=lambda generator: DOUBLE.cases(generator)[::-1])
    result = judge(slips, lambda x, times: x + x if times == 3 else (x + x).half())
    assert result.misconception == "only once"
    assert "It always doubles. (Something else is not right yet either: check again" in result.message


def test_a_mistake_is_not_named_where_it_gives_the_right_numbers():
    """An answer that spoils its input, and is right otherwise, looks like all that is wrong later only."""
    spoils = judge(DOUBLE, lambda x, times: x.mul_(times).clone())
    assert spoils.misconception is None and "in place" in spoils.message


def test_what_an_answer_remembers_is_found():
    """A default argument, or a global list, that grows from call to call."""

    def answer(x, times, calls=[]):  # noqa: B006
        calls.append(times)
        return x * (times if len(calls) <= 2 else 1)

    assert "right the first time it is called, and wrong when it is called with the same" in message(answer)


def test_errors_alone_match_nothing():
    """An answer that raises everywhere tells nothing about why."""

    def raises(*_):
        raise IndexError

    always = Misconception("always", raises, "It raises.", raises=True)
    cases = [Case({"x": torch.ones(1), "times": 2})]
    assert not matches(DOUBLE, always, cases, [Outcome(error=IndexError())], 0, Outcome(torch.ones(1)))


@pytest.mark.parametrize("nothing", [None, ...])
def test_nothing_given_back_is_unwritten(nothing):
    """A cell that still ends in `...`, or whose return was forgotten."""
    text = message(lambda x, times: nothing)
    assert "is not written yet" in text and "return" in text


def test_not_implemented_is_unwritten_with_and_without_words():
    """nbgrader's stub raises NotImplementedError without a text; a learner's own has one."""

    def stub(x, times):
        raise NotImplementedError()

    def own(x, times):
        raise NotImplementedError("later")

    assert "is not written yet" in message(stub) and "is not written yet" in message(own)


def test_torchs_own_not_implemented_is_an_error():
    """torch raises the same type for a missing kernel; that answer is written, and wrong."""
    text = message(lambda x, times: x.to("meta").to("cpu"))
    assert "NotImplementedError: Cannot copy out of meta tensor" in text


def test_nothing_on_one_case_is_a_missing_return():
    """An `if` without its `else`."""
    text = message(lambda x, times: right(x, times) if times == 2 else None)
    assert "The result is None (is a `return` missing?)" in text and "times 3" in text


def test_an_error_shows_type_text_line_and_inputs():
    """A traceback through the checker hides the one line that matters."""

    def answer(x, times):
        return x.view(7, 7)

    text = message(answer)
    assert "RuntimeError: shape '[7, 7]' is invalid for input of size 6" in text
    assert "return x.view(7, 7)" in text and "in answer, line" in text
    assert "x (2, 3) float32, times 2" in text


def test_an_error_that_cannot_be_read_is_shown_all_the_same():
    """An exception whose __str__ fails must not break the checker."""

    class Mute(Exception):
        def __str__(self):
            raise ValueError

    def answer(x, times):
        raise Mute

    assert "Mute" in message(answer)


def test_exit_does_not_end_the_kernel():
    """`exit()` in an answer."""
    assert "SystemExit" in message(lambda x, times: exit())


def test_an_exception_of_ones_own_kind_is_shown_like_any_other():
    """A BaseException ends the check with a traceback through kvlearn."""

    class Mine(BaseException):
        pass

    def answer(x, times):
        raise Mine("stop")

    assert "Your code raised Mine: stop" in message(answer)


def test_a_signature_that_raises():
    """`inspect.signature` runs the answer's own code."""

    class Odd:
        @property
        def __signature__(self):
            raise ZeroDivisionError

        def __call__(self, x, times):
            return x * times

    assert judge(DOUBLE, Odd()).passed


def test_numbers_that_look_alike_are_told_apart():
    """ "expected -1.764, got -1.764"."""
    exercise = replace(DOUBLE, misconceptions=())
    text = message(lambda x, times: x * times + torch.tensor(3e-4).to(x) * x.sign(), exercise)
    expected, got = text.split("expected ")[1].split(" (")[0].split(", got ")
    assert expected != got


def test_a_dtype_is_that_of_an_input():
    """ "expected float64", where no statement speaks of float64."""
    assert "has dtype float32; expected float64, as x has." in message(lambda x, times: (x * times).float())


def test_the_transpose_of_all_axes_is_explained():
    """`q @ k.T` on four axes: torch's own words speak of sizes."""

    def answer(x, times):
        y = x[None].repeat(2, 1, 1)
        return y @ y.T

    assert "`.T` reverses all axes of a tensor" in message(answer)


def test_the_parts_of_a_tuple_have_their_names():
    """ "item 1, axis 0 index 0" in the place of "values, row 0"."""
    exercise = replace(
        DOUBLE, reference=lambda x, times: (x, x * times), items=("keys", "values"), misconceptions=()
    )
    assert "First difference at values, row 0, column 0" in message(lambda x, times: (x, x + 1), exercise)
    assert "The result's values has shape" in message(lambda x, times: (x, x[0]), exercise)


def test_interrupts_are_not_caught():
    """The stop button must stop, and the state must be restored then too."""

    def answer(x, times):
        torch.set_default_dtype(torch.float64)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(DOUBLE, answer)
    assert torch.get_default_dtype() is torch.float32


def test_a_change_in_place_is_said():
    """The right numbers, and the caller's tensor spoilt; also when shape or storage was exchanged."""

    def by_mul(x, times):
        return x.mul_(times).clone()

    def by_resize(x, times):
        out = x * times
        x.resize_(1)
        return out

    def by_data(x, times):
        out = x * times
        x.data = torch.zeros(2, 2)
        return out

    for answer in (by_mul, by_resize, by_data):
        assert "changes its input x in place" in message(answer)
        assert "compute a new tensor instead" in message(answer)


def test_a_change_of_a_list_or_a_dict_is_told_in_its_own_words():
    """Nobody can compute a new tensor where a config was filled in."""
    exercise = replace(
        DOUBLE,
        cases=lambda generator: [Case({"x": {"size": 3}, "times": 2})],
        reference=lambda x, times: x["size"] * times,
    )
    said = message(lambda x, times: x.pop("size") * times, exercise)
    assert "changes its input x in place" in said and "work on a copy of it" in said


def test_an_in_place_misconception_is_not_named_without_the_change():
    """The same wrong numbers reached without touching the input are another mistake."""
    zeroes = Misconception("zeroed in place", lambda x, times: x.zero_().clone(), "It wipes its input.")
    exercise = replace(DOUBLE, misconceptions=(zeroes,))
    assert judge(exercise, lambda x, times: x.mul_(0) + 0).misconception == "zeroed in place"
    assert judge(exercise, lambda x, times: torch.zeros_like(x)).misconception is None


def test_results_are_kept_as_they_were():
    """A right answer that writes every result into one buffer: a later call overwrites the earlier tensor."""
    exercise = replace(
        DOUBLE, cases=lambda generator: [Case({"x": torch.full((2, 3), n), "times": 2}) for n in (1.0, 5.0)]
    )
    buffer = torch.empty(2, 3)
    assert judge(exercise, lambda x, times: buffer.copy_(x * times)).passed


def test_inputs_are_not_changed_by_the_check_itself():
    """Each answer must see the same inputs, whatever another one did to its copies."""
    case = Case({"x": torch.ones(2, 3), "times": 2, "more": [torch.ones(1)]})
    exercise = replace(DOUBLE, observe=lambda answer, case: [t.add_(1) for t in (case["x"], *case["more"])])
    outcome = run(exercise, right, case)
    assert torch.equal(case["x"], torch.ones(2, 3)) and torch.equal(case["more"][0], torch.ones(1))
    assert outcome.changed == ("x", "more")


def test_shared_memory_is_said_only_where_it_matters():
    """A cache that keeps a view of the caller's tensor changes when the caller writes."""
    exercise = replace(DOUBLE, reference=lambda x, times: x, misconceptions=())
    assert judge(exercise, lambda x, times: x[:]).passed
    assert "shares its memory" in message(lambda x, times: x[:], replace(exercise, own_memory=True))
    assert judge(replace(exercise, own_memory=True), lambda x, times: x.clone()).passed


def test_a_default_dtype_of_the_learners_does_not_disturb():
    """A learner who works in float64 gets the same check, and keeps their default."""
    torch.set_default_dtype(torch.float64)
    try:
        assert judge(DOUBLE, lambda x, times: x * torch.tensor(float(times))).passed
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_random_numbers_in_an_answer_are_repeatable():
    """The same wrong answer gets the same message twice."""
    texts = {message(lambda x, times: torch.rand(x.shape, dtype=x.dtype)) for _ in range(2)}
    assert len(texts) == 1
    with undisturbed(0):
        first = torch.rand(1).item()
    with undisturbed(1):
        assert torch.rand(1).item() != first
