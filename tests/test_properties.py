"""What must hold for any prompt, any batch and any split into chunks.

The oracle is one pass without a cache. What is drawn is drawn again in the same way on every run.
"""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from tiny_decoder import CACHES, tiny_decoder

from kvlearn import attention, generate, position_mask

VOCABULARY = 31
DECODERS = {
    heads: tiny_decoder(num_layers=2, num_heads=heads[0], num_kv_heads=heads[1], seed=heads[1])
    for heads in ((4, 1), (6, 2), (3, 3))
}
TOKENS = st.integers(0, VOCABULARY - 1)
ROWS = st.lists(st.lists(TOKENS, min_size=1, max_size=9), min_size=1, max_size=4)
decoders = st.sampled_from(list(DECODERS.values()))
kinds = st.sampled_from(list(CACHES.values()))
few = settings(max_examples=25)


def alone(decoder, row):
    """(L, vocab) logits of one row in one pass."""
    return decoder(torch.tensor([row]))[0]


def draw_chunks(data, rows):
    """A split of each row's tokens over a number of steps, some of which may give a row nothing: per step
    the tokens and the positions (B, L), padded on either side and in between."""
    steps = data.draw(st.integers(1, 5), label="steps")
    cuts = [
        sorted(data.draw(st.lists(st.integers(0, len(r)), min_size=steps - 1, max_size=steps - 1)))
        for r in rows
    ]
    cuts = [[0, *cut, len(row)] for cut, row in zip(cuts, rows, strict=True)]
    for step in range(steps):
        spans = [range(cut[step], cut[step + 1]) for cut in cuts]
        length = max(len(span) for span in spans)
        if length == 0:
            continue
        tokens, positions = torch.zeros(2, len(rows), length, dtype=torch.long)
        positions -= 1
        for row, span in enumerate(spans):
            places = sorted(data.draw(st.permutations(range(length)))[: len(span)])
            for place, position in zip(places, span, strict=True):
                tokens[row, place], positions[row, place] = rows[row][position], position
        yield tokens, positions


@pytest.mark.slow
@few
@given(data=st.data(), decoder=decoders, kind=kinds, rows=ROWS)
def test_any_split_of_any_batch_is_one_pass(data, decoder, kind, rows):
    """Chunks, padding and stored tokens in any mixture: each token's logits are those of its row alone."""
    cache = kind(decoder.config, len(rows), dtype=torch.float64)
    found = [dict() for _ in rows]
    for tokens, positions in draw_chunks(data, rows):
        logits = decoder(tokens, cache, positions)
        assert logits.isfinite().all()
        for row, place in (positions >= 0).nonzero().tolist():
            found[row][int(positions[row, place])] = logits[row, place]
    for row, logits in zip(rows, found, strict=True):
        ours = torch.stack([logits[position] for position in range(len(row))])
        assert torch.allclose(ours, alone(decoder, row), rtol=0, atol=1e-9)


@pytest.mark.slow
@few
@given(data=st.data(), decoder=decoders, kind=kinds, rows=ROWS)
def test_rolled_back_and_reordered_is_one_pass(data, decoder, kind, rows):
    """A history of wrong turns leaves no trace: truncate, reorder, and go on with another text."""
    cache = kind(decoder.config, len(rows), dtype=torch.float64)
    for tokens, positions in draw_chunks(data, rows):
        decoder(tokens, cache, positions)
    slots = data.draw(st.lists(st.integers(0, cache.length), min_size=len(rows), max_size=len(rows)))
    kept = cache.positions.clone()
    cache.truncate(slots)
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    cache.reorder(order)
    texts = [rows[old][: int((kept[old, : slots[old]] >= 0).sum())] for old in order]
    assert cache.next_position.tolist() == [len(text) for text in texts]
    token = data.draw(TOKENS)
    logits = decoder(torch.full((len(order), 1), token), cache)
    for text, last in zip(texts, logits[:, -1], strict=True):
        assert torch.allclose(last, alone(decoder, [*text, token])[-1], rtol=0, atol=1e-9)


@pytest.mark.slow
@few
@given(data=st.data(), decoder=decoders, kind=st.sampled_from([None, *CACHES.values()]), rows=ROWS)
def test_generating_together_is_generating_alone(data, decoder, kind, rows):
    """Any batch, any chunk, any ends: a row's tokens are what it says by itself, without a cache."""
    new = data.draw(st.integers(0, 6), label="new tokens")
    eos_ids = data.draw(st.sets(TOKENS, max_size=6), label="eos")
    chunk = None if kind is None else data.draw(st.none() | st.integers(1, 10), label="chunk")
    cache = None if kind is None else kind(decoder.config, len(rows), dtype=torch.float64)
    together = generate(decoder, rows, new, cache=cache, eos_ids=eos_ids, prefill_chunk=chunk)
    expected = [generate(decoder, row, new, eos_ids=eos_ids).tokens[0] for row in rows]
    assert together.tokens == expected
    if cache is not None:
        lengths = [len(row) + len(tokens) - 1 for row, tokens in zip(rows, expected, strict=True)]
        assert cache.next_position.tolist() == lengths


@pytest.mark.slow
@few
@given(data=st.data(), decoder=decoders, kind=kinds, row=st.lists(TOKENS, min_size=1, max_size=9))
def test_identical_rows_give_identical_outputs(data, decoder, kind, row):
    """Two rows of one text, whatever stands beside them: a leak between rows tells them apart."""
    others = data.draw(st.lists(st.lists(TOKENS, min_size=1, max_size=9), max_size=2))
    rows = [row, *others, row]
    cache = kind(decoder.config, len(rows), dtype=torch.float64)
    tokens = generate(decoder, rows, 5, cache=cache).tokens
    assert tokens[0] == tokens[-1]
    logits = decoder(torch.zeros(len(rows), 1, dtype=torch.long), cache)
    assert torch.allclose(logits[0], logits[-1], rtol=0, atol=1e-12)


@pytest.mark.slow
@few
@given(
    data=st.data(),
    sizes=st.tuples(*[st.integers(1, 4)] * 6),
    window=st.none() | st.integers(1, 5),
)
def test_the_order_of_the_keys_does_not_matter(data, sizes, window):
    """Masks come from positions: shuffled slots, as in a ring buffer, give the same output."""
    batch, kv_heads, group, length, stored, half = sizes
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    q = torch.randn(batch, kv_heads * group, length, 2 * half, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, batch, kv_heads, stored, 2 * half, generator=generator, dtype=torch.float64)
    query = torch.arange(stored, stored + length).expand(batch, -1)
    keys = torch.randint(-1, stored + length, (batch, stored), generator=generator)
    order = torch.tensor(data.draw(st.permutations(range(stored))))
    straight = attention(q, k, v, position_mask(query, keys, window))
    shuffled = attention(q, k[:, :, order], v[:, :, order], position_mask(query, keys[:, order], window))
    assert torch.allclose(straight, shuffled, rtol=0, atol=1e-12)
