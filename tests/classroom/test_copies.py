"""Answers that are the library's own."""

import ast
import inspect

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from kvlearn.attention import position_mask
from kvlearn.classroom.copies import copied, of_the_library, shape

MASKED = """
def masked_attention(q, k, v, mask):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).nan_to_num() @ v
"""


@pytest.mark.slow
def test_an_answer_of_ones_own_is_nobodys():
    """A flag on every answer is none."""
    assert of_the_library(MASKED) == []


@pytest.mark.slow
def test_the_library_handed_over_or_called():
    """The same object under another name, an import, a call inside a function."""
    assert of_the_library("masked_attention = kvlearn.attention") == ["it uses kvlearn.attention"]
    assert of_the_library("from kvlearn.attention import attention as masked_attention") == [
        "it uses kvlearn.attention.attention"
    ]
    call = "def masked_attention(q, k, v, mask):\n    return kvlearn.attention(q, k, v, mask=mask)"
    assert of_the_library(call) == ["it uses kvlearn.attention"]


@pytest.mark.parametrize(
    "text, uses",
    [
        ("import kvlearn as kv\nweights = kv.attention", "kvlearn.attention"),
        ("import kvlearn.attention as a\nweights = a.attention", "kvlearn.attention"),
        ("k = kvlearn\nweights = k.attention", "kvlearn by another name"),
        ("weights = getattr(kvlearn, 'attention')", "kvlearn by another name"),
    ],
)
def test_the_library_under_another_name(text, uses):
    """A flag that is lost with `as`, an assignment, or getattr."""
    assert f"it uses {uses}" in of_the_library(text)


@pytest.mark.slow
def test_an_import_in_another_cell():
    """A call whose import stands in a cell that is no answer."""

    def cell(text, solution=False):
        one = new_code_cell(text)
        marks = {"solution": True, "grade": False, "grade_id": "masked", "schema_version": 3}
        if solution:
            one.metadata["nbgrader"] = marks
        return one

    ours = new_notebook(cells=[cell("import kvlearn"), cell(MASKED, True)])
    given = new_notebook(
        cells=[
            cell("from kvlearn.attention import attention as attend"),
            cell("def masked(q, k, v, mask):\n    return attend(q, k, v, mask=mask)", True),
        ]
    )
    assert copied(given, ours) == ["masked: it uses kvlearn.attention.attention"]
    assert copied(new_notebook(cells=[given.cells[0], cell(MASKED, True)]), ours) == []


def test_what_the_course_uses_itself_is_allowed():
    """An answer that must use kvlearn: a cache's base class, generate."""
    ours = "class MyCache(kvlearn.KVCache):\n    pass"
    assert of_the_library("class Mine(kvlearn.KVCache):\n    x = 1", ours) == []
    assert of_the_library("class Mine(kvlearn.GrowingCache):\n    x = 1", ours) == [
        "it uses kvlearn.GrowingCache"
    ]


def test_a_copy_with_other_names_is_a_copy():
    """Names, docstrings, comments, blank lines and annotations changed: the tree is the same."""
    text = inspect.getsource(position_mask)
    renamed = text.replace("query_positions", "a").replace("key_positions", "b").replace("window", "w")
    renamed = renamed.replace("position_mask", "my_mask").replace("-> Tensor", "")
    assert of_the_library(renamed) == ["my_mask is a copy of kvlearn.attention.position_mask"]
    assert shape_of(text) == shape_of(renamed)
    assert shape_of("def f(a, b):\n    return a - b") != shape_of("def f(a, b):\n    return b - a")


def shape_of(text):
    return shape(ast.parse(text).body[0])


def test_what_cannot_be_read_is_no_copy():
    """A syntax error in an answer that ends the grader, or a tree that is too deep or too long for it."""
    assert of_the_library("def f(:") == []
    assert of_the_library("def f(x):\n    return x" + ".T" * 2000) == []
    assert of_the_library("x = " + "-" * 19_000 + "1") == []
    (said,) = of_the_library("x = 1\n" * 10_000)
    assert said == "it is longer than 20,000 letters, and was not compared"
