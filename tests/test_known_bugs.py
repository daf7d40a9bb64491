"""Faults that real projects shipped, each a test with the right value.

One test a fault. The docstring cites where it was reported and says in a sentence what went wrong there.
"""

import pytest
import torch
import torch.nn.functional as F
from tiny_decoder import CACHES, padded, random_tokens, tiny_config, tiny_decoder

import kvlearn.cache.base
from kvlearn import GrowingCache, StaticCache, apply_rope, attention, causal_mask, generate, position_mask
from kvlearn.measure.memory import StorageMeter

KINDS = pytest.mark.parametrize("kind", CACHES.values(), ids=CACHES)


def close(ours, expected, tolerance=1e-11):
    return torch.allclose(ours, expected, rtol=0, atol=tolerance)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Masks -----------------------------------------------------------------------------------------------


def test_01_queries_are_the_last_keys():
    """pytorch/pytorch#108108: `is_causal` aligns the first query with the first key, so that 2 new tokens
    behind 3 stored ones saw 1 and 2 keys in place of 4 and 5."""
    assert causal_mask(2, 5).sum(dim=1).tolist() == [4, 5]
    q, k, v = draw(1, 1, 2, 4), draw(1, 1, 5, 4, seed=1), draw(1, 1, 5, 4, seed=2)
    top_left = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert not close(attention(q, k, v, causal_mask(2, 5)), top_left, 0.01)


def test_02_one_query_sees_all_keys():
    """pytorch/pytorch#103082, pytorch/pytorch#144858: with one query, as in every decode step, `is_causal`
    lets it see the first key alone."""
    assert causal_mask(1, 8).tolist() == [[True] * 8]
    q, k, v = draw(1, 1, 1, 4), draw(1, 1, 8, 4, seed=1), draw(1, 1, 8, 4, seed=2)
    assert close(attention(q, k, v, causal_mask(1, 8)), F.scaled_dot_product_attention(q, k, v))


@KINDS
def test_03_a_cache_does_not_switch_the_mask_off(kind):
    """Mikyx-1/TinyLLM#17: the mask was left out whenever a cache was attached, so that in the prefill each
    token of the prompt saw the ones after it."""
    decoder, tokens = tiny_decoder(), random_tokens(1, 5)
    cache = kind(decoder.config, dtype=torch.float64)
    assert close(decoder(tokens, cache), decoder(tokens))


@KINDS
def test_04_a_chunk_behind_stored_tokens(kind):
    """meta-llama/llama#899: the mask was square, and had the wrong shape for a chunk that starts at 7."""
    decoder, tokens = tiny_decoder(), random_tokens(1, 16)
    cache = kind(decoder.config, dtype=torch.float64)
    parts = [decoder(tokens[:, :7], cache), decoder(tokens[:, 7:16], cache)]
    assert close(torch.cat(parts, dim=1), decoder(tokens))


@KINDS
def test_05_the_mask_of_a_step_is_as_wide_as_the_cache(kind):
    """rasbt/LLMs-from-scratch#697: with cached keys a decode step built a mask of 1 x 1."""
    decoder, tokens = tiny_decoder(), random_tokens(1, 6)
    seen = []

    def watched(q, k, v, mask):
        seen.append(tuple(mask.shape))
        return attention(q, k, v, mask=mask)

    decoder.attention = watched
    cache = kind(decoder.config, dtype=torch.float64)
    decoder(tokens[:, :5], cache)
    decoder(tokens[:, 5:], cache)
    assert seen == [(1, 1, 5, 5)] * 3 + [(1, 1, 1, 6)] * 3


def test_06_a_query_that_sees_nothing_is_no_nan():
    """pytorch/pytorch#103749, pytorch/pytorch#131060: a softmax over nothing but -inf is NaN, and one padded
    row made a whole batch NaN."""
    q, k, v = draw(2, 4, 3, 6), draw(2, 2, 5, 6, seed=1), draw(2, 2, 5, 6, seed=2)
    mask = position_mask(torch.tensor([[-1, 3, 4], [-1, -1, 4]]), torch.arange(5).expand(2, 5))
    out = attention(q, k, v, mask)
    assert (out[0, :, 0] == 0).all() and (out[1, :, :2] == 0).all() and out.isfinite().all()


# Positions -------------------------------------------------------------------------------------------


