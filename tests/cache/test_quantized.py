"""The quantised cache: what is codes and what is exact at each length, and nothing quantised twice."""

from functools import partial

import pytest
import torch

from kvlearn.cache import GrowingCache, QuantizedCache
from kvlearn.checks.conformance import check_cache
from kvlearn.decoder import Decoder, DecoderConfig
from kvlearn.generation import generate
from kvlearn.measure import StorageMeter
from kvlearn.quantization import QuantSpec, quantize

LAYERS, HEADS, D, ROWS = 3, 2, 10, 4
CONFIG = DecoderConfig(
    vocab_size=30, hidden_size=24, num_layers=LAYERS, num_heads=6, num_kv_heads=HEADS, head_dim=D,
    intermediate_size=11, max_position=300,
)  # fmt: skip
GROUP = 8  # of tokens
KEYS = QuantSpec("int4", axis="channel", quant_group=GROUP)
VALUES = QuantSpec("int4", axis="token", quant_group=5)


def make(residual=3, rows=ROWS, keys=KEYS, values=VALUES, config=CONFIG, **options):
    return QuantizedCache(config, keys, values, residual, rows, **options)


def draw(tokens, rows=ROWS, seed=0, dtype=torch.float32):
    """Keys and values of every layer: (layers, B, Hkv, L, D)."""
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, LAYERS, rows, HEADS, tokens, D, generator=generator)
    return k.to(dtype), v.to(dtype)


def feed(cache, k, v, chunks, positions=None):
    """Steps of these lengths; what the last one returned, for each layer."""
    start = 0
    for length in chunks:
        new = slice(start, start + length)
        given = [] if positions is None else [positions[:, new]]
        back = [
            cache.update(layer, k[layer, :, :, new], v[layer, :, :, new], *given) for layer in range(LAYERS)
        ]
        start += length
    return back


def stored(cache):
    """All that is kept, as it comes back before one more token: for each layer K and V."""
    one = torch.zeros(cache.batch_size, HEADS, 1, D, dtype=cache.dtype)
    length = cache.length
    back = [
        tuple(side[:, :, :length].clone() for side in cache.update(i, one, one)) for i in range(LAYERS - 1)
    ]
    cache.truncate(length)  # the step was never finished
    return back


