"""Masks against torch's own, attention against torch's SDPA and a float64 loop."""

import math

import pytest
import torch
import torch.nn.functional as F

from kvlearn.attention import attention, attention_weights, causal_mask, position_mask

B, HQ, HKV, L, S, D, DV = 3, 6, 2, 4, 7, 10, 5


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs(dtype=torch.float64, value_dim=DV, length=L):
    q, k = draw(B, HQ, length, D, seed=1), draw(B, HKV, S, D, seed=2)
    return q.to(dtype), k.to(dtype), draw(B, HKV, S, value_dim, seed=3).to(dtype)


def loop(q, k, v, mask=None, scale=None):
    """Attention as a sentence: for every query, a weighted average of the values it may see."""
    batch, heads, length, dim = q.shape
    out = torch.zeros(batch, heads, length, v.shape[-1], dtype=torch.float64)
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask
    mask = mask.expand(batch, heads, length, k.shape[2])
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // k.shape[1])
            for i in range(length):
                seen = [j for j in range(k.shape[2]) if mask[b, h, i, j]]
                scores = [float(q[b, h, i].double() @ k[b, kv, j].double()) for j in seen]
                scores = [score * (dim**-0.5 if scale is None else scale) for score in scores]
                exps = [math.exp(score - max(scores)) for score in scores]
                for j, weight in zip(seen, exps, strict=True):
                    out[b, h, i] += weight / sum(exps) * v[b, kv, j].double()
    return out


# Masks -----------------------------------------------------------------------------------------------


def test_position_mask_is_the_rule_cell_by_cell():
    """Keys in any order, gaps, padding on both sides: a mask that counts slots instead of positions fails."""
    queries = torch.tensor([[3, 4, 9], [-1, 0, 1]])
    keys = torch.tensor([[4, -1, 0, 9, 3], [1, 0, -1, -1, 7]])
    for window in (None, 1, 2, 6):
        mask = position_mask(queries, keys, window)
        assert mask.shape == (2, 1, 3, 5) and mask.dtype == torch.bool
        for b in range(2):
            for i, query in enumerate(queries[b].tolist()):
                for j, key in enumerate(keys[b].tolist()):
                    sees = 0 <= key <= query and (window is None or key > query - window)
                    assert bool(mask[b, 0, i, j]) == sees


@pytest.mark.slow
@pytest.mark.parametrize("length, keys", [(5, 5), (2, 5), (1, 8), (0, 3), (1, 1)])
def test_causal_mask_is_torchs_lower_right(length, keys):
    """pytorch/pytorch#108108: `is_causal` aligns top left, so that 2 queries over 5 keys see 1 and 2."""
    from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler: seconds

    mask = causal_mask(length, keys)
    assert mask.shape == (length, keys) and mask.dtype == torch.bool
    assert torch.equal(mask, torch.ones(length, keys).tril(keys - length).bool())
    if length:
        # Equal scores and one-hot values: what comes out is what was seen.
        q, k, v = torch.zeros(1, 1, length, 4), torch.zeros(1, 1, keys, 4), torch.eye(keys)[None, None]
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(length, keys))
        assert torch.equal(mask, seen[0, 0] > 0)


def test_causal_mask_of_one_length_is_square():
    """Left out, the key length is the query length."""
    assert torch.equal(causal_mask(6), torch.ones(6, 6).tril().bool())


def test_causal_mask_with_a_window_sees_itself_and_the_ones_before():
    """ml-explore/mlx-lm#390: with a window of 3 a query sees itself and 2 more, not 3 more."""
    mask = causal_mask(4, 6, window=3)
    assert mask.sum(dim=1).tolist() == [3, 3, 3, 3]
    assert mask[0].tolist() == [True, True, True, False, False, False]
    assert mask[3].tolist() == [False, False, False, True, True, True]


