"""The fused kernel in blocks, against the attention that is written out."""

import pytest
import torch

from kvlearn import fused_attention as fused
from kvlearn.attention import attention, position_mask
from kvlearn.fused_attention import blocks_of, causal_attention, fused_attention

B, HQ, HKV, D = 2, 6, 3, 4
EMPTY, CHUNK, LAST = [-1] * 3, list(range(4, 9)), list(range(9))
# name: (query positions, key positions, window), one row each for the batch
CASES = {
    "one token": ([[8], [8]], [LAST, LAST], None),
    "a chunk behind a prompt": ([CHUNK, CHUNK], [LAST, LAST], None),
    "a whole text": ([LAST, LAST], [LAST, LAST], None),
    "padding on the left": ([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]], [[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]], None),
    "one token, one row padded": ([[5], [8]], [[*EMPTY, 0, 1, 2, 3, 4, 5], LAST], None),
    "a window": ([LAST, LAST], [LAST, LAST], 3),
    "a ring, in its own order": ([[9, 10], [9, 10]], [[8, 9, 10, 5, 6, 7], [8, 9, 10, 5, 6, 7]], 4),
    "a row that is padding alone": ([[-1, -1], [3, 4]], [[-1] * 5, [0, 1, 2, 3, 4]], None),
    "nothing to see at all": ([[-1, -1], [-1, -1]], [[-1] * 5, [-1] * 5], None),
    "a hole in front": ([[7, 8], [7, 8]], [[-1, -1, 5, 6, 7, 8], [-1, -1, 5, 6, 7, 8]], 2),
}


def tensors(length, keys, dtype=torch.float64, group=HQ // HKV):
    generator = torch.Generator().manual_seed(length + keys)
    shapes = (B, HKV * group, length, D), (B, HKV, keys, D), (B, HKV, keys, D)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize("group", [1, HQ // HKV])
@pytest.mark.parametrize("block", [256, 2])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_written_out_attention(monkeypatch, name, block, group):
    """Catches keys cut off that a query sees, the mask of another block, and NaN where nothing is seen."""
    monkeypatch.setattr(fused, "BLOCK", block)
    queries, keys, window = CASES[name]
    queries, keys = torch.tensor(queries), torch.tensor(keys)
    q, k, v = tensors(queries.shape[1], keys.shape[1], group=group)
    expected = attention(q, k, v, mask=position_mask(queries, keys, window))
    out = fused_attention(q, k, v, blocks_of(queries, keys, window, group, q.dtype))
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_a_query_that_sees_nothing_gives_exact_zeros():
    """Catches NaN, and an average over keys that nobody may see: rows of padding must add nothing."""
    queries, keys = torch.tensor([[-1, 2], [1, 2]]), torch.tensor([[-1, 1, 2], [0, 1, 2]])
    q, k, v = tensors(2, 3, torch.float32)
    out = fused_attention(q, k, v, blocks_of(queries, keys, None, 2, q.dtype))
    assert out[0, :, 0].eq(0).all() and out[0, :, 1].ne(0).all() and out.isfinite().all()


def test_a_block_gets_only_the_keys_it_may_see(monkeypatch):
    """Catches the whole history read for each block: twice the work of a causal prompt."""
    monkeypatch.setattr(fused, "BLOCK", 3)
    positions = torch.arange(9)[None].expand(B, -1)
    blocks = list(blocks_of(positions, positions, None, 1, torch.float32))
    assert [(b.queries, b.keys) for b in blocks] == [
        (slice(0, 3), slice(0, 3)),
        (slice(3, 6), slice(0, 6)),
        (slice(6, 9), slice(0, 9)),
    ]
    windowed = list(blocks_of(positions, positions, 2, 1, torch.float32))
    assert [b.keys for b in windowed] == [slice(0, 3), slice(2, 6), slice(5, 9)]
    (last,) = blocks_of(positions[:, -1:], positions, None, 1, torch.float32)
    assert last.mask is None and last.blind is None


def test_a_whole_text_needs_no_mask():
    """Catches heads that read another group's keys, and torch's causal mask where it does not fit."""
    q, k, v = tensors(7, 7)
    positions = torch.arange(7)[None].expand(B, -1)
    expected = attention(q, k, v, mask=position_mask(positions, positions))
    torch.testing.assert_close(causal_attention(q, k, v), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.004), (torch.float16, 0.0005)])
def test_low_precision_errs_by_its_last_bit(dtype, tolerance):
    """Catches scores or weights rounded on the way: large scores would then err by percents."""
    q, k, v = tensors(5, 9, dtype)
    q = q * 8
    positions, keys = torch.arange(4, 9)[None].expand(B, -1), torch.arange(9)[None].expand(B, -1)
    exact = attention(q.double(), k.double(), v.double(), mask=position_mask(positions, keys))
    out = fused_attention(q, k, v, blocks_of(positions, keys, None, 2, dtype))
    assert out.dtype == dtype and (out.double() - exact).abs().max() < tolerance * exact.abs().max() * 2
