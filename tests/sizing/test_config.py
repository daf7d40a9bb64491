"""Shapes from config.json files as people really have them, and refusals that name the field."""

import json

import pytest

from kvlearn import sizing
from kvlearn.decoder import DecoderConfig
from kvlearn.sizing import ConfigError, ModelShape

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "hidden_size": 48,
    "head_dim": 10,
    "vocab_size": 70,
    "max_position_embeddings": 90,
}


def shape(base=LLAMA, without=(), **fields):
    return ModelShape.from_config({k: v for k, v in {**base, **fields}.items() if k not in without})


def test_a_plain_config():
    found = shape()
    assert (found.num_layers, found.num_heads, found.num_kv_heads, found.head_dim) == (5, 6, 3, 10)
    assert (found.hidden_size, found.vocab_size, found.max_position) == (48, 70, 90)
    assert found.windows == (None,) * 5 and found.kind == "GQA" and found.notes == ()


def test_head_dim_is_read_and_not_worked_out():
    """hidden_size // heads where the config says another head_dim (LMCache/LMCache#688): 8 instead of 10."""
    assert shape().head_dim == 10
    for config in ({"head_dim": None}, {"without": ("head_dim",)}):
        found = shape(**config)
        assert found.head_dim == 8 and "hidden_size / num_attention_heads is 8" in found.notes[0]
    with pytest.raises(
        ConfigError, match="head_dim is not in the config, and hidden_size=50 is not a multiple"
    ):
        shape(head_dim=None, hidden_size=50)


@pytest.mark.parametrize("name", ["num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"])
def test_key_value_heads_by_each_of_their_names(name):
    """A field under its older name taken for absent: six heads instead of three."""
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert shape(config, **{name: 3}).num_kv_heads == 3


def test_key_value_heads_that_are_not_said():
    """null or absent means as many as query heads, in models from before grouped heads; and it is noted."""
    assert shape(num_key_value_heads=None).num_kv_heads == 6
    absent = shape(without=("num_key_value_heads",))
    assert absent.num_kv_heads == 6 and absent.kind == "MHA" and "taken as all 6 heads" in absent.notes[0]
    # Mistral's class has 8 where nothing is said; null is still all.
    mistral = shape(
        model_type="mistral", without=("num_key_value_heads",), num_attention_heads=16, hidden_size=64
    )
    assert mistral.num_kv_heads == 8
    assert shape(model_type="mistral", num_key_value_heads=None).num_kv_heads == 6


def test_multi_query():
    """Falcon-7B says 71 heads and keeps one; Falcon-40B says multi_query and keeps eight."""
    falcon = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | {"model_type": "falcon"}
    assert shape(falcon, multi_query=True, num_kv_heads=6).num_kv_heads == 1
    assert shape(falcon).num_kv_heads == 1  # the class has multi_query on
    assert shape(falcon, multi_query=False).num_kv_heads == 6
    assert shape(falcon, multi_query=True, new_decoder_architecture=True, num_kv_heads=3).num_kv_heads == 3
    assert shape({**falcon, "model_type": "RefinedWeb"}, multi_query=True, n_head_kv=3).num_kv_heads == 3
    assert shape({**falcon, "model_type": "gpt_bigcode"}, multi_query=True).num_kv_heads == 1
    chatglm = {**falcon, "model_type": "chatglm"}
    assert shape(chatglm, multi_query_attention=True, multi_query_group_num=2).num_kv_heads == 2


def test_old_names_of_the_sizes():
    """GPT-2 and MPT call everything something else."""
    gpt2 = {"model_type": "gpt2", "n_layer": 4, "n_head": 6, "n_embd": 48, "n_positions": 64, "n_ctx": 64}
    found = ModelShape.from_config(gpt2)
    assert (found.num_layers, found.num_heads, found.num_kv_heads, found.head_dim) == (4, 6, 6, 8)
    assert found.max_position == 64
    mpt = {"model_type": "mpt", "n_layers": 4, "n_heads": 6, "d_model": 48, "attn_config": {"kv_n_heads": 2}}
    assert ModelShape.from_config(mpt).num_kv_heads == 2


def test_names_that_contradict_each_other():
    """The first name read and the second never looked at."""
    with pytest.raises(ConfigError, match="num_key_value_heads=3 and num_kv_heads=2 contradict"):
        shape(num_kv_heads=2)
    assert shape(num_kv_heads=3).num_kv_heads == 3


# Windows ------------------------------------------------------------------------------------------------


