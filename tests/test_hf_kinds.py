"""Caches with a window, and lossy ones, inside transformers' `generate`.

Such a cache changes the text, so the measure is not DynamicCache's: it is a model of transformers that has
the window itself, and kvlearn.generate with the same weights and the same kind of cache.
"""

import pytest
import torch
import transformers
from hf_caches import CONFIG, MODEL, ids, left_padded, new_tokens, run, same, twins
from tiny_models import SIZES

import kvlearn
from kvlearn.cache import QuantizedCache, SlidingWindowCache
from kvlearn.hf import cache_config, prepare, to_hf
from kvlearn.quantization import QuantSpec

pytestmark = pytest.mark.slow  # generates with transformers many times over

KEYS, VALUES = (
    QuantSpec("int4", axis="channel", quant_group=4),
    QuantSpec("int4", axis="token", quant_group=5),
)


def windowed(window, batch=1, config=CONFIG):
    return SlidingWindowCache(config, window, batch, dtype=torch.float64)


def lossy(batch=1):
    return QuantizedCache(CONFIG, KEYS, VALUES, residual=3, batch_size=batch, dtype=torch.float64)


def mistral(window):
    torch.manual_seed(4)
    config = transformers.MistralConfig(**SIZES, sliding_window=window, eos_token_id=2, bos_token_id=1)
    return shaken(transformers.MistralForCausalLM(config))


def hybrid(window):
    """Layer 0 sees everything, layers 1 and 2 a window."""
    torch.manual_seed(5)
    fields = {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 1}
    return shaken(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, **fields)))


def shaken(model):
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.copy_(torch.randn_like(weights) * 0.3 + (1.0 if "norm" in name else 0.0))
    return model.double().eval()


# --- Windows ---


@pytest.mark.parametrize("length", [5, 6, 7, 8, 19])
@pytest.mark.parametrize("make", [mistral, hybrid])
def test_the_models_own_windows(make, length):
    """A window one too wide or too narrow, and slots of the ring under another token's mask: prompts of
    window - 1 to far more, and a second turn behind a window that is full."""
    model = make(7)
    config = cache_config(model)
    cache = windowed(None, 2, config)
    prompt = ids(2, length)
    first = run(prompt, to_hf(cache, model), model=model)
    same(first, run(prompt, None, model=model))
    text = torch.cat((first.sequences, ids(2, 5, seed=3)), dim=1)
    same(run(text, prepare(to_hf(cache, model), text), model=model), run(text, None, model=model))
    same(run(prompt, to_hf(windowed(None, 2, config), model), model=model, prefill_chunk_size=4), first)
    whole = kvlearn.GrowingCache(config, 2, dtype=torch.float64)  # the model's mask alone does it too
    same(run(prompt, to_hf(whole), model=model), first)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("make", [mistral, hybrid])
def test_a_window_and_padding(make, told):
    """Padding that takes a place in the window, or moves a row's slots against the mask."""
    model = make(6)
    config = cache_config(model)
    tokens, mask = left_padded(3, 14, 9)
    hf = to_hf(windowed(None, 3, config), model)
    hf = prepare(hf, tokens, mask) if told else hf
    ours = run(tokens, hf, model=model, attention_mask=mask)
    same(ours, run(tokens, None, model=model, attention_mask=mask))
    beams = {"model": model, "attention_mask": mask, "num_beams": 2}
    hf = to_hf(windowed(None, 6, config), model)
    hf = prepare(hf, tokens, mask) if told else hf
    assert new_tokens(tokens, hf, **beams) == new_tokens(tokens, None, **beams)


def test_a_window_that_the_model_does_not_have():
    """transformers' mask knows nothing of it: a prompt fed at once would see all of itself. Refused with the
    cache as it was; token by token it is the text of kvlearn's own decoder."""
    theirs, decoder = twins()
    prompt, cache = ids(1, 12), windowed(5)
    expected = kvlearn.generate(decoder, prompt.tolist(), 9, cache=windowed(5)).tokens
    assert expected != kvlearn.generate(decoder, prompt.tolist(), 9).tokens
    for hf in (to_hf(cache), to_hf(cache, theirs), to_hf(cache, theirs)):
        with pytest.raises(ValueError, match="12 tokens behind 0 .* window of 5.*prefill_chunk_size=1"):
            run(prompt, hf, model=theirs)
    assert cache.length == 0
    assert new_tokens(prompt, to_hf(cache), model=theirs, prefill_chunk_size=1) == expected
    with pytest.raises(ValueError, match="3 tokens behind 20 .* window of 5"):
        run(ids(1, 23), to_hf(cache), model=theirs)
    short = ids(1, 5, seed=2)  # no longer than the window: nothing to refuse
    cache.reset()
    expected = kvlearn.generate(decoder, short.tolist(), 9, cache=windowed(5)).tokens
    assert new_tokens(short, to_hf(cache), model=theirs) == expected


