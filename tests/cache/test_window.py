"""The sliding-window cache: exact inside the window, bounded by it, and honest about what is gone.

The oracle is a decoder without a cache whose own config has the window: one pass, nothing ever evicted.
"""

from functools import partial
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from small_caches import CONFIG, pair, write
from tiny_decoder import padded, random_tokens, tiny_config, tiny_decoder

from kvlearn import GrowingCache, check_cache, generate
from kvlearn.cache import SlidingWindowCache
from kvlearn.measure import StorageMeter

WINDOW = 5
SLOT = 3 * 4 * 6 * 2 * 4  # bytes of one slot of one row in all layers of the small cache
HYBRID = (WINDOW, None, 3)


@pytest.fixture(scope="module")
def models():
    """The same weights without windows, with one, and with a hybrid's."""
    kinds = {"none": (), "all": (WINDOW,) * 3, "hybrid": HYBRID}
    return {name: tiny_decoder(windows=windows) for name, windows in kinds.items()}


def feed(model, cache, tokens, chunk):
    """(B, L, vocab) logits of tokens (B, L), given `chunk` at a time."""
    return torch.cat([model(piece, cache) for piece in tokens.split(chunk, dim=1)], dim=1)


def window_cache(config, window=WINDOW, batch_size=1):
    return SlidingWindowCache(config, window, batch_size, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 1, 3, 6, 50], ids=str)
def test_conformance(window):
    """The rules of the contract, at windows below, at and above the suite's texts; a window without end is
    one that evicts nothing."""
    check_cache(partial(SlidingWindowCache, window=window))


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 23])
@pytest.mark.parametrize("chunk", [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 23])
def test_prompts_around_the_window_are_exact(models, length, chunk):
    """Trimming before attending is right for single tokens and for prompts inside the window, and wrong for
    the chunk that crosses its edge."""
    tokens = random_tokens(2, length + 3, seed=length)
    expected = models["all"](tokens)
    for model in (models["none"], models["all"]):
        cache = window_cache(model.config, batch_size=2)
        logits = torch.cat(
            (feed(model, cache, tokens[:, :length], chunk), feed(model, cache, tokens[:, length:], 1)), dim=1
        )
        assert torch.allclose(logits, expected, rtol=0, atol=1e-9)
        assert cache.length == length + 3 and cache.next_position.tolist() == [length + 3] * 2


@pytest.mark.parametrize("window", [None, 4], ids=str)
def test_hybrid_layers_keep_what_they_need(models, window):
    """google-deepmind's Gemma and gpt-oss mix windows and full layers: one window for all of them would be
    wrong in some layer. A window that is given narrows the wider layers only."""
    tokens = random_tokens(2, 21)
    windows = HYBRID if window is None else (4, 4, 3)
    model, cache = models["hybrid"], window_cache(models["hybrid"].config, window, 2)
    expected = tiny_decoder(windows=windows)(tokens)
    assert (cache.windows, cache.window) == (windows, window)
    assert torch.allclose(feed(model, cache, tokens, 4), expected, rtol=0, atol=1e-9)
    slots = [21 if w is None else w for w in windows]
    assert cache.used_bytes == cache.allocated_bytes == sum(slots) * 2 * 2 * 10 * 2 * 8
    assert [cache.key_positions(layer).shape[1] for layer in range(3)] == [
        21 if w is None else w + 1 for w in windows
    ]


def test_a_query_sees_itself_and_the_three_before_it():
    """ml-explore/mlx-lm#390: a window of 4 that lets a query see 5 positions."""
    model = tiny_decoder(num_layers=1)
    tokens = random_tokens(1, 10)
    logits = []
    for changed in range(4, 8):
        other = tokens.clone()
        other[0, changed] = (other[0, changed] + 1) % 31
        logits.append([feed(model, window_cache(model.config, 4), x, 3)[0, 8] for x in (tokens, other)])
    same = [torch.equal(before, after) for before, after in logits]
    assert same == [True, False, False, False]  # 4 is outside; 5, 6 and 7 are inside


