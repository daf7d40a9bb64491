"""A prepared decoder gives a plain decoder's logits, whatever is put into it and whatever is done to it."""

import copy
import weakref
from functools import partial

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
from kvlearn.rope import RopeScaling, apply_rope

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


@pytest.mark.slow
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


def give_a_bias(model):
    proj = model.layers[0].mlp.up_proj
    proj.bias = torch.nn.Parameter(torch.ones(proj.out_features, dtype=model.dtype), requires_grad=False)


class Twice(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrize(model):
    torch.nn.utils.parametrize.register_parametrization(model.layers[1].mlp.up_proj, "weight", Twice())


def replace_a_forward(model):
    model.layers[1].mlp.forward = torch.zeros_like


def narrow_a_window(model):
    model.layers[0].self_attn.window = 2


def turn_faster(model):
    for layer in model.layers:
        layer.self_attn.rope_theta = 7.0


def scale_rope(model):
    model.rope = partial(apply_rope, scaling=RopeScaling(8.0, 1.0, 4.0, 16))


CHANGES = [write_in_place, give_new_data, give_a_new_parameter, replace_a_module, drop_a_layer, give_a_bias,
           parametrize, replace_a_forward, narrow_a_window, turn_faster, scale_rope]  # fmt: skip


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


def test_a_head_cut_in_place_is_seen():
    """Catches a weight that begins where it did and has fewer rows: the old ones would still be used."""
    plain, prepared = pair()
    for model in (plain, prepared):
        model.lm_head.weight.data = model.lm_head.weight.data[:9]
    same(plain, prepared, random_tokens(1, 3))


def test_rope_without_the_scaling_of_the_config():
    """Catches angles taken from the config where the learner has put another RoPE."""
    plain, prepared = pair(rope_scaling=RopeScaling(8.0, 1.0, 4.0, 16))
    same(plain, prepared, random_tokens(1, 9))
    plain.rope = prepared.rope = apply_rope
    same(plain, prepared, random_tokens(1, 9))


def test_what_attention_and_cache_are_given_is_contiguous():
    """Catches a learner's `view`, right in a plain decoder, that fails on other strides."""
    seen = []

    def own_attention(q, k, v, mask):
        seen.extend((q.is_contiguous(), k.is_contiguous()))
        return attention(q, k, v, mask=mask)

    for model in pair(attention=own_attention):
        model(random_tokens(2, 5))
    assert all(seen)


def own_rope_in_float32(x, positions, theta):
    return apply_rope(x.float(), positions, theta)


@pytest.mark.parametrize("widened", [False, True])
def test_other_dtypes_of_a_learners_rope_and_attention(monkeypatch, widened):
    """Catches queries of another dtype that the kernel refuses, and an output that only some machines do."""
    monkeypatch.setattr(linear, "fastest_for_many", lambda *_: linear.widened if widened else whole)
    plain, prepared = pair(torch.bfloat16, rope=own_rope_in_float32)
    tokens = random_tokens(2, 7)
    torch.testing.assert_close(prepared(tokens), plain(tokens), atol=0.3, rtol=0)
    for model in pair(torch.bfloat16, attention=lambda q, k, v, mask: attention(q, k, v, mask=mask).float()):
        with pytest.raises(RuntimeError, match="same dtype"):
            model(tokens)
    for model in pair(attention=lambda q, k, v, mask: q.transpose(1, 2).flatten(2)):
        with pytest.raises(Exception, match="b h l d"):  # einops says what it got
            model(tokens)


class OwnCache:
    """Only what the decoder calls. `change` does to keys and values what a learner's mistake would do."""

    def __init__(self, change=lambda x: x):
        self.change, self.keys, self.values, self.places = change, {}, {}, {}

    @property
    def next_position(self):
        return self.places[2].amax(dim=1) + 1 if self.places else torch.zeros(2, dtype=torch.long)

    def update(self, layer, k, v, positions):
        for kept, new, dim in ((self.keys, k, 2), (self.values, v, 2), (self.places, positions, 1)):
            kept[layer] = torch.cat((kept[layer], new), dim=dim) if layer in kept else new
        return self.change(self.keys[layer]), self.change(self.values[layer])

    def key_positions(self, layer):
        return self.places[layer]


MISTAKES = {
    "room that is not written yet": lambda x: torch.nn.functional.pad(x, (0, 0, 0, 3)),
    "one row for all": lambda x: x[:1],
    "heads that do not fit": lambda x: x.repeat(1, 2, 1, 1),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_cache_with_a_mistake_gets_the_same_message(name):
    """Catches keys that the kernel takes in silence, where `attention` says what is wrong with them."""
    messages = []
    for model in pair():
        with pytest.raises(ValueError) as error:
            model(random_tokens(2, 4), OwnCache(MISTAKES[name]))
        messages.append(str(error.value))
    assert messages[0] == messages[1]


class OneTensorOfPositions(OwnCache):
    """Writes each layer's positions into the same tensor; layers 1 and 2 have lost some slots."""

    def key_positions(self, layer):
        self.shared = getattr(self, "shared", self.places[layer].clone())
        self.shared[:, :layer] = -1
        return self.shared


def test_a_cache_may_be_written_from_scratch():
    """Catches what only `KVCache` has asked of every cache, and a mask kept for a tensor that has changed."""
    plain, prepared = pair()
    tokens, positions = padded([[7, 8, 9, 1, 2, 3, 4], [5, 6, 7]])
    for kind, chunks in ((OneTensorOfPositions, (7,)), (OwnCache, (5, 1, 1))):
        outs = []
        for model in (plain, prepared):
            cache, steps = kind(), zip(tokens.split(chunks, 1), positions.int().split(chunks, 1), strict=True)
            outs.append(torch.cat([model(part, cache, places) for part, places in steps], dim=1))
        torch.testing.assert_close(*outs, atol=1e-10, rtol=0)


def test_gradients_are_those_of_a_plain_decoder():
    """Catches NaN from padding, a second derivative that the kernel lacks, and hooks that never run."""
    tokens, positions = padded([[7, 8, 9, 1, 2], [5, 6]])
    factor = torch.ones((), dtype=torch.float64, requires_grad=True)
    found = []
    for model in pair(rope=lambda x, p, theta: apply_rope(x, p, theta) * factor):
        out = model(tokens, positions=positions).square().sum()
        (by_rope,) = torch.autograd.grad(out, factor, create_graph=True)
        (curvature,) = torch.autograd.grad(by_rope, factor)
        x, runs = model.embed_tokens(tokens).requires_grad_(), []
        hook = model.layers[1].mlp.register_full_backward_hook(lambda *_, runs=runs: runs.append(1))
        out = model.run(x, positions, None, False).square().sum()
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        hook.remove()
        found.append((by_rope.detach(), curvature, first.detach(), second, torch.tensor(len(runs))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    assert found[0][-1] > 0


def test_counters_of_operations_see_the_plain_decoder():
    """Catches FLOPs that the fused kernel hides, hooks on all modules, and autocast's dtype."""
    from torch.utils.flop_counter import FlopCounterMode

    flops, calls, errors = [], [], []
    for model in pair(torch.float32):
        with FlopCounterMode(display=False) as counter:
            model(random_tokens(1, 7))
        flops.append(counter.get_total_flops())
        seen = []
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda m, *_, seen=seen: seen.append(type(m))
        )
        model(random_tokens(1, 7))
        hook.remove()
        calls.append([kind.__name__ for kind in seen[:-1]])
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError) as error:
            model(random_tokens(1, 7), GrowingCache(model.config))
        errors.append(str(error.value))
    for found in (flops, calls, errors):
        assert found[0] == found[1]


def test_another_dtype_lets_go_of_the_old_weights():
    """Catches `model.half()` that keeps the joined float32 weights beside the new ones; a `to` that changes
    nothing leaves the model prepared."""
    _, prepared = pair()
    assert prepared.to("cpu").is_prepared()
    layer = weakref.ref(prepared._prepared[0][0])
    prepared.half()
    assert layer() is None and not prepared.is_prepared()


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


def test_widened_prompts_stay_wide_between_layers(monkeypatch):
    """Catches a prompt rounded to 16 bits after every product, which costs time and precision."""
    monkeypatch.setattr(linear, "fastest_for_many", lambda *_: linear.widened)
    plain, _ = pair(torch.float32)
    low = PreparedDecoder(plain.config).to(torch.bfloat16)
    low.load_state_dict(plain.state_dict())
    low.requires_grad_(False).prepare()
    seen, normed = [], inference.normed
    monkeypatch.setattr(inference, "normed", lambda x, norm: seen.append(x.dtype) or normed(x, norm))
    low(random_tokens(1, 12))
    assert seen == [torch.float32] * 2 * plain.config.num_layers + [torch.bfloat16]
    seen.clear()
    low(random_tokens(1, 1))
    assert set(seen) == {torch.bfloat16}
