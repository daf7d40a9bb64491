"""Generation: greedy and drawn tokens, batches, EOS, turns, chunks, and what is refused."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from tiny_decoder import CACHES, random_tokens, tiny_decoder
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from kvlearn import Generation, GrowingCache, StaticCache, generate
from kvlearn.generation import pick

PROMPTS = [random_tokens(length, seed=length).tolist() for length in (6, 2, 9)]


def by_hand(decoder, prompt, new, eos_ids=()):
    """The slowest right loop: one row, no cache, one token at a time."""
    text = list(prompt)
    while len(text) < len(prompt) + new:
        text.append(int(decoder(torch.tensor([text]))[0, -1].argmax()))
        if text[-1] in eos_ids:
            break
    return text[len(prompt) :]


def make(kind, decoder, rows=1, **options):
    if kind is None:
        return None
    return CACHES[kind](decoder.config, rows, dtype=decoder.dtype, **options)


def end_ids(decoder, at):
    """An EOS id for a prompt of PROMPTS such that row i's own text meets it at step at[i]."""
    texts = [by_hand(decoder, prompt, 8) for prompt in PROMPTS]
    return {texts[row][step] for row, step in at.items()}


# Tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, *CACHES])
def test_a_batch_says_what_each_row_says_alone(kind):
    """Unequal lengths: padding that is seen, or positions of the longest row, change the tokens."""
    decoder = tiny_decoder()
    result = generate(decoder, PROMPTS, 8, cache=make(kind, decoder, 3))
    assert result.tokens == [by_hand(decoder, prompt, 8) for prompt in PROMPTS]


@pytest.mark.parametrize("given", [PROMPTS[0], torch.tensor(PROMPTS[0]), tuple(PROMPTS[0]), [PROMPTS[0]]])
def test_one_prompt_needs_no_brackets(given):
    """A single prompt, as a list, a tuple or a tensor, is a batch of one."""
    decoder = tiny_decoder()
    assert generate(decoder, given, 3).tokens == [by_hand(decoder, PROMPTS[0], 3)]


def test_several_prompts_as_tensors():
    """A tensor (batch, length), and a list of tensors of any lengths."""
    decoder = tiny_decoder()
    expected = [by_hand(decoder, prompt[:2], 3) for prompt in PROMPTS]
    assert generate(decoder, torch.tensor([prompt[:2] for prompt in PROMPTS]), 3).tokens == expected
    assert generate(decoder, [torch.tensor(prompt[:2]) for prompt in PROMPTS], 3).tokens == expected


@pytest.mark.parametrize("kind", [None, *CACHES])
def test_a_row_ends_with_its_eos(kind):
    """mistralai/mistral-inference#270: finished rows that go on. Several ids end a row, each row ends by
    itself, and its EOS is part of it."""
    decoder = tiny_decoder()
    eos_ids = end_ids(decoder, {0: 1, 1: 4})
    expected = [by_hand(decoder, prompt, 8, eos_ids) for prompt in PROMPTS]
    assert len({len(tokens) for tokens in expected}) > 1
    cache = make(kind, decoder, 3)
    assert generate(decoder, PROMPTS, 8, cache=cache, eos_ids=iter(eos_ids)).tokens == expected
    if cache is not None:
        lengths = [len(p) + len(new) - 1 for p, new in zip(PROMPTS, expected, strict=True)]
        assert cache.next_position.tolist() == lengths


def test_generation_stops_when_all_rows_have_ended():
    """Steps after the last EOS would write padding into the cache until it is full."""
    decoder = tiny_decoder()
    eos_ids = set(range(31))
    cache = make("growing", decoder, 3)
    result = generate(decoder, PROMPTS, 8, cache=cache, eos_ids=eos_ids)
    assert [len(tokens) for tokens in result.tokens] == [1, 1, 1] and cache.length == 9