def test_a_position_stands_in_the_slot_of_its_remainder():
    """The order in which slots come back is the ring's: position % window. A ring that is offset by the rows
    that are kept would drift from its positions."""
    cache = SlidingWindowCache(CONFIG, 4, 2)
    for _ in range(10):
        write(cache, 1)
    k, v = pair(2)
    K, V = cache.update(1, k, v)
    assert cache.key_positions(1).tolist() == [[8, 9, 6, 7, 10, 11]] * 2
    assert torch.equal(K[:, :, 4:], k) and torch.equal(V[:, :, 4:], v)


def test_padding_takes_no_place_in_the_window():
    """A window of W slots, instead of W positions, lets padding push tokens out; a row that has ended would
    forget its text while others go on."""
    cache = SlidingWindowCache(CONFIG, 3, 2)
    write(cache, 5, [[-1, -1, -1, 0, 1], [0, 1, 2, 3, 4]])
    write(cache, 4, [[-1, 2, -1, -1], [5, 6, 7, 8]])
    for _ in range(4):
        write(cache, 1, [[-1], [9 + cache.length - 9]])
    write(cache, 1, [[3], [-1]])
    kept = [sorted(row) for row in cache.key_positions(0)[:, :3].tolist()]
    assert kept == [[0, 1, 2], [10, 11, 12]]
    assert cache.length == 14 and cache.next_position.tolist() == [4, 13]


def test_a_thousand_tokens_take_a_window_of_bytes():
    """llm_from_scratch#3: attention saw a window and the cache stored everything."""
    config = tiny_config(max_position=1100)
    cache = SlidingWindowCache(config, 64)
    slot = 3 * 2 * 10 * 2 * 4
    for length, chunk in ((40, 40), (64, 24), (65, 1), (565, 500), (1000, 435)):
        for layer in range(3):
            cache.update(layer, *torch.zeros(2, 1, 2, chunk, 10))
        assert cache.length == length
        assert cache.used_bytes == cache.allocated_bytes == min(length, 64) * slot


def test_no_more_is_alive_than_the_window_and_the_chunk():
    """A chunk that every layer keeps until the step ends would need the memory of a cache without a window:
    what will not stay is not kept, and one layer at a time has the whole chunk."""
    cache = SlidingWindowCache(CONFIG, 4, 2)
    write(cache, 10)
    k, v = torch.zeros(2, 2, 4, 40, 6)
    with StorageMeter(torch.float32) as meter:
        for layer in range(3):
            cache.update(layer, k, v)
    one_layer, what_will_stay = (4 + 40) * 2 * SLOT // 3, 4 * 2 * SLOT
    assert one_layer < meter.peak < one_layer + 2 * what_will_stay < 40 * 2 * SLOT
    assert meter.live == 0  # the ring is written in place


def test_an_unfinished_step_has_evicted_nothing():
    """Written into the ring at once, a step that is dropped would have destroyed what it overwrote."""
    cache = SlidingWindowCache(CONFIG, 3, 2)
    write(cache, 8)
    before = [write(cache, 1, layers=[layer]) for layer in (0, 1)]
    write(cache, 7, layers=[0, 1])  # another step, which is not finished either
    after = [write(cache, 1, layers=[layer]) for layer in (0, 1)]
    for was, now in zip(before, after, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(was, now, strict=True))
    assert cache.length == 8
    write(cache, 1, layers=[2])
    assert cache.length == 9


# Rolling back ----------------------------------------------------------------------------------------


