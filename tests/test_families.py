"""Mistral, Qwen2, Qwen3 and Llama 3.1: read from transformers' own files, equal to transformers' own logits.

Every size is another number. The texts are longer than the windows, and longer than the length that a scaled
rotary embedding calls its first training's.
"""

import json

import pytest
import torch
import transformers
from tiny_decoder import CACHES
from tiny_models import SIZES, in_float64

from kvlearn.checkpoint import load_folder
from kvlearn.decoder_config import DecoderConfig
from kvlearn.families import FAMILIES, ModelError, config_from_fields
from kvlearn.rope import RopeScaling, apply_rope, rotary_angles

pytestmark = pytest.mark.slow  # makes and runs a transformers model of each family

THETA = 700.0
PLAIN = {"rope_theta": THETA, "rope_type": "default"}
LLAMA3 = {
    "rope_theta": 10000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 19,
}
MODELS = {
    "llama 3.1": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": 5}),
    "mistral without a window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2, windows in the upper layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {}),
    "qwen3, a hybrid": (
        "Qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


@pytest.fixture(scope="module", params=MODELS)
def saved(request, tmp_path_factory):
    """A random model of the family, its norms and biases not what they start as, and its folder."""
    family, fields = MODELS[request.param]
    torch.manual_seed(3)
    fields = SIZES | {"rope_parameters": PLAIN, "tie_word_embeddings": False} | fields
    config = getattr(transformers, f"{family}Config")(**fields)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.copy_(torch.randn_like(weights) * 0.3 + (1.0 if "norm" in name else 0.0))
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model.requires_grad_(False), folder


def both(saved, dtype):
    theirs, folder = saved
    ours = load_folder(folder, dtype, torch.device("cpu"))
    return in_float64(theirs) if dtype == torch.float64 else theirs.float(), ours


def draw(batch, length):
    return torch.randint(SIZES["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(1))


def agree(ours, theirs):
    assert (ours - theirs).abs().max() <= TOLERANCE[ours.dtype] * theirs.abs().max()


# float32 first: in_float64 changes the shared model for good.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_are_transformers(saved, dtype):
    """A bias left out, norms of q and k after the turn or over all heads at once, a window one too wide
    (ml-explore/mlx-lm#390) or in the wrong layers, slow pairs left at their speed."""
    theirs, ours = both(saved, dtype)
    tokens = draw(2, 43)
    want = theirs(tokens).logits
    agree(ours(tokens), want)
    for kind in CACHES.values():
        cache = kind(ours.config, 2, dtype=dtype)
        cuts = [0, 3, 20, 21, 22, 37, 43]
        parts = [ours(tokens[:, a:b], cache) for a, b in zip(cuts, cuts[1:], strict=False)]
        agree(torch.cat(parts, dim=1), want)


@pytest.mark.parametrize("dim, theta, length", [(10, 10000.0, 19), (64, 500000.0, 8192), (6, 5000.0, 400)])
def test_scaled_angles_are_transformers(dim, theta, length):
    """Fast and slow pairs mixed up, or the mixture between them taken the wrong way round."""
    rope = LLAMA3 | {"rope_theta": theta, "original_max_position_embeddings": length}
    config = transformers.LlamaConfig(hidden_size=3 * dim, num_attention_heads=3, rope_parameters=rope)
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq
    scaling = RopeScaling(8.0, 1.0, 4.0, length)
    ours = rotary_angles(torch.tensor([[1]]), dim, theta, scaling)[0, 0]
    torch.testing.assert_close(ours, theirs)
    assert not torch.equal(ours, rotary_angles(torch.tensor([[1]]), dim, theta)[0, 0])


def test_the_decoder_gives_the_scaling_to_any_rotary_function(saved):
    """A decoder that scales its own rotary function and not the learner's."""
    theirs, folder = saved
    seen = []

    def mine(x, positions, theta, scaling=None):
        seen.append(scaling)
        return apply_rope(x, positions, theta, scaling)

    model = load_folder(folder, torch.float32, torch.device("cpu"), rope=mine)
    model(draw(1, 3))
    assert set(seen) == {model.config.rope_scaling}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_left_out_is_what_transformers_takes(family):
    """Defaults of our own: Qwen3's head_dim is 128 whatever its width, Mistral has a window of 4096."""
    few = {"vocab_size": 61, "hidden_size": 64, "num_hidden_layers": 30, "num_attention_heads": 32}
    few |= {"intermediate_size": 52}
    theirs = transformers.AutoConfig.for_model(family, **few)
    ours = config_from_fields(few | {"model_type": family}, "here")
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 2)
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert set(ours.windows) == ({theirs.sliding_window} if family == "mistral" else set())


def test_layer_types_default_to_windows_in_the_upper_layers():
    """A window in all layers, or in the lower ones: max_window_layers counts those that have none."""
    fields = SIZES | {"model_type": "qwen2", "num_hidden_layers": 5, "use_sliding_window": True}
    fields |= {"sliding_window": 7, "max_window_layers": 3}
    assert config_from_fields(fields, "here").windows == (None, None, None, 7, 7)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"model_type": "gemma2"}, "model_type is 'gemma2', and only 'llama' or 'mistral' or"),
        ({"model_type": ["llama"]}, r"model_type is \['llama'\]"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias is True"),
        ({"model_type": "qwen2", "architectures": ["LlamaForCausalLM"]}, "Qwen2ForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rotary fields .* lack 'low_freq_factor'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_type 'default' or 'llama3'"),
        ({"rope_parameters": LLAMA3 | {"factor": 0}}, "above 0"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}}, "below high_freq_factor"),
        ({"model_type": "mistral", "sliding_window": 0}, "a layer's window must be at least 1; got 0"),
        ({"model_type": "mistral", "sliding_window": "4k"}, "a layer's window is a whole number; got '4k'"),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 4, "layer_types": ["full"]},
            "layer_types should be full_attention or sliding_attention for each of the 3 layers",
        ),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(fields, message):
    """A model that loads and computes something else."""
    with pytest.raises(ModelError, match=message):
        config_from_fields(SIZES | {"model_type": "llama"} | fields, "some/config.json")


@pytest.mark.parametrize(
    "field, message",
    [
        ({"windows": (4, None)}, "one window .* for each of the 3 layers"),
        ({"windows": [4, 4, 4]}, "windows is a tuple"),
        ({"windows": (4, 0, None)}, "a layer's window must be at least 1; got 0"),
        ({"windows": (4, 2.5, None)}, "got 2.5"),
        ({"qkv_bias": 1}, "qkv_bias is True or False; got 1"),
        ({"qk_norm": None}, "qk_norm is True or False; got None"),
        ({"rope_scaling": (8.0, 1.0, 4.0, 19)}, "rope_scaling is a kvlearn.rope.RopeScaling"),
        ({"rope_scaling": RopeScaling(8.0, 1.0, float("nan"), 19)}, "above 0"),
    ],
    ids=str,
)
def test_a_config_that_makes_no_decoder(field, message):
    """A wrong field that shows only when the first token is fed, or never."""
    with pytest.raises(ValueError, match=message):
        DecoderConfig(53, 42, 3, 6, 2, 10, 37, **field)


def test_a_folder_in_shards_with_another_family(saved, tmp_path):
    """A loader that reads shards for Llama alone."""
    theirs, folder = saved
    theirs.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]) > 20
    one = load_folder(folder, torch.float32, torch.device("cpu")).state_dict()
    many = load_folder(tmp_path, torch.float32, torch.device("cpu")).state_dict()
    assert one.keys() == many.keys() and all(torch.allclose(one[name], many[name]) for name in one)
