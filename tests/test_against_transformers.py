"""Same weights, same tokens: the decoder's logits are those of transformers' Llama.

Random small configs in which every size is another number, and head_dim is not hidden_size / num_heads. In
float64 both agree to 1e-9, in float32 to 1e-5 of the largest logit.
"""

import pytest
import torch
from tiny_decoder import CACHES, padded
from tiny_models import in_float64, llama

from kvlearn import Decoder, DecoderConfig, generate

#          vocab hidden layers heads kv  D  inner position theta    eps   tied
CONFIGS = {
    "grouped": (53, 42, 3, 6, 2, 10, 37, 90, 700.0, 1e-5, False),
    "one kv head": (41, 40, 2, 4, 1, 6, 23, 64, 10000.0, 1e-6, True),
    "every head its own": (29, 35, 4, 5, 5, 12, 50, 71, 1e6, 1e-2, False),
    "head_dim larger than hidden": (61, 15, 1, 3, 1, 22, 19, 48, 50.0, 1e-5, True),
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def both(name, dtype):
    """transformers' model and ours, with one state dict."""
    vocab, hidden, layers, heads, kv_heads, head_dim, inner, position, theta, eps, tied = CONFIGS[name]
    sizes = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "max_position_embeddings": position,
        "rms_norm_eps": eps,
    }
    theirs = llama(sizes, theta=theta, tied=tied, dtype=dtype)
    if dtype == torch.float64:
        theirs = in_float64(theirs)
    config = DecoderConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        max_position=position,
        rope_theta=theta,
        norm_eps=eps,
        tie_embeddings=tied,
    )
    ours = Decoder(config).to(dtype)
    ours.load_state_dict({name.removeprefix("model."): value for name, value in theirs.state_dict().items()})
    return theirs.requires_grad_(False), ours.requires_grad_(False)


def draw(config, *shape):
    return torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(1))


def agree(ours, theirs):
    tolerance = TOLERANCE[ours.dtype] * max(1.0 if ours.dtype == torch.float64 else 0.0, theirs.abs().max())
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_full_pass(name, dtype):
    """The whole model: a norm's eps, a head's width, a pairing of rope, tiled heads (apple/axlearn#842),
    head_dim taken as hidden_size / num_heads (NVIDIA/Model-Optimizer#2482)."""
    theirs, ours = both(name, dtype)
    tokens = draw(ours.config, 3, 17)
    agree(ours(tokens), theirs(tokens).logits)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", CACHES)
def test_a_prefill_in_chunks_and_cached_decode(name, kind, dtype):
    """meta-llama/llama#899 and its kin: a chunk behind tokens that are stored, then token after token."""
    theirs, ours = both(name, dtype)
    tokens = draw(ours.config, 2, 19)
    cache = CACHES[kind](ours.config, 2, dtype=dtype)
    cuts = [0, 7, 8, 13, 14, 15, 16, 17, 18, 19]
    parts = [ours(tokens[:, a:b], cache) for a, b in zip(cuts, cuts[1:], strict=False)]
    agree(torch.cat(parts, dim=1), theirs(tokens).logits)
    assert cache.length == 19


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_cached_decode_beside_their_cached_decode(dtype):
    """Step by step beside transformers' own DynamicCache, which holds the same bytes."""
    theirs, ours = both("grouped", dtype)
    tokens = draw(ours.config, 2, 12)
    cache, past = CACHES["growing"](ours.config, 2, dtype=dtype), None
    for a, b in ((0, 6), (6, 7), (7, 8), (8, 12)):
        out = theirs(tokens[:, a:b], cache=past, use_cache=True)
        past = out.past_key_values
        agree(ours(tokens[:, a:b], cache), out.logits)
    assert cache.used_bytes == sum(layer.keys.nbytes + layer.values.nbytes for layer in past.layers)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", [None, *CACHES])
def test_a_batch_padded_on_the_left(kind, dtype):
    """unslothai/unsloth#3699, huggingface/transformers#22382: padding that moves the positions of a row."""
    theirs, ours = both("grouped", dtype)
    rows = [draw(ours.config, length).tolist() for length in (9, 2, 6)]
    tokens, positions = padded(rows)
    mask = (positions >= 0).long()
    expected = theirs(tokens, attention_mask=mask, position_ids=positions.clamp(min=0)).logits
    cache = None if kind is None else CACHES[kind](ours.config, 3, dtype=dtype)
    logits = ours(tokens, cache, positions)
    agree(logits[positions >= 0], expected[positions >= 0])
    for row, length in enumerate((9, 2, 6)):
        agree(logits[row, -length:], theirs(torch.tensor([rows[row]])).logits[0])


@pytest.mark.parametrize("kind", [None, *CACHES])
def test_greedy_generation_is_theirs(kind):
    """Token for token, the whole loop: prompts of unequal lengths, padded on the left."""
    theirs, ours = both("every head its own", torch.float64)
    rows = [draw(ours.config, length).tolist() for length in (5, 1, 8)]
    tokens, positions = padded(rows)
    expected = theirs.generate(
        tokens,
        attention_mask=(positions >= 0).long(),
        max_new_tokens=10,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[:, 8:]
    cache = None if kind is None else CACHES[kind](ours.config, 3, dtype=torch.float64)
    assert generate(ours, rows, 10, cache=cache).tokens == expected.tolist()