@KINDS
def test_07_padding_has_no_position(kind):
    """unslothai/unsloth#3699: with padding on the left the slot was taken for the position, so that a short
    row's first token stood at position 2."""
    decoder = tiny_decoder()
    rows = [[5, 9], [3, 8, 1, 22]]
    tokens, positions = padded(rows)
    logits = decoder(tokens, kind(decoder.config, 2, dtype=torch.float64), positions)
    for row, tokens in enumerate(rows):
        assert close(logits[row, 4 - len(tokens) :], decoder(torch.tensor([tokens]))[0])


@KINDS
def test_08_padded_rows_go_on_at_their_own_positions(kind):
    """huggingface/transformers#22382: generation made no positions for padding on the left; the prefill and
    each step after it stood too far to the right."""
    decoder = tiny_decoder()
    rows = [[5, 9], [3, 8, 1, 22]]
    cache = kind(decoder.config, 2, dtype=torch.float64)
    together = generate(decoder, rows, 6, cache=cache).tokens
    assert together == [generate(decoder, row, 6).tokens[0] for row in rows]
    assert cache.next_position.tolist() == [2 + 5, 4 + 5]


@KINDS
def test_09_a_cached_key_is_turned_once(kind):
    """NeuraLegion/shainet#110: RoPE was applied to all of the cache in each step, so that old keys turned on
    and on."""
    decoder, tokens = tiny_decoder(), random_tokens(1, 7)
    cache = kind(decoder.config, dtype=torch.float64)
    decoder(tokens[:, :4], cache)
    first = [tensor.clone() for tensor in cache._tensors()]
    for step in range(4, 7):
        decoder(tokens[:, step : step + 1], cache)
        for now, then in zip(cache._tensors(), first, strict=True):
            assert torch.equal(now[..., :4, :], then)


@KINDS
def test_10_a_step_turns_by_its_own_position(kind):
    """pytorch/executorch#2010, RobertCsordas/moeut#6: the table of angles was read from its start in each
    step, so that a token at position 5 was turned by the angle of position 0."""
    decoder, tokens = tiny_decoder(), random_tokens(1, 6)
    seen = []

    def watched(x, positions, theta):
        seen.append(positions.tolist())
        return apply_rope(x, positions, theta)

    decoder.rope = watched
    cache = kind(decoder.config, dtype=torch.float64)
    decoder(tokens[:, :5], cache)
    seen.clear()
    decoder(tokens[:, 5:], cache)
    assert seen == [[[5]]] * 6  # queries and keys of three layers


# Batches and their ends -------------------------------------------------------------------------------


def rows_that_end(decoder):
    """Prompts, an EOS that row 0 meets at its first token and row 1 at a later one, and what they say."""
    prompts = [[5, 9], [3, 8, 1, 22]]
    free = [generate(decoder, prompt, 9).tokens[0] for prompt in prompts]
    eos_ids = {free[0][0], free[1][3]}
    expected = []
    for tokens in free:
        end = next(step for step, token in enumerate(tokens) if token in eos_ids)
        expected.append(tokens[: end + 1])
    return prompts, eos_ids, expected


@KINDS
def test_11_a_finished_row_is_silent(kind):
    """mistralai/mistral-inference#270: rows that had met their EOS went on sampling until the last row was
    done, and their tokens were returned."""
    decoder = tiny_decoder()
    prompts, eos_ids, expected = rows_that_end(decoder)
    assert len(expected[0]) < len(expected[1])
    cache = kind(decoder.config, 2, dtype=torch.float64)
    assert generate(decoder, prompts, 9, cache=cache, eos_ids=eos_ids).tokens == expected
    # What is fed for a finished row is padding: it takes a slot and no position.
    assert cache.next_position.tolist() == [
        len(p) + len(e) - 1 for p, e in zip(prompts, expected, strict=True)
    ]
    assert (cache.positions[0, -1], cache.positions[1, -1]) == (-1, cache.next_position[1] - 1)


def test_12_the_end_of_each_row_is_its_own():
    """Lightning-AI/lit-llama#153: `if token == eos` on a batch is an error, and with `.all()` or `.any()` no
    row ends before the others or all end with the first."""
    decoder = tiny_decoder()
    prompts, eos_ids, expected = rows_that_end(decoder)
    assert generate(decoder, prompts, 9, eos_ids=eos_ids).tokens == expected


