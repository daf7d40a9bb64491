import pytest
import torch
from tiny_models import GGUF_SIZES, ggml_order, llama, write_gguf
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from kvlearn.families import ModelError
from kvlearn.gguf_file import GGUFFile, half_split_rows


@pytest.fixture(scope="module")
def model():
    return llama(GGUF_SIZES, dtype=torch.float32)


def test_rows_by_a_worked_input():
    """Would catch the permutation applied the wrong way round: for D > 4 it is not its own inverse.

    Two heads of D = 6: the file pairs rows 0 and 1, 2 and 3, 4 and 5; RoPE pairs 0 and 3, 1 and 4, 2 and 5.
    """
    rows = torch.arange(12)[:, None].expand(12, 5)
    assert half_split_rows(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_rows_undo_the_converter():
    """Would catch heads mixed up: the converter's rule is written out row by row in the test."""
    weights = torch.randn(6 * 10, 7)
    assert torch.equal(half_split_rows(ggml_order(weights, 6), 6), weights)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
@pytest.mark.parametrize("tied", [False, True])
def test_tensors_are_what_the_file_holds(tmp_path, kind, tied):
    """Would catch a wrong name, a transposed shape, q and k not put back, a head that is not tied."""
    held = write_gguf(tmp_path / "m.gguf", llama(GGUF_SIZES, tied=tied, dtype=torch.float32), kind)
    file = GGUFFile(tmp_path / "m.gguf")
    assert file.fields["tie_word_embeddings"] is tied
    assert file.tensors.keys() == held.keys()
    for name, tensor in file.tensors.items():
        read = tensor.read()
        assert read.dtype == torch.float32 and tensor.shape == tuple(read.shape), name
        assert torch.equal(read, held[name]), name


def test_tensors_equal_those_of_transformers(model, tmp_path):
    """The same file read by transformers' own GGUF loader, to the bit."""
    write_gguf(tmp_path / "m.gguf", model, "Q8_0")
    theirs = load_gguf_checkpoint(tmp_path / "m.gguf", return_tensors=True, model_to_load=model)["tensors"]
    file = GGUFFile(tmp_path / "m.gguf")
    assert file.tensors.keys() == theirs.keys()
    for name, tensor in file.tensors.items():
        assert torch.equal(tensor.read(), theirs[name]), name


def test_every_size_is_read(model, tmp_path):
    """Would catch two sizes mixed up, and 9.999999747378752e-06 for the 1e-05 that was meant."""
    write_gguf(tmp_path / "m.gguf", model)
    fields = GGUFFile(tmp_path / "m.gguf").fields
    assert {name: fields[name] for name in GGUF_SIZES} == GGUF_SIZES
    assert (fields["rope_theta"], fields["eos_token_id"], fields["bos_token_id"]) == (5000.0, 2, 1)


@pytest.mark.parametrize(
    "metadata, said",
    [
        ({"architecture": "qwen2"}, "general.architecture is 'qwen2'"),
        ({"llama__rope__scaling__type": "yarn"}, "scales its rotary frequencies"),
        ({"llama__rope__scale_linear": 2.0}, "llama.rope.scale_linear is 2.0"),
        ({"llama__rope__scaling__factor": 4.0}, "llama.rope.scaling.factor is 4.0"),
        ({"llama__expert_count": 8}, "llama.expert_count is 8"),
        ({"split__count": 3}, "one of 3 parts"),
    ],
)
def test_a_feature_that_the_decoder_lacks_is_refused(model, tmp_path, metadata, said):
    """Would catch a model that loads and computes something else."""
    write_gguf(tmp_path / "m.gguf", model, **metadata)
    with pytest.raises(ModelError, match=said):
        GGUFFile(tmp_path / "m.gguf")


@pytest.mark.parametrize("kept", [0, 3, 30, 700, 9_000, -1])
def test_a_file_that_is_cut_short(model, tmp_path, kept):
    """Would catch a half-copied file, wherever it ends, that comes out as another error or as a model."""
    path = tmp_path / "m.gguf"
    write_gguf(path, model)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="m.gguf cannot be read as GGUF.*cut short"):
        GGUFFile(path)


def test_other_files(tmp_path):
    """Would catch an error that names no file."""
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(ModelError, match="m.gguf cannot be read as GGUF"):
        GGUFFile(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="n.gguf is not there"):
        GGUFFile(tmp_path / "n.gguf")
