"""The napkin against loops over layers, heads and tokens, and against numbers that real systems printed."""

from dataclasses import replace

import pytest

from kvlearn import sizing
from kvlearn.sizing import ModelShape

GIB, MIB = 2**30, 2**20
LLAMA_70B = sizing.model("llama-3.1-70b")
WITHOUT_GQA = LLAMA_70B.but(num_kv_heads=64)
SMALL = ModelShape(num_layers=5, num_heads=6, num_kv_heads=3, head_dim=32)


def by_hand(shape, tokens, batch, nbytes):
    """Every number of every token counted one by one: the oracle of plain types."""
    total = 0
    for window in shape.stored_windows:
        for _ in range(tokens if window is None else min(tokens, window)):
            total += nbytes * shape.numbers_per_token
    return batch * total


@pytest.mark.parametrize("dtype, nbytes", [("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 1)])
def test_plain_types(dtype, nbytes):
    """Bits taken for bytes, the batch forgotten, one side only (predictors before vllm-fit#2)."""
    shape = SMALL.but(value_dim=20, windows=(7, None, 7, None, 4))
    assert shape.numbers_per_token == 3 * 32 + 3 * 20
    for tokens in (0, 1, 6, 7, 8, 19):
        assert sizing.cache_bytes(shape, tokens, 2, dtype) == by_hand(shape, tokens, 2, nbytes)


def test_known_sizes():
    """What real systems print: 40 GiB for 70B at 128k, 1.7 GB for 13B, 272 MiB in llama.cpp's own log."""
    assert sizing.cache_bytes(LLAMA_70B, 131072) == 40 * GIB == 42_949_672_960
    assert sizing.cache_bytes(sizing.model("llama-3-8b"), 8192, 16) == 16 * GIB
    assert sizing.cache_bytes(sizing.model("llama-2-13b"), 2048) == 1_677_721_600
    assert sizing.cache_bytes(sizing.model("llama-2-7b"), 10_000) == 5_242_880_000
    assert sizing.cache_bytes(sizing.model("llama-3-8b"), 4096, dtype="q8_0") == 272 * MIB


def test_hybrids():
    """The window ignored: Gemma 3 27B at 128k would be 62 GiB and is a sixth of that."""
    gemma, oss = sizing.model("gemma-3-27b"), sizing.model("gpt-oss-120b")
    assert round(sizing.cache_bytes(gemma, 131072) / GIB, 2) == 10.41
    assert sizing.cache_bytes(gemma.but(windows=None), 131072) == 62 * GIB
    assert round(sizing.cache_bytes(oss, 131072) / GIB, 2) == 4.50
    # 52 layers with 1,024 tokens, 10 with all of them
    assert sizing.cache_bytes(gemma, 131072) == (52 * 1024 + 10 * 131072) * 2 * 16 * 128 * 2


def test_latent_attention():
    """The factor 2 kept, or the heads counted: 71 times too much (systems: DeepSeek-V3)."""
    v3 = sizing.model("deepseek-v3")
    assert sizing.bytes_per_token(v3) == 61 * (512 + 64) * 2 == 70_272
    expanded = v3.but(latent_dim=None, rope_dim=None)
    assert sizing.bytes_per_token(expanded) == 61 * 128 * (128 + 64 + 128) * 2 == 4_997_120


def test_weights():
    """GiB for GB, bits for bytes."""
    assert sizing.weight_bytes(LLAMA_70B) == 2 * 70_553_706_496
    assert round(sizing.weight_bytes(LLAMA_70B, "int8") / GIB, 2) == 65.71
    assert sizing.weight_bytes(LLAMA_70B, "int4", ranks=4) == -(-70_553_706_496 // 8)


@pytest.mark.parametrize(
    "weights, plain, eight_bits, tokens_without_gqa",
    [("bf16", 4, 7, 53_829), ("int8", 2, 4, 26_915), ("int4", 1, 2, 13_458)],
)
def test_crossovers_of_a_70b_model(weights, plain, eight_bits, tokens_without_gqa):
    """The claim that the cache outweighs the weights at 128k, at which batch and in which precision."""
    assert sizing.crossover_batch(LLAMA_70B, 131072, weights=weights) == plain
    assert sizing.crossover_batch(LLAMA_70B, 131072, "fp8", weights) == eight_bits
    assert sizing.crossover_batch(WITHOUT_GQA, 131072, weights=weights) == 1
    assert sizing.crossover_tokens(WITHOUT_GQA, weights=weights) == tokens_without_gqa


@pytest.mark.parametrize("batch", [1, 3])
def test_a_crossover_is_where_the_cache_first_weighs_more(batch):
    """Off by one, and equal taken for more."""
    shape = SMALL.but(parameters=96_000)  # 192,000 bytes; a token of a row is 1,920
    assert sizing.crossover_tokens(shape, batch) == 100 // batch + 1
    assert sizing.crossover_batch(shape, 100) == 2
    assert sizing.crossover_batch(shape, 101) == 1
    assert sizing.crossover_tokens(shape.but(windows=9), 1) is None
    assert sizing.step_bytes(shape, 7, 2) == 192_000 + 2 * 7 * 1_920


def test_max_batch():
    """The weights forgotten, a row that fits in part counted, or the rows' blocks pooled."""
    shape = SMALL.but(parameters=96_000)
    row = 1_920 * 10
    assert sizing.max_batch(shape, 10, 192_000 + 4 * row) == 4
    assert sizing.max_batch(shape, 10, 192_000 + 4 * row - 1) == 3
    assert sizing.max_batch(shape, 10, 4 * row, weights=None) == 4
    assert sizing.max_batch(shape, 10, 191_999) == 0
    assert sizing.max_batch(shape, 10, 192_000 + 4 * row, block=16) == 2  # 16 slots a row are taken
    assert sizing.max_batch(shape, 10, f"{192_000 + 2 * row} B") == 2


@pytest.mark.parametrize("dtype", ["bf16", "int4", "int2", "q8_0"])
@pytest.mark.parametrize("windows", [None, (50, None, 50, None, 20)])
@pytest.mark.parametrize("block", [None, 16])
def test_max_context_by_trying_each_length(dtype, windows, block):
    """A binary search over sizes that fall where a group of tokens becomes codes: it must stop before the
    first length that does not fit on the way, and no step earlier."""
    shape = SMALL.but(windows=windows, parameters=1_000)
    for memory in (40_000, 65_537, 90_001, 150_000):
        expected = 0
        for tokens in range(1, 10_000):
            if 2_000 + 3 * sizing.cache_bytes(shape, tokens, 1, dtype, block=block) > memory:
                break
            expected = tokens
        found = sizing.max_context(shape, memory, 3, dtype, block=block)
        # Between two kinds of layers the peaks need not meet: never too long, at most a group too short.
        assert found == expected if windows is None else expected - 32 <= found <= expected


def test_max_context_at_the_ends():
    """An endless search where every layer has a window; a negative room taken for one that fits."""
    windowed = SMALL.but(windows=9, parameters=10)
    assert sizing.max_context(windowed, "1 GiB") is None
    assert sizing.max_context(windowed, 20 + 1_920 * 8) == 8
    assert sizing.max_context(windowed, 19) == 0 == sizing.max_context(windowed, 1)
    assert sizing.max_context(SMALL.but(parameters=10), 10**40) == (10**40 - 20) // 1_920


def test_bytes_per_token_is_the_growth():
    """Metadata forgotten: far beyond the residual window a whole group of tokens adds exactly so much."""
    for dtype in ("fp8", "int8", "int4", "int2", "q8_0", "q4_0"):
        growth = sizing.cache_bytes(SMALL, 64 + 320, 1, dtype) - sizing.cache_bytes(SMALL, 64, 1, dtype)
        assert sizing.bytes_per_token(SMALL, dtype) * 320 == growth
    assert sizing.bytes_per_token(SMALL, "int4") == 5 * 6 * 32 * 5 // 8
    hybrid = SMALL.but(windows=(7, None, 7, None, 4))
    assert sizing.bytes_per_token(hybrid) == 1_920
    assert sizing.bytes_per_token(hybrid, tokens=5) == 1_920 * 4 // 5
    assert sizing.bytes_per_token(hybrid, tokens=7) == 1_920 * 2 // 5


def test_blocks():
    """Rounded down, or once for the batch instead of once a row; a window that is no multiple of a block."""
    assert sizing.cache_bytes(SMALL, 17, 3, block=16) == 3 * 32 * 1_920
    assert sizing.cache_bytes(SMALL, 16, 3, block=16) == 3 * 16 * 1_920
    assert sizing.cache_bytes(SMALL, 0, 3, block=16) == 0
    assert sizing.cache_bytes(SMALL.but(windows=20), 99, block=16) == 32 * 1_920


def test_tensor_parallel():
    """Heads shared out and, beyond as many ranks as heads, held by several; a latent held by all."""
    whole = sizing.cache_bytes(LLAMA_70B, 1000)
    each = {ranks: sizing.cache_bytes(LLAMA_70B, 1000, ranks=ranks) for ranks in (1, 2, 8, 16, 64)}
    assert each == {1: whole, 2: whole // 2, 8: whole // 8, 16: whole // 8, 64: whole // 8}
    v3 = sizing.model("deepseek-v3")
    assert sizing.cache_bytes(v3, 1000, ranks=8) == sizing.cache_bytes(v3, 1000)
    with pytest.raises(ValueError, match="8 key/value heads on 24 ranks|query heads cannot be shared"):
        sizing.cache_bytes(LLAMA_70B, 1000, ranks=24)
    with pytest.raises(ValueError, match="3 key/value heads on 2 ranks"):
        sizing.cache_bytes(SMALL, 1, ranks=2)
    with pytest.raises(ValueError, match="8 query heads cannot be shared out evenly over 3"):
        ModelShape(2, 8, 4, 16).on_rank(3)


def test_layers_that_share_are_counted_once():
    """Layers that read an earlier layer's keys (Gemma 3n) store nothing."""
    assert sizing.cache_bytes(SMALL.but(shared_layers=2), 10) == 3 * 10 * 1_920 // 5


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: sizing.cache_bytes(SMALL, -1), "tokens must be at least 0; got -1"),
        (lambda: sizing.cache_bytes(SMALL, 1.5), "tokens is a whole number; got 1.5"),
        (lambda: sizing.cache_bytes(SMALL, True), "tokens is a whole number; got True"),
        (lambda: sizing.cache_bytes(SMALL, "128k"), "tokens is a whole number; got '128k'"),
        (lambda: sizing.cache_bytes(SMALL, 1, 0), "batch must be at least 1; got 0"),
        (lambda: sizing.cache_bytes(SMALL, 1, None), "batch is a whole number; got None"),
        (lambda: sizing.cache_bytes(SMALL, 1, 1, "int5"), "no cache type 'int5'. There are: fp32"),
        (lambda: sizing.cache_bytes(SMALL, 1, block=0), "block must be at least 1"),
        (lambda: sizing.cache_bytes(SMALL, 1, ranks=0), "ranks must be at least 1"),
        (lambda: sizing.cache_bytes("llama-3-8b", 1), "ModelShape, such as .*; got a str"),
        (lambda: sizing.bytes_per_token(None), "ModelShape, such as .*; got a NoneType"),
        (lambda: sizing.weight_bytes(SMALL), "How many parameters this model has is not known"),
        (lambda: sizing.weight_bytes(LLAMA_70B, "int5"), "no weight type 'int5'"),
        (lambda: sizing.max_batch(LLAMA_70B, 0, "80GB"), "tokens must be at least 1"),
        (lambda: sizing.max_batch(LLAMA_70B, 1, 0), "memory must be at least 1"),
        (lambda: sizing.max_batch(LLAMA_70B, 1, "80"), "memory='80' needs its unit"),
        (lambda: sizing.max_context(LLAMA_70B, "80GB", 0), "batch must be at least 1"),
        (lambda: sizing.crossover_batch(LLAMA_70B, 0), "tokens must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(call, said):
    """A division by zero, or a plausible number, for what nobody can have."""
    with pytest.raises(ValueError, match=said):
        call()


def test_huge_numbers_stay_exact():
    """A float on the way: 10^25 tokens are counted to the byte."""
    assert sizing.cache_bytes(SMALL, 10**25, 10**9) == 1_920 * 10**34
    assert sizing.weight_bytes(replace(SMALL, parameters=10**30 + 1), "int4") == (10**30 + 2) // 2
