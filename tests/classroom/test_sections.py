"""The table of where each exercise is taught, against the notebooks themselves."""

import re

import nbformat
import pytest
from made import ROOT

from kvlearn.checks import REGISTRY
from kvlearn.classroom.sections import SECTIONS, where_to_read


@pytest.mark.parametrize("lesson", SECTIONS)
def test_every_heading_stands_in_its_notebook(lesson):
    """A lesson whose heading was changed: students are sent to a section that is not there."""
    cells = nbformat.read(ROOT / "notebooks" / f"{lesson}.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    there = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    wanted = {heading for headings in SECTIONS[lesson].values() for heading in headings}
    assert wanted - set(there) == set()


def test_every_exercise_is_in_the_table_once_under_its_own_lesson():
    """An exercise that was added or moved and has no section, or another lesson's."""
    table = [(name, int(lesson[:2])) for lesson, exercises in SECTIONS.items() for name in exercises]
    assert sorted(table) == sorted((name, exercise.lesson) for name, exercise in REGISTRY.items())
    assert all(headings for exercises in SECTIONS.values() for headings in exercises.values())


def test_the_words_for_a_section():
    """Backticks of a heading in plain text, "section" for two, a KeyError for an exercise of one's own."""
    assert where_to_read("split_heads") == 'Lesson 00, section "2 · Shapes" (notebooks/00_start_here.ipynb)'
    assert where_to_read("static_cache") == (
        'Lesson 04, section "The copy inside torch.cat" (notebooks/04_kv_cache.ipynb)'
    )
    assert where_to_read("masked_attention") == (
        'Lesson 02, sections "3 · Before the softmax, not after it" and "6 · A query that sees nothing" '
        "(notebooks/02_causal_masking.ipynb)"
    )
    assert where_to_read("an_exercise_of_ones_own") is None
