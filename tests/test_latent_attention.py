"""Latent attention: against a slow loop, against transformers' DeepSeek layers, and its two forms."""

import math

import pytest
import torch

from kvlearn import GrowingCache
from kvlearn.cache.latent import LatentCache
from kvlearn.latent_attention import LatentAttention, LatentConfig
from kvlearn.measure import StorageMeter
from kvlearn.rope import apply_rope

SIZES = {
    "hidden_size": 20,
    "num_heads": 5,
    "latent_dim": 9,
    "nope_dim": 7,
    "rope_dim": 4,
    "value_dim": 3,
    "rope_theta": 50.0,
    "max_position": 60,
}
FORMS = {"absorbed": True, "expanded": False}
every_form = pytest.mark.parametrize("absorbed", FORMS.values(), ids=FORMS)


def random_layer(dtype=torch.float64, layer=0, **changes):
    """Weights large enough that attention is not flat, and norms that are not 1."""
    made = LatentAttention(LatentConfig(**SIZES | changes), layer).to(dtype)
    generator = torch.Generator().manual_seed(3)
    for name, weights in made.requires_grad_(False).named_parameters():
        numbers = torch.randn(weights.shape, generator=generator, dtype=torch.float64)
        weights.copy_(1 + 0.3 * numbers if "norm" in name else 0.5 * numbers)
    return made


def hidden(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64).to(dtype)


