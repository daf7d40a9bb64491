"""The decoder: its sizes, what it hands to attention, rope and cache, and what it refuses.

That its numbers are a Llama's is held by test_against_transformers.py.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch
from tiny_decoder import SIZES, padded, random_tokens, tiny_config, tiny_decoder

from kvlearn import DecoderConfig, GrowingCache, StaticCache, apply_rope, attention, position_mask


@pytest.mark.parametrize("name", [name for name in SIZES if isinstance(SIZES[name], int) and SIZES[name] > 1])
def test_sizes_are_at_least_one(name):
    """A size of 0 makes tensors of nothing, which run without an error."""
    with pytest.raises(ValueError) as error:
        tiny_config(**{name: 0})
    assert f"{name} must be at least 1; got 0" in str(error.value)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"vocab_size": 2.5}, "vocab_size is a whole number; got 2.5"),
        ({"head_dim": 10.0}, "head_dim is a whole number; got 10.0"),
        ({"num_layers": "3"}, "num_layers is a whole number; got '3'"),
        ({"max_position": None}, "max_position is a whole number; got None"),
        ({"num_kv_heads": True}, "num_kv_heads is a whole number; got True"),
        ({"rope_theta": 0}, "rope_theta is a number above 0; got 0"),
        ({"rope_theta": -500.0}, "rope_theta is a number above 0; got -500.0"),
        ({"rope_theta": float("inf")}, "rope_theta is a number above 0; got inf"),
        ({"rope_theta": "500"}, "rope_theta is a number above 0; got '500'"),
        ({"norm_eps": -1e-5}, "norm_eps is a number, 0 or above; got -1e-05"),
        ({"norm_eps": float("nan")}, "norm_eps is a number, 0 or above; got nan"),
        ({"norm_eps": None}, "norm_eps is a number, 0 or above; got None"),
        ({"tie_embeddings": "false"}, "tie_embeddings is True or False; got 'false'"),
        ({"num_kv_heads": 4}, "num_heads=6 is not a multiple of num_kv_heads=4"),
        ({"num_kv_heads": 12}, "num_heads=6 is not a multiple of num_kv_heads=12"),
        ({"head_dim": 9}, "head_dim must be even; got 9"),
    ],
)
def test_configs_that_cannot_be(change, words):
    """Found here, and not as a reshape error in the middle of the first forward pass."""
    with pytest.raises(ValueError) as error:
        tiny_config(**change)
    assert words in str(error.value)


def test_sizes_of_numpy_become_pythons():
    """Sizes are multiplied wherever memory is planned, and numpy's go round without a word."""
    config = tiny_config(num_layers=np.int8(3), windows=(np.int8(4), None, 7))
    assert config == tiny_config(num_layers=3, windows=(4, None, 7))
    assert json.loads(json.dumps(dataclasses.asdict(config)))["windows"] == [4, None, 7]


def test_the_least_of_both_numbers_is_allowed():
    """A norm without an epsilon refused: 0 is in its range, and any theta above 0 in that of theta."""
    config = tiny_config(norm_eps=0, rope_theta=1e-9)
    assert (config.norm_eps, config.rope_theta) == (0, 1e-9)


def test_config_knows_its_groups():
    """rasbt/LLMs-from-scratch#922: "kv groups" taken for a group's size. 6 heads on 2 are groups of 3."""
    assert tiny_config().group_size == 3
    assert tiny_config(num_kv_heads=6).group_size == 1


def test_what_a_config_leaves_out_is_llamas():
    """A checkpoint's config that names no rope_theta or norm_eps means these."""
    sizes = {name: 2 for name in "vocab_size hidden_size num_layers num_heads num_kv_heads head_dim".split()}
    config = DecoderConfig(**sizes, intermediate_size=2)
    assert (config.max_position, config.rope_theta, config.norm_eps) == (2048, 10000.0, 1e-5)
    assert config.tie_embeddings is True


def test_smallest_sizes_work():
    """One of everything is a model too."""
    decoder = tiny_decoder(
        vocab_size=1,
        hidden_size=1,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        intermediate_size=1,
        max_position=1,
    )
    assert decoder(torch.tensor([[0]])).shape == (1, 1, 1)