def same(one, other):
    return all(torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def expected(x, spec, residual):
    """Oracle: tokens (B, Hkv, L, D) with the first whole groups quantised one by one, and the rest as is."""
    group = spec.quant_group if spec.axis == "channel" else 1
    codes = max(0, x.shape[2] - residual) // group * group
    parts = [quantize(x[:, :, at : at + group], spec).dequantize() for at in range(0, codes, group)]
    return torch.cat([*parts, x[:, :, codes:]], dim=2), codes


# What is codes and what is exact -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("residual", [0, 1, 3, 8, 11])
@pytest.mark.parametrize("length", [1, 3, 7, 8, 9, 10, 11, 12, 16, 18, 19, 20, 27])
def test_old_tokens_are_codes_and_the_last_are_exact(residual, length):
    """VeloxQuant-MLX#86: a window that goes by the length of this call. And each off-by-one at its end."""
    k, v = draw(length)
    cache = make(residual)
    feed(cache, k, v, [1] * length)
    for layer, (got_k, got_v) in enumerate(stored(cache)):
        for got, given, spec in ((got_k, k, KEYS), (got_v, v, VALUES)):
            want, codes = expected(given[layer], spec, residual)
            assert torch.equal(got, want)
            exact = length - codes
            assert torch.equal(got[:, :, codes:], given[layer, :, :, codes:])
            if spec is VALUES:
                assert exact == min(residual, length)
            elif length >= residual:
                assert residual <= exact <= residual + GROUP - 1


@pytest.mark.parametrize("chunks", [[29], [1] * 29, [5, 1, 17, 6], [8, 8, 8, 5], [28, 1], [2, 27]])
def test_streaming_equals_one_shot(chunks):
    """What is quantised depends on the length alone: other chunks must not move the groups."""
    k, v = draw(29)
    whole, pieces = make(), make()
    feed(whole, k, v, [29])
    feed(pieces, k, v, chunks)
    assert same(stored(whole), stored(pieces))
    assert whole.used_bytes == pieces.used_bytes == pieces.allocated_bytes


def test_the_tokens_of_a_step_come_back_exactly():
    """A prompt that attends to its own quantised keys; the contract quantises after the step."""
    k, v = draw(40)
    cache = make(residual=0)
    for start, length in ((0, 23), (23, 1), (24, 16)):
        new = slice(start, start + length)
        for layer in range(LAYERS):
            got_k, got_v = cache.update(layer, k[layer, :, :, new], v[layer, :, :, new])
            assert torch.equal(got_k[:, :, new], k[layer, :, :, new])
            assert torch.equal(got_v[:, :, new], v[layer, :, :, new])
            assert start == 0 or not torch.equal(got_v[:, :, :start], v[layer, :, :, :start])


def test_nothing_is_quantised_twice():
    """huggingface/transformers#34189: each flush that quantises the whole history anew changes old tokens."""
    k, v = draw(60)
    cache = make(residual=2)
    seen = {}
    for token in range(60):
        back = feed(cache, k[:, :, :, token : token + 1], v[:, :, :, token : token + 1], [1])
        for layer, sides in enumerate(back):
            for side, (got, spec) in enumerate(zip(sides, (KEYS, VALUES), strict=True)):
                codes = max(0, token - 2) // (GROUP if spec is KEYS else 1) * (GROUP if spec is KEYS else 1)
                old = seen.get((layer, side), got[:, :, :0])
                assert torch.equal(got[:, :, : old.shape[2]], old)
                seen[layer, side] = got[:, :, :codes].clone()


@pytest.mark.parametrize(
    "keys, values",
    [
        (QuantSpec("int8", "token", None), QuantSpec("int2", "channel", 4)),
        (QuantSpec("fp8", "channel", 4), QuantSpec("fp8", "token", 5)),
        (QuantSpec("int4", "channel", 4, symmetric=True), QuantSpec("int8", "token", 2, True, torch.float32)),
    ],
)
def test_any_scheme_that_needs_no_scale_over_all(keys, values):
    """A residual rule, or a cut of codes, that only works for 4-bit keys by channel."""
    k, v = draw(22)
    cache = make(keys=keys, values=values)
    feed(cache, k, v, [9, 1, 12])
    for layer, (got_k, got_v) in enumerate(stored(cache)):
        assert torch.equal(got_k, expected(k[layer], keys, 3)[0])
        assert torch.equal(got_v, expected(v[layer], values, 3)[0])
    before = stored(cache)
    cache.truncate(13)
    assert same(stored(cache), [tuple(side[:, :, :13] for side in sides) for sides in before])


@pytest.mark.parametrize("keys, values", [(None, VALUES), (KEYS, None)])
def test_one_side_may_stay_exact(keys, values):
    """None in the place of a spec: the side is kept as it came, at any length."""
    k, v = draw(50)
    cache = make(keys=keys, values=values, residual=0)
    feed(cache, k, v, [33, 17])
    for layer, (got_k, got_v) in enumerate(stored(cache)):
        assert torch.equal(got_k, k[layer]) is (keys is None)
        assert torch.equal(got_v, v[layer]) is (values is None)


# Rows and padding -------------------------------------------------------------------------------------


def test_no_scale_crosses_rows():
    """A group over the batch: a row with large numbers takes the precision of its neighbours."""
    k, v = draw(24)
    loud = torch.tensor([1.0, 100.0, 0.01, 1.0])[:, None, None, None]
    together = make()
    feed(together, k * loud, v * loud, [24])
    for row in range(ROWS):
        alone = make(rows=1)
        feed(alone, (k * loud)[:, row : row + 1], (v * loud)[:, row : row + 1], [24])
        mine = [tuple(side[row : row + 1] for side in sides) for sides in stored(together)]
        assert same(mine, stored(alone))


def test_padding_stays_out_of_scales():
    """Left padding holds the numbers of some pad token; they must change nothing of the real ones."""
    padded = torch.tensor([0, 5, 8, 13])
    positions = torch.arange(24) - padded[:, None]
    positions = positions.clamp(min=-1)
    k, v = draw(24)
    holds = (positions >= 0)[None, :, None, :, None]
    quiet, loud = make(), make()
    feed(quiet, k * holds, v * holds, [20, 4], positions)
    feed(loud, torch.where(holds, k, 9999.0), torch.where(holds, v, -9999.0), [20, 4], positions)
    real = (positions >= 0)[:, None, :, None]
    for one, other in zip(stored(quiet), stored(loud), strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a * real, b * real) and b.isfinite().all()
    # Row 2 is padded by a whole group: it comes back as it would alone.
    alone = make(rows=1)
    feed(alone, k[:, 2:3, :, 8:], v[:, 2:3, :, 8:], [16])
    mine = [tuple(side[2:3, :, 8:] for side in sides) for sides in stored(loud)]
    assert same(mine, stored(alone))


def test_slots_that_a_row_has_given_up_stay_out_of_scales():
    """After truncate(one number a row) the slots beyond are still stored, and are nobody's."""
    k, v = draw(7)
    k[:, 1, :, 5:] = 9999.0  # of row 1, what it will give up
    cache, quiet = make(residual=0), make(residual=0)
    feed(cache, k, v, [7])
    k[:, 1, :, 5:] = 0.0
    feed(quiet, k, v, [7])
    more = draw(4, seed=1)
    for each in (cache, quiet):
        each.truncate([7, 5, 7, 7])
        feed(each, *more, [4])
    keep = [0, 1, 2, 3, 4, 7, 8, 9, 10]
    for (one, _), (other, _) in zip(stored(cache), stored(quiet), strict=True):
        assert torch.equal(one[1][:, keep], other[1][:, keep])


# Going back -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("residual", [0, 3, 11])
def test_truncate_keeps_the_very_numbers(residual):
    """huggingface/transformers#48700: a crop of the window alone; or one that quantises what is left anew."""
    k, v = draw(30)
    for length in range(31):
        cache = make(residual)
        feed(cache, k, v, [30])
        before = stored(cache)
        cache.truncate(length)
        assert cache.length == length
        kept = [tuple(side[:, :, :length] for side in sides) for sides in before]
        assert same(stored(cache), kept)
        assert cache.used_bytes == cache.allocated_bytes and (length or cache.used_bytes == 0)


def test_what_was_quantised_stays_quantised():
    """After a roll-back into a group and as many tokens again, the old part of it keeps its numbers."""
    k, v = draw(30)
    cache = make(residual=2)
    feed(cache, k, v, [30])
    before = stored(cache)
    cache.truncate(13)  # 24 keys were codes: 8, and 5 of the second group, are left
    more = draw(40, seed=2)
    feed(cache, *more, [7, 1, 32])
    for layer, (got, old) in enumerate(zip(stored(cache), before, strict=True)):
        for side, spec, new in zip((0, 1), (KEYS, VALUES), more, strict=True):
            assert torch.equal(got[side][:, :, :13], old[side][:, :, :13])
            assert torch.equal(got[side][:, :, 13:], expected(new[layer], spec, 2)[0])


def test_going_back_within_the_window_and_on_equals_never_having_gone():
    """Speculation: a few tokens back, other tokens forward. What is recent has not been touched."""
    k, v = draw(40)
    straight, wandering = make(residual=6), make(residual=6)
    feed(straight, k, v, [40])
    draft = draw(5, seed=3)
    for start in range(0, 40, 5):
        for side in (k, v):
            assert side.shape[3] == 40
        feed(wandering, k[:, :, :, start : start + 5], v[:, :, :, start : start + 5], [5])
        if start:
            feed(wandering, draft[0][:, :, :, :1], draft[1][:, :, :, :1], [1])
            wandering.truncate(start + 5)
    # A draft of 1 token makes one value more a code than its length asks for; keys are in whole groups.
    for (one, _), (other, _) in zip(stored(straight), stored(wandering), strict=True):
        assert torch.equal(one, other)


def test_an_unfinished_step_is_taken_back():
    """A step that stops half-way has quantised in some layers what its length would have asked for."""
    k, v = draw(30)
    for drop in ("again", "truncate", "reorder"):
        cache, plain = make(), make()
        feed(cache, k, v, [10])
        feed(plain, k, v, [10])
        used = cache.used_bytes
        for layer in range(LAYERS - 1):
            cache.update(layer, k[layer, :, :, 10:], v[layer, :, :, 10:])
        if drop == "truncate":
            cache.truncate(10)
        if drop == "reorder":
            cache.reorder([0, 1, 2, 3])
        if drop != "again":
            assert cache.used_bytes == used == cache.allocated_bytes
        for each in (cache, plain):
            feed(each, k[:, :, :, 10:14], v[:, :, :, 10:14], [1, 1, 1, 1])
        assert same(stored(cache), stored(plain)), drop
        assert cache.used_bytes == plain.used_bytes


def test_reorder_takes_codes_scales_and_window():
    """huggingface/transformers#45510: a reorder of the window alone leaves the old tokens with their row."""
    k, v = draw(30)
    cache = make()
    feed(cache, k, v, [30])
    cache.truncate(21)
    before, index = stored(cache), [3, 0, 0, 2, 1]
    cache.reorder(index)
    assert same(stored(cache), [tuple(side[index] for side in sides) for sides in before])
    assert cache.batch_size == 5 and cache.length == 21
    more = draw(9, rows=5, seed=4)
    feed(cache, *more, [9])
    got = stored(cache)
    for layer, (kept_k, kept_v) in enumerate(before):
        assert torch.equal(got[layer][0][:, :, :21], kept_k[index])
        assert torch.equal(got[layer][1][:, :, :21][:, :, :18], kept_v[index][:, :, :18])
    assert not torch.equal(got[0][0][1], got[0][0][2])  # two copies of row 0 went on apart


def test_reset_forgets_codes():
    """candle-vllm#6: what a request left behind is the next one's past."""
    k, v = draw(30)
    cache, fresh = make(), make()
    feed(cache, k, v, [30])
    cache.reorder([1, 1])
    cache.reset()
    assert cache.used_bytes == cache.allocated_bytes == cache.length == 0 and cache.batch_size == ROWS
    k, v = draw(25, seed=5)
    for each in (cache, fresh):
        feed(each, k, v, [25])
    assert same(stored(cache), stored(fresh))


# Bytes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("residual, length", [(0, 24), (3, 10), (3, 11), (5, 29), (40, 29)])
def test_predicted_bytes_are_measured(dtype, residual, length):
    """sgl-project/sglang#22777: codes in float16, or scales that nobody counts."""
    cache = make(residual, dtype=dtype)
    feed(cache, *draw(length, dtype=dtype), [length])
    keys = max(0, length - residual) // GROUP * GROUP
    values = max(0, length - residual)
    codes = (keys + values) * (D // 2)
    scales = keys // GROUP * D * 4 + values * (D // 5) * 4
    exact = (2 * length - keys - values) * D * dtype.itemsize
    assert KEYS.bytes_for(keys, D) + VALUES.bytes_for(values, D) == codes + scales
    assert cache.used_bytes == cache.allocated_bytes == LAYERS * ROWS * HEADS * (codes + scales + exact)


def test_storages_shrink_to_five_bits():
    """4 bits, groups of 32, float16 scale and zero: 5.0 bits a number, and not 4, and not 16."""
    config = DecoderConfig(
        vocab_size=3, hidden_size=8, num_layers=2, num_heads=4, num_kv_heads=1, head_dim=64,
        intermediate_size=5, max_position=600,
    )  # fmt: skip
    cache = QuantizedCache(config, residual=0, dtype=torch.float16)
    x = torch.randn(1, 1, 512, 64).half()
    for layer in range(2):
        cache.update(layer, x, x)
    numbers = 2 * 2 * 512 * 64
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in cache._tensors()}
    assert sum(storages.values()) * 8 / numbers == 5.0


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [[48] * 4 + [1] * 2, [192, 1, 1]], ids=["streamed", "a prompt first"])
def test_the_peak_stays_below_that_of_a_growing_cache(chunks):
    """All layers dequantised at once or for good; a prompt that waits in all layers for its step to end."""
    layers, heads, dim = 10, 2, 32
    config = DecoderConfig(
        vocab_size=3, hidden_size=8, num_layers=layers, num_heads=6, num_kv_heads=heads, head_dim=dim,
        intermediate_size=5, max_position=600,
    )  # fmt: skip
    peaks = []
    for kind in (partial(QuantizedCache, residual=8), GrowingCache):
        with StorageMeter() as meter:
            cache = kind(config, dtype=torch.float16)
            for tokens in chunks:
                for layer in range(layers):
                    x = torch.ones(1, heads, tokens, dim, dtype=torch.float16)
                    cache.update(layer, x, x)
        peaks.append(meter.peak)
    quantised, growing = peaks
    assert growing >= sum(chunks) * layers * heads * dim * 2 * 2
    assert quantised < 0.75 * growing


