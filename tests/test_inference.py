"""A prepared decoder gives a plain decoder's logits, whatever is put into it and whatever is done to it."""

import copy

import pytest
import torch
from tiny_decoder import padded, random_tokens, tiny_config, tiny_decoder

import kvlearn
from kvlearn import Decoder, GrowingCache, QuantizedCache, SlidingWindowCache, StaticCache, inference, linear
from kvlearn.attention import attention
from kvlearn.inference import PreparedDecoder
from kvlearn.linear import by_inputs, whole
from kvlearn.measure import count_pairs, count_projections
from kvlearn.quantization import QuantSpec
from kvlearn.rope import apply_rope

VARIANTS = {
    "llama": {},
    "tied": {"tie_embeddings": True},
    "biases": {"qkv_bias": True},
    "norms of q and k": {"qk_norm": True},
    "windows in some layers": {"windows": (None, 4, 6)},
}


@pytest.fixture(params=[False, True], ids=["by row", "by column"])
def by_column(request, monkeypatch):
    """Both layouts of the weights, whatever this machine's measurement would choose."""
    way = (by_inputs, True) if request.param else (whole, False)
    monkeypatch.setattr(linear, "fastest", lambda *_: way)


def pair(dtype=torch.float64, attention=attention, rope=apply_rope, **changes):
    """A plain decoder and a prepared one of the same weights."""
    plain = tiny_decoder(dtype, **changes)
    prepared = PreparedDecoder(plain.config, attention, rope).to(dtype)
    prepared.load_state_dict(plain.state_dict())
    plain.attention, plain.rope = attention, prepared.rope
    return plain, prepared.requires_grad_(False).prepare()