@KINDS
def test_13_a_batch_of_one_keeps_its_axis(kind):
    """ludwig-ai/ludwig#1726: a bare `squeeze()` took the batch away when it was 1, as it is with one prompt
    and one new token."""
    decoder = tiny_decoder()
    cache = kind(decoder.config, dtype=torch.float64)
    assert decoder(torch.tensor([[3]]), cache).shape == (1, 1, 31)
    assert decoder(torch.tensor([[4]]), cache, last_only=True).shape == (1, 1, 31)
    assert [len(row) for row in generate(decoder, [3], 1).tokens] == [1]
    assert attention(draw(1, 1, 1, 4), draw(1, 1, 1, 4), draw(1, 1, 1, 4)).shape == (1, 1, 1, 4)


# Limits and going back ---------------------------------------------------------------------------------


def test_15_past_the_end_is_an_error():
    """karpathy/llama2.c#348, karpathy/nanochat#627: nobody looked at the capacity, and a position past it
    wrote over other memory or read what was not there."""
    decoder, tokens = tiny_decoder(), random_tokens(1, 5)
    cache = StaticCache(decoder.config, max_length=4, dtype=torch.float64)
    decoder(tokens[:, :4], cache)
    before = [tensor.clone() for tensor in cache._tensors()]
    with pytest.raises(ValueError, match="room for 4 slots and holds 4; 1 more do not fit"):
        decoder(tokens[:, 4:], cache)
    assert cache.length == 4 and cache.next_position.tolist() == [4]
    assert all(torch.equal(now, then) for now, then in zip(cache._tensors(), before, strict=True))


@KINDS
def test_18_a_crop_is_what_it_says(kind):
    """huggingface/transformers#47433: a crop to 0 left all tokens in place, and one past the end left some
    number of them. Here 0 is empty, and more than there is is refused."""
    cache = kind(tiny_config())
    for layer in range(3):
        cache.update(layer, torch.ones(1, 2, 3, 10), torch.ones(1, 2, 3, 10))
    with pytest.raises(ValueError, match="keeps 0 to 3 slots"):
        cache.truncate(5)
    with pytest.raises(ValueError, match="keeps 0 to 3 slots"):
        cache.truncate(3 - 5)
    assert cache.length == 3
    cache.truncate(0)
    assert cache.length == 0 and cache.used_bytes == 0


@KINDS
def test_19_a_reset_cache_is_a_new_one(kind):
    """EricLBuehler/candle-vllm#6, Lightning-AI/litgpt#1647: what one request had left was there for the next,
    as a shape error or as another prompt's tokens."""
    decoder, first, second = tiny_decoder(), random_tokens(1, 9, seed=1), random_tokens(1, 6, seed=2)
    cache, fresh = (kind(decoder.config, dtype=torch.float64) for _ in range(2))
    decoder(first, cache)
    cache.reset()
    assert torch.equal(decoder(second, cache), decoder(second, fresh))
    assert cache.length == fresh.length and cache.used_bytes == fresh.used_bytes


# Memory, dtype and device ------------------------------------------------------------------------------


def test_20_concatenation_holds_two_copies():
    """huggingface/transformers#30536: torch.cat keeps the old tensor alive beside the new one, so that a
    layer needs its memory twice in every step. A preallocated cache does not."""
    config = tiny_config(num_layers=1)
    slot = 2 * 10 * 4  # bytes of one key, or one value
    peaks = {}
    for name, cache in (("growing", GrowingCache(config)), ("static", StaticCache(config))):
        cache.update(0, torch.ones(1, 2, 40, 10), torch.ones(1, 2, 40, 10))
        new = torch.ones(2, 1, 2, 1, 10)
        with StorageMeter(torch.float32) as meter:
            cache.update(0, *new)
        peaks[name] = meter.peak
    # The meter starts when the 40 old keys and values are there, and counts what comes beside them.
    assert peaks["growing"] == 2 * 41 * slot
    assert peaks["static"] == 0