# In the decoder ----------------------------------------------------------------------------------------


def decoder():
    torch.manual_seed(0)
    return Decoder(CONFIG)


PROMPTS = [[3, 7, 1, 9, 4, 4, 2, 8, 6, 5, 1, 2], [5, 8, 2], [9, 1, 1, 7, 3, 6, 2]]


def test_generates_with_prompts_of_unequal_length():
    """A short text, all in the window, is exact; 8 bits are near enough for the same logits."""
    model = decoder()
    naive = generate(model, PROMPTS, 6).tokens
    window = make(residual=40, rows=3)
    assert generate(model, PROMPTS, 6, cache=window).tokens == naive
    fine = make(0, 3, QuantSpec("int8", "channel", 4), QuantSpec("int8", "token", 5))
    tokens = torch.randint(30, (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact = model(tokens)
        stepwise = torch.cat([model(piece, fine) for piece in tokens.split(3, dim=1)], dim=1)
    assert not torch.equal(stepwise, exact)
    assert (stepwise - exact).abs().max() < 0.02 * exact.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("residual", [0, 4])
def test_rows_are_as_if_alone(residual):
    """Padding in the groups, a scale over the batch: a short text beside a long one would change."""
    model = decoder()
    lossy = {"residual": residual, "keys": QuantSpec("int8", "channel", 1), "values": VALUES}
    together = generate(model, PROMPTS, 12, cache=make(rows=3, **lossy)).tokens
    alone = [generate(model, p, 12, cache=make(rows=1, **lossy)).tokens[0] for p in PROMPTS]
    assert together == alone


def test_a_second_turn_goes_on():
    """The cache that has seen the first turn is fed the rest; nothing of it is fed twice."""
    model = decoder()
    cache = make(residual=2, rows=1)
    text = PROMPTS[0]
    for more in ([4, 4, 1], [2]):
        text = text + generate(model, text, 5, cache=cache).tokens[0]
        assert cache.length == len(text) - 1
        text = text + more
    again = make(residual=2, rows=1)
    with torch.no_grad():
        model(torch.tensor([text[: cache.length]]), again)
    assert again.used_bytes == cache.used_bytes


def test_a_text_that_is_all_there_steps_back_into_codes():
    """With no window the last token is a code: it goes, is fed again and comes back exactly, for its step."""
    model = decoder()
    cache = make(residual=0, rows=1)
    text = PROMPTS[0]
    first = generate(model, text, 1, cache=cache).tokens
    assert cache.length == len(text)
    assert generate(model, text, 1, cache=cache).tokens == first
    assert cache.length == len(text)


# The contract, and what is refused ------------------------------------------------------------------------

SCHEMES = {
    "as it comes": {},
    "2 bits and no window": {
        "residual": 0,
        "keys": QuantSpec("int2", "channel", 3),
        "values": QuantSpec("int2", "token", 8),
    },  # fmt: skip
    "fp8 keys alone, a window of 2": {
        "residual": 2,
        "keys": QuantSpec("fp8", "token", None),
        "values": None,
    },  # fmt: skip
}


@pytest.mark.slow  # the whole suite, three times
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_it_keeps_the_contract(scheme, capsys):
    """Every rule that every cache keeps, lossy ones included."""
    assert check_cache(partial(QuantizedCache, **scheme)).passed
    assert not QuantizedCache.exact


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"keys": QuantSpec("int8", "tensor")}, "keys with axis=\"tensor\" share one scale over all rows"),
        ({"values": QuantSpec("int8", "tensor")}, "values with axis=\"tensor\""),
        ({"keys": QuantSpec("int8", "channel", None)}, "not all there yet"),
        ({"values": QuantSpec("int4", "token", 32)}, "head_dim 10 does not divide into groups of 32"),
        ({"values": QuantSpec("int4", "token", 3)}, "head_dim 10 does not divide into groups of 3"),
        ({"keys": None, "values": None}, "nothing is quantised"),
        ({"keys": "int4"}, "keys is a QuantSpec"),
        ({"keys": CONFIG}, "keys is a QuantSpec"),
        ({"residual": -1}, "residual is a whole number"),
        ({"residual": 2.5}, "residual is a whole number"),
        ({"residual": None}, "residual is a whole number"),
        ({"dtype": torch.int64}, "floating-point numbers, .* got dtype=torch.int64"),
        ({"dtype": torch.float8_e4m3fn}, "floating point of 16 bits or more"),
        ({"rows": 0}, "at least 1; got batch_size=0"),
        ({"rows": 2, "max_length": 0}, "max_length=0"),
        ({"config": "tiny"}, "made with a config"),
    ],
)  # fmt: skip
def test_a_scheme_that_cannot_be_is_refused(arguments, words):
    """What would only fail, or lie, when the first group is full."""
    with pytest.raises(ValueError, match=words):
        make(**arguments)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 50000.0])