def same(plain, prepared, *args, **kwargs):
    torch.testing.assert_close(prepared(*args, **kwargs), plain(*args, **kwargs), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_a_plain_decoder(by_column, name):
    """Catches joined weights cut in the wrong place, a lost bias or norm, and angles of another step."""
    plain, prepared = pair(**VARIANTS[name])
    assert prepared.is_prepared()
    tokens = random_tokens(2, 13)
    same(plain, prepared, tokens)
    same(plain, prepared, tokens[:, :5], last_only=True)
    rows, positions = padded([[3, 1, 4], [1, 5, 9, 2, 6]])
    same(plain, prepared, rows, positions=positions)


@pytest.mark.parametrize("make", [GrowingCache, StaticCache, SlidingWindowCache, QuantizedCache])
def test_every_cache_serves(by_column, make):
    """Catches a mask kept from an earlier layer or step, and keys of the wrong positions."""
    plain, prepared = pair()
    quantised = {"keys": None, "values": QuantSpec("int8", quant_group=5), "residual": 3}
    settings = {SlidingWindowCache: {"window": 5}, QuantizedCache: quantised}.get(make, {})
    caches = [make(plain.config, batch_size=2, dtype=torch.float64, **settings) for _ in range(2)]
    tokens, positions = padded([[7, 8, 9, 1, 2, 3, 4], [5, 6, 7]])
    for chunk in (slice(0, 3), slice(3, 7)):
        outs = [
            model(tokens[:, chunk], cache, positions[:, chunk])
            for model, cache in zip((plain, prepared), caches, strict=True)
        ]
        torch.testing.assert_close(*outs, atol=1e-10, rtol=0)
    for token in random_tokens(9, 2, 1):
        outs = [model(token, cache) for model, cache in zip((plain, prepared), caches, strict=True)]
        torch.testing.assert_close(*outs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kept", [0, 10**9])
def test_masks_kept_and_masks_made_again_agree(monkeypatch, kept):
    """Catches a mask that is kept for layers with other windows or other slots."""
    monkeypatch.setattr(inference, "KEPT_MASK", kept)
    plain, prepared = pair(windows=(3, None, 3))
    caches = [GrowingCache(plain.config, dtype=torch.float64) for _ in range(2)]
    for tokens in random_tokens(8, 1, 3):
        outs = [model(tokens, cache) for model, cache in zip((plain, prepared), caches, strict=True)]
        torch.testing.assert_close(*outs, atol=1e-10, rtol=0)


def test_a_learners_attention_and_rope_are_called_as_ever():
    """Catches a learner's function that is passed over, or called with other arguments than before."""
    calls = []

    def own_attention(q, k, v, mask=None):
        calls.append(("attention", q.shape, k.shape, v.shape, mask.shape, mask.dtype))
        return attention(q, k, v, mask=mask) * 0.5

    def own_rope(x, positions, theta):
        calls.append(("rope", x.shape, positions.tolist(), theta))
        return apply_rope(x, positions, theta) * 1.5

    plain, prepared = pair(attention=own_attention, rope=own_rope)
    tokens = random_tokens(2, 5)
    same(plain, prepared, tokens)
    half = len(calls) // 2
    assert calls[:half] == calls[half:] and half == 3 * plain.config.num_layers


def test_parameters_keep_names_shapes_and_values(by_column):
    """Catches a checkpoint that could no longer be read or written after preparing."""
    plain, prepared = pair(tie_embeddings=True, qkv_bias=True)
    before, after = plain.state_dict(), prepared.state_dict()
    assert before.keys() == after.keys() and prepared.lm_head.weight is prepared.embed_tokens.weight
    for name, value in before.items():
        assert torch.equal(after[name], value), name


def test_weights_are_joined_and_not_kept_twice(by_column):
    """Catches a joined copy beside the parameters: the model would take twice its memory."""
    _, prepared = pair()
    part, mlp = prepared.layers[1].self_attn, prepared.layers[1].mlp
    storages = [
        {layer.weight.untyped_storage().data_ptr() for layer in group}
        for group in ((part.q_proj, part.k_proj, part.v_proj), (mlp.gate_proj, mlp.up_proj))
    ]
    assert [len(group) for group in storages] == [1, 1]
    joined = part.q_proj.weight.untyped_storage().nbytes()
    assert joined == sum(p.weight.nbytes for p in (part.q_proj, part.k_proj, part.v_proj))


def write_in_place(model):
    model.layers[1].self_attn.k_proj.weight.mul_(1.5)
    model.layers[0].self_attn.q_proj.bias.add_(0.5)


def give_new_data(model):
    proj = model.layers[1].self_attn.v_proj
    proj.weight.data = proj.weight.data * 1.5


def give_a_new_parameter(model):
    proj = model.layers[0].mlp.up_proj
    proj.weight = torch.nn.Parameter(proj.weight * 1.5, requires_grad=False)


def replace_a_module(model):
    model.layers[2].mlp = torch.nn.Identity()


def drop_a_layer(model):
    del model.layers[1]


CHANGES = [write_in_place, give_new_data, give_a_new_parameter, replace_a_module, drop_a_layer]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_computes_what_it_holds_now(by_column, change):
    """Catches joined weights that a later change does not reach: the old model would go on running."""
    plain, prepared = pair(qkv_bias=True)
    tokens = random_tokens(1, 6)
    before = prepared(tokens)
    change(plain)
    change(prepared)
    same(plain, prepared, tokens)
    assert not torch.allclose(prepared(tokens), before)


def test_a_copy_and_another_dtype_have_weights_of_their_own(by_column):
    """Catches a deep copy that runs on the original's weights, and float32 weights under a float64 model."""
    plain, prepared = pair()
    tokens = random_tokens(1, 6)
    twin = copy.deepcopy(prepared)
    twin.layers[0].mlp.down_proj.weight.zero_()
    same(plain, prepared, tokens)
    assert not torch.allclose(twin(tokens), prepared(tokens))
    single = prepared.to(torch.float32)
    torch.testing.assert_close(single(tokens), plain.to(torch.float32)(tokens), atol=1e-4, rtol=1e-4)


def test_hooks_see_every_module():
    """Catches counters that read 0, because the module they watch is never called."""
    plain, prepared = pair()
    tokens = random_tokens(2, 5)
    for part in ("k_proj", "up_proj", "mlp"):
        with count_projections(prepared, part) as count:
            same(plain, prepared, tokens)
        assert count.per_step(1) == [10]
    with count_pairs(prepared) as pairs:
        same(plain, prepared, tokens)
    assert pairs.pairs(0) == 2 * 15
    assert prepared.is_prepared()


def test_bfloat16_widened_or_not_is_close_to_float32(monkeypatch):
    """Catches activations in float32 that reach a cache, an attention or a head of bfloat16."""
    plain, _ = pair(torch.float32)
    tokens = random_tokens(1, 12)
    for way in (linear.whole, linear.widened):
        monkeypatch.setattr(linear, "fastest_for_many", lambda *_, way=way: way)
        low = PreparedDecoder(plain.config).to(torch.bfloat16)
        low.load_state_dict(plain.state_dict())
        low.requires_grad_(False).prepare()
        cache = GrowingCache(plain.config, dtype=torch.bfloat16)
        out = torch.cat((low(tokens[:, :10], cache), low(tokens[:, 10:], cache)), dim=1)
        assert out.dtype == torch.bfloat16
        exact = plain(tokens)
        assert (out.float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_load_prepares_every_kind_of_model():
    """Catches a way to load that leaves the slow decoder."""
    for name in ("tiny", "recall"):
        model, _ = kvlearn.load(name)
        assert model.is_prepared()


def test_a_long_text_makes_no_mask(monkeypatch):
    """Catches memory that grows with the square of the prompt."""
    plain, prepared = pair()
    monkeypatch.setattr(inference, "blocks_of", lambda *_: pytest.fail("a mask was made"))
    same(plain, prepared, random_tokens(2, 40))


def test_an_unprepared_decoder_is_a_decoder():
    """Catches a decoder that needs `prepare` before it runs."""
    config = tiny_config()
    model = PreparedDecoder(config)
    assert isinstance(model, Decoder) and not model.is_prepared()
    assert model(random_tokens(1, 3)).shape == (1, 3, config.vocab_size)