def test_parameters_are_named_as_in_checkpoints():
    """A renamed module is a checkpoint that does not load."""
    names = set(tiny_decoder().state_dict())
    layer = [
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj",
        "mlp.down_proj input_layernorm post_attention_layernorm",
    ]
    wanted = {f"layers.{i}.{name}.weight" for i in range(3) for name in " ".join(layer).split()}
    assert names == wanted | {"embed_tokens.weight", "norm.weight", "lm_head.weight"}


def test_tied_embeddings_are_one_tensor():
    """Two equal copies part ways at the first change, and count twice."""
    tied, untied = tiny_decoder(tie_embeddings=True), tiny_decoder(tie_embeddings=False)
    assert tied.lm_head.weight is tied.embed_tokens.weight
    assert untied.lm_head.weight is not untied.embed_tokens.weight


def test_a_token_sees_no_later_one():
    """The causal mask itself: changing token 4 must not reach the logits of tokens 0 to 3."""
    decoder, tokens = tiny_decoder(), random_tokens(2, 7)
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 31
    before, after = decoder(tokens), decoder(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


def test_attention_and_rope_are_called_as_promised():
    """The learner's functions serve here: arguments in another order or a mask of another kind break them."""
    calls = {"attention": [], "rope": []}

    def my_attention(q, k, v, mask=None):
        calls["attention"].append((q.shape, k.shape, v.shape, mask.shape, mask.dtype))
        return attention(q, k, v, mask=mask)

    def my_rope(x, positions, theta):
        calls["rope"].append((x.shape, positions.tolist(), theta))
        return apply_rope(x, positions, theta)

    decoder, tokens = tiny_decoder(), random_tokens(2, 4)
    expected = decoder(tokens)
    decoder.attention, decoder.rope = my_attention, my_rope
    assert torch.equal(decoder(tokens), expected)
    assert calls["attention"] == [((2, 6, 4, 10), (2, 2, 4, 10), (2, 2, 4, 10), (2, 1, 4, 4), torch.bool)] * 3
    where = [[0, 1, 2, 3]] * 2
    assert calls["rope"] == [((2, 6, 4, 10), where, 500.0), ((2, 2, 4, 10), where, 500.0)] * 3


def test_positions_left_out_go_on_from_the_cache():
    """pytorch/executorch#2010: a step that starts again at position 0."""
    decoder, tokens = tiny_decoder(), random_tokens(2, 6)
    cache = GrowingCache(decoder.config, batch_size=2, dtype=torch.float64)
    parts = [decoder(tokens[:, :3], cache), decoder(tokens[:, 3:4], cache), decoder(tokens[:, 4:], cache)]
    assert cache.key_positions(2).tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert torch.allclose(torch.cat(parts, dim=1), decoder(tokens), rtol=0, atol=1e-11)
    assert torch.equal(decoder(tokens), decoder(tokens, positions=torch.arange(6).expand(2, 6)))


def test_positions_go_on_row_by_row():
    """With one position for the whole batch the shorter row goes on at the longer one's place."""
    decoder = tiny_decoder()
    rows = [random_tokens(5, seed=1).tolist(), random_tokens(3, seed=2).tolist()]
    cache = StaticCache(decoder.config, 2, max_length=9, dtype=torch.float64)
    decoder(*_with_cache(padded(rows), cache))
    last = decoder(torch.tensor([[7], [8]]), cache)
    for row, token, logits in zip(rows, (7, 8), last, strict=True):
        assert torch.allclose(decoder(torch.tensor([row + [token]]))[0, -1], logits[0], rtol=0, atol=1e-11)


def _with_cache(batch, cache):
    tokens, positions = batch
    return tokens, cache, positions


def test_padding_is_seen_by_nobody():
    """Whatever stands at padding, the tokens' logits are the same, and none is NaN."""
    decoder = tiny_decoder()
    tokens, positions = padded([random_tokens(5, seed=1).tolist(), random_tokens(2, seed=2).tolist()])
    expected = decoder(tokens, positions=positions)
    other = torch.where(positions < 0, 17, tokens)
    logits = decoder(other, positions=positions)
    assert torch.equal(logits[positions >= 0], expected[positions >= 0])
    assert logits.isfinite().all()


def test_last_only_is_the_last():
    """Generation reads the last logits; the first would be right for one token alone."""
    decoder, tokens = tiny_decoder(), random_tokens(3, 5)
    last = decoder(tokens, last_only=True)
    assert last.shape == (3, 1, 31)
    assert torch.allclose(last, decoder(tokens)[:, -1:], rtol=0, atol=1e-12)


def test_the_window_of_a_cache_reaches_the_mask():
    """A cache that keeps 3 positions beside a mask that shows more: what is seen hangs on the chunking."""
    decoder, tokens = tiny_decoder(num_layers=1), random_tokens(1, 6)

    def windowed(q, k, v, mask):
        positions = torch.arange(6)[None]
        return attention(q, k, v, mask=position_mask(positions, positions, window=3))

    class Windowed(GrowingCache):
        window = 3

    logits = decoder(tokens, Windowed(decoder.config, dtype=torch.float64))
    decoder.attention = windowed
    assert torch.allclose(logits, decoder(tokens), rtol=0, atol=1e-12)


def test_dtype_and_device_are_the_weights():
    """A cache is made from them; a stale value makes a cache that refuses every token."""
    decoder = tiny_decoder(torch.float32)
    assert (decoder.dtype, decoder.device) == (torch.float32, torch.device("cpu"))
    assert decoder.bfloat16().dtype == torch.bfloat16
    assert decoder.to("meta").device.type == "meta"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            {"tokens": torch.zeros(3, dtype=torch.long)},
            "shape (batch, length); got torch.int64 of shape (3,)",
        ),
        ({"tokens": torch.zeros(2, 0, dtype=torch.long)}, "at least one token"),
        ({"tokens": torch.zeros(2, 3)}, "got torch.float32"),
        ({"tokens": torch.zeros(2, 3, dtype=torch.uint8)}, "as int64 (or int32)"),
        ({"tokens": torch.ones(2, 3, dtype=torch.bool)}, "got torch.bool of shape (2, 3)"),
        (
            {"tokens": [[1, 2], [3, 4]]},
            "a tensor of token ids (batch, length); got a list. torch.tensor([ids])",
        ),
        ({"positions": [[4, 5, 6], [4, 5, 6]]}, "a tensor of integers (batch, length) = (2, 3); got a list"),
        ({"positions": torch.ones(2, 3)}, "(batch, length) = (2, 3); got torch.float32"),
        ({"positions": torch.ones(2, 3, dtype=torch.bool)}, "got torch.bool"),
        ({"tokens": torch.tensor([[0, 31]])}, "Token 31 is not in the vocabulary of 0 to 30"),
        ({"tokens": torch.tensor([[3, -1]])}, "Token -1 is not in the vocabulary"),
        (
            {"positions": torch.tensor([[0, 1, 2]])},
            "(batch, length) = (2, 3); got torch.int64 of shape (1, 3)",
        ),
        ({"positions": torch.tensor([[0, 1, 2], [0, 1, 64]])}, "Position 64 is past the model's last, 63"),
        ({"tokens": random_tokens(2, 65)}, "is past the model's last, 63"),
        ({"tokens": random_tokens(3, 2)}, "The cache has 2 rows and the tokens have 3"),
        ({"tokens": random_tokens(1, 2)}, "The cache has 2 rows and the tokens have 1"),
    ],
)
def test_what_the_decoder_refuses(arguments, words):
    """A clear sentence, and the cache as it was: nothing is written before everything is checked."""
    decoder = tiny_decoder()
    cache = GrowingCache(decoder.config, 2, dtype=torch.float64)
    decoder(random_tokens(2, 4), cache)
    arguments = {"tokens": random_tokens(2, 3)} | arguments
    for given in (None, cache):
        if given is None and "cache" in words:
            continue
        with pytest.raises(ValueError) as error:
            decoder(cache=given, **arguments)
        assert words in str(error.value)
    assert cache.length == 4 and cache.used_bytes == 3 * 2 * 2 * 4 * 10 * 2 * 8