def test_what_is_gone_cannot_be_rolled_back_to(models):
    """A rollback that goes on without the missing keys gives other numbers and no error. (Where it must work,
    the evicted ones are recorded: huggingface/transformers PR#47447; there the mask first did
    not describe them, and the output was silently wrong: huggingface/transformers PR#48280.)"""
    model, tokens = models["all"], random_tokens(2, 20)
    cache = window_cache(model.config, batch_size=2)
    feed(model, cache, tokens[:, :12], 4)
    for length in (10, 5, 1, [12, 10], [0, 3]):
        with pytest.raises(ValueError, match="cannot be rolled back so far"):
            cache.truncate(length)
    logits = feed(model, cache, tokens[:, 12:], 3)
    assert torch.allclose(logits, model(tokens)[:, 12:], rtol=0, atol=1e-9)


def test_the_refusal_says_what_is_missing():
    """An error that does not say how far it would go leaves one guessing."""
    cache = SlidingWindowCache(CONFIG, 4, 2)
    write(cache, 10, [[-1, *range(9)], [*range(10)]])
    message = (
        "Row 0 cannot be rolled back so far: its next query, at position 6, would see positions from 3 on, "
        "and a window of 4 has dropped 4 and all before it. The row's next position may be 8 at the lowest"
    )
    with pytest.raises(ValueError, match=message):
        cache.truncate(7)
    cache.truncate([9, 9])
    assert cache.next_position.tolist() == [8, 9]
    with pytest.raises(ValueError, match="Row 0 cannot .* at position 7, would see positions from 4"):
        cache.truncate(8)