@pytest.mark.parametrize("kind", [None, *CACHES])
def test_on_token_sees_each_token_once_in_order(kind):
    """Step by step, in a step row by row; nothing for a row that has ended."""
    decoder, seen = tiny_decoder(), []
    eos_ids = end_ids(decoder, {1: 2})
    result = generate(
        decoder, PROMPTS, 5, cache=make(kind, decoder, 3), eos_ids=eos_ids, on_token=lambda *a: seen.append(a)
    )
    longest = max(len(tokens) for tokens in result.tokens)
    assert seen == [
        (row, tokens[step])
        for step in range(longest)
        for row, tokens in enumerate(result.tokens)
        if step < len(tokens)
    ]
    assert all(type(row) is int and type(token) is int for row, token in seen)


def test_prompts_stay_as_they_are():
    """The caller's list grows by the new tokens when it is extended in place."""
    decoder = tiny_decoder()
    prompts = [list(prompt) for prompt in PROMPTS]
    generate(decoder, prompts, 3)
    assert prompts == PROMPTS


def test_no_graph_is_built():
    """Without no_grad each step would keep its activations for a backward pass that never comes."""
    decoder = tiny_decoder().requires_grad_(True)
    seen = []
    original = decoder.attention

    def watch(q, k, v, mask):
        seen.append(q.requires_grad)
        return original(q, k, v, mask=mask)

    decoder.attention = watch
    generate(decoder, PROMPTS[0], 2)
    assert seen and not any(seen)


# The cache --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("chunk", [*range(1, 11), 100])
def test_every_prefill_chunk_gives_the_same(kind, chunk):
    """meta-llama/llama#899: a mask for a chunk that starts behind stored tokens."""
    decoder = tiny_decoder()
    cache = make(kind, decoder, 3)
    lengths = []
    original = decoder.attention

    def watch(q, k, v, mask):
        lengths.append(q.shape[2])
        return original(q, k, v, mask=mask)

    decoder.attention = watch
    result = generate(decoder, PROMPTS, 4, cache=cache, prefill_chunk=chunk)
    decoder.attention = original
    assert result.tokens == [by_hand(decoder, prompt, 4) for prompt in PROMPTS]
    # All but the last token of the prompts, which is fed with the first step.
    pieces = [min(chunk, 8 - start) for start in range(0, 8, chunk)]
    assert lengths[::3] == [*pieces, 1, 1, 1, 1]
    assert cache.length == 9 + 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", CACHES)
def test_a_conversation_goes_on_in_the_same_cache(kind):
    """The second turn is the same call with the longer text, and only what is new is fed."""
    decoder = tiny_decoder()
    cache = make(kind, decoder, 3)
    eos_ids = end_ids(decoder, {0: 1})
    texts = [list(prompt) for prompt in PROMPTS]
    fed = []
    original = decoder.attention
    for turn in range(3):
        expected = [by_hand(decoder, text, 4, eos_ids) for text in texts]
        decoder.attention = lambda q, k, v, mask: fed.append(q.shape[2]) or original(q, k, v, mask=mask)
        result = generate(decoder, texts, 4, cache=cache, eos_ids=eos_ids)
        decoder.attention = original
        assert result.tokens == expected
        next_positions = [len(t) + len(new) - 1 for t, new in zip(texts, expected, strict=True)]
        assert cache.next_position.tolist() == next_positions
        question = random_tokens(turn + 2, seed=turn + 50).tolist()
        texts = [
            t + new + question[row % 2 :] for row, (t, new) in enumerate(zip(texts, expected, strict=True))
        ]
    assert max(fed[3:]) <= 9 and fed[0] == 9  # the first prompt, and later only the news


@pytest.mark.parametrize("kind", CACHES)
def test_a_text_that_the_cache_has_seen_whole(kind):
    """GeeeekExplorer/nano-vllm#114: nothing is left to compute, so the last token is fed again. Rows that
    ended early have padding behind it."""
    decoder = tiny_decoder()
    eos_ids = end_ids(decoder, {0: 1, 1: 3})
    cache = make(kind, decoder, 3)
    first = generate(decoder, PROMPTS, 6, cache=cache, eos_ids=eos_ids).tokens
    seen = [prompt + new[:-1] for prompt, new in zip(PROMPTS, first, strict=True)]
    assert cache.next_position.tolist() == [len(text) for text in seen]
    length = cache.length
    again = generate(decoder, seen, 1, cache=cache)
    assert again.tokens == [[new[-1]] for new in first]
    assert cache.next_position.tolist() == [len(text) for text in seen]
    assert cache.length <= length + 1
    # One row all seen, the others with more to say.
    texts = [seen[0], seen[1] + [3, 4], seen[2] + [5]]
    result = generate(decoder, texts, 3, cache=cache)
    assert result.tokens == [by_hand(decoder, text, 3) for text in texts]


