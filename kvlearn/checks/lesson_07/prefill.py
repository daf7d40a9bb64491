"""windowed_prefill: a prompt in pieces through a window; attend first, trim later."""

import torch

from kvlearn.checks.engine import Exercise, Misconception
from kvlearn.checks.prefill import prompt, run_and_count

QUERIES, KEYS = "queries of each call", "most keys in one call"


def _cases(generator):
    return [
        prompt(generator, (2, 3, 13, 4), "a window of 5, chunks of 3", window=5, chunk=3),
        prompt(generator, (1, 2, 11, 6), "chunks longer than the window", torch.float64, window=3, chunk=4),
        prompt(generator, (3, 1, 9, 4), "token by token", window=2, chunk=1),
        prompt(generator, (2, 1, 7, 4), "a window wider than the text", window=20, chunk=5),
        prompt(generator, (1, 2, 9, 5), "a window of 1", window=1, chunk=3),
    ]


def _observe(answer, case):
    out, calls = run_and_count(answer, case)
    if out is None or out is ...:
        return None
    most = max((keys for _, keys in calls), default=0)
    return {
        QUERIES: ", ".join(str(queries) for queries, _ in calls),
        KEYS: "few" if most <= case["window"] + case["chunk"] else str(most),
        "return": out,
    }


def _explain(case, got, want):
    if got[QUERIES] != want[QUERIES]:
        return (
            f"attend got {got[QUERIES] or 'no'} queries in its calls. {case['q'].shape[2]} tokens in "
            f"chunks of {case['chunk']} make {want[QUERIES]}."
        )
    if got[KEYS] != want[KEYS]:
        return (
            f"One call of attend got {got[KEYS]} keys. With a window of {case['window']} and chunks of "
            f"{case['chunk']} no more than {case['window'] + case['chunk']} are needed at once."
        )
    token = int((got["return"] != want["return"]).any(dim=3).any(dim=1).any(dim=0).nonzero()[0])
    first = max(0, token - case["window"] + 1)
    return (
        f"The output of token {token} is not the average of the values {first} to {token} that its query "
        f"takes with a window of {case['window']} (chunks of {case['chunk']})."
    )


def windowed_prefill(attend, q, k, v, window, chunk):
    """Oracle: each chunk's keys cut from the whole prompt, the mask cell by cell."""
    length, outputs = q.shape[2], []
    for start in range(0, length, chunk):
        end, first = min(start + chunk, length), max(0, start - window)
        mask = torch.zeros(end - start, end - first, dtype=torch.bool)
        for query in range(start, end):
            for key in range(max(0, query - window + 1), query + 1):
                mask[query - start, key - first] = True
        outputs.append(attend(q[:, :, start:end], k[:, :, first:end], v[:, :, first:end], mask))
    return torch.cat(outputs, dim=2)


def _loop(keep, wide=0, before=False, causal_only=False, masked=True):
    """The loop of a wrong answer: keep(positions, window, chunk) says which stay between two chunks."""

    def answer(attend, q, k, v, window, chunk):
        kept, outputs = torch.empty(0, dtype=torch.long), []
        for queries in torch.arange(q.shape[2]).split(chunk):
            keys = torch.cat((kept, queries))
            if before:
                keys = keep(keys, window, chunk)
            mask = keys <= queries[:, None]
            if not causal_only:
                mask &= keys > queries[:, None] - window - wide
            sides = q[:, :, queries], k[:, :, keys], v[:, :, keys]
            outputs.append(attend(*sides, mask if masked else None))
            kept = keep(keys, window, chunk)
        return torch.cat(outputs, dim=2)

    return answer


def _last(keys, window, chunk):
    return keys[-window:]


def _in_one_piece(attend, q, k, v, window, chunk):
    return windowed_prefill(attend, q, k, v, window, q.shape[2])


def _restarted(attend, q, k, v, window, chunk):
    """The kept keys are numbered from 0 again and the queries go on."""
    kept, outputs = torch.empty(0, dtype=torch.long), []
    for queries in torch.arange(q.shape[2]).split(chunk):
        keys = torch.cat((kept, queries))
        number = torch.arange(len(keys))
        mask = (number <= queries[:, None]) & (number > queries[:, None] - window)
        outputs.append(attend(q[:, :, queries], k[:, :, keys], v[:, :, keys], mask))
        kept = keys[-window:]
    return torch.cat(outputs, dim=2)


WINDOWED_PREFILL = Exercise(
    name="windowed_prefill",
    lesson=7,
    title="A prompt through a window",
    minutes=15,
    difficulty=2,
    why="The order of two lines decides: attend and then trim, or trim and then attend. Token by token both "
    "give the same, and so the wrong one gets past every short test.",
    signature="windowed_prefill(attend, q, k, v, window, chunk)",
    reference=windowed_prefill,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    axes={name: "batch head token channel" for name in ("q", "k", "v", "return")},
    misconceptions=(
        Misconception(
            "trimmed first, then attended",
            _loop(_last, before=True),
            "The chunk's last token pushes out keys that its first query still sees. First attend over what "
            "is kept and the whole chunk; trim afterwards.",
        ),
        Misconception(
            "nothing is dropped, and the mask does the rest",
            _loop(lambda keys, window, chunk: keys),
            "The numbers are right. But the keys that no query will see again are still kept, and a cache "
            "would grow with the text (llm_from_scratch#3).",
        ),
        Misconception(
            "the mask knows no window",
            _loop(_last, causal_only=True),
            "Kept are the last `window` keys, and the chunk's queries see all of them: the chunk's later "
            "queries see more than a window. What is stored and what is seen are two things.",
        ),
        Misconception(
            "no mask at all",
            _loop(_last, masked=False),
            "Within a chunk the earlier queries see the later tokens, and the later ones see too far back.",
        ),
        Misconception(
            "each query sees one position too many",
            _loop(_last, wide=1),
            "With a window of W a query sees itself and the W - 1 before it (ml-explore/mlx-lm#390).",
        ),
        Misconception(
            "only the chunk before is kept",
            _loop(lambda keys, window, chunk: keys[-chunk:][-window:]),
            "A window may reach back over several chunks. How much to keep depends on the window alone.",
        ),
        Misconception(
            "nothing is kept between two chunks",
            _loop(lambda keys, window, chunk: keys[:0]),
            "Each chunk's first queries look back into the chunk before.",
        ),
        Misconception(
            "the oldest keys are kept, and the newest are dropped",
            _loop(lambda keys, window, chunk: keys[:window]),
            "A full window makes room by giving up its oldest key. Here the first ones stay for ever.",
        ),
        Misconception(
            "too few are kept: two fewer than the window",
            _loop(lambda keys, window, chunk: keys[len(keys) - min(len(keys), max(0, window - 2)) :]),
            "The next token sees the window - 1 positions before it, so that many must still be there.",
        ),
        Misconception(
            "the kept keys are numbered from 0 again",
            _restarted,
            "The mask compares places inside the window with places in the text. A key's position stays what "
            "it was when the key was made.",
        ),
        Misconception(
            "the whole prompt went in one piece",
            _in_one_piece,
            "The numbers are right, and each call of attend should get at most `chunk` queries.",
        ),
    ),
    hints=(
        "A loop over chunks, with two tensors that live from round to round: the kept keys and values.",
        "In a round: join, attend, trim. Which mask does `kvlearn.causal_mask` give for the chunk's queries "
        "over what you joined? It takes a window.",
        "Trimming is a slice from the end; with fewer tokens than the window it keeps all of them.",
    ),
)
