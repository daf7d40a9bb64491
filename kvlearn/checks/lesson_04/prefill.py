"""chunked_prefill: a prompt in pieces, whose queries are fewer than their keys."""

import torch

from kvlearn.checks.engine import Exercise, Misconception
from kvlearn.checks.prefill import prompt, run_and_count


def _cases(generator):
    return [
        prompt(generator, (2, 3, 7, 4), "chunks of 3, 3 and 1", chunk=3),
        prompt(generator, (1, 2, 8, 6), "two chunks of 4", torch.float64, chunk=4),
        prompt(generator, (2, 1, 5, 6), "one chunk is enough", chunk=8),
        prompt(generator, (1, 2, 37, 3), "ten chunks", chunk=4),
    ]


def _observe(answer, case):
    out, calls = run_and_count(answer, case)
    if out is None or out is ...:
        return None
    return {"number of calls": len(calls), "queries and keys of each call": calls, "return": out}


def _explain(case, got, want):
    if got["number of calls"] != want["number of calls"]:
        return (
            f"attend was called {got['number of calls']} times. {case['q'].shape[2]} tokens in chunks of "
            f"{case['chunk']} take {want['number of calls']}."
        )
    ours, right = got["queries and keys of each call"], want["queries and keys of each call"]
    for number, (mine, wanted) in enumerate(zip(ours, right, strict=True)):
        if mine != wanted:
            return (
                f"Call {number} of attend should have {wanted[0]} queries and {wanted[1]} keys, and it has "
                f"{mine[0]} and {mine[1]}."
            )
    return None


def chunked_prefill(attend, q, k, v, chunk):
    """Oracle: the mask of each chunk cell by cell."""
    length, outputs = q.shape[2], []
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        mask = torch.zeros(end - start, end, dtype=torch.bool)
        for query in range(start, end):
            for key in range(query + 1):
                mask[query - start, key] = True
        outputs.append(attend(q[:, :, start:end], k[:, :, :end], v[:, :, :end], mask))
    return torch.cat(outputs, dim=2)


def _in_chunks(attend, q, k, v, chunk, make_mask, first_key=lambda start: 0):
    """The loop of a wrong answer, which differs in its mask or in its keys."""
    outputs = []
    for start in range(0, q.shape[2], chunk):
        end = min(start + chunk, q.shape[2])
        first = first_key(start)
        mask = make_mask(end - start, end - first)
        outputs.append(attend(q[:, :, start:end], k[:, :, first:end], v[:, :, first:end], mask))
    return torch.cat(outputs, dim=2)


def _triangle(queries, keys, diagonal):
    return torch.ones(queries, keys, dtype=torch.bool).tril(diagonal)


def _top_left(attend, q, k, v, chunk):
    return _in_chunks(attend, q, k, v, chunk, lambda queries, keys: _triangle(queries, keys, 0))


def _no_mask(attend, q, k, v, chunk):
    return _in_chunks(attend, q, k, v, chunk, lambda queries, keys: None)


def _mask_once_there_is_a_past(attend, q, k, v, chunk):
    def mask(queries, keys):
        return _triangle(queries, keys, 0) if queries == keys else None

    return _in_chunks(attend, q, k, v, chunk, mask)


def _own_chunk_only(attend, q, k, v, chunk):
    return _in_chunks(attend, q, k, v, chunk, lambda queries, keys: _triangle(queries, keys, 0), lambda s: s)


def _without_itself(attend, q, k, v, chunk):
    return _in_chunks(
        attend, q, k, v, chunk, lambda queries, keys: _triangle(queries, keys, keys - queries - 1)
    )


def _one_ahead(attend, q, k, v, chunk):
    return _in_chunks(
        attend, q, k, v, chunk, lambda queries, keys: _triangle(queries, keys, keys - queries + 1)
    )


def _upside_down(attend, q, k, v, chunk):
    return _in_chunks(attend, q, k, v, chunk, lambda queries, keys: ~_triangle(queries, keys, keys - queries))


def _rest_dropped(attend, q, k, v, chunk):
    whole = q.shape[2] // chunk * chunk or q.shape[2]
    return chunked_prefill(attend, q[:, :, :whole], k, v, chunk)


def _all_at_once(attend, q, k, v, chunk):
    return chunked_prefill(attend, q, k, v, q.shape[2])


def _past_only(attend, q, k, v, chunk):
    def mask(queries, keys):
        allowed = torch.zeros(queries, keys, dtype=torch.bool)
        allowed[:, : keys - queries] = True
        return allowed

    return _in_chunks(attend, q, k, v, chunk, mask)


CHUNKED_PREFILL = Exercise(
    name="chunked_prefill",
    lesson=4,
    title="A prompt in pieces",
    minutes=15,
    difficulty=3,
    why="Several queries over more keys than queries: this is where masks of real projects have been wrong. "
    "Serving engines feed long prompts this way, so that others need not wait.",
    signature="chunked_prefill(attend, q, k, v, chunk)",
    reference=chunked_prefill,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    axes={name: "batch head token channel" for name in ("q", "k", "v", "return")},
    misconceptions=(
        Misconception(
            "the mask's triangle begins at the first key",
            _top_left,
            "That fits a chunk that has no past. A later chunk's first query would see key 0 and nothing "
            "else. (pytorch/pytorch#108108 is about this alignment.)",
        ),
        Misconception(
            "no mask at all",
            _no_mask,
            "Within a chunk the earlier queries see the later tokens. Decoding needs no mask because its "
            "chunk is one token; a longer chunk does.",
        ),
        Misconception(
            "no mask once there is a past",
            _mask_once_there_is_a_past,
            "The first chunk is right. From the second on, queries see the later tokens of their own chunk "
            "(Mikyx-1/TinyLLM#17 left the mask out whenever there was a cache).",
        ),
        Misconception(
            "each chunk sees itself and no past",
            _own_chunk_only,
            "The keys and values of the earlier chunks are what a cache keeps. Without them every chunk is "
            "the beginning of a text (meta-llama/llama#899 had a mask as small as this).",
        ),
        Misconception(
            "the past is visible, and the own chunk is not",
            _past_only,
            "A token sees itself and the tokens of its chunk that come before it. The first chunk saw "
            "nothing.",
        ),
        Misconception(
            "a token does not see itself",
            _without_itself,
            "A query sees the keys up to its own position, that one included. Here the first token of the "
            "prompt sees nothing.",
        ),
        Misconception(
            "each query sees one token too many",
            _one_ahead,
            "The key after the query's own position is the future.",
        ),
        Misconception(
            "the mask is upside down",
            _upside_down,
            "True means may attend. Here the future is visible and the past is hidden.",
        ),
        Misconception(
            "the rest that fills no whole chunk is left out",
            _rest_dropped,
            "The last chunk may be shorter than the others. Its tokens need an output too.",
        ),
        Misconception(
            "the whole prompt went in one piece",
            _all_at_once,
            "The numbers are right. But each call of attend should get at most `chunk` queries: a long "
            "prompt is cut so that no step is long.",
        ),
    ),
    hints=(
        "Write down, for chunks of 3, which queries and which keys the second call gets.",
        "The keys of a chunk: everything up to the chunk's end. The queries: the chunk.",
        "kvlearn.causal_mask takes two lengths.",
    ),
)