def test_what_scales_cannot_hold_is_refused_at_once(bad):
    """A NaN that waits in the window and spoils a whole group when it leaves it, many tokens later."""
    k, v = draw(12)
    cache, plain = make(), make()
    for each in (cache, plain):
        feed(each, k, v, [10])
    for side in range(2):
        given = [k[0, :, :, :1].clone(), v[0, :, :, :1].clone()]
        given[side][2, 1, 0, 4] = bad
        with pytest.raises(ValueError, match=f"{'kv'[side]} has .* takes finite numbers up to 32752"):
            cache.update(0, *given)
    assert cache.length == 10 and cache.used_bytes == plain.used_bytes
    for each in (cache, plain):
        feed(each, k[:, :, :, 10:], v[:, :, :, 10:], [2])
    assert same(stored(cache), stored(plain))
    exact = make(keys=None)
    k[0, 0, 0, 0, 0] = 50000.0
    feed(exact, k, v, [12])  # keys that stay exact have no scale to fit


def test_a_full_cache_refuses():
    """max_length is every cache's, and holds for codes as well."""
    cache = make(max_length=12)
    k, v = draw(13)
    feed(cache, k, v, [12])
    with pytest.raises(ValueError, match="room for 12 slots and holds 12"):
        cache.update(0, k[0, :, :, :1], v[0, :, :, :1])
