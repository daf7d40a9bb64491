import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import SIZES, llama

from kvlearn.checkpoint import load_folder
from kvlearn.decoder import DecoderConfig
from kvlearn.families import ModelError, config_from_fields

FIELDS = SIZES | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An untied tiny Llama as transformers saves it."""
    folder = tmp_path_factory.mktemp("made")
    llama(dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(made, tmp_path / "model")


def load(folder):
    return load_folder(folder, torch.float32, CPU)


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_every_size_is_read():
    """Would catch two sizes mixed up (head_dim taken as hidden_size / heads, kv heads as heads)."""
    config = config_from_fields(FIELDS | {"rope_theta": 7000.0, "tie_word_embeddings": True}, "here")
    assert config == DecoderConfig(283, 42, 3, 6, 2, 10, 52, 97, 7000.0, 1e-5, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 7000.0},
        {"rope_theta": 7000.0, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 7000.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 7000.0}, "rope_theta": 1.0},
        {"rope_theta": 7000, "rope_scaling": {"type": "default"}},
    ],
)
def test_both_spellings_of_the_rotary_base(fields):
    """Would catch reading only one: the other would silently get 10,000 and talk nonsense."""
    assert config_from_fields(FIELDS | fields, "here").rope_theta == 7000.0


def test_what_is_left_out_is_what_transformers_takes():
    """Would catch defaults of our own (tied embeddings, eps 1e-5) for a file that leaves them out."""
    import transformers

    few = {"vocab_size": 61, "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 5}
    few |= {"intermediate_size": 52, "model_type": "llama"}
    theirs, ours = transformers.LlamaConfig(**few), config_from_fields(few, "here")
    assert ours.num_kv_heads == theirs.num_key_value_heads == 5
    assert ours.head_dim == theirs.head_dim == 8
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("model_type", "gemma2"),
        ("model_type", None),
        ("architectures", ["LlamaForSequenceClassification"]),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("rope_scaling", {"rope_type": "dynamic", "factor": 8.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 10000.0}),
        ("rope_parameters", {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        ("partial_rotary_factor", 0.25),
        ("rope_parameters", [1]),
        ("quantization_config", {"bits": 4}),
        ("vocab_size", None),
        ("hidden_size", "40"),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 4),
        ("head_dim", 9),
        ("rms_norm_eps", "small"),
    ],
)
def test_a_feature_that_the_decoder_lacks_is_refused_by_name(name, value):
    """Would catch a checkpoint that loads and computes something else (a bias dropped, RoPE unscaled)."""
    with pytest.raises(ModelError) as caught:
        config_from_fields(FIELDS | {name: value}, "some/config.json")
    message = str(caught.value)
    assert "some/config.json" in message
    heads = {"num_key_value_heads": "num_kv_heads", "rms_norm_eps": "float"}
    assert heads.get(name, name) in message


def test_weights_are_frozen_and_of_the_asked_type(folder):
    """Would catch weights that track gradients (`.numpy()` of the logits fails), or the file's type kept."""
    decoder = load_folder(folder, torch.float64, CPU)
    assert decoder.dtype == torch.float64 and not decoder.training
    assert not any(weights.requires_grad for weights in decoder.parameters())
    assert not decoder(torch.tensor([[5, 7]])).requires_grad


def test_tied_weights_are_one_parameter(tmp_path):
    """Would catch an embedding and a head that share numbers at first and part when one is changed."""
    llama(tied=True, dtype=torch.float32).save_pretrained(tmp_path)
    decoder = load(tmp_path)
    assert decoder.lm_head.weight is decoder.embed_tokens.weight


