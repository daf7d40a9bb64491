"""Random changes of the course's answers, and the texts that they and everything else show."""

import functools
import re
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest
from course_answers import course_answers
from mutants import mutants

from kvlearn.checks import REGISTRY, judge

# Those whose mutants take long, most of them caches and decoders: 15 here, and 40 in `dev.py test --all`.
HEAVY = {
    "changed_layers",
    "your_own_llm",
    "growing_cache",
    "static_cache",
    "quantized_cache",
    "sliding_window_cache",
    "quantize_by_group",
    "grouped_attention",
}
every_exercise = pytest.mark.parametrize(
    "exercise, how_many",
    [
        *(pytest.param(e, 15 if e.name in HEAVY else 40, id=e.name) for e in REGISTRY.values()),
        *(pytest.param(REGISTRY[n], 40, id=f"{n}, 40", marks=pytest.mark.thorough) for n in sorted(HEAVY)),
    ],
)


class TookTooLong(BaseException):
    """Not an Exception, so that a checker cannot take it for the answer's own error."""


@contextmanager
def at_most(seconds):
    """Stop a mutant that never ends. Counts processor time, and leaves pytest's own alarm alone."""

    def stop(*_):
        raise TookTooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@functools.cache
def wrong_mutants(name, how_many):
    """Mutants of the course's answer that are wrong on inputs which the check does not see: what it says."""
    exercise, answer, found = REGISTRY[name], course_answers()[name], []
    for source in mutants(answer.source, how_many):
        try:
            mutant = answer.run(source)
        except Exception:
            continue  # the cell itself fails, before any check
        try:
            with at_most(5):
                if not judge(replace(exercise, misconceptions=()), mutant, seed=1234).passed:
                    found.append((source, judge(exercise, mutant, seed=0)))
        except TookTooLong:
            continue  # a learner would notice that too
    return found


@pytest.mark.slow
@every_exercise
def test_wrong_answers_that_nobody_thought_of_are_rejected(exercise, how_many):
    """Random changes of the right answer: none may pass, each is told the first thing that is wrong."""
    found = wrong_mutants(exercise.name, how_many)
    assert len(found) >= 3, "so few mutants prove nothing"
    said = r"\d|raised|failed|in place|memory|The result is|not written yet|Looks like"
    for source, result in found:
        assert not result.passed, f"accepted:\n{source}"
        lines = result.message.splitlines()
        assert 2 <= len(lines) <= 8 and re.search(said, result.message), result.message


def bare(line):
    return re.sub(r"\s+", "", line)


@pytest.mark.slow
@every_exercise
def test_no_text_contains_the_solution(exercise, how_many):
    """A message or a hint that gives the answer away."""
    solution = [bare(line) for line in course_answers()[exercise.name].solution_lines()]
    solution = [line for line in solution if len(line) > 12]
    texts = [exercise.why, *exercise.hints]
    texts += [text for m in exercise.misconceptions for text in (m.name, m.says)]
    texts += [result.message for _, result in wrong_mutants(exercise.name, how_many)]
    for text in texts:
        for line in solution:
            assert line not in bare(text), f"{line!r} stands in: {text}"
