"""The table of models and cards: each row equals what its source says."""

import pytest

from kvlearn import sizing

ROWS = list(sizing.models().values())
# name, layers, heads, key/value heads, head_dim, hidden size, vocabulary, bytes a token: as the sources say.
TABLE = """
gpt2              12  12  12  64   768  50257   36864
gpt2-xl           48  25  25  64  1600  50257  307200
pythia-6.9b       32  32  32 128  4096  50432  524288
llama-2-7b        32  32  32 128  4096  32000  524288
llama-2-13b       40  40  40 128  5120  32000  819200
llama-2-70b       80  64   8 128  8192  32000  327680
llama-3-8b        32  32   8 128  4096 128256  131072
llama-3-70b       80  64   8 128  8192 128256  327680
llama-3.1-8b      32  32   8 128  4096 128256  131072
llama-3.1-70b     80  64   8 128  8192 128256  327680
llama-3.1-405b   126 128   8 128 16384 128256  516096
llama-3.2-1b      16  32   8  64  2048 128256   32768
mistral-7b-v0.1   32  32   8 128  4096  32000  131072
mistral-7b-v0.3   32  32   8 128  4096  32768  131072
mixtral-8x7b      32  32   8 128  4096  32000  131072
qwen2.5-0.5b      24  14   2  64   896 151936   12288
qwen2.5-7b        28  28   4 128  3584 152064   57344
qwen2.5-72b       80  64   8 128  8192 152064  327680
qwen3-0.6b        28  16   8 128  1024 151936  114688
qwen3-8b          36  32   8 128  4096 151936  147456
qwen3-32b         64  64   8 128  5120 151936  262144
phi-3-mini-4k     32  32  32  96  3072  32064  393216
falcon-7b         32  71   1  64  4544  65024    8192
falcon-40b        60 128   8  64  8192  65024  122880
tinyllama-1.1b    22  32   4  64  2048  32000   22528
smollm2-135m      30   9   3  64   576  49152   23040
gemma-2-9b        42  16   8 256  3584 256000  344064
gemma-2-27b       46  32  16 128  4608 256000  376832
gemma-3-1b        26   4   1 256  1152 262144   26624
gemma-3-12b       48  16   8 256  3840 262144  393216
gemma-3-27b       62  32  16 128  5376 262144  507904
gpt-oss-20b       24  64   8  64  2880 201088   49152
gpt-oss-120b      36  64   8  64  2880 201088   73728
llama-4-scout     48  40   8 128  5120 202048  196608
deepseek-v2-lite  27  16   -   -  2048 102400   31104
deepseek-v2       60 128   -   -  5120 102400   69120
deepseek-v3       61 128   -   -  7168 129280   70272
"""
WINDOWS = {  # window, layers that have it, whether the first has it
    "mistral-7b-v0.1": (4096, 32, True),
    "phi-3-mini-4k": (2048, 32, True),
    "gemma-2-9b": (4096, 21, True),
    "gemma-2-27b": (4096, 23, True),
    "gemma-3-1b": (512, 22, True),
    "gemma-3-12b": (1024, 40, True),
    "gemma-3-27b": (1024, 52, True),
    "gpt-oss-20b": (128, 12, True),
    "gpt-oss-120b": (128, 18, True),
    "llama-4-scout": (8192, 36, True),
}


def test_no_row_is_missing():
    """A row of the table that ships and is not tested, or the other way round."""
    assert [line.split()[0] for line in TABLE.strip().splitlines()] == [row["name"] for row in ROWS]
    assert all(row["source"] for row in ROWS)


@pytest.mark.parametrize("line", TABLE.strip().splitlines(), ids=lambda line: line.split()[0])
def test_a_row_of_the_table(line):
    """Heads for key/value heads, head_dim from hidden_size, a wrong layer count: each shows here."""
    name, layers, heads, kv_heads, head_dim, hidden, vocabulary, per_token = line.split()
    shape = sizing.model(name)
    assert (shape.num_layers, shape.num_heads) == (int(layers), int(heads))
    assert (shape.hidden_size, shape.vocab_size) == (int(hidden), int(vocabulary))
    if kv_heads == "-":
        assert (shape.latent_dim, shape.rope_dim) == (512, 64) and shape.kind == "MLA"
    else:
        assert (shape.num_kv_heads, shape.head_dim) == (int(kv_heads), int(head_dim))
    assert sizing.bytes_per_token(shape) == int(per_token) == sizing.models()[name]["bytes_per_token"]
    assert sizing.cache_bytes(shape, 100, 3) == 300 * int(per_token)  # no window is full yet


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_the_windows_of_a_row(row):
    """A hybrid taken for a model whose layers are all alike, or the layers the wrong way round."""
    windows = sizing.model(row["name"]).windows
    size, count, first = WINDOWS.get(row["name"], (None, 0, False))
    assert sum(w is not None for w in windows) == count
    assert {w for w in windows if w is not None} <= {size} and (windows[0] is not None) == first


@pytest.mark.parametrize(
    "written",
    ["llama-3.1-70b", "Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct", " LLAMA 3.1 70b ",
     "Llama_3.1_70B", "meta-llama/Meta-Llama-3.1-70B-Instruct"],
)  # fmt: skip
def test_a_model_by_the_names_that_people_use(written):
    """A name that must be typed to the letter."""
    assert sizing.model(written).name == "llama-3.1-70b"


def test_names_that_are_not_known():
    """A silent nearest match: a model of another size would be counted."""
    with pytest.raises(ValueError, match="no model called 'llama-3.1-80b'. Do you mean .*llama-3.1-70b"):
        sizing.model("llama-3.1-80b")
    with pytest.raises(ValueError, match="no model called 'xyz'. There are: gpt2, "):
        sizing.model("xyz")
    with pytest.raises(ValueError, match="no GPU called 'h10'. Do you mean h100"):
        sizing.gpu("h10")
    with pytest.raises(ValueError, match="no GPU called ''"):
        sizing.gpu("")
    for name in (3, None, ["gpt2"]):
        with pytest.raises(ValueError, match="no model called"):
            sizing.model(name)


def test_cards():
    """GB for GiB: what a driver reports is in MiB = 2^20."""
    assert sizing.gpu("h100") == 81559 * 2**20 and sizing.gpu("NVIDIA H100") == sizing.gpu("h100")
    assert sizing.gpu("a100 80GB") == 80 * 2**30
    assert sizing.gpu("h200") == 143771 * 2**20 and round(sizing.gpu("h200") / 10**9, 1) == 150.8
    assert all(2**33 < size < 2**38 for size in sizing.gpus().values())