def test_a_text_that_the_cache_has_seen_whole_fits_a_full_cache():
    """Stepping back makes the room that the last token needs."""
    decoder = tiny_decoder()
    cache = StaticCache(decoder.config, max_length=6, dtype=torch.float64)
    generate(decoder, PROMPTS[0] + [1], 0, cache=cache)
    assert cache.length == 6
    assert generate(decoder, PROMPTS[0], 1, cache=cache).tokens == [by_hand(decoder, PROMPTS[0], 1)]


@pytest.mark.parametrize("kind", [None, *CACHES])
def test_zero_new_tokens(kind):
    """Nothing is said; a cache is filled up to the last token, as after any other call."""
    decoder = tiny_decoder()
    cache = make(kind, decoder, 3)
    chunk = None if kind is None else 4
    result = generate(decoder, PROMPTS, 0, cache=cache, prefill_chunk=chunk)
    assert result.tokens == [[], [], []] and result.tokens_per_second == 0.0
    if cache is not None:
        assert cache.next_position.tolist() == [5, 1, 8]
        assert result.prefill_seconds > 0
        assert generate(decoder, PROMPTS, 2, cache=cache).tokens == [by_hand(decoder, p, 2) for p in PROMPTS]
        assert generate(decoder, [[7]], 0, cache=make(kind, decoder)).cache_length == 0


def test_the_report():
    """Seconds, tokens a second, slots and bytes of the cache."""
    decoder = tiny_decoder()
    cache = make("growing", decoder, 3)
    result = generate(decoder, PROMPTS, 5, cache=cache)
    assert result.cache is cache and result.cache_length == cache.length == 13
    assert result.cache_bytes == cache.used_bytes == 3 * 3 * 2 * 13 * 10 * 2 * 8
    assert result.prefill_seconds > 0 and result.decode_seconds > 0
    naive = generate(decoder, PROMPTS, 1)
    assert (naive.cache, naive.cache_length, naive.cache_bytes, naive.tokens_per_second) == (None, 0, 0, 0.0)
    report = Generation([[1, 2, 3], [4], []], 9.0, 0.5, None)
    assert report.tokens_per_second == 2 / 0.5
    assert Generation([[1], [4]], 9.0, 0.0, None).tokens_per_second == 0.0


def test_seconds_are_of_their_part(monkeypatch):
    """Prefill ends with the first new token, decode is the rest. The clock here ticks once a forward pass."""
    decoder = tiny_decoder()
    passes = []
    decoder.register_forward_hook(lambda *_: passes.append(1))
    monkeypatch.setattr("kvlearn.generation.time", SimpleNamespace(perf_counter=lambda: float(len(passes))))
    result = generate(decoder, PROMPTS[0], 4)
    assert (result.prefill_seconds, result.decode_seconds) == (1.0, 3.0)
    assert result.tokens_per_second == 3 / 3.0
    result = generate(decoder, PROMPTS[0], 4, cache=make("growing", decoder), prefill_chunk=2)
    assert (result.prefill_seconds, result.decode_seconds) == (4.0, 3.0)  # 5 tokens in 3 pieces, then 1
    result = generate(decoder, PROMPTS[0], 0, cache=make("growing", decoder))
    assert (result.prefill_seconds, result.decode_seconds) == (1.0, 0.0)


# Drawing ---------------------------------------------------------------------------------------------


def draws(count, logits, **settings):
    generator = torch.Generator().manual_seed(11)
    tokens = pick(logits.expand(count, -1), generator=generator, **settings)
    return torch.bincount(tokens, minlength=logits.shape[-1])


