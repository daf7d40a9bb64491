"""Shapes against transformers: its config classes, its models' parameters, and the caches that they fill."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvlearn import sizing
from kvlearn.sizing import ModelShape
from kvlearn.sizing.families import DEFAULTS, FULL_EVERY

# Sizes that no class has as a default, all different. Each family adds what it needs.
TINY = {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48,
        "intermediate_size": 56, "vocab_size": 70, "max_position_embeddings": 96,
        "pad_token_id": 0}  # fmt: skip
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {"kv_lora_rank": 24, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
          "v_head_dim": 12, "num_key_value_heads": 6, "n_routed_experts": 4, "num_experts_per_tok": 2,
          "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
          "first_k_dense_replace": 5}  # fmt: skip
MODELS = {
    "llama": {"head_dim": 10},
    "mistral": {"head_dim": 10, "sliding_window": 7},
    "mixtral": {"head_dim": 10, "sliding_window": None, **EXPERTS},
    "qwen2": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "qwen3": {"head_dim": 10},
    "gemma": {"head_dim": 10},
    "gemma2": {"head_dim": 10, "sliding_window": 7, "query_pre_attn_scalar": 10},
    "gemma3_text": {"head_dim": 10, "sliding_window": 7, "query_pre_attn_scalar": 10, "num_hidden_layers": 7},
    "gpt_oss": {"head_dim": 10, "sliding_window": 7, **EXPERTS},
    "phi3": {"sliding_window": 7},
    "starcoder2": {"sliding_window": None},
    "olmo3": {"sliding_window": 7},
    "cohere2": {"sliding_window": 7},
    "gpt_neox": {"num_key_value_heads": "leave out"},
    "gpt2": {"num_key_value_heads": "leave out", "n_layer": 5, "n_head": 6, "n_embd": 48, "n_positions": 96},
    "gpt_bigcode": {
        "num_key_value_heads": "leave out",
        "n_layer": 5,
        "n_head": 6,
        "n_embd": 48,
        "n_positions": 96,
    },
    "falcon": {"num_key_value_heads": "leave out", "multi_query": True, "num_kv_heads": 6},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "llama4_text": {
        "head_dim": 10,
        "attention_chunk_size": 7,
        "num_local_experts": 2,
        "intermediate_size_mlp": 56,
    },
}


def tiny_config(family):
    """A config of this family, made by transformers' own class."""
    fields = {name: value for name, value in {**TINY, **MODELS[family]}.items() if value != "leave out"}
    return CONFIG_MAPPING[family](**fields)


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_a_cache_that_transformers_fills_has_these_bytes(family):
    """Heads, widths, windows or layers misread: the cache of the running model says what it stores.

    A layer with a window keeps window - 1 tokens there, because the next one makes it whole: one fewer
    than what a query sees.
    """
    config = tiny_config(family)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    cache, tokens = DynamicCache(config=config), 13
    with torch.no_grad():
        model(torch.randint(1, 70, (2, tokens)), cache=cache, use_cache=True)
    stored = sum(t.numel() for layer in cache.layers for t in (layer.keys, layer.values)) * 2
    shape = ModelShape.from_config(config)
    windows = tuple(window and window - 1 for window in shape.windows)
    assert sizing.cache_bytes(shape.but(windows=windows), tokens, 2) == stored
    assert [layer.is_sliding for layer in cache.layers] == [window is not None for window in shape.windows]
    if shape.parameters is not None:
        assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("family", sorted(DEFAULTS))
def test_what_a_family_leaves_unsaid_is_what_its_class_fills_in(family):
    """A default from memory: each is compared with the class, and read with every field left out."""
    config = CONFIG_MAPPING[family]()
    fields = config.to_dict()
    for name, value in DEFAULTS[family].items():
        if name in ("num_key_value_heads", "sliding_window"):  # the class works these out further
            continue
        assert fields.get(name, getattr(config, name, None)) == value, name
    needed = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    bare = {"model_type": family, **{name: DEFAULTS[family][name] for name in needed}}
    everything, said = ModelShape.from_config(config), ModelShape.from_config(bare)
    assert (said.key_shape, said.windows) == (everything.key_shape, everything.windows)
    assert set(FULL_EVERY) <= set(DEFAULTS)


@pytest.mark.slow  # builds some forty models, without their weights
@pytest.mark.parametrize("name", sizing.models())
def test_the_parameters_of_known_models(name):
    """A count from memory: transformers' own model of the same config, on no device at all."""
    row = sizing.models()[name]
    if "rounded" in row.get("parameters_source", "") or sizing.model(name).parameters is None:
        assert name in ("deepseek-v2-lite", "deepseek-v2", "llama-4-scout")
        return
    fields = {key: value for key, value in row["config"].items() if key != "model_type"}
    if row["config"]["model_type"] == "gpt2":
        old = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"}
        fields = {old.get(key, key): value for key, value in fields.items()}
    config = CONFIG_MAPPING[row["config"]["model_type"]](**fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sizing.model(name).parameters == sum(parameter.numel() for parameter in model.parameters())
    # And the class itself agrees with the row on what a cache depends on.
    again = ModelShape.from_config(config)
    assert (again.key_shape, again.value_shape, again.windows) == (
        sizing.model(name).key_shape, sizing.model(name).value_shape, sizing.model(name).windows
    )  # fmt: skip
