"""kvlearn's caches inside transformers' `generate`, beside transformers' own DynamicCache.

These tests, and those of the two files beside this one, on another release of transformers (before 5.24
the argument was called past_key_values):

    python3 dev.py python -m pip install --no-deps --target build/transformers-5.19 "transformers==5.19.*"
    PYTHONPATH=build/transformers-5.19 python3 dev.py python -m pytest tests/test_hf*.py
"""

import copy

import pytest
import torch
import transformers
from hf_caches import EXACT, MODEL, NAME, ids, left_padded, made, new_tokens, run, same, twins

import kvlearn
from kvlearn import GrowingCache
from kvlearn.hf import cache_config, prepare, to_hf
from kvlearn.model_store import fetch

pytestmark = pytest.mark.slow  # generates with transformers many times over

# --- Text equals DynamicCache's ---


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", EXACT)
def test_greedy(kind, attention):
    """A mask of another length than what comes back: transformers says nothing, and the logits are wrong."""
    prompt, cache = ids(2, 11), made(kind, 2)
    MODEL.set_attn_implementation(attention)
    try:
        same(run(prompt, to_hf(cache)), run(prompt, None))
    finally:
        MODEL.set_attn_implementation("sdpa")
    assert cache.length == 11 + 9 - 1


@pytest.mark.parametrize("kind", EXACT)
def test_sampling(kind):
    """Logits that differ by more than rounding: the same draws would give other tokens."""
    prompt = ids(3, 7)
    drawn = []
    for cache in (to_hf(made(kind, 3)), None):
        torch.manual_seed(8)
        drawn.append(run(prompt, cache, do_sample=True, temperature=1.3, top_k=40))
    same(*drawn)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("kind", EXACT)
def test_a_batch_padded_on_the_left(kind, told):
    """huggingface/transformers#22382: padding that is attended to, or that moves a row's positions. Also
    with the padding known to the cache, whose slots then hold position -1."""
    tokens, mask = left_padded(5, 12, 9)
    cache = made(kind, 3)
    ours = run(tokens, prepare(cache, tokens, mask) if told else to_hf(cache), attention_mask=mask)
    same(ours, run(tokens, None, attention_mask=mask))
    for row, length in enumerate((5, 12, 9)):
        alone = run(ids(length, seed=row)[None], None)
        assert ours.sequences[row, 12:].tolist() == alone.sequences[0, length:].tolist()
    assert cache.next_position.tolist() == ([13, 20, 17] if told else [20, 20, 20])


@pytest.mark.parametrize("kind", EXACT)
def test_several_turns(kind):
    """A second turn that feeds again what is stored, or a step that leaves a token out."""
    cache, theirs = made(kind, 2), transformers.DynamicCache(config=MODEL.config)
    text = ids(2, 6)
    for turn, fed in enumerate((4, 1, 7)):
        fresh = run(text, None)
        ours = run(text, prepare(cache, text))
        same(ours, run(text, theirs))
        same(ours, fresh)
        assert cache.length == theirs.get_seq_length() == text.shape[1] + 8
        text = torch.cat((ours.sequences, ids(2, fed, seed=turn + 5)), dim=1)


@pytest.mark.parametrize("kind", EXACT)
def test_turns_of_a_padded_batch(kind):
    """Padding that is forgotten between the turns, or taken for the padding of the next one."""
    tokens, mask = left_padded(3, 8)
    cache, theirs = made(kind, 2), transformers.DynamicCache(config=MODEL.config)
    for turn in range(3):
        ours = run(tokens, prepare(cache, tokens, mask), attention_mask=mask)
        same(ours, run(tokens, theirs, attention_mask=mask))
        # Turns of unequal lengths: padding in the middle of a row.
        more, extra = left_padded(2 + turn, 4)
        tokens = torch.cat((ours.sequences, more), dim=1)
        mask = torch.cat((mask, torch.ones(2, 9).long(), extra), dim=1)


@pytest.mark.parametrize("kind", EXACT)
def test_beams(kind):
    """Rows that are not moved with their beams, or moved in one layer alone."""
    tokens, mask = left_padded(6, 10)
    options = {"num_beams": 3, "num_return_sequences": 2, "attention_mask": mask}
    expected = run(tokens, None, **options)
    same(run(tokens, to_hf(made(kind, 6)), **options), expected)
    cache = made(kind, 6)
    same(run(tokens, prepare(cache, tokens, mask), **options), expected)
    assert cache.next_position.tolist() == [6 + 8] * 3 + [10 + 8] * 3  # each beam with its prompt's padding


