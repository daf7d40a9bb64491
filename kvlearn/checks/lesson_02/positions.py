"""position_mask: who may see whom, from positions, for keys in any order and any padding.

The oracle asks the one question of each pair of a query and a key. Slots taken for positions are the fault
of unslothai/unsloth#3699 and huggingface/transformers#22382.
"""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_02.causal import causal
from kvlearn.checks.masks import explain_query, pairs


def _by_position(query_positions, key_positions):
    """Oracle: one pair at a time, in Python integers."""
    rows = zip(query_positions.tolist(), key_positions.tolist(), strict=True)
    return torch.tensor([[[[0 <= k <= q for k in keys] for q in queries]] for queries, keys in rows])


def _position_cases(generator):
    padded = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    ring = [[8, 5, 6, 7, 3, 4], [-1, 2, 0, 1, -1, -1], [1, -1, 0, 2, 3, -1], [-1] * 6, [4, 1, 0, -1, 3, 2]]
    shuffled = torch.stack([torch.randperm(9, generator=generator)[:7] for _ in range(5)])
    chunk = torch.tensor([[5, 6], [0, 1], [7, 8], [-1, 0], [3, 4]])
    square = torch.tensor([[6, -1, 4, 5], [1, 0, 3, 2]])
    far = torch.tensor([[4998, 4999, 5000, 5001, 5002], [0, 39_998, -1, 39_999, 40_000]])
    cases = [
        (padded[:, 1:], padded, "left padding"),
        (torch.tensor([[6], [2], [3], [0], [-1]]), torch.tensor(ring), "one query and keys in any order"),
        (chunk, shuffled, "rows at different places"),
        (torch.tensor([[-1, 4, 5, 6], [0, 1, 2, 3]]), square, "as many queries as keys"),
        (torch.tensor([[4999, 5000, 5001, 5002], [39_998, 39_999, 40_000, -1]]), far, "far into a text"),
        (torch.tensor([[1, 2]]), torch.tensor([[2, 0, -1, 1]]), "the example by hand"),
    ]
    return [
        Case({"query_positions": q, "key_positions": k}, label, "query key" if q.shape == k.shape else "")
        for q, k, label in cases
    ]


def _padding_seen(query_positions, key_positions):
    query, key = pairs(query_positions, key_positions)
    return key <= query


def _padding_sees_padding(query_positions, key_positions):
    query, key = pairs(query_positions, key_positions)
    return (key <= query) & ((key >= 0) | (query < 0))


def _padding_sees_all(query_positions, key_positions):
    query, key = pairs(query_positions, key_positions)
    return (key >= 0) & ((key <= query) | (query < 0))


def _zero_is_padding(query_positions, key_positions):
    query, key = pairs(query_positions, key_positions)
    return (key > 0) & (key <= query)


def _strict(query_positions, key_positions):
    query, key = pairs(query_positions, key_positions)
    return (key >= 0) & (key < query)


def _one_query_sees_all(query_positions, key_positions):
    if query_positions.shape[1] == 1:
        return (key_positions >= 0)[:, None, None]
    return _by_position(query_positions, key_positions)


def _future(query_positions, key_positions):
    query, key = pairs(query_positions, key_positions)
    return (key >= 0) & (key >= query)


def _forbidden(query_positions, key_positions):
    return ~_by_position(query_positions, key_positions)


def _by_slot(query_positions, key_positions):
    B, L, S = *query_positions.shape, key_positions.shape[1]
    return causal(L, S).expand(B, 1, L, S) & (key_positions >= 0)[:, None, None]


def _by_slot_alone(query_positions, key_positions):
    B, L, S = *query_positions.shape, key_positions.shape[1]
    return causal(L, S).expand(B, 1, L, S).clone()


def _first_row_for_all(query_positions, key_positions):
    mask = _by_position(query_positions[:1], key_positions[:1])
    return mask.expand(len(query_positions), -1, -1, -1).clone()


def _no_head_axis(query_positions, key_positions):
    return _by_position(query_positions, key_positions)[:, 0]


def _key_query(query_positions, key_positions):
    return _by_position(query_positions, key_positions).transpose(2, 3)


POSITION_MASK = Exercise(
    name="position_mask",
    lesson=2,
    title="The mask from positions",
    minutes=10,
    difficulty=2,
    why="One rule serves training, decoding, chunks, left padding, and caches that keep their slots in any "
    "order. The decoder of this course builds every mask with it.",
    signature="position_mask(query_positions, key_positions)",
    reference=_by_position,
    cases=_position_cases,
    explain=explain_query,
    axes={
        "query_positions": "batch query",
        "key_positions": "batch key",
        "return": "batch head query key",
    },
    misconceptions=(
        Misconception(
            "padding is seen",
            _padding_seen,
            "A slot at position -1 holds nothing, and -1 is smaller than every position: without a word "
            "about it, everybody sees it.",
        ),
        Misconception(
            "padding sees padding",
            _padding_sees_padding,
            "This keeps the padding's rows from being empty. They may be empty: attention gives zeros "
            "there, and a slot that holds nothing is seen by nobody, other padding included.",
        ),
        Misconception(
            "padding sees everything",
            _padding_sees_all,
            "This keeps the padding's rows from being empty, at the price of real work for a token "
            "that does not exist. A query at -1 sees nothing.",
        ),
        Misconception(
            "position 0 is taken for padding",
            _zero_is_padding,
            "Position 0 is the first token of the text, and everybody may see it. Only -1 marks an "
            "empty slot.",
        ),
        Misconception(
            "no token sees itself",
            _strict,
            "A query may see its own position. The first token would have nothing to attend to.",
        ),
        Misconception(
            "a single query sees everything that is stored",
            _one_query_sees_all,
            "A single new token is usually the last one of its text, and not always: here some keys have "
            "later positions than the query, and one of the queries is padding.",
        ),
        Misconception(
            "the future is seen and the past is hidden",
            _future,
            "The comparison is the wrong way round: what comes later may not be seen.",
        ),
        Misconception(
            "the mask is the wrong way round",
            _forbidden,
            "Here True says: forbidden. In this course True says: may attend.",
        ),
        Misconception(
            "the order of the slots was taken for positions",
            _by_slot,
            "Empty slots are hidden, but the triangle counts slots. The keys may lie in memory in any "
            "order; only their positions say which of them came earlier.",
        ),
        Misconception(
            "the positions were not used",
            _by_slot_alone,
            "This is the triangle of a text without padding, whose keys lie in order. Neither holds here.",
        ),
        Misconception(
            "the first row's positions were used for all rows",
            _first_row_for_all,
            "Each row of the batch is a text of its own, at its own place and with its own padding.",
        ),
        Misconception(
            "the axis for the heads is missing",
            _no_head_axis,
            "Scores are (batch, head, query, key). Without an axis of size 1 for the heads, the batch "
            "of this mask would be matched with the heads of the scores.",
        ),
        Misconception(
            "queries and keys changed places",
            _key_query,
            "A row belongs to a query and a column to a key; this is (batch, 1, key, query).",
        ),
    ),
    hints=(
        "One comparison of every query with every key: give both tensors axes of size 1, so that "
        "broadcasting makes the table.",
        "The result is (batch, 1, query, key). Which of the four axes does query_positions have, and which "
        "does key_positions have?",
        "Then a second condition, about the keys alone: who holds nothing is seen by nobody.",
    ),
)
