"""In the kernel that runs a student's notebook: the checks as they were before the student's first line.

A notebook can put a function of its own in the place of `kvlearn.check`, of something that a check leans on,
or of one of torch's comparisons. So what these modules and their classes hold is noted before the first cell
runs, and put back before each check. (What is not claimed: that code which reads this file could not get
around it.)

A check that is graded runs with the seed that the student saw and with the class's own, and sends what it
found as display data, for feedback and report to read.
"""

import sys
from types import ModuleType

import torch
from IPython.display import publish_display_data

import kvlearn
import kvlearn.checks
from kvlearn.checks.engine import CheckFailed, judge
from kvlearn.classroom.results import MIME

OTHERS = (torch, torch.Tensor, torch.testing, torch.nn.functional)  # a check leans on them too


class Kept:
    """The attributes of modules and classes at one moment, to be put back."""

    def __init__(self, owners):
        self._attributes = [(owner, dict(vars(owner))) for owner in owners]

    def restore(self) -> None:
        for owner, attributes in self._attributes:
            now = vars(owner)
            for name in [name for name in now if name not in attributes and isinstance(owner, type)]:
                _quietly(delattr, owner, name)  # a class's new attribute may hide a base class's
            for name, value in attributes.items():
                if now.get(name) is not value:
                    _quietly(setattr, owner, name, value)


def _quietly(change, *arguments) -> None:
    try:
        change(*arguments)
    except (AttributeError, TypeError):  # read-only, so that nobody else has changed it either
        pass


def _owners():
    """All of kvlearn's modules, and the classes that they define."""
    modules = [m for name, m in sorted(sys.modules.items()) if name.partition(".")[0] == "kvlearn"]
    for module in modules:
        if isinstance(module, ModuleType):
            yield module
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module.__name__:
                    yield value
    yield from OTHERS


def grading_check(seeds: tuple[int, ...]):
    """`kvlearn.check`, with the seeds of a class on top, and a message to the gradebook."""
    find = kvlearn.checks.find

    def check(name, answer, seed=0):
        exercise = find(name)
        for number in (seed, *seeds) if seed == 0 else (seed,):  # once, in a cell with several checks
            result = judge(exercise, answer, number)
            if not result.passed:
                break
        library = str(getattr(answer, "__module__", "")).partition(".")[0] == "kvlearn"
        found = {"exercise": name, "passed": result.passed, "misconception": result.misconception}
        found |= {"message": result.message, "seed": number, "library": library}
        publish_display_data({MIME: found, "text/plain": result.message})
        if not result.passed:
            raise CheckFailed(result)

    return check


_kept = Kept(_owners())


def afresh(seeds: tuple[int, ...]) -> ModuleType:
    """Put everything back, and give the package whose `check` grades."""
    _kept.restore()
    kvlearn.check = grading_check(seeds)
    return kvlearn
