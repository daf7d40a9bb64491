"""count_projections: how often the naive loop projects what it has projected before."""

import functools

import torch

from kvlearn.cache import GrowingCache
from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.decoder import Decoder, DecoderConfig
from kvlearn.generation import generate

LONGEST_RUN = 64


def count_projections(prompt_length, new_tokens):
    """Oracle: count the rows that go through one matrix of a running decoder, or of its steps one by one."""
    if prompt_length + new_tokens <= LONGEST_RUN:
        return counted_run(prompt_length, new_tokens)
    naive = cached = 0
    for step in range(new_tokens):
        naive += prompt_length + step  # the prompt and all new tokens but the newest, which is not there yet
        cached += prompt_length if step == 0 else 1
    return naive, cached


@functools.cache
def counted_run(prompt_length, new_tokens):
    """Run a small decoder without and with a cache; count what its first key projection is given."""
    config = DecoderConfig(
        vocab_size=11,
        hidden_size=4,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        intermediate_size=3,
    )
    decoder, counts = Decoder(config).requires_grad_(False), []
    k_proj = decoder.layers[0].self_attn.k_proj
    handle = k_proj.register_forward_pre_hook(lambda _, args: counts.append(args[0].shape[:-1].numel()))
    totals = []
    for cache in (None, GrowingCache(config)):
        counts.clear()
        generate(decoder, [1] * prompt_length, new_tokens, cache=cache)
        totals.append(sum(counts))
    handle.remove()
    return tuple(totals)


def _cases(generator):
    draws = torch.randint(0, 4, (3,), generator=generator).tolist()
    sizes = [
        (9 + draws[0], 5, "counted in a run"),
        (4, 11 + draws[1], "more new tokens than prompt"),
        (17 + draws[2], 1, "one new token"),
        (1, 6 + draws[0], "a prompt of one token"),
        (8000, 500, "a prompt of 8000"),
    ]
    return [Case({"prompt_length": T, "new_tokens": N}, f"{label}: {T} + {N}") for T, N, label in sizes]


def _right(T, N):
    return N * T + N * (N - 1) // 2, T + N - 1


def _square(prompt_length, new_tokens):
    return (prompt_length + new_tokens) ** 2, prompt_length + new_tokens


def _last_one_fed(prompt_length, new_tokens):
    T, N = prompt_length, new_tokens
    return N * T + N * (N + 1) // 2, T + N


def _last_one_fed_naive(prompt_length, new_tokens):
    T, N = prompt_length, new_tokens
    return N * T + N * (N + 1) // 2, T + N - 1


def _last_one_fed_cached(prompt_length, new_tokens):
    return _right(prompt_length, new_tokens)[0], prompt_length + new_tokens


def _prompt_once(prompt_length, new_tokens):
    T, N = prompt_length, new_tokens
    return T + N * (N - 1) // 2, T + N - 1


def _new_tokens_free(prompt_length, new_tokens):
    return prompt_length * new_tokens, prompt_length + new_tokens - 1


def _every_step_as_the_last(prompt_length, new_tokens):
    T, N = prompt_length, new_tokens
    return N * (T + N - 1), T + N - 1


def _prompt_token_by_token(prompt_length, new_tokens):
    n = prompt_length + new_tokens - 1
    return n * (n + 1) // 2, n


def _keys_and_values(prompt_length, new_tokens):
    return tuple(2 * count for count in _right(prompt_length, new_tokens))


