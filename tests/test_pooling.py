"""Mean-pooled key/value heads: which heads, their mean, and what stays."""

from functools import partial

import pytest
import torch
from tiny_decoder import random_tokens, tiny_decoder

from kvlearn import GrowingCache, generate
from kvlearn.attention import attention
from kvlearn.pooling import mean_pool_heads, pool_kv_heads
from kvlearn.rope import RopeScaling

SIX = {"num_heads": 12, "num_kv_heads": 6}


def test_neighbours_are_averaged():
    """Would catch heads 0 and 3 pooled in place of 0 and 1, a sum for a mean, and channels mixed up."""
    projection = torch.arange(6.0)[:, None, None].expand(6, 4, 5) * 10 + torch.arange(4.0)[:, None]
    pooled = mean_pool_heads(projection.reshape(24, 5), head_dim=4, num_kv_heads=3)
    assert pooled.shape == (12, 5)
    assert pooled[:, 0].tolist() == [5, 6, 7, 8, 25, 26, 27, 28, 45, 46, 47, 48]
    assert torch.equal(mean_pool_heads(projection[:, :, 0].reshape(24), 4, 3), pooled[:, 0])  # a bias


@pytest.mark.parametrize("new", [1, 2, 3, 6])
def test_keys_and_values_are_the_means_of_the_old_ones(new):
    """The definition, seen from the cache: would catch keys pooled and values not, or pooling after a turn
    that is another for each head."""
    decoder = tiny_decoder(**SIX)
    pooled, tokens = pool_kv_heads(decoder, new), random_tokens(2, 7)
    old, mean = (GrowingCache(d.config, 2, dtype=torch.float64) for d in (decoder, pooled))
    decoder(tokens, old), pooled(tokens, mean)
    for side in range(2):  # the first layer reads the embeddings, which are the same in both
        before, after = (cache._append(0, *[torch.empty(2, heads, 0, 10).double()] * 2)[side]
                         for cache, heads in ((old, 6), (mean, new)))  # fmt: skip
        assert after.shape == (2, new, 7, 10)
        for head in range(new):
            group = before[:, head * (6 // new) : (head + 1) * (6 // new)]
            torch.testing.assert_close(after[:, head], group.mean(dim=1), rtol=0, atol=1e-12)
    assert mean.used_bytes * 6 == old.used_bytes * new


def test_heads_that_are_equal_lose_nothing():
    """Where a group's heads are the same, their mean is each of them: would catch query heads that read the
    head of another group after pooling."""
    decoder = tiny_decoder(**SIX)
    for layer in decoder.layers:
        for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            heads = projection.weight.view(2, 3, 10, 20)
            heads.copy_(heads[:, :1].clone().expand_as(heads))
    tokens = random_tokens(3, 9)
    torch.testing.assert_close(pool_kv_heads(decoder, 2)(tokens), decoder(tokens), rtol=0, atol=1e-10)


def test_pooling_changes_the_text():
    """The honest half: heads that differ are lost, and the logits are others at once."""
    decoder, tokens = tiny_decoder(**SIX), random_tokens(1, 9)
    assert (pool_kv_heads(decoder, 1)(tokens) - decoder(tokens)).abs().max() > 0.1
    assert torch.equal(pool_kv_heads(decoder, 6)(tokens), decoder(tokens))


def test_the_rest_of_the_model_is_kept_and_the_old_one_untouched():
    """Biases, norms of q and k, scaled RoPE, tied tables, the attention function, dtype and mode."""
    changes = {"qkv_bias": True, "qk_norm": True, "tie_embeddings": True}
    decoder = tiny_decoder(torch.float32, rope_scaling=RopeScaling(4.0, 1.0, 3.0, 16), **SIX, **changes)
    decoder.eval().attention = partial(attention, scale=0.2)
    before = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    pooled = pool_kv_heads(decoder, 3)
    assert pooled.config.num_kv_heads == 3 and pooled.config.group_size == 4
    assert pooled.lm_head.weight is pooled.embed_tokens.weight and not pooled.training
    assert pooled.attention.keywords == {"scale": 0.2} and pooled.rope.keywords == decoder.rope.keywords
    assert {p.dtype for p in pooled.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in pooled.parameters())
    for name, tensor in pooled.state_dict().items():
        assert torch.equal(before[name], decoder.state_dict()[name])
        assert tensor.data_ptr() != decoder.state_dict()[name].data_ptr()
        if ".k_proj." not in name and ".v_proj." not in name:
            assert torch.equal(tensor, before[name])
    bias = before["layers.1.self_attn.v_proj.bias"].view(3, 2, 10).mean(dim=1).flatten()
    assert torch.equal(pooled.layers[1].self_attn.v_proj.bias, bias)
    cached = generate(pooled, [1, 2, 3], 5, cache=GrowingCache(pooled.config))
    assert cached.tokens == generate(pooled, [1, 2, 3], 5).tokens


@pytest.mark.parametrize("new", [0, -1, 4, 7, 2.0, True, None, "2"])
def test_heads_that_do_not_share_out_are_refused(new):
    """Would catch five heads made of six by a slice, and a truncating division."""
    with pytest.raises(ValueError, match="6 key/value heads make even groups for 1 or 2 or 3 or 6 new ones"):
        pool_kv_heads(tiny_decoder(**SIX), new)
    with pytest.raises(ValueError, match="even groups"):
        mean_pool_heads(torch.zeros(60, 4), 10, new)


def test_what_is_no_decoder_and_no_heads_is_refused():
    """A cache or a config in the place of the model, and a width that cuts a head in two."""
    with pytest.raises(ValueError, match="takes a Decoder; got a DecoderConfig"):
        pool_kv_heads(tiny_decoder().config, 1)
    for nothing in (
        None,
        3,
        torch.tensor(3.0),
        torch.ones(4, 2, dtype=torch.long),
        torch.ones(4, 2).to_sparse(),
    ):
        with pytest.raises(ValueError, match="a matrix of floating-point numbers"):
            mean_pool_heads(nothing, 2, 1)
    with pytest.raises(ValueError, match="0 rows are not a whole number of heads"):
        mean_pool_heads(torch.zeros(0, 3), 2, 1)
    for width in (7, 0, 2.5, None):
        with pytest.raises(ValueError, match="24 rows are not a whole number of heads"):
            mean_pool_heads(torch.zeros(24, 3), width, 1)