def test_causal_mask_is_made_where_it_is_asked_for():
    """pytorch/executorch#19174: an index tensor that is left on the CPU."""
    assert causal_mask(2, 3, device="meta").device.type == "meta"


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: causal_mask(4, 3), "query_length=4 and key_length=3"),
        (lambda: causal_mask(-1, 3), "query_length=-1"),
        (lambda: causal_mask(2, 3, window=0), "window=0"),
        (lambda: position_mask(torch.zeros(2), torch.zeros(1, 2)), "(2,) for the queries and (1, 2)"),
        (lambda: position_mask(torch.zeros(1, 2), torch.zeros(2)), "(1, 2) for the queries and (2,)"),
        (lambda: position_mask(torch.zeros(3, 2), torch.zeros(4, 2)), "3 rows of query positions and 4 rows"),
    ],
)
def test_masks_that_cannot_be(call, words):
    """A broadcast that happens to work would let one row's padding hide another row's tokens."""
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


# Attention ---------------------------------------------------------------------------------------------


def masks():
    generator = torch.Generator().manual_seed(4)
    full = torch.rand(B, HQ, L, S, generator=generator) > 0.4
    full[..., 2] = True  # SDPA's answer to an empty row has changed between versions
    return {
        "none": None,
        "(L, S)": causal_mask(L, S),
        "(B, 1, L, S)": full[:, :1],
        "(B, Hq, L, S)": full,
        "(1, Hq, 1, S)": full[:1, :, :1],
    }


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("scale", [None, 0.7])
def test_attention_is_the_loop_and_torchs(name, scale):
    """No scale, a wrong axis of softmax, a mask after softmax, tiled instead of interleaved heads
    (apple/axlearn#842): each gives other numbers than the loop."""
    q, k, v = inputs()
    out = attention(q, k, v, masks()[name], scale)
    assert out.shape == (B, HQ, L, DV) and out.dtype == torch.float64
    assert torch.allclose(out, loop(q, k, v, masks()[name], scale), rtol=0, atol=1e-12)
    q, k, v = inputs(torch.float32, value_dim=D)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=masks()[name], scale=scale, enable_gqa=True)
    assert torch.allclose(attention(q, k, v, masks()[name], scale), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_grouped_heads_of_every_size(kv_heads):
    """Multi-query (1), grouped (3) and multi-head (6 of 6) are one function."""
    q, k, v = draw(2, 6, 3, 4), draw(2, kv_heads, 5, 4, seed=1), draw(2, kv_heads, 5, 4, seed=2)
    theirs = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.allclose(attention(q, k, v), theirs, rtol=0, atol=1e-12)


def test_weights_are_shares_of_one():
    """A softmax over heads or over queries also sums to one, along the wrong axis."""
    q, k, _ = inputs()
    weights = attention_weights(q, k, causal_mask(L, S))
    assert weights.shape == (B, HQ, L, S)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(B, HQ, L, dtype=torch.float64))
    assert (weights[:, :, ~causal_mask(L, S)] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_dtype_and_takes_its_softmax_in_float32(dtype):
    """A softmax in bfloat16 has 8 bits for each weight; and unscaled float16 scores overflow at 65504."""
    q, k, v = inputs(dtype, value_dim=D)
    for mask in (None, causal_mask(L, S)):
        weights = attention_weights(q, k, mask)
        assert weights.dtype == torch.float32
        assert torch.allclose(weights.sum(-1), torch.ones(B, HQ, L), rtol=0, atol=1e-6)
    out = attention(q, k, v)
    assert out.dtype == dtype
    assert torch.allclose(out.double(), loop(q, k, v), rtol=0, atol=0.02)
    large = torch.full((1, 1, 2, 64), 300.0, dtype=dtype)
    theirs = F.scaled_dot_product_attention(large, large, large)
    assert torch.equal(attention(large, large, large), theirs) and theirs.isfinite().all()


@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 0.0025), (torch.float16, 0.0003)])
def test_half_precision_scores_are_not_rounded(dtype, most):
    """Scores rounded to half precision before the softmax: with a deviation of 10 the result's error was
    6 to 7 times that of torch's own attention."""
    q, k, v = (draw(1, 4, 64, 64, seed=seed) for seed in (1, 2, 3))
    q, k, v = (10**0.5 * q).to(dtype), (10**0.5 * k).to(dtype), v.to(dtype)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    theirs, error = F.scaled_dot_product_attention(q, k, v), {}
    for name, out in (("ours", attention(q, k, v)), ("theirs", theirs)):
        error[name] = float((out.double() - exact).norm() / exact.norm())
    assert error["ours"] < min(most, 2 * error["theirs"])
    for mask in (None, causal_mask(64)):  # the weights themselves, which are given back unrounded
        hidden = torch.zeros(64, 64, dtype=torch.bool) if mask is None else ~mask
        scores = (q.double() @ k.double().mT / 8).masked_fill(hidden, -math.inf)
        assert (attention_weights(q, k, mask) - scores.softmax(-1)).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_query_that_sees_nothing_gives_zeros(dtype):
    """pytorch/pytorch#103749: a softmax over nothing but -inf is NaN, and NaN spreads to every row."""
    q, k, v = inputs(dtype)
    mask = causal_mask(L, S).clone().expand(B, 1, L, S).clone()
    mask[1, 0, 2] = False
    out = attention(q, k, v, mask)
    assert (out[1, :, 2] == 0).all() and out.isfinite().all()
    others = torch.ones(B, L, dtype=torch.bool)
    others[1, 2] = False
    expected = loop(q, k, v, mask).transpose(1, 2)[others]
    assert torch.allclose(out.transpose(1, 2)[others].double(), expected, rtol=0, atol=0.01)
    assert torch.equal(attention(q, k[:, :, :0], v[:, :, :0]), torch.zeros(B, HQ, L, DV, dtype=dtype))


