"""Masks from positions, in lessons 02 and 07: the pairs that are compared, and who sees what, in words."""

import torch


def pairs(query_positions, key_positions):
    """Every query beside every key: with these axes a comparison of the two is (batch, 1, query, key)."""
    return query_positions[:, None, :, None], key_positions[:, None, None, :]


def keys_in_words(row) -> str:
    """`keys 0 to 3`, `key 0`, `keys 0, 2` or `no key`, of a row of a boolean mask."""
    keys = torch.nonzero(row).flatten().tolist()
    if not keys:
        return "no key"
    if len(keys) == 1:
        return f"key {keys[0]}"
    if len(keys) > 2 and keys == list(range(keys[0], keys[-1] + 1)):
        return f"keys {keys[0]} to {keys[-1]}"
    return f"keys {', '.join(map(str, keys))}"


def explain_query(case, got, want, there="There") -> str:
    """What the first query that differs should see. `there` begins the sentence about it."""
    row, _, query = (got != want).any(dim=3).nonzero()[0].tolist()
    keys = case["key_positions"][row].tolist()
    position = int(case["query_positions"][row, query])
    who = f"the padding at query {query}" if position < 0 else f"query {query} (position {position})"
    return (
        f"In row {row} the keys are at positions {keys}. {there} {who} should see "
        f"{keys_in_words(want[row, 0, query])} and sees {keys_in_words(got[row, 0, query])}."
    )