def warped(logits, temperature, top_k=None, top_p=None):
    """The distribution by transformers' own warpers."""
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return scores.softmax(dim=-1)[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_k": 90},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.0, "top_p": 0.05},
        {"temperature": 1.5, "top_p": 1.0},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.7},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(settings):
    """Temperature that multiplies, top-p that drops the token that crosses the line, or a filter before the
    temperature: each draws from another distribution, by more than chance at this many draws."""
    logits = torch.tensor([[1.0, -0.5, 2.0, 0.3, -2.0, 1.9, 0.0]])
    probability = warped(logits, **settings).double()
    count = 20000
    got = draws(count, logits, **settings).double()
    assert (got[probability == 0] == 0).all()
    held = probability > 0
    chi_square = ((got - count * probability)[held] ** 2 / (count * probability)[held]).sum()
    freedom = int(held.sum()) - 1
    assert chi_square <= freedom + 5 * math.sqrt(2 * freedom) + 1e-6


def test_ties_at_the_edge_of_top_k_are_all_kept():
    """Which of two equal tokens is kept must not hang on their order: both are, as by transformers."""
    logits = torch.tensor([[0.0, 3.0, 2.0, 2.0]])
    counts = draws(400, logits, temperature=1.0, top_k=2)
    assert counts[0] == 0 and (counts[1:] > 40).all()
    assert (TopKLogitsWarper(2)(None, logits)[0] > -torch.inf).tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    "probabilities, top_p, kept",
    [
        ([0.5, 0.3, 0.1, 0.1], 0.8, [0, 1]),  # in float32 .5 + .3 is below .8
        ([0.1, 0.5, 0.1, 0.3], 0.8, [1, 3]),
        ([0.5, 0.3, 0.1, 0.1], 0.80001, [0, 1, 2]),  # of two equal ones, the lower id
        ([0.5, 0.3, 0.1, 0.1], 0.79999, [0, 1]),
        ([0.5, 0.3, 0.1, 0.1], 0.5, [0]),
        ([0.5, 0.3, 0.1, 0.1], 1e-9, [0]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [0, 1]),
        ([0.1] * 10, 0.7, list(range(7))),
        ([0.1] * 10, 0.9, list(range(9))),
        ([0.499999, 0.5, 5e-7, 5e-7], 1.0, [0, 1, 2, 3]),  # 1 keeps all, however little the last have
        ([0.5, 0.5, 0.0, 0.0], 0.9, [0, 1]),
    ],
    ids=str,
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(probabilities, top_p, kept, monkeypatch):
    """One token too many after a float32 sum that ends a hair below p (11 % of the draws took it), none at
    all for a tiny p, or a tail that p = 1 cuts off."""
    drawn_from = []

    def first(probabilities, count, generator=None):
        drawn_from.append(probabilities)
        return probabilities.argmax(dim=-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", first)
    sharp = [9.0] + [0.0] * (len(probabilities) - 1)
    logits = torch.tensor([probabilities, sharp])
    logits[0] = logits[0].log()
    pick(logits, temperature=1.0, top_p=top_p)
    assert drawn_from[0][0].nonzero().flatten().tolist() == kept
    assert drawn_from[0][1, 0] > 0  # the other row has a likeliest token of its own


NOT_NUMBERS = {"NaN": [0.0, math.nan, 2.0], "+inf": [0.0, math.inf, 2.0], "only -inf": [-math.inf] * 3}


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "top_p": 0.9}]
)
@pytest.mark.parametrize("what", NOT_NUMBERS)
def test_logits_that_are_not_numbers_are_refused(settings, what):
    """`argmax` takes NaN for the largest and returns its token; drawing ends in torch's own error."""
    logits = torch.tensor([[1.0, 2.0, 3.0], NOT_NUMBERS[what]])
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        with pytest.raises(ValueError, match=rf"The logits of row 1 contain {re.escape(what)}, so no token"):
            pick(logits.to(dtype), **settings)
    assert pick(torch.tensor([[-math.inf, 2.0, -math.inf]]), **settings).tolist() == [1]  # two are forbidden


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_stops_giving_numbers(temperature):
    """The row is the prompt's, also when another row has ended; the cache holds whole steps, and resets."""
    decoder = tiny_decoder()
    prompts = [[3, 1, 4], [1, 5], [9, 2, 6]]
    firsts = [row[0] for row in generate(decoder, prompts, 1).tokens]
    assert firsts[2] != firsts[0]
    ends = [firsts[0]] if temperature == 0 else []
    cache, told = make("growing", decoder, 3), []
    broken = decoder.lm_head.register_forward_hook(
        lambda module, given, logits: (
            logits * torch.tensor([1.0, 1.0, math.nan if told else 1.0])[:, None, None]
        )
    )
    settings = {"cache": cache, "temperature": temperature, "eos_ids": ends}
    with pytest.raises(ValueError, match="The logits of row 2 contain NaN"):
        generate(decoder, prompts, 5, on_token=lambda row, token: told.append(row), **settings)
    broken.remove()
    assert set(told) == {0, 1, 2} and len(told) == 3
    fed = [first not in ends for first in firsts]  # an ended row's last token is not fed
    assert cache.next_position.tolist() == [len(p) + f for p, f in zip(prompts, fed, strict=True)]
    cache.reset()
    assert generate(decoder, prompts, 4, cache=cache).tokens == generate(decoder, prompts, 4).tokens


