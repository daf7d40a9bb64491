"""Answers to lesson 04 that are nearly right, or right in an unusual way, and what they are told."""

from functools import partial

import pytest
import torch
from alternatives_04 import OneTensorALayer, RoomForEachLayer, TokensFirst, decode_what_is_unseen
from course_answers import course_answers

import kvlearn
from kvlearn.checks import REGISTRY, judge


def told(name, answer):
    result = judge(REGISTRY[name], answer)
    assert not result.passed
    return result.message


# The two caches -------------------------------------------------------------------------------------


class GivesAList(RoomForEachLayer):
    """Two tensors in a list, as good as a tuple."""

    def _append(self, layer, k, v):
        return list(super()._append(layer, k, v))


class PlacedByLength(RoomForEachLayer):
    """The base class's own `length` says where the new tokens go: it moves with the last layer."""

    def _append(self, layer, k, v):
        self.written[layer] = self.length
        return super()._append(layer, k, v)


@pytest.mark.slow
@pytest.mark.parametrize("answer", [GivesAList, PlacedByLength])
def test_unusual_right_caches_pass(answer):
    result = judge(REGISTRY["static_cache"], answer)
    assert result.passed, result.message
    assert kvlearn.check_cache(partial(answer, max_length=24)).passed


class KeepsTheValues(OneTensorALayer):
    """The keys are copied and the first values are not."""

    def _start(self, batch_size):
        self.keys, self.values = {}, {}

    def _append(self, layer, k, v):
        first = layer not in self.keys
        self.keys[layer] = k.clone() if first else torch.cat((self.keys[layer], k), dim=2)
        self.values[layer] = v if first else torch.cat((self.values[layer], v), dim=2)
        return self.keys[layer], self.values[layer]

    def _truncate(self, layer, length):
        for kept in (self.keys, self.values):
            if layer in kept:
                kept[layer] = kept[layer][:, :, :length].clone()

    def _tensors(self):
        return [*self.keys.values(), *self.values.values()]


class KeysTwice(KeepsTheValues):
    def _append(self, layer, k, v):
        return super()._append(layer, k, k.clone())


class NothingToTruncate(KeepsTheValues):
    """Going back before anything was stored."""

    def _truncate(self, layer, length):
        self.keys[layer] = self.keys[layer][:, :, :length].clone()


class OnClassLevel(OneTensorALayer):
    both = {}

    def _start(self, batch_size):
        self.both.clear()


class NamesADict(OneTensorALayer):
    def _tensors(self):
        return self.both


class NamesNothing(OneTensorALayer):
    def _tensors(self):
        list(self.both.values())


@pytest.mark.parametrize(
    "answer, words",
    [
        (KeepsTheValues, "The values of layer 0 after 8 tokens: slot 0 of row 0 holds NaN."),
        (
            KeysTwice,
            "the value that layer 0 was given for token 0 of row 0; it holds the key that layer 0 was given",
        ),
        (NothingToTruncate, "KeyError: 0\n  in _truncate"),
        (OnClassLevel, "Two caches share one shelf"),
        (NamesADict, "`_tensors` should give back a list of tensors, and in yours there is an int."),
        (NamesNothing, "`_tensors` should give back a list of tensors; it is None (is a `return` missing?)."),
    ],
)
def test_nearly_right_growing_caches(answer, words):
    """Each is told where to look, in the words of the exercise and not in those of torch or of the check."""
    assert words in told("growing_cache", answer)


class OnePlaceForAllLayers(RoomForEachLayer):
    """The natural way to write it: nothing limits the place, and it drifts."""

    def _start(self, batch_size):
        super()._start(batch_size)
        self.place = 0

    def _append(self, layer, k, v):
        self.written[layer] = self.place
        back = super()._append(layer, k, v)
        self.place = self.written[layer]
        return back

    def _truncate(self, layer, length):
        self.place = length


class OneRoomManyTimes(RoomForEachLayer):
    def _start(self, batch_size):
        super()._start(batch_size)
        self.room = self.room[:1] * self.num_layers


class NamesCopies(RoomForEachLayer):
    def _tensors(self):
        return [tensor.clone() for tensor in super()._tensors()]


@pytest.mark.parametrize(
    "answer, words",
    [
        (OnePlaceForAllLayers, "slots in the keys of layer 1 after 7 tokens should be 7, and it is 14."),
        (OneRoomManyTimes, "Looks like: all layers share one room."),
        (NamesCopies, "or `_tensors` names copies and not views of the room."),
    ],
)
def test_nearly_right_static_caches(answer, words):
    assert words in told("static_cache", answer)


# Decoding, chunks, the whole ---------------------------------------------------------------------------


def test_the_text_in_a_tuple_and_another_cache():
    """A right text is no error of the text, whatever it comes in."""

    def own_cache(model, tokens, max_new_tokens, cache):
        other = kvlearn.GrowingCache(model.config, dtype=torch.float32)
        return tuple(decode_what_is_unseen(model, tokens, max_new_tokens, other))

    assert "The text is right. But the slots in the cache are 0" in told("cached_decode", own_cache)


def test_the_calls_of_attend_are_counted():
    """Chunks of another size, or attention of one's own: said as such, and not as a list's length."""

    def by_token(attend, q, k, v, chunk):
        return course_answers()["chunked_prefill"].run()(attend, q, k, v, 1)

    def by_itself(attend, q, k, v, chunk):
        return kvlearn.attention(q, k, v, kvlearn.causal_mask(q.shape[2]))

    words = "attend was called {} times. 7 tokens in chunks of 3 take 3."
    assert words.format(7) in told("chunked_prefill", by_token)
    assert words.format(0) in told("chunked_prefill", by_itself)


def own_llm(load, question, max_new_tokens, give=lambda new, cache, other: (new, cache), cached=True):
    model, tokenizer = load(
        attention=lambda q, k, v, mask=None: kvlearn.attention(q, k, v, mask),
        rope=lambda x, positions, theta: kvlearn.apply_rope(x, positions, theta),
    )
    prompt = tokenizer.chat([{"role": "user", "content": question}])
    cache, other = (TokensFirst(model.config, dtype=model.dtype) for _ in range(2))
    result = kvlearn.generate(
        model, prompt, max_new_tokens, cache=cache if cached else None, eos_ids=tokenizer.eos_ids
    )
    return give(result.tokens[0], cache, other)


@pytest.mark.slow
def test_the_two_things_of_your_own_llm():
    """In a list or a tuple; the cache second, and the one that was filled."""

    def giving(give, cached=True):
        return lambda load, question, max_new_tokens: own_llm(load, question, max_new_tokens, give, cached)

    name = "your_own_llm"
    assert judge(REGISTRY[name], own_llm).passed
    assert judge(REGISTRY[name], giving(lambda new, cache, other: [new, cache])).passed
    assert "it is no cache" in told(name, giving(lambda new, cache, other: (cache, new)))
    assert "it is no cache" in told(name, giving(lambda new, cache, other: (new, None)))
    text = told(name, giving(lambda new, cache, other: (new, other)))
    assert "The answer is right. But the model was fed 11 token-positions and the cache holds 0 slots" in text
    assert "was fed 51 token-positions" in told(name, giving(lambda new, cache, other: (new, cache), False))


def test_load_takes_its_functions_by_name():
    """The real one does, and a learner should not find that out only there."""

    def by_place(load, question, max_new_tokens):
        return load(kvlearn.attention, kvlearn.apply_rope)

    assert "TypeError: load() takes 0 positional arguments" in told("your_own_llm", by_place)
