"""The words about a mask from positions."""

import pytest
import torch

from kvlearn.checks.masks import explain_query, keys_in_words, pairs

QUERIES = torch.tensor([[0, 1, 2], [-1, 6, 7]])
KEYS = torch.tensor([[0, 1, 2, 3, -1], [-1, 7, 5, 6, -1]])
CASE = {"query_positions": QUERIES, "key_positions": KEYS}


def mask():
    return torch.tensor(
        [[[[0 <= k <= q for k in ks] for q in qs]] for qs, ks in zip(QUERIES, KEYS, strict=True)]
    )


def test_the_pairs_are_those_of_a_mask():
    """Queries and keys that changed places, or a head's axis in another place."""
    query, key = pairs(QUERIES, KEYS)
    assert torch.equal((key >= 0) & (key <= query), mask()) and mask().shape == (2, 1, 3, 5)


@pytest.mark.parametrize(
    "row, words",
    [
        ([0, 0, 0, 0], "no key"),
        ([0, 1, 0, 0], "key 1"),
        ([1, 1, 0, 0], "keys 0, 1"),
        ([0, 1, 1, 1], "keys 1 to 3"),
        ([1, 1, 0, 1], "keys 0, 1, 3"),
    ],
)
def test_keys_in_words(row, words):
    """A run with a hole in it that is told as a run."""
    assert keys_in_words(torch.tensor(row, dtype=torch.bool)) == words


def test_the_first_query_that_differs():
    """Position 0 taken for padding, the two sides changed round, or a slot told for a position."""
    got = mask()
    got[1, 0, 0, 1] = True
    assert explain_query(CASE, got, mask()) == (
        "In row 1 the keys are at positions [-1, 7, 5, 6, -1]. There the padding at query 0 should see no "
        "key and sees key 1."
    )
    got[1, 0, 0, 1], got[1, 0, 1, 2] = False, False
    assert "There query 1 (position 6) should see keys 2, 3 and sees key 3." in explain_query(
        CASE, got, mask()
    )
    got[0, 0, 0, 0] = False
    assert explain_query(CASE, got, mask(), "With a window of 9,") == (
        "In row 0 the keys are at positions [0, 1, 2, 3, -1]. With a window of 9, query 0 (position 0) "
        "should see key 0 and sees no key."
    )
