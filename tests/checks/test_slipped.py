"""Wrong answers that once passed, or lost their name, and that no exercise's own bank of mistakes holds."""

import pytest
import torch
from course_answers import course_answers

from kvlearn.checks import REGISTRY, judge
from kvlearn.checks.lesson_03 import rope_mistakes


def right(name):
    return course_answers()[name].run()


def rope_with_a_memo():
    """Remembers the angles of a shape, and forgets that theta may be another one."""
    rope, kept = right("apply_rope"), {}

    def answer(x, positions, theta):
        theta = kept.setdefault((tuple(x.shape), str(positions.tolist())), theta)
        return rope(x, positions, theta)

    return answer


def neighbours_without_the_cast(x, positions, theta):
    return rope_mistakes.neighbours(x.float(), positions, theta)


def guarded_for_several_queries(q, k, v, mask=None):
    out = right("grouped_attention")(q, k, v, mask)
    if mask is None or q.shape[2] > 1:
        return out
    return out.masked_fill(~mask.any(-1, keepdim=True), torch.nan)


def squeezed(name):
    answer = right(name)
    return lambda *given: answer(*given).squeeze(0)  # where the batch has one row


def sorts_what_is_stored(stored, length, window):
    stored.sort()
    return right("may_roll_back")(stored, length, window)


def the_ring_itself(ring, new, positions):
    return right("ring_write")(ring, new, positions) if (positions >= 0).any() else ring


@pytest.mark.parametrize(
    "name, answer, said",
    [
        ("apply_rope", rope_with_a_memo(), "should be turned by"),
        ("apply_rope", neighbours_without_the_cast, "neighbouring coordinates were paired"),
        ("grouped_attention", guarded_for_several_queries, "got nan"),
        ("absorbed_scores", squeezed("absorbed_scores"), "has shape (7, 3, 50); expected (1, 7, 3, 50)"),
        ("absorbed_values", squeezed("absorbed_values"), "has shape (7, 3, 22); expected (1, 7, 3, 22)"),
        ("may_roll_back", sorts_what_is_stored, "changes its input stored in place"),
        ("ring_write", the_ring_itself, "shares its memory with an input"),
        ("read_sizes", lambda config: (3, 4, 5), "num_hidden_layers"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_answer_that_slipped_past(name, answer, said):
    """A check that lets it through again, or that says something else of it."""
    result = judge(REGISTRY[name], answer)
    assert not result.passed and said in result.message, result.message


@pytest.mark.parametrize("size", ["9 KiB", "9KiB", "9216 B"])
def test_a_size_that_is_exact_needs_no_more_digits(size):
    """ "9 KiB" refused because a usual mistake rounds to it, where 9 KiB is exactly right."""
    from kvlearn.checks.lesson_05.amounts import observe_size

    mistakes = REGISTRY["cache_size"].misconceptions
    case = type(REGISTRY["cache_size"].cases(torch.Generator())[0])(
        {"token_bytes": 128, "prompt": 71, "new_tokens": 2, "batch": 1}
    )
    assert observe_size(REGISTRY["cache_size"].reference, mistakes)(lambda *sizes: size, case) == 9216
