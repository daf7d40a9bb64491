"""The formulas, against slow sums, and against numbers worked out by hand."""

import pytest
import torch
from small import CONFIG, PROMPT, small_decoder

from kvlearn.cache import GrowingCache, StaticCache
from kvlearn.generation import generate
from kvlearn.measure import (
    cached_pairs,
    cached_projections,
    decode_bytes,
    kv_bytes,
    naive_pairs,
    naive_projections,
    weight_bytes,
)


def test_the_claim_of_70_million_projections():
    """The claim "about 70 million extra projections at T=8000, N=500" is (T+N)^2, and counts nothing."""
    assert naive_projections(8000, 500) == 4_124_750
    assert cached_projections(8000, 500) == 8_499
    assert naive_pairs(8000, 500) == 17_020_833_250
    assert cached_pairs(8000, 500) == 36_120_750


@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (1, 6), (7, 1), (7, 4), (13, 9)])
def test_formulas_equal_slow_sums(prompt, new):
    """Would catch N steps counted as N + 1, and the last new token counted as fed."""
    lengths = range(prompt, prompt + new)  # what each pass of the naive decoder sees
    assert naive_projections(prompt, new) == sum(lengths)
    assert naive_pairs(prompt, new) == sum(1 for n in lengths for q in range(n) for k in range(q + 1))
    fed = range(prompt + new - 1)
    assert cached_projections(prompt, new) == len(fed)
    assert cached_pairs(prompt, new) == sum(1 for q in fed for k in range(q + 1))


def test_no_new_tokens_need_no_work():
    """Would catch -1 projections, or a prompt counted although nothing is asked for."""
    assert [f(9, 0) for f in (naive_projections, cached_projections, naive_pairs, cached_pairs)] == [0] * 4


@pytest.mark.parametrize("make", [GrowingCache, lambda config: StaticCache(config, max_length=40)])
def test_kv_bytes_equal_the_bytes_of_a_real_cache(make):
    """Would catch query heads in place of key/value heads, and hidden_size // num_heads for head_dim."""
    decoder, cache = small_decoder(), make(CONFIG)
    generate(decoder, PROMPT, 8, cache=cache)
    assert cache.length == len(PROMPT) + 7
    assert kv_bytes(decoder, cache.length) == cache.used_bytes == 2 * 3 * 2 * 10 * 12 * 4


def test_kv_bytes_of_a_batch_in_another_dtype():
    """Would catch a batch that is forgotten, or the weights' dtype used for the cache's."""
    assert kv_bytes(small_decoder(), 12, batch=5, dtype=torch.bfloat16) == 2 * 3 * 2 * 10 * 12 * 5 * 2


LAYER = 36 * 60 + 2 * 36 * 20 + 60 * 36 + 3 * 36 * 52 + 2 * 36  # q, k and v, o, the MLP's three, two norms


def test_weight_bytes_of_a_tied_model():
    """Would catch the embedding table counted twice, or not at all: it is read whole as the output head."""
    assert weight_bytes(small_decoder(), batch=2) == 4 * (3 * LAYER + 36 + 89 * 36 + 2 * 36)


def test_weight_bytes_of_a_model_with_a_head_of_its_own():
    """Would catch the whole input table counted: a step looks up one row of it for each token."""
    decoder = small_decoder(torch.float64, tie_embeddings=False)
    assert weight_bytes(decoder, batch=7) == 8 * (3 * LAYER + 36 + 89 * 36 + 7 * 36)


def test_decode_bytes_are_weights_and_cache():
    """Would catch weights read once for each row: the rows of a batch share them."""
    decoder = small_decoder()
    assert decode_bytes(decoder, 12, batch=3) == weight_bytes(decoder, 3) + 3 * kv_bytes(decoder, 12)
    assert (
        decode_bytes(decoder, 12, dtype=torch.bfloat16) - weight_bytes(decoder) == kv_bytes(decoder, 12) // 2
    )
