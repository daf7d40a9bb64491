"""Caches by name, a tiny model of transformers and ways to run it, for the tests of kvlearn.hf."""

import copy
import inspect

import torch
from other_caches import DoublingCache
from tiny_models import SIZES, in_float64, llama

import kvlearn
from kvlearn.hf import cache_config


class NewestFirst(kvlearn.GrowingCache):
    """Slots in another order than they were written, which the contract leaves free."""

    def update(self, layer, k, v, positions=None):
        return tuple(stored.flip(2) for stored in super().update(layer, k, v, positions))

    def key_positions(self, layer):
        return super().key_positions(layer).flip(1)


# DoublingCache is what a learner writes: four methods on the base class.
EXACT = {
    "growing": kvlearn.GrowingCache,
    "static": kvlearn.StaticCache,
    "four methods": DoublingCache,
    "newest first": NewestFirst,
}

MODEL = llama()
NAME = "cache" if "cache" in inspect.signature(MODEL.forward).parameters else "past_key_values"
CONFIG = cache_config(MODEL)


def made(kind, batch=1, **options):
    return EXACT[kind](CONFIG, batch_size=batch, dtype=torch.float64, **options)


def ids(*shape, seed=0):
    return torch.randint(3, SIZES["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))


def left_padded(*lengths):
    """Prompts of these lengths as one batch: ids and mask; row i alone is ids(length, seed=i)."""
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        tokens[row, -length:], mask[row, -length:] = ids(length, seed=row), 1
    return tokens, mask


def run(prompt, cache, new=9, model=MODEL, **options):
    """What `generate` returns; cache is one for transformers, or None for its own DynamicCache."""
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "output_logits": True}
    settings |= {"max_new_tokens": new, "return_dict_in_generate": True}
    if "attention_mask" not in options:
        options["attention_mask"] = torch.ones_like(prompt)
    return model.generate(prompt, **{NAME: cache}, **settings | options)


def new_tokens(prompt, cache, **options):
    return run(prompt, cache, **options).sequences[:, prompt.shape[1] :].tolist()


def same(ours, theirs):
    """The same tokens, and logits within 1e-9."""
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    for a, b in zip(ours.logits, theirs.logits, strict=True):
        assert (a - b).abs().max() < 1e-9


def twins():
    """MODEL in float64 throughout, and kvlearn's decoder with its weights."""
    theirs = in_float64(copy.deepcopy(MODEL))
    read, fields = cache_config(theirs), theirs.config
    ours = kvlearn.Decoder(
        kvlearn.DecoderConfig(
            vocab_size=fields.vocab_size,
            hidden_size=fields.hidden_size,
            num_layers=read.num_layers,
            num_heads=fields.num_attention_heads,
            num_kv_heads=read.num_kv_heads,
            head_dim=read.head_dim,
            intermediate_size=fields.intermediate_size,
            max_position=read.max_position,
            rope_theta=fields.rope_parameters["rope_theta"],
            norm_eps=fields.rms_norm_eps,
            tie_embeddings=False,
        )
    ).double()
    ours.load_state_dict({name.removeprefix("model."): value for name, value in theirs.state_dict().items()})
    return theirs, ours.requires_grad_(False)