def _pairs(prompt_length, new_tokens):
    T, N = prompt_length, new_tokens
    pairs = [n * (n + 1) // 2 for n in range(T, T + N)]
    return sum(pairs), pairs[-1]


def _prefill_forgotten(prompt_length, new_tokens):
    return _right(prompt_length, new_tokens)[0], new_tokens


def _prefill_forgotten_too(prompt_length, new_tokens):
    return _right(prompt_length, new_tokens)[0], new_tokens - 1


def _only_the_extra(prompt_length, new_tokens):
    naive, cached = _right(prompt_length, new_tokens)
    return naive - cached, cached


def _swapped(prompt_length, new_tokens):
    return _right(prompt_length, new_tokens)[::-1]


def _explain(case, got, want):
    which = 0 if got[0] != want[0] else 1
    T, N = case["prompt_length"], case["new_tokens"]
    by_hand = "" if which else " Write down the number of tokens in each pass, first to last, and add."
    return (
        f"A prompt of {T} and {N} new token{'s' * (N > 1)}: the {('naive', 'cached')[which]} run projects "
        f"{want[which]:,} token-positions; yours says {got[which]:,}.{by_hand}"
    )


COUNT_PROJECTIONS = Exercise(
    name="count_projections",
    lesson=3,
    title="What is projected again",
    minutes=10,
    difficulty=2,
    why="The saving of a cache is a number, and a widely told one is wrong. Who has counted it once can "
    "say what is saved, and what is not.",
    signature="count_projections(prompt_length, new_tokens)",
    reference=count_projections,
    cases=_cases,
    explain=_explain,
    misconceptions=(
        Misconception(
            "the square of the whole length",
            _square,
            "That is how the 70 million come about. It bounds the naive count from above and is nowhere "
            "near it: the prompt is projected once a pass, not once a token of the prompt.",
        ),
        Misconception(
            "the last new token was counted as fed, in both runs",
            _last_one_fed,
            "It is the result of the last pass, and nobody asks what would come after it. The passes see "
            "the prompt and every new token but the last.",
        ),
        Misconception(
            "the last new token was counted as fed, in the naive run",
            _last_one_fed_naive,
            "The first pass sees the prompt alone: there is no new token yet. Each later pass sees one "
            "more, and the last new token is seen by none.",
        ),
        Misconception(
            "the last new token was counted as fed, in the cached run",
            _last_one_fed_cached,
            "The naive count is right. A cache holds what was fed, and the last new token never was.",
        ),
        Misconception(
            "the prompt was counted once",
            _prompt_once,
            "Once is what a cache achieves. Without one the prompt goes through the model at every step.",
        ),
        Misconception(
            "the new tokens were taken to cost nothing once they are there",
            _new_tokens_free,
            "A new token is part of the text from the next pass on, and is projected again like the rest.",
        ),
        Misconception(
            "every pass was counted as long as the last",
            _every_step_as_the_last,
            "The text grows by one token a pass; the first pass is the shortest.",
        ),
        Misconception(
            "the prompt was counted as if fed token by token",
            _prompt_token_by_token,
            "The prompt goes in whole: one pass projects all of its tokens once, and gives the first new "
            "token.",
        ),
        Misconception(
            "keys and values were added together",
            _keys_and_values,
            "That is twice the count for *one* matrix. Both ways of counting are fine; a number without "
            "saying which is not.",
        ),
        Misconception(
            "scores were counted, not projections",
            _pairs,
            "These are pairs of a query and a key, which attention scores. A projection takes one "
            "token-position.",
        ),
        Misconception(
            "the cached run was counted without its prefill",
            _prefill_forgotten,
            "The naive count is right. The cached run must see the prompt once too, or it has no keys to "
            "start from.",
        ),
        Misconception(
            "only the decode steps of the cached run were counted",
            _prefill_forgotten_too,
            "The naive count is right. The prefill of the cached run projects the prompt, once, and counts "
            "as well.",
        ),
        Misconception(
            "only what is projected too often was counted",
            _only_the_extra,
            "Your first number is the difference of the two. Wanted are both counts; the difference is "
            "then for anyone to take.",
        ),
        Misconception(
            "the two numbers changed places",
            _swapped,
            "Naive first, cached second.",
        ),
    ),
    hints=(
        "Take a prompt of 3 and 2 new tokens and write the passes down, one a line: how many tokens go in?",
        "A sum of numbers that grow by one has a formula, but a loop that adds them up is as right.",
        "With a cache each position is projected once in its life. Which tokens of the finished text never "
        "were?",
    ),
)