@pytest.mark.parametrize(
    "positions, words",
    [
        ([[0, 1, 2], [0, 2, 1]], "got positions [0, 0] to [2, 1]"),
        ([[0, 1, 1], [0, 1, 2]], "got positions [0, 0] to [1, 2]"),
        ([[0, -1, 0], [0, 1, 2]], "got positions [0, 0] to [0, 2]"),
        ([[0, 1, 2], [-2, 0, 1]], "got positions [0, -2] to [2, 1]"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_positions_that_fall_or_repeat_are_refused_as_a_cache_does(positions, words, dtype):
    """Two tokens at one place see each other, and -2 is neither a place nor padding: with a cache that was
    an error and without one logits came out."""
    decoder, positions = tiny_decoder(), torch.tensor(positions, dtype=dtype)
    for cache in (None, GrowingCache(decoder.config, 2, dtype=torch.float64)):
        with pytest.raises(ValueError) as error:
            decoder(random_tokens(2, 3), cache, positions)
        message = str(error.value)
        assert f"Positions increase strictly in a row, and -1 marks padding; {words}" in message
        assert message.endswith("where the next are [0, 0].")
        assert cache is None or cache.used_bytes == cache.length == 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_positions_that_jump_are_positions(dtype):
    """What is refused stops at what is wrong: gaps, another first position, padding in between (-1, which
    a uint8 does not have)."""
    rows = [[0, 3, 9], [5, 6, 7]] if dtype == torch.uint8 else [[0, -1, 9], [-1, 5, 7]]
    positions = torch.tensor(rows, dtype=dtype)
    assert tiny_decoder()(random_tokens(2, 3), positions=positions).isfinite().all()


def test_the_last_position_can_be_used():
    """An off-by-one in the limit would waste the last position, or read past it."""
    decoder = tiny_decoder(max_position=6)
    assert decoder(random_tokens(1, 6)).shape == (1, 6, 31)
    assert decoder(torch.tensor([[0, 30]])).isfinite().all()


@pytest.mark.parametrize("layers", [2, 4])
def test_a_cache_of_another_depth_is_refused(layers):
    """With a layer more than the model a step would never end, and each next one would drop it unseen."""
    decoder = tiny_decoder()
    cache = StaticCache(tiny_config(num_layers=layers), dtype=torch.float64)
    with pytest.raises(ValueError) as error:
        decoder(random_tokens(1, 4), cache)
    assert f"The cache has {layers} layers and the model 3" in str(error.value)
    assert cache.length == 0 and cache.used_bytes == 0


@pytest.mark.parametrize("cache", [GrowingCache, "growing", True, []])
def test_what_is_no_cache_is_refused(cache):
    """The class for a cache of it: the brackets were forgotten."""
    with pytest.raises(ValueError, match="made before it is given, with the model's config"):
        tiny_decoder()(random_tokens(1, 4), cache)


def test_a_cache_need_not_know_of_windows():
    """One from scratch has what the contract asks for, and no `window` says that it has none."""

    class Bare:
        def __init__(self, cache):
            self.update, self.key_positions = cache.update, cache.key_positions
            self.next_position = cache.next_position

    decoder, tokens = tiny_decoder(), random_tokens(1, 4)
    bare = Bare(GrowingCache(decoder.config, dtype=torch.float64))
    assert torch.allclose(decoder(tokens, bare), decoder(tokens), rtol=0, atol=1e-11)


def test_a_full_cache_is_as_it_was():
    """karpathy/llama2.c#348: past the capacity nothing is written, in no layer."""
    decoder, tokens = tiny_decoder(), random_tokens(1, 5)
    cache = StaticCache(decoder.config, max_length=5, dtype=torch.float64)
    decoder(tokens[:, :4], cache)
    with pytest.raises(ValueError, match="room for 5 slots and holds 4; 2 more do not fit"):
        decoder(random_tokens(1, 2, seed=3), cache)
    assert cache.length == 4
    last = decoder(tokens[:, 4:], cache)
    assert torch.allclose(last, decoder(tokens)[:, 4:], rtol=0, atol=1e-11)