def test_a_stored_copy_of_a_tied_head(tmp_path):
    """Some files hold the head although it is tied: fine when equal, and refused when it is not."""
    llama(tied=True, dtype=torch.float32).save_pretrained(tmp_path)

    def add_head(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def spoil_head(tensors):
        tensors["lm_head.weight"][3, 4] += 1

    change_tensors(tmp_path, add_head)
    assert load(tmp_path).config.tie_embeddings
    change_tensors(tmp_path, spoil_head)
    with pytest.raises(ModelError, match="lm_head.weight is not the embedding table"):
        load(tmp_path)


def test_old_rotary_buffers_are_no_weights(folder):
    """Llama-2 files of their time hold `rotary_emb.inv_freq`, which is computed and not learned."""
    change_tensors(
        folder, lambda t: t.update({"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(5)})
    )
    load(folder)


def test_a_missing_tensor(folder):
    """Would catch a decoder with random or empty weights in the gap."""

    def drop(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.norm.weight"]

    change_tensors(folder, drop)
    with pytest.raises(
        ModelError, match=r"lacks the tensor model.layers.1.mlp.up_proj.weight \(and 1 more\)"
    ):
        load(folder)


def test_an_unexpected_tensor(folder):
    """Would catch a bias or an adapter in the file that is quietly left out."""
    change_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(60)}))
    with pytest.raises(ModelError, match="holds the tensor model.layers.0.self_attn.q_proj.bias"):
        load(folder)


def test_a_wrong_shape(folder):
    """Would catch sizes of another model; both shapes are said."""
    change(folder, num_key_value_heads=3)
    with pytest.raises(ModelError, match=r"k_proj.weight has the shape \(20, 42\).*asks for \(30, 42\)"):
        load(folder)


def test_whole_numbers_are_no_weights(folder):
    """Would catch int8 codes cast to float as if they were weights."""
    change_tensors(folder, lambda t: t.update({"model.norm.weight": torch.ones(42, dtype=torch.int8)}))
    with pytest.raises(ModelError, match="model.norm.weight is stored as I8"):
        load(folder)


@pytest.mark.parametrize("kept", [0, 5, 200, 20_000, -1])
def test_a_file_that_is_cut_short(folder, kept):
    """Would catch a half-copied file, wherever it ends, that comes out as another error or as a model."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="model.safetensors cannot be read as safetensors.*cut short"):
        load(folder)


def test_pickles_are_not_opened(folder):
    """Would catch a fallback to torch.load: this pickle would leave a file behind if it were opened."""
    trap = folder / "opened"
    (folder / "pytorch_model.bin").write_bytes(
        b"cbuiltins\nopen\n(V" + str(trap).encode() + b"\nVw\ntR."  # a pickle that opens `trap` to write
    )
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="only safetensors and GGUF are read, never pickles"):
        load(folder)
    assert not trap.exists()


def test_a_folder_without_weights_or_config(folder):
    """Would catch an error that does not say which file is missing."""
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match="config.json is not there"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="neither model.safetensors nor model.safetensors.index.json"):
        load(folder)
    (folder / "some.gguf").touch()
    with pytest.raises(ModelError, match="Load the file itself: .*some.gguf"):
        load(folder)


@pytest.mark.parametrize("text", ["{", "[1]", "\x00"])
def test_a_config_that_is_no_json_object(folder, text):
    """Would catch a bare JSONDecodeError that names no file."""
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match="config.json"):
        load(folder)


def sharded(made, folder):
    """The same model in three files with an index."""
    tensors = load_file(made / "model.safetensors")
    folder.mkdir()
    shutil.copy(made / "config.json", folder)
    names, places = sorted(tensors), {}
    for i in range(3):
        part = {name: tensors[name] for name in names[i::3]}
        save_file(part, folder / f"part-{i}.safetensors")
        places |= {name: f"part-{i}.safetensors" for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return places


def test_shards_hold_what_one_file_holds(made, tmp_path):
    """Would catch a shard that is passed over."""
    sharded(made, tmp_path / "parts")
    one, many = load(made).state_dict(), load(tmp_path / "parts").state_dict()
    assert one.keys() == many.keys() and all(torch.equal(one[name], many[name]) for name in one)


def test_damaged_sets_of_shards(made, tmp_path):
    """Would catch a missing shard, a tensor twice, and an index that points outside the folder."""
    folder = tmp_path / "parts"
    places = sharded(made, folder)
    index = folder / "model.safetensors.index.json"

    shutil.copy(folder / "part-1.safetensors", folder / "part-2.safetensors")
    with pytest.raises(ModelError, match="a second time"):
        load(folder)
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match="part-1.safetensors is not there"):
        load(folder)
    index.write_text(json.dumps({"weight_map": {name: "../" + place for name, place in places.items()}}))
    with pytest.raises(ModelError, match="not a plain file name"):
        load(folder)
    index.write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(ModelError, match="no weight_map"):
        load(folder)