def test_greedy_is_the_limit_of_drawing():
    """A very low temperature overflows where logits are not held in float32."""
    logits = torch.tensor([[1.0, 4.0, 3.9], [90.0, -3.0, 80.0]], dtype=torch.float16)
    assert pick(logits).tolist() == [1, 0]
    assert pick(logits, temperature=1e-4, generator=torch.Generator().manual_seed(0)).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [5e-324, 1e39, 1e300])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_forbidden_token_stays_forbidden_at_any_temperature(dtype, temperature):
    """Catches -inf / inf, which is NaN, once the temperature is more than float32 can hold."""
    logits = torch.tensor([[-math.inf, 3.0, 1.0]], dtype=dtype).expand(50, -1)
    drawn = set(pick(logits, temperature, generator=torch.Generator().manual_seed(0)).tolist())
    assert drawn == ({1} if temperature < 1 else {1, 2})


def test_rows_are_drawn_from_their_own_logits():
    """One filter for all rows: a row would be held to another's likeliest tokens."""
    logits = torch.tensor([[9.0, 8.0, -9.0, -9.0], [-9.0, -9.0, 8.0, 9.0]])
    for settings in ({"top_k": 2}, {"top_p": 0.9}):
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            first, second = pick(logits, 1.0, generator=generator, **settings).tolist()
            assert first in (0, 1) and second in (2, 3)


def test_a_generator_makes_draws_repeat():
    """Draws from torch's global state cannot be repeated once anything else has drawn."""
    decoder = tiny_decoder()

    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        return generate(decoder, PROMPTS, 6, temperature=2.0, generator=generator).tokens

    torch.manual_seed(1)
    first = run(5)
    torch.manual_seed(2)
    assert run(5) == first and run(6) != first
    torch.manual_seed(3)
    left_out = generate(decoder, PROMPTS, 6, temperature=2.0).tokens
    torch.manual_seed(3)
    assert generate(decoder, PROMPTS, 6, temperature=2.0).tokens == left_out


@pytest.mark.parametrize("kind", CACHES)
def test_drawn_tokens_are_the_same_with_a_cache(kind):
    """Same draws from the same logits: a cache changes the work and nothing that is said."""
    decoder = tiny_decoder()
    settings = {"temperature": 1.3, "top_k": 20, "top_p": 0.9}
    naive, cached = (
        generate(decoder, PROMPTS, 8, cache=c, generator=torch.Generator().manual_seed(4), **settings)
        for c in (None, make(kind, decoder, 3))
    )
    assert naive.tokens == cached.tokens


