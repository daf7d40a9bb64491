"""In the kernel that runs a student's notebook: the checks as they were before the student's first line.

A notebook can put a function of its own in the place of `kvlearn.check`, of something that a check leans on,
or of one of torch's comparisons. So before each check the checks are imported afresh, and what the modules
and classes hold on which they lean is put back as it was before the first cell. (What is not claimed: that
code which reads this file could not get around it.)

A check that is graded runs with the seed that the student saw and with the class's own, and sends what it
found as display data, for feedback and report to read.
"""

import builtins
import importlib
import math
import operator
import sys
from types import ModuleType

import torch
from IPython.display import publish_display_data

import kvlearn
from kvlearn.classroom.results import MIME

CHECKS = "kvlearn.checks"
SEEDS: list[int] = []  # the class's own; a list, because what this module's names stand for is put back too
# A check leans on them too.
OTHERS = (torch, torch.Tensor, torch.testing, torch.nn.functional, builtins, math, operator)


class Kept:
    """The attributes of modules and classes at one moment, to be put back."""

    def __init__(self, owners):
        self._attributes = [(owner, dict(vars(owner))) for owner in owners]

    def restore(self) -> None:
        for owner, attributes in self._attributes:
            now = vars(owner)
            if isinstance(owner, type):  # a class's new attribute may hide a base class's
                inherited = {name for base in owner.__mro__[1:] for name in vars(base)}
                for name in inherited & now.keys() - attributes.keys():
                    _quietly(delattr, owner, name)
            for name, value in attributes.items():
                if now.get(name) is not value:
                    _quietly(setattr, owner, name, value)


def _quietly(change, *arguments) -> None:
    try:
        change(*arguments)
    except (AttributeError, TypeError):  # read-only, so that nobody else has changed it either
        pass


def _owners():
    """The modules of kvlearn that are not imported afresh, and the classes that they define."""
    modules = [m for name, m in sorted(sys.modules.items()) if name.partition(".")[0] == "kvlearn"]
    modules = [m for m in modules if not m.__name__.startswith(CHECKS)]
    for module in modules:
        if isinstance(module, ModuleType):
            yield module
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module.__name__:
                    yield value
    yield from OTHERS


def grading_check(seeds: tuple[int, ...], checks: ModuleType):
    """`kvlearn.check`, with the seeds of a class on top, and a message to the gradebook."""

    def check(name, answer, seed=0):
        exercise, ran = checks.find(name), []
        for number in (seed, *seeds) if seed == 0 else (seed,):  # once, in a cell with several checks
            result = checks.judge(exercise, answer, number)
            ran.append(number)
            if not result.passed:
                break
        library = str(getattr(answer, "__module__", "")).partition(".")[0] == "kvlearn"
        found = {"exercise": name, "passed": result.passed, "misconception": result.misconception}
        found |= {"message": result.message, "seed": number, "seeds": ran, "library": library}
        publish_display_data({MIME: found, "text/plain": result.message})
        if not result.passed:
            raise checks.CheckFailed(result)
        return result

    return check


def _anew() -> ModuleType:
    """`kvlearn.checks`, read again from its files, which nobody inside can write."""
    for name in [name for name in sys.modules if name == CHECKS or name.startswith(CHECKS + ".")]:
        del sys.modules[name]
    return importlib.import_module(CHECKS)


_kept = Kept(_owners())


def afresh(seeds: tuple[int, ...] | None = None) -> ModuleType:
    """Put everything back, and give the package whose `check` grades, with SEEDS or those given."""
    sys.settrace(None)
    sys.setprofile(None)
    _kept.restore()
    kvlearn.checks = _anew()
    kvlearn.check = grading_check(tuple(SEEDS) if seeds is None else seeds, kvlearn.checks)
    return kvlearn
