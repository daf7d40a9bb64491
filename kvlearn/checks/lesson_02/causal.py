"""causal_mask: the newest tokens over all tokens, aligned at the last.

The oracle asks the one question of each pair of a query and a key. The wrong answers are those of real
projects: pytorch/pytorch#108108 and #103082 (aligned at the first key), meta-llama/llama#899 (a square
for a chunk).
"""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.masks import keys_in_words


def causal(query_length, key_length):
    """Oracle: query i is token key_length - query_length + i, and sees no later token."""
    first = key_length - query_length
    return torch.tensor(
        [[key <= first + query for key in range(key_length)] for query in range(query_length)]
    )


def _causal_cases(generator):
    sizes = [
        (4, 4, "square"),
        (2, 5, "2 queries over 5 keys"),
        (1, 8, "one query"),
        (3, 7, "3 over 7"),
        (2, 4, "the example by hand"),
        (1, 1, "one token"),
        (2, 2102, "a long text"),  # past a table of 2,048, and past what float16 tells apart
    ]
    return [
        Case({"query_length": L, "key_length": S}, label, "query key" if L == S else "")
        for L, S, label in sizes
    ]


def _tril(query_length, key_length, diagonal=0):
    return torch.ones(query_length, key_length, dtype=torch.bool).tril(diagonal)


def _one_short(query_length, key_length):
    return _tril(query_length, key_length, key_length - query_length - 1)


def _one_too_many(query_length, key_length):
    return _tril(query_length, key_length, key_length - query_length + 1)


def _inverted(query_length, key_length):
    return ~causal(query_length, key_length)


def _upper(query_length, key_length):
    return torch.ones(query_length, key_length, dtype=torch.bool).triu(key_length - query_length)


def _square_of_queries(query_length, key_length):
    return _tril(query_length, query_length)


def _square_of_keys(query_length, key_length):
    return _tril(key_length, key_length)


def _new_tokens_only(query_length, key_length):
    stored = torch.zeros(query_length, key_length - query_length, dtype=torch.bool)
    return torch.cat((stored, _tril(query_length, query_length)), dim=1)


def _everything(query_length, key_length):
    return torch.ones(query_length, key_length, dtype=torch.bool)


def _keys_as_rows(query_length, key_length):
    return causal(query_length, key_length).T


def _additive(query_length, key_length):
    return torch.zeros(query_length, key_length).masked_fill(~causal(query_length, key_length), -torch.inf)


def _explain_causal(case, got, want):
    query = int((got != want).any(dim=1).nonzero()[0])
    return (
        f"With {case['query_length']} queries and {case['key_length']} keys, query {query} should see "
        f"{keys_in_words(want[query])} and sees {keys_in_words(got[query])}."
    )


CAUSAL_MASK = Exercise(
    name="causal_mask",
    lesson=2,
    title="The causal mask",
    minutes=10,
    difficulty=1,
    why="Once there is a cache, the queries are fewer than the keys, and the ready-made triangle sits in "
    "the wrong corner: a mistake that code with a cache makes again and again.",
    signature="causal_mask(query_length, key_length)",
    reference=causal,
    cases=_causal_cases,
    explain=_explain_causal,
    axes={"query_length": "query", "key_length": "key", "return": "query key"},
    misconceptions=(
        Misconception(
            "the triangle touches the top left corner",
            _tril,
            "With as many queries as keys all is well. With fewer, the queries are the newest tokens, "
            "and here the first of them sees token 0 only, not even itself. (torch's is_causal=True "
            "does this.)",
        ),
        Misconception(
            "the diagonal is missing",
            _one_short,
            "No query sees its own token here. A token may always attend to itself; the very first one "
            "has nothing else.",
        ),
        Misconception(
            "each query sees one token too many",
            _one_too_many,
            "The triangle is one step too wide: a query sees the token that comes right after it, which is "
            "the one that the model has to guess.",
        ),
        Misconception(
            "the mask is the wrong way round",
            _inverted,
            "Here True says: forbidden. In this course (and in torch's scaled_dot_product_attention) True "
            "says: may attend. Other functions of torch have it the other way; always look.",
        ),
        Misconception(
            "the upper triangle was kept",
            _upper,
            "Each query sees itself and the future here, and the past is hidden. The past is the part "
            "it needs.",
        ),
        Misconception(
            "the mask is a square of the queries",
            _square_of_queries,
            "There is a column for each query, and none for the tokens that were stored before. It fits "
            "only as long as nothing is stored.",
        ),
        Misconception(
            "the mask is a square of the keys",
            _square_of_keys,
            "There is a row for each key. Only the new tokens ask, so most of these rows have no query.",
        ),
        Misconception(
            "the stored tokens are hidden",
            _new_tokens_only,
            "The new tokens see each other in the right order and nothing of what came before them. To "
            "remember what came before is what they have keys for.",
        ),
        Misconception(
            "the new tokens see each other in both directions",
            _everything,
            "Nothing is masked. For one new token that is right; with several, the earlier of them "
            "see the later.",
        ),
        Misconception(
            "rows and columns changed places",
            _keys_as_rows,
            "A row belongs to a query and a column to a key; this is (key, query).",
        ),
        Misconception(
            "zeros and minus infinities instead of booleans",
            _additive,
            "That is a mask to add to scores, and it fits the right triangle. Here a mask is boolean: "
            "it says who may, and leaves to attention what to do about it.",
        ),
    ),
    hints=(
        "Draw the case of 2 queries and 5 keys. Which tokens of the text are the two queries?",
        "The last query sees every key. The one before it sees one key fewer. How many does the first "
        "one see?",
        "`tril` takes a `diagonal`: by how much must the triangle move to the right when there are "
        "more keys than queries? Or number both sides from 0 and compare.",
    ),
)