# What cannot be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompts, words",
    [
        ([], "at least one token"),
        ([[]], "at least one token"),
        ([[1, 2, 3], [], [4]], "at least one token"),
        (torch.zeros(3, 0, dtype=torch.long), "at least one token"),
        ("hello", "tokenizer.encode(text)"),
        (["hello", "you"], "tokenizer.encode(text)"),
        ([[1], [2, 31], [3]], "Prompt 1 has token 31; the vocabulary is 0 to 30"),
        ([[1], [2], [-1]], "Prompt 2 has token -1"),
        ([[1], [2]], "The cache has 3 rows and there are 2 prompts"),
        ([[1], [2], [3], [4]], "The cache has 3 rows and there are 4 prompts"),
        ([[1], [2, 3], [4]], "The cache has seen 2 tokens of row 0 and the prompt has 1"),
        ([[1] * 60, [2, 3], [4, 5, 6]], "65 positions would be needed (the longest prompt has 60"),
        ([[1] * 20, [2, 3], [4, 5, 6]], "The cache holds 3 of 20 slots, and this call would add 23"),
    ],
)
def test_prompts_that_are_refused(prompts, words):
    """Found before anything is fed: the cache is as it was, and goes on."""
    decoder = tiny_decoder()
    cache = make("static", decoder, 3, max_length=20)
    start = [[1, 2, 9], [3, 4, 9], [5, 6, 7, 9]]
    generate(decoder, start, 0, cache=cache)
    before = [tensor.clone() for tensor in cache._tensors()]
    with pytest.raises(ValueError) as error:
        generate(decoder, prompts, 6, cache=cache)
    assert words in str(error.value)
    assert cache.length == 3 and cache.next_position.tolist() == [2, 2, 3]
    assert all(torch.equal(now, was) for now, was in zip(cache._tensors(), before, strict=True))
    assert generate(decoder, start, 2, cache=cache).tokens == [by_hand(decoder, p, 2) for p in start]


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"max_new_tokens": -1}, "max_new_tokens is 0 or more; got -1"),
        ({"temperature": -0.5}, "temperature is 0 (greedy) or above, and finite; got -0.5"),
        ({"temperature": math.inf}, "temperature is 0 (greedy) or above, and finite; got inf"),
        ({"temperature": 1.0, "top_k": 0}, "top_k keeps at least 1 token; got 0"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p is a probability above 0, at most 1; got 0.0"),
        ({"temperature": 1.0, "top_p": 1.1}, "top_p is a probability above 0, at most 1; got 1.1"),
        ({"top_k": 5}, "give a temperature above 0"),
        ({"top_p": 0.5}, "give a temperature above 0"),
        ({"prefill_chunk": 0, "cache": True}, "prefill_chunk is at least 1"),
        ({"prefill_chunk": 4}, "needs a cache"),
    ],
)
def test_settings_that_are_refused(settings, words):
    """top_k beside temperature 0 was meant to draw, and would be ignored."""
    decoder = tiny_decoder()
    if settings.get("cache"):
        settings = settings | {"cache": make("growing", decoder)}
    with pytest.raises(ValueError) as error:
        generate(decoder, PROMPTS[0], **{"max_new_tokens": 3} | settings)
    assert words in str(error.value)


def test_the_limits_themselves_are_allowed():
    """An off-by-one in a check refuses the last token that fits: the last one said is never fed."""
    decoder = tiny_decoder(max_position=10)
    assert len(generate(decoder, PROMPTS[0], 5).tokens[0]) == 5  # positions 0 to 9
    with pytest.raises(ValueError, match="11 positions would be needed"):
        generate(decoder, PROMPTS[0], 6)
    cache = StaticCache(decoder.config, max_length=7, dtype=torch.float64)
    assert len(generate(decoder, PROMPTS[0], 2, cache=cache).tokens[0]) == 2
    assert cache.length == 7
    with pytest.raises(ValueError, match="holds 0 of 7 slots, and this call would add 8"):
        cache.reset()
        generate(decoder, PROMPTS[0], 3, cache=cache)
    assert generate(decoder, [0, 30], 1, temperature=1.0, top_k=1, top_p=1.0).tokens
    assert generate(
        decoder, [0, 30], 1, cache=GrowingCache(decoder.config, dtype=torch.float64), prefill_chunk=1
    )


def test_an_error_in_the_middle_leaves_a_cache_that_goes_on():
    """A reader who stops a stream by an exception keeps the conversation."""
    decoder = tiny_decoder()
    cache = make("static", decoder)
    seen = []

    def stop(row, token):
        seen.append(token)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(decoder, PROMPTS[0], 8, cache=cache, on_token=stop)
    text = PROMPTS[0] + seen
    assert cache.next_position.tolist() == [len(text) - 1]
    assert generate(decoder, text, 4, cache=cache).tokens == [by_hand(decoder, text, 4)]