def test_a_window_in_each_way_it_is_said():
    """A window ignored, or taken for one that is switched off."""
    every = (7,) * 5
    assert shape(model_type="mistral", sliding_window=7).windows == every
    assert shape(model_type="mistral", sliding_window=None).windows == (None,) * 5
    assert shape(model_type="mistral").windows == (4096,) * 5  # the class's own, where nothing is said
    assert shape(sliding_window=None).windows == shape(sliding_window=False).windows == (None,) * 5
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 7}
    assert shape(qwen).windows == shape(qwen, use_sliding_window=False).windows == (None,) * 5
    assert shape(qwen, use_sliding_window=True, max_window_layers=2).windows == (None, None, 7, 7, 7)
    assert shape(qwen, use_sliding_window=True, max_window_layers=0).windows == every
    assert shape(qwen, use_sliding_window=True).windows == (None,) * 5  # the class begins at layer 28


def test_a_window_that_nobody_places_is_noted():
    """Said of no layer in particular: every layer's, and the shape says that this was taken for granted."""
    found = shape(model_type="something", sliding_window=7)
    assert found.windows == (7,) * 5 and "taken as the window of every layer" in found.notes[0]


def test_hybrids_by_rule_and_by_list():
    """The pattern shifted by one: which layer looks back without limit decides how much is kept."""
    seven = {**LLAMA, "num_hidden_layers": 7, "sliding_window": 9}
    alternate = (9, None, 9, None, 9, None, 9)
    assert shape(seven, model_type="gemma2").windows == alternate
    assert shape(seven, model_type="gpt_oss").windows == alternate
    assert shape(seven, model_type="gemma3_text").windows == (9, 9, 9, 9, 9, None, 9)
    assert shape(seven, model_type="gemma3_text", sliding_window_pattern=3).windows == (9, 9, None) * 2 + (9,)
    assert shape(seven, model_type="gemma3_text", _sliding_window_pattern=3).windows == (9, 9, None) * 2 + (
        9,
    )
    assert shape(seven, model_type="cohere2").windows == (9, 9, 9, None, 9, 9, 9)
    kinds = ["full_attention", "sliding_attention"] * 3 + ["full_attention"]
    assert shape(seven, model_type="gemma2", layer_types=kinds).windows == (None, 9) * 3 + (None,)
    llama4 = {**seven, "model_type": "llama4_text", "attention_chunk_size": 11}
    assert shape(llama4, sliding_window=None).windows == (11, 11, 11, None, 11, 11, 11)
    chunked = ["chunked_attention"] * 6 + ["full_attention"]
    assert shape(llama4, sliding_window=None, layer_types=chunked).windows == (11,) * 6 + (None,)


def test_shared_layers():
    """Gemma 3n's last layers read an earlier layer's keys and values."""
    assert len(shape(num_kv_shared_layers=2).stored_windows) == 3
    with pytest.raises(ConfigError, match="shared_layers=5 of 5 layers leave none"):
        shape(num_kv_shared_layers=5)


# Nested, latent, other widths -----------------------------------------------------------------------------


def test_a_nested_text_config_with_what_its_class_leaves_out():
    """Gemma 3 4B as published names five sizes; head_dim is 256 and not 2560 / 8."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    found = ModelShape.from_config(
        {"model_type": "gemma3", "vision_config": {"hidden_size": 1}, "text_config": text}
    )
    assert (found.num_layers, found.num_heads, found.num_kv_heads, found.head_dim) == (34, 8, 4, 256)
    assert sum(w is None for w in found.windows) == 5 and found.windows[5] is None
    assert len(found.notes) == 3 and all("gemma3_text has" in note for note in found.notes)
    nameless = {k: v for k, v in text.items() if k != "model_type"}
    assert ModelShape.from_config({"model_type": "gemma3", "text_config": nameless}).head_dim == 256


def test_latent_attention():
    """The heads of a DeepSeek config counted: 128 that its cache never sees."""
    v3 = {
        **LLAMA,
        "model_type": "deepseek_v3",
        "num_key_value_heads": 6,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 4,
    }
    found = shape(v3, without=("head_dim",), qk_nope_head_dim=9, v_head_dim=7, q_lora_rank=5)
    assert (found.key_shape, found.value_shape, found.kind) == ((1, 32), (1, 4), "MLA")
    assert found.numbers_per_token == 36
    assert found.but(latent_dim=None, rope_dim=None).numbers_per_token == 6 * (9 + 4 + 7)
    with pytest.raises(ConfigError, match="qk_rope_head_dim, the rotary key, is missing"):
        shape(kv_lora_rank=32)


def test_values_of_another_width():
    """Values as wide as keys where the config says otherwise."""
    assert shape(v_head_dim=7).numbers_per_token == 3 * (10 + 7)


# Where a config comes from ------------------------------------------------------------------------------


def test_dict_path_folder_and_config_objects(tmp_path):
    """A dict that is changed in passing, a folder that is not looked into, a config object read by luck."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    expected = shape().but(name="my-model")
    assert ModelShape.from_config(folder) == ModelShape.from_config(str(folder / "config.json")) == expected
    given = dict(LLAMA)
    ModelShape.from_config(given)
    assert given == LLAMA
    config = DecoderConfig(
        vocab_size=70,
        hidden_size=48,
        num_layers=5,
        num_heads=6,
        num_kv_heads=3,
        head_dim=10,
        intermediate_size=8,
    )
    found = ModelShape.from_config(config)
    assert found.key_shape == (3, 10) and found.max_position == 2048 and found.windows == (None,) * 5