@KINDS
def test_22_only_key_value_heads_are_stored(kind):
    """meta-pytorch/torchtune#38: the cache was allocated with the query heads, which is 4 times too much for
    8 of them on 2."""
    config = tiny_config(num_heads=8, num_kv_heads=2)
    cache = kind(config)
    for layer in range(3):
        cache.update(layer, torch.ones(1, 2, 5, 10), torch.ones(1, 2, 5, 10))
    assert cache.key_shape == cache.value_shape == (2, 10)
    assert {tensor.shape[-3] for tensor in cache._tensors()} == {2}
    assert cache.used_bytes == 3 * 2 * 5 * 10 * 2 * 4
    with pytest.raises(
        ValueError, match=r"should be \(batch, kv heads, length, head_dim\) = \(1, 2, L, 10\)"
    ):
        cache.update(0, torch.ones(1, 8, 1, 10), torch.ones(1, 8, 1, 10))


@KINDS
def test_23_the_cache_has_the_models_dtype(kind):
    """Lightning-AI/litgpt#57, meta-pytorch/torchtune#1349, huggingface/transformers#34799: a float32 cache
    behind a bfloat16 model, which doubles the memory or fails in the matrix product."""
    decoder, tokens = tiny_decoder(torch.bfloat16), random_tokens(1, 5)
    cache = kind(decoder.config, dtype=decoder.dtype)
    decoder(tokens, cache)
    assert {tensor.dtype for tensor in cache._tensors()} == {torch.bfloat16}
    assert cache.used_bytes == 3 * 2 * 5 * 10 * 2 * 2
    with pytest.raises(ValueError, match="k is torch.bfloat16 on cpu and the cache holds torch.float32"):
        decoder(tokens, kind(decoder.config))


@KINDS
def test_24_every_tensor_is_made_where_the_others_are(kind):
    """pytorch/executorch#19174: an index tensor was made on the default device, and the model was on another.
    Here the default is a device that holds no data, so that any tensor left to it would be an error."""
    decoder = tiny_decoder()
    rows = [[5, 9], [3, 8, 1, 22]]
    expected = generate(decoder, rows, 5).tokens
    with torch.device("meta"):
        cache = kind(decoder.config, 2, dtype=torch.float64)
        assert cache.device.type == "cpu"
        result = generate(decoder, rows, 4, cache=cache, prefill_chunk=2)
        cache.truncate([cache.length - 1, cache.length])
        cache.reorder([1, 0])
        rows = [rows[1] + result.tokens[1], rows[0] + result.tokens[0]]
        result = generate(decoder, rows, 1, cache=cache, temperature=0.5, top_k=1, top_p=0.9)
        cache.reset()
        tokens = torch.tensor([[5, 9], [3, 8]], device="cpu")
        assert close(decoder(tokens, cache), decoder(tokens))
    assert [row[-1] for row in expected] == [result.tokens[1][0], result.tokens[0][0]]
    assert cache.next_position.device.type == cache.key_positions(0).device.type == "cpu"


def test_43_lengths_are_python_numbers_and_said_to_be():
    """meta-pytorch/torchtune#1663, huggingface/transformers#37908: a length that is a Python number is a
    guard under torch.compile, which compiles again at every step. Here it is one: eager only, and said."""
    cache = GrowingCache(tiny_config())
    cache.update(0, torch.ones(1, 2, 3, 10), torch.ones(1, 2, 3, 10))
    assert type(cache.length) is int and type(cache.used_bytes) is int
    assert "Eager only" in kvlearn.cache.base.__doc__


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5), (torch.bfloat16, 0.05)]
)
def test_44_cached_and_uncached_logits(kind, dtype, tolerance):
    """huggingface/transformers#25420, huggingface/transformers#36536, kekzl/imp#1314: in bfloat16 the two
    differ, because sums of another shape round otherwise, and a near tie can flip a token. So logits are
    compared with a tolerance of the dtype, and no equal tokens are demanded where two are that near."""
    decoder, tokens = tiny_decoder(dtype), random_tokens(2, 14)
    cache = kind(decoder.config, 2, dtype=dtype)
    cached = torch.cat([decoder(tokens[:, step : step + 1], cache) for step in range(14)], dim=1).double()
    whole = decoder(tokens).double()
    bound = tolerance * whole.abs().max()
    assert (cached - whole).abs().max() <= bound
    best = whole.topk(2, dim=-1).values
    clear = best[..., 0] - best[..., 1] > 2 * bound
    assert clear.any() and torch.equal(cached.argmax(-1)[clear], whole.argmax(-1)[clear])