@pytest.mark.parametrize("kind", EXACT)
def test_prompt_lookup(kind):
    """Drafts that were refused and stay in the cache (huggingface/transformers#47720 is what crop means)."""
    prompt = ids(1, 5).repeat(1, 4)
    cache = made(kind)
    dropped = []
    truncate = cache.truncate
    cache.truncate = lambda length: (dropped.append(cache.length - length), truncate(length))
    ours = new_tokens(prompt, to_hf(cache), prompt_lookup_num_tokens=3, new=14)
    assert ours == new_tokens(prompt, None, new=14)
    assert sum(dropped) > 0 and cache.length == 20 + 14 - 1


@pytest.mark.parametrize("kind", EXACT)
def test_a_prefill_in_chunks(kind):
    """A mask that does not count the chunks before."""
    prompt, cache = ids(2, 13), made(kind, 2)
    same(run(prompt, to_hf(cache), prefill_chunk_size=5), run(prompt, None))
    assert cache.length == 13 + 8


def test_a_copy_serves_each_of_several_texts():
    """Copies that share storages, or that keep the first cache: the usual way to a shared prefix."""
    prefix = to_hf(made("static"))
    MODEL(ids(1, 8), **{NAME: prefix})
    for seed in (3, 4):
        text = torch.cat((ids(1, 8), ids(1, 5, seed=seed)), dim=1)
        same(run(text, copy.deepcopy(prefix)), run(text, None))
    assert prefix.get_seq_length() == 8


def test_a_cache_goes_from_generate_to_generate():
    """What kvlearn.generate left, padding and all, is a prefix for transformers, and the other way round:
    a token counted twice, or padding that transformers looks at."""
    theirs, decoder = twins()
    prompts = [ids(4).tolist(), ids(9, seed=1).tolist()]
    cache = made("growing", 2)
    first = kvlearn.generate(decoder, prompts, 6, cache=cache).tokens
    tokens = torch.tensor([[0] * 5 + prompts[0] + first[0], prompts[1] + first[1]])
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    with pytest.raises(ValueError, match="slots that hold no token"):
        run(tokens, to_hf(cache), attention_mask=mask)
    with pytest.raises(ValueError, match="slots that hold no token"):
        prepare(cache, tokens)
    second = new_tokens(tokens, prepare(cache, tokens, mask), model=theirs, attention_mask=mask)
    texts = [prompt + new for prompt, new in zip(prompts, first, strict=True)]
    assert second == kvlearn.generate(decoder, texts, 9).tokens
    texts = [text + new for text, new in zip(texts, second, strict=True)]
    assert (
        kvlearn.generate(decoder, texts, 3, cache=cache).tokens == kvlearn.generate(decoder, texts, 3).tokens
    )


# --- Where transformers' own behaviour is another ---


@pytest.mark.parametrize("kind", EXACT)
def test_a_prompt_that_the_cache_covers_whole(kind):
    """All of the prompt is stored, and nothing is left to feed: transformers 5.24 feeds everything again."""
    prompt = ids(2, 7)
    expected = run(prompt, None)
    cache = made(kind, 2)
    run(prompt, to_hf(cache))
    for _ in range(2):
        same(run(prompt, prepare(cache, prompt)), expected)
        assert cache.length == 7 + 8


@pytest.mark.parametrize("own", [False, True])
def test_what_happens_without_prepare(own):
    """The fault that `prepare` is for, in transformers' own cache and in ours: the prompt is fed twice, and
    the text is another. A release that mends it passes too, by giving the right text."""
    prompt = ids(1, 7)
    expected = new_tokens(prompt, None)
    cache = transformers.DynamicCache(config=MODEL.config) if own else to_hf(made("growing"))
    MODEL(prompt, **{NAME: cache})
    got = new_tokens(prompt, cache)
    fed_twice = cache.get_seq_length() == 7 + 7 + 8
    assert (got == expected) != fed_twice


