"""The assignments and the registry of exercises: the same names and points, and stored runs that passed.

That an exercise fails where it should is in test_nbgrader.py.
"""

import re

import pytest
from course_tools import ROOT, assignments, code_cells

from kvlearn.checks import REGISTRY

NAMES = assignments()


def marked(folder, name):
    """{grade_id: cell} of an assignment's notebook."""
    cells = code_cells(ROOT / folder / name / f"{name}.ipynb")
    return {c.metadata.nbgrader.grade_id: c for c in cells if "nbgrader" in c.metadata}


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passed_every_check(name):
    """Would catch a solution whose stored run is not a pass. (nbval runs it again: dev.py test.)"""
    checks = {key: cell for key, cell in marked("solutions", name).items() if key.endswith("-check")}
    assert checks
    for key, cell in checks.items():
        printed = "".join(output.get("text", "") for output in cell.outputs)
        assert printed.strip() and not any(o.output_type == "error" for o in cell.outputs), key


@pytest.mark.parametrize("exercise", REGISTRY.values(), ids=REGISTRY)
def test_every_exercise_is_asked_once_in_its_lesson(exercise):
    """Would catch an exercise that no notebook asks for, or one with other points than its difficulty."""
    homes = {name: cells for name in NAMES if exercise.name in (cells := marked("solutions", name))}
    assert [int(name[:2]) for name in homes] == [exercise.lesson]
    (cells,) = homes.values()
    assert cells[f"{exercise.name}-check"].metadata.nbgrader.points == exercise.difficulty


@pytest.mark.parametrize("name", NAMES)
def test_an_assignment_asks_only_for_known_exercises(name):
    """Would catch a check of something that has no checker."""
    asked = {re.sub(r"(-again)?(-check)?$", "", key) for key in marked("solutions", name)}
    assert asked <= set(REGISTRY)
