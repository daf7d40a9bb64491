"""Answers that are the library's own."""

import ast
import inspect

from kvlearn.attention import position_mask
from kvlearn.classroom.copies import of_the_library, shape

MASKED = """
def masked_attention(q, k, v, mask):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).nan_to_num() @ v
"""


def test_an_answer_of_ones_own_is_nobodys():
    """A flag on every answer is none."""
    assert of_the_library(MASKED) == []


def test_the_library_handed_over_or_called():
    """The same object under another name, an import, a call inside a function."""
    assert of_the_library("masked_attention = kvlearn.attention") == ["it uses kvlearn.attention"]
    assert of_the_library("from kvlearn.attention import attention as masked_attention") == [
        "it uses kvlearn.attention.attention"
    ]
    call = "def masked_attention(q, k, v, mask):\n    return kvlearn.attention(q, k, v, mask=mask)"
    assert of_the_library(call) == ["it uses kvlearn.attention"]


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
    """A syntax error in an answer that ends the grader."""
    assert of_the_library("def f(:") == []