@pytest.mark.slow
def test_one_token_can_always_be_taken_back(models):
    """A query needs the W - 1 before it and the ring keeps W: generate takes back the last token of a text
    that the cache has seen whole."""
    model, tokens = models["all"], random_tokens(2, 20)
    cache = window_cache(model.config, batch_size=2)
    for end in range(1, 20):
        cache.reset()
        feed(model, cache, tokens[:, :end], 3)
        cache.truncate(end - 1)
        logits = model(tokens[:, end - 1 : end], cache)
        assert torch.allclose(logits[:, 0], model(tokens[:, :end])[:, -1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("slots", range(WINDOW + 1))
def test_a_window_that_has_dropped_nothing_rolls_back_anywhere(models, slots):
    """Refused because it is a window, and not because something is gone: the start of every text."""
    model, tokens = models["all"], random_tokens(1, WINDOW)
    cache = window_cache(model.config)
    model(tokens, cache)
    cache.truncate(slots)
    other = random_tokens(1, 4, seed=slots)
    expected = model(torch.cat((tokens[:, :slots], other), dim=1))[:, slots:]
    assert torch.allclose(model(other, cache), expected, rtol=0, atol=1e-9)


def test_everything_can_be_forgotten(models):
    """No query before the first token needs anything, however much is gone."""
    model = models["hybrid"]
    cache = window_cache(model.config, None, 2)
    feed(model, cache, random_tokens(2, 17), 6)
    cache.truncate(0)
    tokens = random_tokens(2, 9, seed=1)
    assert torch.allclose(feed(model, cache, tokens, 4), model(tokens), rtol=0, atol=1e-9)


def test_a_jump_of_positions_does_not_bring_back_what_it_passed():
    """With gaps, an old position may still stand in the ring although the window has gone past it."""
    cache = SlidingWindowCache(CONFIG, 3, 1)
    write(cache, 3, [[0, 4, 5]])
    write(cache, 2, [[8, 10]])  # 8 and 5 share a slot; 0 and 4 fall behind
    write(cache, 1, layers=[0])
    assert cache.key_positions(0).tolist() == [[10, 8, 11]]
    cache.truncate(4)  # the next query, at 9, needs 8 and no more
    with pytest.raises(ValueError, match="dropped 5 and all before it. .* may be 8 at the lowest"):
        cache.truncate(3)
    write(cache, 1, layers=[0])
    assert cache.key_positions(0).tolist() == [[8, 9]]


def test_two_tokens_of_one_chunk_for_one_slot():
    """With a jump inside a chunk both may have the same remainder: the later one is inside the window."""
    cache = SlidingWindowCache(CONFIG, 3, 1)
    write(cache, 2, [[0, 3]])
    K, _ = write(cache, 1, layers=[0])
    assert cache.key_positions(0).tolist() == [[3, 4]]
    assert torch.equal(K[:, :, 0], pair(2, 1)[0][:, :, 1])


# Other rows -----------------------------------------------------------------------------------------


def test_rows_move_with_their_rings(models):
    """huggingface/transformers#46612: beam search skipped the reorder of some caches. Each row's ring stands
    at another place."""
    model = models["hybrid"]
    texts = [random_tokens(length, seed=length).tolist() for length in (3, 12, 7)]
    cache = window_cache(model.config, None, 3)
    tokens, positions = padded(texts)
    model(tokens, cache, positions)
    for order in ([2, 0, 1, 1], [3, 1], [0, 0, 1]):
        cache.reorder(order)
        texts = [texts[old] + [(new * 5 + len(order)) % 31] for new, old in enumerate(order)]
        logits = model(torch.tensor([text[-1:] for text in texts]), cache)
        for row, text in enumerate(texts):
            alone = model(torch.tensor([text]))[0, -1]
            assert torch.allclose(logits[row, 0], alone, rtol=0, atol=1e-9)
    cache.reset()
    assert (cache.batch_size, cache.length, cache.used_bytes) == (3, 0, 0)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(data=st.data(), window=st.none() | st.integers(1, 7), batch=st.integers(1, 3))
def test_any_split_and_any_rolling_back_is_one_pass(data, window, batch):
    """Chunks of any size, rows that pause, rolling back as far as it will go: every token's logits are those
    of its row alone in one pass."""
    own = data.draw(st.sampled_from([(), (4, None), (2, 5)]), label="own windows")
    model = tiny_decoder(num_layers=2, num_heads=4, num_kv_heads=2, windows=own)
    own = own or (None, None)
    both = tuple(min((w for w in (o, window) if w is not None), default=None) for o in own)
    oracle = tiny_decoder(num_layers=2, num_heads=4, num_kv_heads=2, windows=both)
    cache = window_cache(model.config, window, batch)
    texts = [[] for _ in range(batch)]
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    for _ in range(data.draw(st.integers(1, 5), label="steps")):
        lengths = data.draw(st.lists(st.integers(0, 9), min_size=batch, max_size=batch))
        lengths[0] = lengths[0] or 1
        new = [torch.randint(31, (length,), generator=draw).tolist() for length in lengths]
        tokens, positions = padded(new)
        starts = torch.tensor([[len(text)] for text in texts])
        positions = torch.where(positions >= 0, positions + starts, -1)
        texts = [text + more for text, more in zip(texts, new, strict=True)]
        logits = model(tokens, cache, positions)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            if length:
                alone = oracle(torch.tensor([text]))[0, -length:]
                assert torch.allclose(logits[row, -length:], alone, rtol=0, atol=1e-9)
        slots = data.draw(st.integers(0, cache.length), label="slots kept")
        seen = cache.positions[:, :slots]
        try:
            cache.truncate(slots)
        except ValueError:
            assert any(w is not None and max(map(len, texts)) > w for w in both)
        else:
            texts = [text[: int((row >= 0).sum())] for text, row in zip(texts, seen, strict=True)]
        assert cache.next_position.tolist() == [len(text) for text in texts]


# With generate ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_unequal_prompts_say_what_each_says_alone(models, chunk):
    """Left padding, and rows that end: the window counts a row's own tokens."""
    for name, window in (("none", 6), ("all", None), ("hybrid", None)):
        model = models[name]
        oracle = tiny_decoder(windows=(6,) * 3) if name == "none" else model
        prompts = [random_tokens(length, seed=length).tolist() for length in (14, 2, 6, 5)]
        expected = [generate(oracle, prompt, 9).tokens[0] for prompt in prompts]
        eos = [expected[1][2]]
        expected = [generate(oracle, prompt, 9, eos_ids=eos).tokens[0] for prompt in prompts]
        cache = window_cache(model.config, window, 4)
        out = generate(model, prompts, 9, cache=cache, eos_ids=eos, prefill_chunk=chunk)
        assert out.tokens == expected
        # The next turn, which begins with what a row said last; one row has nothing new.
        longer = [prompt + new + [7, 8] for prompt, new in zip(prompts, expected, strict=True)]
        longer[2] = prompts[2] + expected[2][:-1]
        again = generate(model, longer, 4, cache=cache, prefill_chunk=chunk)
        assert again.tokens == [generate(oracle, text, 4).tokens[0] for text in longer]


# What is refused, and what is copied ---------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, -1, 2.0, True, "4", [4], torch.tensor(2.0)], ids=repr)
def test_what_is_no_window_is_refused(window):
    """A window of 0 sees nothing, not even the query; True is no number of positions."""
    with pytest.raises(ValueError, match="A window is a whole number of positions, at least 1"):
        SlidingWindowCache(CONFIG, window)


@pytest.mark.parametrize(
    "windows, words",
    [
        ([4], "one window .or None. for each of the 3 layers, or is empty; got .4."),
        ("abc", "for each of the 3 layers, or is empty; got 'abc'"),
        (4, "got 4"),
        ([0, 0, 0], "a layer's window must be at least 1; got 0"),
        (["4", None, 4], "a layer's window is a whole number; got '4'"),
    ],
)
def test_windows_of_a_config_that_lies(windows, words):
    """A config of one's own making: a layer that has no window listed, or one that sees nothing."""
    config = SimpleNamespace(**{**vars(CONFIG), "windows": windows})
    for window in (None, 5):
        with pytest.raises(ValueError, match=words):
            SlidingWindowCache(config, window)


def test_windows_are_pythons_numbers():
    """A window that is a tensor: two layers of the same window would have two rings."""
    config = SimpleNamespace(**{**vars(CONFIG), "windows": [np.int64(4), None, 2]})
    cache = SlidingWindowCache(config, torch.tensor(3))
    assert cache.windows == (3, 3, 2) and {type(window) for window in cache.windows} == {int}


def test_what_every_cache_refuses_is_refused():
    """The config first, then the rows: errors in the words of the other caches."""
    with pytest.raises(ValueError, match="made with a config"):
        SlidingWindowCache(4, CONFIG)
    with pytest.raises(ValueError, match="whole number of rows"):
        SlidingWindowCache(CONFIG, 4, 0)
    cache = SlidingWindowCache(CONFIG, 4, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="the cache holds torch.float64"):
        write(cache, 1)
    assert cache.length == 0


def test_a_window_past_the_model_is_a_growing_cache(models):
    """Numbers beyond 64 bits are whole numbers too."""
    tokens = random_tokens(1, 15)
    model = models["none"]
    for window in (64, 10**9, 10**30):
        cache = window_cache(model.config, window)
        assert cache.window == model.config.max_position == 64
        growing = GrowingCache(model.config, dtype=torch.float64)
        assert torch.equal(feed(model, cache, tokens, 4), feed(model, growing, tokens, 4))
        assert cache.used_bytes == growing.used_bytes


def test_what_comes_back_is_not_the_ring(models):
    """K and V are valid until the next call, and a ring is written in place: a view would change under the
    eyes of who still reads it, in the very call that ends the step."""
    cache = SlidingWindowCache(CONFIG, 3, 2)
    write(cache, 7)
    results = [cache.update(layer, *pair(2)) for layer in range(3)]
    assert cache.key_positions(0).tolist() == [[6, 4, 5, 7, 8]] * 2
    again = pair(7)[0][:, :, [6, 4, 5]]
    assert all(torch.equal(K[:, :, :3], again) for K, _ in results)
