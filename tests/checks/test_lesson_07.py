"""Lesson 07: what the window's check once let pass."""

from course_answers import course_answers

from kvlearn.checks import REGISTRY, judge


def test_a_step_that_is_taken_back_and_not_forgotten_has_its_name():
    """Would catch a `_truncate` that does nothing: right numbers, and memory that is not given back."""

    class Keeps(course_answers()["sliding_window_cache"].run()):
        def _truncate(self, layer, length):
            pass

    for seed in range(3):
        result = judge(REGISTRY["sliding_window_cache"], Keeps, seed)
        assert result.misconception == "what a dropped step had put aside is kept", result.message