@pytest.mark.parametrize("kind", EXACT)
def test_crop(kind):
    """Upstream's StaticCache.crop(-5) on 3 tokens leaves a length of -2, its DynamicCache says nothing, and
    crop(5) meant another thing before 5.20. Refused, and the cache is as it was."""
    prompt = ids(1, 3)
    hf = to_hf(made(kind))
    MODEL(prompt, **{NAME: hf})
    before = hf.cache.used_bytes
    for wrong in (-5, -4, 1, 2, True, 0.5, None):
        with pytest.raises(ValueError, match="crop takes minus the number of slots to drop, .* holds 3; got"):
            hf.crop(wrong)
    assert (hf.get_seq_length(), hf.cache.used_bytes) == (3, before)
    hf.crop(0)
    hf.crop(torch.tensor(-2))
    assert hf.get_seq_length() == 1
    same(run(prompt, hf), run(prompt, None))
    hf.crop(-hf.get_seq_length())
    assert hf.get_seq_length() == 0


@pytest.mark.parametrize("kind", EXACT)
def test_reset_between_prompts(kind):
    """Upstream's reset zeroes tensors and keeps the counters of others: the second text would stand behind
    the first. And rows that a beam search has made are gone."""
    hf = to_hf(made(kind, 2))
    for seed, length in ((1, 9), (2, 4)):
        prompt = ids(2, length, seed=seed)
        same(run(prompt, hf), run(prompt, None))
        hf.batch_repeat_interleave(2)
        hf.batch_select_indices(torch.tensor([3, 0, 1]))
        assert hf.batch_size == 3
        hf.reset()
        assert (hf.get_seq_length(), hf.batch_size) == (0, 2)


def test_rows_are_repeated_and_chosen():
    """Rows of one prompt that end up behind another's."""
    prompt = ids(2, 5)
    hf = to_hf(made("static", 2))
    MODEL(prompt, **{NAME: hf})
    hf.batch_repeat_interleave(2)  # 0 0 1 1
    hf.batch_select_indices(torch.tensor([3, 1, 2]))  # 1 0 1
    more = torch.cat((prompt[[1, 0, 1]], ids(3, 2, seed=4)), dim=1)
    same(run(more, hf), run(more, None))


@pytest.mark.parametrize("kind", EXACT)
def test_a_pass_that_was_broken_off(kind):
    """Half a step that stays in the first layers: the next text would stand behind it, in those alone."""
    prompt, hf = ids(1, 6), to_hf(made(kind))
    layer = MODEL.model.layers[1]

    def stop(*_):
        raise KeyboardInterrupt

    handle = layer.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        run(prompt, hf)
    handle.remove()
    with pytest.raises(ValueError, match="waits for layer 1 of 3 and the model writes layer 0.*broken off"):
        run(prompt, hf)
    same(run(prompt, prepare(hf, prompt)), run(prompt, None))


# --- The real model ---


@pytest.mark.slow
def test_the_real_model():
    """Real weights, in float32: logits of a magnitude that random ones do not have, 30 layers, and text that
    repeats itself. A padded batch, a second turn, beams."""
    model = transformers.AutoModelForCausalLM.from_pretrained(fetch(), dtype=torch.float32).eval()
    tokenizer = kvlearn.load("smollm2-135m")[1]
    rows = [
        tokenizer.encode(text) for text in ("The capital of France is", "One, two, three, four, five, six,")
    ]
    length = max(map(len, rows))
    tokens = torch.tensor([[0] * (length - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    config = cache_config(model)
    options = {"model": model, "attention_mask": mask, "new": 8}
    expected = new_tokens(tokens, None, **options)
    assert "Paris" in tokenizer.decode(expected[0])
    for kind in ("growing", "four methods"):
        cache = EXACT[kind](config, batch_size=2)
        assert new_tokens(tokens, to_hf(cache, model), **options) == expected
        assert new_tokens(tokens, prepare(cache, tokens), **options) == expected
    lookup = {"model": model, "prompt_lookup_num_tokens": 4, "new": 12}
    text = tokens[1:, -len(rows[1]) :]
    assert new_tokens(text, to_hf(GrowingCache(config)), **lookup) == new_tokens(text, None, **lookup)
    beams = options | {"num_beams": 2, "new": 6}
    assert new_tokens(tokens, to_hf(GrowingCache(config, 4)), **beams) == new_tokens(tokens, None, **beams)
