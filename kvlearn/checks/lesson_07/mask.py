"""window_mask: the mask from positions, with a window.

The oracle asks the one question of each pair of a query and a key. One position too many is the fault of
ml-explore/mlx-lm#390.
"""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.masks import explain_query, pairs


def window_mask(query_positions, key_positions, window):
    """Oracle: one pair at a time; the positions a query sees are counted on the fingers."""
    rows = zip(query_positions.tolist(), key_positions.tolist(), strict=True)
    seen = [[[range(max(0, q - window + 1), q + 1) for q in queries], keys] for queries, keys in rows]
    return torch.tensor([[[[k in visible for k in keys] for visible in queries]] for queries, keys in seen])


def _cases(generator):
    padded = torch.tensor([[-1, -1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]])
    ring = [[8, 9, 6, 7, 10, 11], [-1, 2, 0, 1, 3, -1], [4, 1, 2, 3, -1, 5]]
    queries = [[10, 11], [-1, 3], [4, 5]]
    start = int(torch.randint(20, 90, (1,), generator=generator))
    late = torch.arange(start, start + 9)[None]
    cases = [
        (padded[:, 2:], padded, 3, "left padding"),
        (torch.tensor(queries), torch.tensor(ring), 4, "a ring and a chunk"),
        (late[:, -1:], late, 5, "one new token"),
        (padded[1:, 3:], padded[1:], 99, "a window wider than the text"),
        (torch.tensor([[9, 10]]), torch.tensor([[2, 3, 5, 6, 9, 10]]), 6, "positions with gaps"),
        (torch.tensor([[7]]), torch.tensor([[8, 4, 5, 6, 7, -1]]), 3, "the example by hand"),
    ]
    return [
        Case({"query_positions": q, "key_positions": k, "window": window}, label)
        for q, k, window, label in cases
    ]


def _by_pairs(rule):
    """The answer whose cells are rule(query, key, window), in which padding sees nothing and is not seen."""

    def answer(query_positions, key_positions, window):
        query, key = pairs(query_positions, key_positions)
        return (query >= 0) & (key >= 0) & rule(query, key, window)

    return answer


def _padding_seen(query_positions, key_positions, window):
    query, key = pairs(query_positions, key_positions)
    return (key <= query) & (key > query - window)


def _by_slot(query_positions, key_positions, window):
    query, key = pairs(query_positions, key_positions)
    slots = torch.arange(key_positions.shape[1])
    own = slots[-query_positions.shape[1] :]
    return (key >= 0) & (key <= query) & (slots > own[:, None] - window)


def _by_keys_that_are_there(query_positions, key_positions, window):
    query, key = pairs(query_positions, key_positions)
    visible = (key >= 0) & (key <= query)
    newer = visible[..., None, :] & (key[..., None, :] > key[..., None])  # (B, 1, L, S, S)
    return visible & (newer.sum(-1) < window)


def _no_head_axis(query_positions, key_positions, window):
    return window_mask(query_positions, key_positions, window)[:, 0]


def _explain(case, got, want):
    return explain_query(case, got, want, f"With a window of {case['window']},")


WINDOW_MASK = Exercise(
    name="window_mask",
    lesson=7,
    title="The mask of a window",
    minutes=10,
    difficulty=1,
    why="One comparison more than the mask of lesson 02. An off-by-one here makes no error and no ugly text: "
    "the model sees one token more, or one fewer, than it was trained with.",
    signature="window_mask(query_positions, key_positions, window)",
    reference=window_mask,
    cases=_cases,
    explain=_explain,
    axes={
        "query_positions": "batch query",
        "key_positions": "batch key",
        "return": "batch head query key",
    },
    misconceptions=(
        Misconception(
            "the last W keys that are there were taken, and not the last W positions",
            _by_keys_that_are_there,
            "A window is measured in positions. Where some of them are no longer stored, the query sees "
            "fewer keys, and none from further back in their place.",
        ),
        Misconception(
            "the window is one position too wide",
            _by_pairs(lambda query, key, window: (key <= query) & (key >= query - window)),
            "With a window of 4 a query sees itself and 3 before it: 4 positions in all. Here it sees 5 "
            "(ml-explore/mlx-lm#390).",
        ),
        Misconception(
            "the window is one position too narrow",
            _by_pairs(lambda query, key, window: (key <= query) & (key > query - window + 1)),
            "The query itself is one of the positions in the window. With a window of 4 it sees itself and 3 "
            "before it; here 2.",
        ),
        Misconception(
            "the window comes before the query, and leaves the query out",
            _by_pairs(lambda query, key, window: (key < query) & (key >= query - window)),
            "The right number of positions, each one too early: a query sees itself, too.",
        ),
        Misconception(
            "the window reaches to both sides",
            _by_pairs(lambda query, key, window: (key - query).abs() < window),
            "The distance counts backwards only: what comes later may not be seen, window or not.",
        ),
        Misconception(
            "the window hides the old, and nothing hides the future",
            _by_pairs(lambda query, key, window: key > query - window),
            "Both conditions hold at once: not too old, and not later than the query.",
        ),
        Misconception(
            "no window: the plain causal mask",
            _by_pairs(lambda query, key, window: key <= query),
            "Nothing is ever too old here. The window was not used.",
        ),
        Misconception(
            "the inside of the window is hidden and the outside is seen",
            _by_pairs(lambda query, key, window: (key <= query) & (key <= query - window)),
            "The second comparison is the wrong way round: the query sees what is too old, and not what is "
            "near.",
        ),
        Misconception(
            "one window for all queries of a chunk",
            _by_pairs(
                lambda query, key, window: (key <= query) & (key > query.amax(2, keepdim=True) - window)
            ),
            "The window goes back from each query's own position. Counted from the last query of the chunk, "
            "the earlier ones lose keys that they still see.",
        ),
        Misconception(
            "padding is seen",
            _padding_seen,
            "A slot at -1 holds nothing. It is smaller than every position, and for the first tokens of a "
            "text it is not too old either.",
        ),
        Misconception(
            "the window counts slots and not positions",
            _by_slot,
            "In a ring, or beside padding, the slots do not lie in the order of the text. How old a key is, "
            "only its position says.",
        ),
        Misconception(
            "the axis for the heads is missing",
            _no_head_axis,
            "Scores are (batch, head, query, key). Without an axis of size 1 for the heads, the batch of "
            "this mask would be matched with the heads of the scores.",
        ),
    ),
    hints=(
        "Begin with the mask of lesson 02: key <= query, and no key at -1.",
        "Which is the oldest position that a query at position 10 sees with a window of 4? Count: 10, 9, ...",
        "A comparison of key positions with query positions minus something, joined by &.",
    ),
)
