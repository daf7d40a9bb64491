"""What generate is given: numbers of other libraries are taken, what cannot be is refused unfed."""

from dataclasses import replace

import numpy
import pytest
import torch
from tiny_decoder import random_tokens, tiny_config, tiny_decoder

from kvlearn import GrowingCache, StaticCache, generate
from kvlearn.generation import pick

PROMPTS = [random_tokens(length, seed=length).tolist() for length in (3, 4)]


@pytest.fixture
def decoder():
    return tiny_decoder()


def filled(decoder):
    """A cache that has seen the prompts but for their last tokens."""
    cache = GrowingCache(decoder.config, 2, dtype=decoder.dtype)
    generate(decoder, PROMPTS, 0, cache=cache)
    return cache


def refused(decoder, words, **arguments):
    """The cache is as it was, and goes on."""
    cache = filled(decoder)
    before = [tensor.clone() for tensor in cache._tensors()]
    arguments = {"prompts": PROMPTS, "max_new_tokens": 2, "cache": cache} | arguments
    with pytest.raises(ValueError) as error:
        generate(decoder, **arguments)
    assert words in str(error.value)
    assert cache.length == 3 and cache.next_position.tolist() == [2, 3]
    assert all(torch.equal(now, was) for now, was in zip(cache._tensors(), before, strict=True))
    assert generate(decoder, PROMPTS, 2, cache=cache).tokens == generate(decoder, PROMPTS, 2).tokens


@pytest.mark.parametrize(
    "prompts",
    [
        numpy.array(PROMPTS[0]),
        list(numpy.array(PROMPTS[0])),
        [torch.tensor(token) for token in PROMPTS[0]],
        torch.tensor(PROMPTS[0], dtype=torch.int32),
        torch.tensor([PROMPTS[0]]),
        numpy.array([PROMPTS[0]]),
        (tuple(PROMPTS[0]),),
        [[*map(torch.tensor, PROMPTS[0])]],
    ],
    ids=lambda given: type(given).__name__,
)
def test_prompts_of_other_libraries(decoder, prompts):
    """Tokenizers give arrays and tensors, and lists of their numbers."""
    tokens = generate(decoder, prompts, 2).tokens
    assert tokens == generate(decoder, [PROMPTS[0]], 2).tokens
    assert all(type(token) is int for token in tokens[0])
    assert generate(decoder, range(4), 1).tokens == generate(decoder, [0, 1, 2, 3], 1).tokens


@pytest.mark.parametrize("kind", [list, torch.tensor, numpy.array, lambda ids: [torch.tensor(ids[0])], iter])
def test_eos_ids_of_other_libraries(decoder, kind):
    """A set of tensors holds no number: the EOS would pass unseen."""
    free = generate(decoder, PROMPTS[0], 4).tokens[0]
    assert free.index(free[1]) == 1
    assert generate(decoder, PROMPTS[0], 4, eos_ids=kind([free[1]])).tokens == [free[:2]]


def test_whole_numbers_of_other_libraries(decoder):
    """They come out of shapes and counts."""
    right = generate(decoder, PROMPTS, 2).tokens
    for two in (numpy.int64(2), torch.tensor(2)):
        assert generate(decoder, PROMPTS, two, cache=filled(decoder), prefill_chunk=two).tokens == right
    settings = {"temperature": numpy.float32(1.0), "top_k": numpy.int64(1), "top_p": torch.tensor(0.9)}
    assert generate(decoder, PROMPTS, 2, **settings).tokens == right