def test_a_query_that_sees_nothing_has_no_gradient():
    """pytorch/pytorch#103749, backwards: zeros that hide a NaN give NaN gradients to every weight."""
    q, k, v = (tensor.requires_grad_() for tensor in inputs())
    mask = causal_mask(L, S).clone()
    mask[1] = False
    attention(q, k, v, mask).sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
    assert (q.grad[:, :, 1] == 0).all() and (q.grad[:, :, 2] != 0).any()


def test_views_with_other_strides_are_welcome():
    """Heads that come from a transpose are not contiguous, and `view` would refuse them."""
    q, k, v = inputs()
    turned = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
    assert not turned[0].is_contiguous()
    assert torch.allclose(attention(*turned), attention(q, k, v), rtol=0, atol=1e-12)


def test_inputs_stay_as_they_are():
    """K and V belong to the cache; scaling q in place would also change the caller's."""
    given = inputs()
    before = [tensor.clone() for tensor in given]
    attention(*given, mask=causal_mask(L, S))
    assert all(torch.equal(now, was) for now, was in zip(given, before, strict=True))


def test_no_key_is_copied_for_its_group():
    """repeat_interleave would hold group_size copies of the whole cache at every step."""
    from kvlearn.measure.memory import StorageMeter

    q, k, v = draw(1, 8, 1, 16), draw(1, 2, 300, 16), draw(1, 2, 300, 16)
    with StorageMeter() as meter:
        attention(q, k, v, causal_mask(1, 300))
    assert meter.peak < k.nbytes + v.nbytes


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda q, k, v: (q[0], k, v), "(batch, heads, length, head_dim)"),
        (lambda q, k, v: (q, k[0], v), "(2, 7, 10)"),
        (lambda q, k, v: (q, k, v[0]), "(2, 7, 5)"),
        (lambda q, k, v: (q[:2], k, v), "agree in batch and head_dim"),
        (lambda q, k, v: (q[..., :8], k, v), "agree in batch and head_dim"),
        (lambda q, k, v: (q[:, :5], k, v), "5 query heads cannot share 2 key/value heads"),
        (lambda q, k, v: (q, k, v[:, :, 1:]), "Each key has its value"),
        (lambda q, k, v: (q, k, v[:, :1]), "Each key has its value"),
        (
            lambda q, k, v: (q, k, v, torch.zeros(L, S)),
            "The mask is boolean, True = may attend; got torch.float32",
        ),
        (lambda q, k, v: (q, k, v, causal_mask(L, S)[1:]), "The mask (3, 7) does not broadcast"),
        (lambda q, k, v: (q, k, v, causal_mask(L, S).expand(2, 1, L, S)), "The mask (2, 1, 4, 7) does not"),
        (lambda q, k, v: (q[:1], k[:1], v[:1], causal_mask(L, S).expand(2, 1, L, S)), "(1, 6, 4, 7)"),
    ],
)
def test_shapes_that_do_not_fit(change, words):
    """Each is a slip that broadcasting would let pass, or would turn into an error about something else."""
    with pytest.raises(ValueError) as error:
        attention(*change(*inputs()))
    assert words in str(error.value)