def slow(layer, x):
    """One query and one head at a time, from the formulas of arXiv 2405.04434, pairs turned as neighbours."""
    sizes, weights = layer.config, layer.state_dict()
    heads, nope, rope, value = sizes.num_heads, sizes.nope_dim, sizes.rope_dim, sizes.value_dim
    up = weights["kv_b_proj.weight"]

    def turned(pair_vector, position):
        out = pair_vector.clone()
        for pair in range(rope // 2):
            angle = position / sizes.rope_theta ** (2 * pair / rope)
            a, b = pair_vector[2 * pair], pair_vector[2 * pair + 1]
            out[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            out[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out

    result = torch.zeros_like(x)
    for b in range(x.shape[0]):
        latents, rope_keys = [], []
        for p, token in enumerate(x[b]):
            down = weights["kv_a_proj_with_mqa.weight"] @ token
            latent = down[: sizes.latent_dim]
            size = torch.sqrt((latent**2).mean() + sizes.norm_eps)
            latents.append(latent / size * weights["kv_a_layernorm.weight"])
            rope_keys.append(turned(down[sizes.latent_dim :], p))
            all_queries = weights["q_proj.weight"] @ token
            outs = []
            for h in range(heads):
                query = all_queries[h * (nope + rope) : (h + 1) * (nope + rope)]
                rows = up[h * (nope + value) : (h + 1) * (nope + value)]
                scores = torch.stack(
                    [
                        query[:nope] @ (rows[:nope] @ latents[j]) + turned(query[nope:], p) @ rope_keys[j]
                        for j in range(p + 1)
                    ]
                )
                shares = torch.softmax(scores / math.sqrt(nope + rope), dim=0)
                outs.append(sum(shares[j] * (rows[nope:] @ latents[j]) for j in range(p + 1)))
            result[b, p] = weights["o_proj.weight"] @ torch.cat(outs)
    return result


@every_form
def test_it_equals_a_slow_loop(absorbed):
    """The oracle: would catch a wrong scale (latent_dim or nope_dim alone in it), W_UK and W_UV swapped, a
    rotary key left out or turned twice, halves paired, a latent that is not normalised."""
    layer, x = random_layer(), hidden(2, 6, 20)
    torch.testing.assert_close(layer(x, absorbed=absorbed), slow(layer, x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("query_latent_dim", [None, 6])
def test_expanded_and_absorbed_are_equal(query_latent_dim):
    """In float64, cached and not, in one pass and in chunks, with a padded row: an absorbed scale of
    (latent_dim + rope_dim)^-0.5 is the classic mistake."""
    layer = random_layer(query_latent_dim=query_latent_dim)
    x = hidden(2, 8, 20)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [-1, -1, -1, 0, 1, 2, 3, 4]])
    whole = layer(x, positions, absorbed=False)
    torch.testing.assert_close(layer(x, positions), whole, rtol=0, atol=1e-12)
    for absorbed in FORMS.values():
        cache = LatentCache(layer.config, 2, dtype=torch.float64)
        chunks = zip(x.split((5, 1, 2), dim=1), positions.split((5, 1, 2), dim=1), strict=True)
        steps = torch.cat([layer(chunk, at, cache, absorbed) for chunk, at in chunks], dim=1)
        torch.testing.assert_close(steps, whole, rtol=0, atol=1e-12)
        assert cache.used_bytes == (9 + 4) * 8 * 2 * 8
    assert (whole[1, :3] == 0).all()  # padding sees nothing


def test_positions_go_on_from_the_cache_and_each_layer_has_its_own_place():
    """Decoding at position 0 again (executorch#2010), and two layers in one entry."""
    config = {"num_layers": 2}
    layers = [random_layer(layer=0, **config), random_layer(layer=1, **config)]
    x = hidden(1, 6, 20)
    whole = layers[1](layers[0](x))
    cache = LatentCache(layers[0].config, dtype=torch.float64)
    steps = [layers[1](layers[0](token, cache=cache), cache=cache) for token in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-12)
    cache.reset()
    first = layers[1](x, cache=cache)  # whichever layer of a step comes first
    torch.testing.assert_close(first, layers[1](x), rtol=0, atol=1e-12)
    layers[0](x, cache=cache)
    cache.truncate(4)
    torch.testing.assert_close(layers[0](x[:, 4:], cache=cache), layers[0](x)[:, 4:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("query_latent_dim", [None, 6])
def test_it_equals_transformers_deepseek(version, query_latent_dim):
    """Same names, same weights, same numbers: neighbours make the pairs in both versions."""
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

    module, name = ((v2, "DeepseekV2"), (v3, "DeepseekV3"))[version - 2]
    config = getattr(module, f"{name}Config")(
        vocab_size=11, hidden_size=20, num_hidden_layers=1, num_attention_heads=5, num_key_value_heads=5,
        kv_lora_rank=10, q_lora_rank=query_latent_dim, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=3,
        max_position_embeddings=60, rope_parameters={"rope_type": "default", "rope_theta": 50.0},
        attn_implementation="eager",
    )  # fmt: skip
    theirs = getattr(module, f"{name}Attention")(config, layer_idx=0).eval().requires_grad_(False)
    # Version 2 of theirs takes even widths alone.
    ours = random_layer(torch.float32, query_latent_dim=query_latent_dim, latent_dim=10, nope_dim=8)
    theirs.load_state_dict(ours.state_dict())
    x, positions = hidden(2, 7, 20, dtype=torch.float32), torch.arange(7).expand(2, 7)
    angles = getattr(module, f"{name}RotaryEmbedding")(config)(x, positions)
    mask = torch.full((7, 7), torch.finfo(torch.float32).min).triu(1).expand(2, 1, 7, 7)
    expected = theirs(hidden_states=x, position_embeddings=angles, attention_mask=mask)[0]
    for absorbed in FORMS.values():
        difference = (ours(x, absorbed=absorbed) - expected).abs().max()
        assert difference <= 1e-5 * expected.abs().max()


def test_the_rotary_part_alone_knows_the_positions():
    """All positions moved by 11: nothing changes, because scores depend on distances. And the stored
    latents are the same wherever a token stands: would catch RoPE applied to the latent."""
    layer, x = random_layer(), hidden(1, 6, 20)
    near, far = torch.arange(6)[None], torch.arange(11, 17)[None]
    torch.testing.assert_close(layer(x, near), layer(x, far), rtol=0, atol=1e-5)
    (latent, rope_key), (same, moved) = layer.latents(x, near), layer.latents(x, far)
    assert torch.equal(latent, same) and (rope_key - moved).abs().max() > 0.1
    assert latent.shape == (1, 1, 6, 9) and rope_key.shape == (1, 1, 6, 4)


def test_absorbed_makes_nothing_for_each_head_and_stored_token():
    """The point of absorbing: a decode step's working memory does not grow with heads x tokens x nope_dim."""
    layer = random_layer(torch.float32, num_heads=32)
    cache = LatentCache(layer.config, dtype=torch.float32)
    layer(hidden(1, 50, 20, dtype=torch.float32), cache=cache)
    token, largest = hidden(1, 1, 20, dtype=torch.float32), {}
    for name, absorbed in FORMS.items():
        with StorageMeter(torch.float32) as meter:
            layer(token, None, cache, absorbed)
        cache.truncate(50)
        largest[name] = meter.peak
    assert largest["expanded"] > 32 * 51 * (7 + 3) * 4  # every head's keys and values
    assert largest["absorbed"] < 32 * 51 * 7 * 4


def test_up_projections_are_views_with_their_rows_in_order():
    """DeepSeek's kv_b_proj holds, head by head, the key's rows and then the value's."""
    layer = random_layer()
    w_uk, w_uv = layer.up_projections()
    assert w_uk.shape == (5, 7, 9) and w_uv.shape == (5, 3, 9)
    weight = layer.kv_b_proj.weight
    assert torch.equal(w_uk[2], weight[20:27]) and torch.equal(w_uv[2], weight[27:30])
    assert w_uk.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()


def test_gradients_flow_in_both_forms():
    """A layer that can only be run cannot be trained: each parameter gets the same gradient either way."""
    found = []
    for absorbed in FORMS.values():
        layer = random_layer().requires_grad_(True)
        layer(hidden(1, 4, 20), absorbed=absorbed).square().sum().backward()
        found.append([p.grad for p in layer.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_pairs_of_neighbours_turn_as_halves_of_their_own():
    """The convention, by hand: (1, 0) at channels 0 and 1 turns by one radian a position."""
    layer = random_layer()
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).double().view(1, 1, 1, 4)
    turned = layer._turn(x, torch.tensor([[2]]))
    halves = torch.tensor([1.0, 0.0, 0.0, 1.0]).double().view(1, 1, 1, 4)
    assert torch.equal(turned, apply_rope(halves, torch.tensor([[2]]), 50.0))
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).double().view(1, 1, 1, 4)
    unturned = layer._turn(x, torch.tensor([[0]]))
    assert unturned.flatten().tolist() == [1, 3, 2, 4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"latent_dim": 0}, "latent_dim must be at least 1; got 0"),
        ({"num_heads": -4}, "num_heads must be at least 1; got -4"),
        ({"value_dim": 2.0}, "value_dim is a whole number"),
        ({"query_latent_dim": 0}, "query_latent_dim must be at least 1"),
        ({"rope_dim": 3}, "rope_dim is even; got 3"),
        ({"rope_theta": 0}, "rope_theta is a number above 0"),
        ({"norm_eps": -1.0}, "norm_eps is a number, 0 or above"),
        ({"num_layers": True}, "num_layers is a whole number"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes, words):
    """A config that lies is found when it is made, not as a shape error three calls later."""
    with pytest.raises(ValueError, match=words):
        LatentConfig(**SIZES | changes)


def test_what_does_not_fit_is_refused_in_a_sentence():
    """Another width, token ids, a cache of keys and values, other rows, positions past the end."""
    layer = random_layer()
    x = hidden(2, 3, 20)
    with pytest.raises(ValueError, match=r"hidden_size=20; got \(2, 3, 19\)"):
        layer(x[..., :19])
    with pytest.raises(ValueError, match="got a list"):
        layer([1, 2])
    with pytest.raises(ValueError, match="x is torch.float32 and the layer's weights are torch.float64"):
        layer(x.float())
    with pytest.raises(ValueError, match="The cache has layers 0 to 0; got layer 1"):
        LatentAttention(layer.config, 1)
    with pytest.raises(ValueError, match="made with a LatentConfig; got a dict"):
        LatentAttention(SIZES)
    with pytest.raises(ValueError, match=r"stores \(5, 11\) and \(5, 11\). LatentCache\(layer.config\) fits"):
        layer(x, cache=GrowingCache(layer.config, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="A cache is made before it is given"):
        layer(x, cache=LatentCache)
    with pytest.raises(ValueError, match="The cache has 1 rows and x has 2"):
        layer(x, cache=LatentCache(layer.config, dtype=torch.float64))
    with pytest.raises(ValueError, match="Position 60 is past the model's last, 59"):
        layer(x, torch.tensor([[58, 59, 60], [0, 1, 2]]))
    with pytest.raises(ValueError, match="Positions increase strictly"):
        layer(x, torch.tensor([[1, 1, 2], [0, 1, 2]]))
    with pytest.raises(ValueError, match="k is torch.float64 on cpu and the cache holds torch.float32"):
        layer(x, cache=LatentCache(layer.config, 2))