def test_windows_that_differ_from_the_models():
    """Layers with and without a window share transformers' two masks, so they must be the same layers."""
    model = hybrid(7)
    cache = windowed(None, 1, cache_config(model))
    assert cache.windows == (None, 7, 7)
    for other in (None, MODEL):
        with pytest.raises(ValueError, match=r"\(None, 7, 7\) and the model's \(None, None, None\)"):
            to_hf(cache, other)
    narrower = windowed(4, 1, cache_config(mistral(9)))
    with pytest.raises(ValueError, match="6 tokens behind 0 .* window of 4"):
        run(ids(1, 6), to_hf(narrower, mistral(9)), model=mistral(9))
    wider = windowed(11, 1, cache_config(MODEL))
    prompt, model = ids(1, 17), mistral(6)
    same(run(prompt, to_hf(wider, model), model=model), run(prompt, None, model=model))


def test_prepare_steps_back_in_a_full_window():
    """The W-th token back is what a step back by one needs again."""
    model = mistral(6)
    prompt, hf = ids(2, 15), to_hf(windowed(6, 2), model)
    expected = run(prompt, None, model=model)
    run(prompt, hf, model=model, new=1)
    same(run(prompt, prepare(hf, prompt), model=model), expected)
    with pytest.raises(ValueError, match="cannot be rolled back so far"):
        prepare(hf, prompt)
    assert hf.get_seq_length() == 15 + 8


# --- Lossy caches ---


def test_lossy_text_is_that_of_kvlearns_own_generate():
    """A scheme that is applied twice, or to other tokens, because transformers feeds them otherwise."""
    theirs, decoder = twins()
    prompts = ids(2, 13)
    expected = kvlearn.generate(decoder, prompts.tolist(), 12, cache=lossy(2)).tokens
    assert expected != kvlearn.generate(decoder, prompts.tolist(), 12).tokens
    cache = lossy(2)
    first = run(prompts, to_hf(cache, theirs), model=theirs, new=12)
    assert first.sequences[:, 13:].tolist() == expected
    text = torch.cat((first.sequences, ids(2, 4, seed=1)), dim=1)
    again = lossy(2)
    kvlearn.generate(decoder, prompts.tolist(), 12, cache=again)
    expected = kvlearn.generate(decoder, text.tolist(), 9, cache=again).tokens
    assert new_tokens(text, prepare(cache, text), model=theirs) == expected
    assert cache.used_bytes == again.used_bytes


def test_padding_stays_out_of_the_scales_when_it_is_told():
    """The numbers of padding in the scales of a row's first tokens: the filler would change the text."""
    theirs, decoder = twins()
    tokens, mask = left_padded(6, 17, 11)
    prompts = [row[kept.bool()].tolist() for row, kept in zip(tokens, mask, strict=True)]
    expected = kvlearn.generate(decoder, prompts, 9, cache=lossy(3)).tokens
    logits = {}
    for told in (True, False):
        for filler in (0, 9):
            tokens = tokens.masked_fill(mask == 0, filler)
            hf = prepare(lossy(3), tokens, mask) if told else to_hf(lossy(3))
            out = run(tokens, hf, model=theirs, attention_mask=mask)
            logits[told, filler] = torch.stack(out.logits)
            assert not told or out.sequences[:, 17:].tolist() == expected
    assert (logits[True, 0] - logits[True, 9]).abs().max() < 1e-9
    assert (logits[False, 0][0] - logits[False, 9][0]).abs().max() < 1e-9  # the prompt itself is exact
    assert (logits[False, 0][1] - logits[False, 9][1])[0].abs().max() > 1e-3


def test_padding_goes_with_its_row():
    """Rows that are chosen between `prepare` and the first pass, and the padding of another left to them;
    padding of a text that was reset before it came."""
    theirs, _ = twins()
    tokens, mask = left_padded(6, 17, 11)
    order = torch.tensor([2, 0, 1, 1])
    hf = prepare(lossy(3), tokens, mask)
    hf.batch_select_indices(order)
    tokens, mask = tokens[order], mask[order]
    expected = run(tokens, prepare(lossy(4), tokens, mask), model=theirs, attention_mask=mask)
    same(run(tokens, hf, model=theirs, attention_mask=mask), expected)
    hf.reset()
    hf = prepare(hf, tokens[:3], mask[:3])
    hf.reset()
    run(ids(3, 17), hf, model=theirs)
    assert hf.cache.next_position.tolist() == [25, 25, 25]


@pytest.mark.parametrize("make", [lossy, lambda: windowed(50)])
def test_prompt_lookup_is_refused(make):
    """Drafts that leave a trace: text that depends on what was guessed."""
    cache = make()
    with pytest.raises(ValueError, match=f"{type(cache).__name__} keeps a trace .* use an exact cache"):
        run(ids(1, 8), to_hf(cache), prompt_lookup_num_tokens=3)
    assert cache.length == 0