@pytest.mark.parametrize(
    "text, said",
    [("", "cannot be read as JSON"), ("[1]", "JSON object; got a list"), ("{" * 9000, "cannot be read"),
     ("[" * 200000, "cannot be read")],
    ids=["empty", "list", "broken", "deep"],
)  # fmt: skip
def test_files_that_hold_no_config(tmp_path, text, said):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        ModelShape.from_config(path)
    with pytest.raises(ConfigError, match="is not there"):
        ModelShape.from_config(tmp_path / "nothing.json")


@pytest.mark.parametrize("config", [None, 3, [1, 2], ("a",), object()])
def test_what_is_no_config(config):
    with pytest.raises(ConfigError, match="A config is a dict, or the path of a config.json; got a"):
        ModelShape.from_config(config)


# Configs that lie ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"num_attention_heads": 0}, "num_attention_heads should be a whole number, at least 1; got 0"),
        ({"num_attention_heads": -6}, "num_attention_heads should be .*; got -6"),
        ({"num_key_value_heads": 0}, "num_key_value_heads should be .*; got 0"),
        ({"num_key_value_heads": 4}, "num_key_value_heads=4 does not divide num_attention_heads=6"),
        ({"num_key_value_heads": 12}, "num_key_value_heads=12 does not divide num_attention_heads=6"),
        ({"num_key_value_heads": [3, 3, 2, 1, 1]}, "one for each layer is not understood"),
        ({"num_key_value_heads": "3"}, "num_key_value_heads should be .*; got '3'"),
        ({"num_hidden_layers": 5.0}, "num_hidden_layers should be .*; got 5.0"),
        ({"num_hidden_layers": True}, "num_hidden_layers should be .*; got True"),
        ({"num_hidden_layers": None}, "no num_hidden_layers or n_layer"),
        ({"num_hidden_layers": 10**12}, "no model has more than 10,000 layers"),
        ({"head_dim": 0}, "head_dim should be .*; got 0"),
        ({"head_dim": float("nan")}, "head_dim should be .*; got nan"),
        ({"head_dim": None, "hidden_size": None}, "no hidden_size or n_embd"),
        ({"sliding_window": -1}, "sliding_window should be .*; got -1"),
        ({"sliding_window": 0}, "sliding_window should be .*; got 0"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types should list 5 layers"),
        ({"layer_types": "full_attention"}, "layer_types should list 5 layers"),
        ({"layer_types": ["linear_attention"] * 5}, "layer_types has 'linear_attention'"),
        ({"layer_types": [["full_attention"]] * 5}, "layer_types has"),
        ({"layer_types": ["sliding_attention"] * 5}, "layers with a window, and sliding_window is None"),
        ({"kv_lora_rank": "512"}, "kv_lora_rank should be"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is true"),
        ({"mamba_d_state": 16}, "mamba_d_state is 16: it seems to change what the cache holds"),
        ({"num_global_key_value_heads": 1}, "num_global_key_value_heads is 1"),
        ({"global_head_dim": 512}, "global_head_dim is 512"),
        ({"per_layer_config": {"05": {"head_dim": 512}}}, "per_layer_config is"),
        ({"index_topk": 2048}, "index_topk is 2048"),
        ({"cross_attention_layers": [3, 8]}, r"cross_attention_layers is \[3, 8\]"),
        ({"sliding_window_pattern": "LLLG", "sliding_window": 9}, "sliding_window_pattern should"),
        ({"model_type": "longcat_flash"}, "model_type 'longcat_flash': each of its layers attends twice"),
        ({"model_type": ["llama"], "head_dim": -1}, "head_dim should be"),
        ({"full_attn_idxs": [1]}, r"full_attn_idxs is \[1\]"),
        ({"attn_layer_period": 8}, "attn_layer_period is 8"),
        ({"state_size": 128}, "state_size is 128"),
        ({"model_type": "mamba"}, "model_type 'mamba': its layers, or some of them, keep a state"),
        ({"model_type": "rwkv"}, "model_type 'rwkv': its layers"),
        ({"model_type": "lfm2"}, "model_type 'lfm2': its layers"),
        ({"text_config": {**LLAMA, "model_type": "mamba2"}}, "model_type 'mamba2': its layers"),
        ({"model_type": "t5"}, "model_type 't5': it also keeps the keys and values of its encoder"),
        ({"model_type": "whisper"}, "model_type 'whisper': it also keeps"),
        ({"use_sliding_window": "no"}, "use_sliding_window should be true or false; got 'no'"),
        ({"multi_query": "yes"}, "multi_query should be true or false; got 'yes'"),
        ({"is_encoder_decoder": "no"}, "is_encoder_decoder should be true or false; got 'no'"),
        ({"text_config": {"multi_query": 1}}, "multi_query should be true or false; got 1"),
        ({"text_config": "x"}, "text_config should be an object with fields of its own; got 'x'"),
        ({"text_config": []}, r"text_config should be an object .*; got \[\]"),
        ({"text_config": {"attn_config": [8]}}, r"attn_config should be an object .*; got \[8\]"),
    ],
)  # fmt: skip
def test_a_config_that_lies_or_is_not_understood_is_refused_by_field(fields, said):
    """A silent guess: a wrong size looks as good as a right one."""
    with pytest.raises(ConfigError, match=said):
        shape(**fields)


