"""`kvlearn.check` and `kvlearn.hint` as a learner meets them."""

import pytest

from kvlearn import checks
from kvlearn.checks import REGISTRY, CheckFailed, UnknownExercise, check, find, hint


def right(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def test_a_pass_prints_one_line_and_shows_no_more(capsys):
    """A notebook would show the result a second time, as the cell's last expression."""
    result = check("split_heads", right)
    assert result.passed and result.misconception is None
    assert capsys.readouterr().out == result.message + "\n" and "\n" not in result.message
    assert result._ipython_display_() is None


def test_a_failure_is_an_exception_that_carries_the_result():
    """The text alone is shown in a notebook; a script gets the same text from str()."""
    with pytest.raises(CheckFailed) as caught:
        check("split_heads", lambda x, num_heads: x.reshape(x.shape[0], num_heads, x.shape[1], -1))
    error = caught.value
    assert not error.result.passed and error.result.misconception.startswith("the numbers were viewed")
    assert str(error) == error.result.message
    assert error._render_traceback_() == str(error).splitlines()


def test_another_seed_is_another_check():
    """An answer fitted to the numbers of one check fails the next."""
    seen = []
    check("split_heads", lambda x, num_heads: seen.append(right(x, num_heads)) or seen[-1])
    table = iter(list(seen))
    check("split_heads", lambda x, num_heads: next(table))
    table = iter(list(seen))
    with pytest.raises(CheckFailed):
        check("split_heads", lambda x, num_heads: next(table), seed=1)


def test_another_seed_has_a_line_of_its_own(capsys):
    """Two lines that are the same to the letter: a reader takes the second check for a mistake."""
    check("split_heads", right)
    check("split_heads", right, seed=5)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("split_heads: right on ") and second == "split_heads: right for seed 5 too."


def test_an_unknown_name_says_what_is_near():
    """A typing error must not look like a failed answer."""
    with pytest.raises(UnknownExercise, match="'split_heds'. Do you mean split_heads"):
        check("split_heds", right)
    with pytest.raises(UnknownExercise, match="There are: split_heads, merge_heads"):
        hint("zzz")
    with pytest.raises(UnknownExercise, match="name comes first, as a string"):
        check(right, "split_heads")
    assert isinstance(UnknownExercise("x"), ValueError)


def test_hints_come_one_by_one_and_the_last_stays(capsys, monkeypatch):
    """The next hint at each call, how many are left, never past the end."""
    monkeypatch.setattr(checks, "_hints_given", {})
    hints = find("split_heads").hints
    for number in (1, 2, 3, 3):
        hint("split_heads")
        left = 3 - number
        out = capsys.readouterr().out
        assert out.startswith(f"Hint {number} of 3: {hints[number - 1]}")
        assert (f"{left} more" if left else "that was the last one") in out
    hint("merge_heads")
    assert capsys.readouterr().out.startswith("Hint 1 of")


def test_the_registry_is_in_the_order_of_the_lessons():
    """The order is that of the course: the list in a message, and whoever walks it, relies on it."""
    lessons = [e.lesson for e in REGISTRY.values()]
    assert lessons == sorted(lessons)
    assert all(name == e.name for name, e in REGISTRY.items())