@pytest.mark.parametrize(
    "prompts, words",
    [
        (None, "prompts are a list of token ids, or several; this is of type NoneType"),
        (5, "this is of type int"),
        (torch.tensor(5), "this is of type int"),
        ({"input_ids": [1]}, "this is of type dict"),
        ({1, 2}, "this is of type set"),
        (iter([1, 2]), "iterator"),
        (b"abc", "tokenizer.encode(text)"),
        ([[1, 2], "abc"], "tokenizer.encode(text)"),
        ([[1, 2], 3], "Several prompts are a list of lists; prompt 1 is 3."),
        ([1, [2, 3]], "Several prompts are a list of lists; prompt 0 is 1."),
        ([[1.0, 2.0], [3, 4]], "Prompt 0 has 1.0 in it; token ids are whole numbers."),
        (torch.tensor([[0.5], [1.0]]), "Prompt 0 has 0.5 in it"),
        ([[1, 2], [True, 4]], "Prompt 1 has True in it"),
        (torch.tensor([True, False]), "Prompt 0 has True in it"),
        ([[1, None], [3, 4]], "Prompt 0 has None in it"),
        ([["a"], [3]], "Prompt 0 has 'a' in it"),
        (torch.ones(2, 1, 1, dtype=torch.long), "Prompt 0 has [1] in it"),
        ([[10**30], [1]], f"Prompt 0 has token {10**30}; the vocabulary is 0 to 30"),
    ],
)
def test_prompts_that_are_none(decoder, prompts, words):
    """A sentence, and not the error of the line that stumbled over it."""
    refused(decoder, words, prompts=prompts)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"max_new_tokens": 2.0}, "max_new_tokens is a whole number; got 2.0"),
        ({"max_new_tokens": None}, "max_new_tokens is a whole number; got None"),
        ({"max_new_tokens": "3"}, "max_new_tokens is a whole number; got '3'"),
        ({"max_new_tokens": True}, "max_new_tokens is a whole number; got True"),
        ({"max_new_tokens": 10**9}, "1000000003 positions would be needed"),
        ({"eos_ids": 3}, "eos_ids is a list of token ids, perhaps empty; got 3"),
        ({"eos_ids": None}, "perhaps empty; got None"),
        ({"eos_ids": "ab"}, "perhaps empty; got 'ab'"),
        ({"eos_ids": [[3]]}, "perhaps empty; got [[3]]"),
        ({"eos_ids": [3.0]}, "perhaps empty; got [3.0]"),
        ({"eos_ids": torch.tensor(3)}, "perhaps empty; got tensor(3)"),
        ({"temperature": "1"}, "temperature is a number; got '1'"),
        ({"temperature": torch.ones(2)}, "temperature is a number; got tensor([1., 1.])"),
        ({"temperature": None}, "temperature is a number; got None"),
        ({"temperature": float("nan")}, "temperature is a number; got nan"),
        ({"temperature": 1.0, "top_k": 2.5}, "top_k is a whole number; got 2.5"),
        ({"temperature": 1.0, "top_k": True}, "top_k is a whole number; got True"),
        ({"temperature": 1.0, "top_p": "x"}, "top_p is a number; got 'x'"),
        ({"temperature": 1.0, "top_p": float("nan")}, "top_p is a number; got nan"),
        ({"temperature": 1.0, "generator": 3}, "generator is a torch.Generator"),
        ({"temperature": 1.0, "generator": numpy.random.default_rng(0)}, "generator is a torch.Generator"),
        ({"prefill_chunk": 2.0}, "prefill_chunk is a whole number; got 2.0"),
        ({"prefill_chunk": "2"}, "prefill_chunk is a whole number; got '2'"),
        ({"on_token": 3}, "on_token is a function, called as on_token(row, token); got 3"),
        ({"on_token": lambda token: None}, "on_token(row, token); this one takes (token)"),
        ({"cache": GrowingCache}, "A cache is made before it is given"),
        ({"cache": "growing"}, "A cache is made before it is given"),
        ({"cache": False}, "A cache is made before it is given"),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given),
)
def test_settings_that_are_none(decoder, settings, words):
    """Found before the first token is fed: after it the cache would be a token further."""
    refused(decoder, words, **settings)


def test_a_builtin_may_be_told_of_tokens(decoder, capsys):
    """print has a signature that takes anything; some builtins have none at all."""
    (tokens,) = generate(decoder, PROMPTS[0], 2, on_token=print).tokens
    assert capsys.readouterr().out == f"0 {tokens[0]}\n0 {tokens[1]}\n"
    assert generate(decoder, PROMPTS[0], 2, on_token=max).tokens == [tokens]


@pytest.mark.parametrize("kind", [GrowingCache, StaticCache])
def test_a_text_past_the_last_position_of_the_cache(decoder, kind):
    """A cache made for a shorter model: in pieces, the first of them would be in it already."""
    config = replace(tiny_config(), max_position=10)
    options = {} if kind is GrowingCache else {"max_length": 40}
    cache = kind(config, dtype=decoder.dtype, **options)
    with pytest.raises(ValueError, match=r"13 positions would be needed .*, and the cache has 10\."):
        generate(decoder, [1] * 12, 2, cache=cache, prefill_chunk=4)
    assert cache.length == 0
    assert len(generate(decoder, [1] * 9, 2, cache=cache).tokens[0]) == 2


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 5e-324])
def test_temperatures_next_to_nothing_are_greedy(temperature):
    """Divided by them the logits are infinite, and inf - inf in the softmax is NaN."""
    logits = torch.tensor([[1.0, 4.0, 3.9], [90.0, -3.0, 80.0]])
    for settings in ({}, {"top_k": 2}, {"top_p": 0.9}):
        assert pick(logits, temperature, **settings).tolist() == [1, 0]