def test_fields_that_only_sound_like_it_do_no_harm():
    """A refusal of what every second config has."""
    harmless = {
        "chunk_size_feed_forward": 0, "use_cache": True, "q_lora_rank": 5, "rope_scaling": None,
        "mlp_layer_types": ["dense"] * 5, "decoder_sparse_step": 1, "sliding_window": None,
        "cross_attention_hidden_size": None, "attention_bias": False,
        "text_config": None, "num_nextn_predict_layers": 1, "shared_expert_intermediate_size": 9,
    }  # fmt: skip
    assert shape(**harmless) == shape()


def test_parameters_are_counted_where_the_family_is_known():
    """Parameters of a family whose layers are others, or of weights that are not plain."""
    known = shape(intermediate_size=20, tie_word_embeddings=True)
    assert known.parameters == 70 * 48 + 5 * (48 * (2 * 60 + 2 * 30) + 3 * 48 * 20 + 2 * 48) + 48
    assert shape(intermediate_size=20).parameters == known.parameters + 70 * 48
    for fields in ({"attention_bias": True}, {"model_type": "unheard_of"}, {"intermediate_size": None}):
        assert shape(**{"intermediate_size": 20, **fields}).parameters is None
    assert sizing.weight_bytes(known.but(parameters=7)) == 14


GROUPED = {"num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 96}


@pytest.mark.parametrize(
    "field, value",
    [
        ("num_attention_groups", 4),
        ("num_query_groups", 4),
        ("attention_head_type", "multiquery"),
        ("use_cla", True),
        ("cla_share_factor", 2),
        ("total_ut_steps", 4),
        ("num_attention_heads_per_layer", [12, 8, 12, 12]),
        ("local_attention", 128),
        ("attention", {"window": 3}),
        ("attn_config", {"sliding_window_size": 128}),
        ("attn_config", {"kv_n_heads": 3, "window": 64}),
    ],
)
def test_a_field_of_attention_that_is_not_known_is_refused_by_name(field, value):
    """Would catch a size that is several times wrong because a field was passed over, at any depth."""
    name = f"attn_config.{list(value)[-1]}" if field == "attn_config" else field
    for config in ({**GROUPED, field: value}, {"text_config": {**GROUPED, field: value}}):
        with pytest.raises(ConfigError, match=rf"^{name} is .* not understood here"):
            ModelShape.from_config(config)


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_dropout": 0.1, "output_attentions": True, "attn_implementation": "sdpa"},
        {"attn_config": {"kv_n_heads": 3, "clip_qkv": 8.0, "attn_impl": "torch"}},
        {"dim_head": 8},
        {"attention_head_type": None, "use_cla": False, "num_query_groups": 0},
    ],
)
def test_fields_that_say_nothing_of_a_cache_are_read_over(fields):
    """Would catch a refusal of a real model for a dropout, or for a field that is switched off."""
    shape = ModelShape.from_config({**GROUPED, **fields})
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (4, 3, 8)


def test_an_encoder_keeps_nothing():
    """Would catch gigabytes of cache for a bert, which reads its text at once."""
    with pytest.raises(ConfigError, match="model_type 'bert': it is an encoder"):
        ModelShape.from_config({**GROUPED, "model_type": "bert"})
    assert ModelShape.from_config({**GROUPED, "model_type": "bert", "is_decoder": True}).num_layers == 4
