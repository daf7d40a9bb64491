"""your_own_llm: the learner's attention, RoPE and cache in a whole decoder.

The check runs on a small seeded decoder, so that it takes no time; the assignment then runs the same function
on the real model.
"""

from dataclasses import dataclass

import torch

from kvlearn.attention import attention
from kvlearn.cache import GrowingCache, KVCache, StaticCache
from kvlearn.checks.draw import randn
from kvlearn.checks.engine import Case, Exercise, Misconception, WrongAnswer
from kvlearn.decoder import Decoder, DecoderConfig
from kvlearn.generation import generate
from kvlearn.rope import apply_rope

CONFIG = DecoderConfig(
    vocab_size=260, hidden_size=24, num_layers=3, num_heads=6, num_kv_heads=2, head_dim=8,
    intermediate_size=40, max_position=256, tie_embeddings=False,
)  # fmt: skip


@dataclass(frozen=True)
class SmallTokenizer:
    """Bytes as ids, and a chat form of two marks, in the place of the real one."""

    eos_ids: tuple[int, ...] = ()

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def chat(self, messages):
        marks = {"user": 256, "assistant": 258, "system": 255}
        return [mark for m in messages for mark in (marks[m["role"]], *self.encode(m["content"]), 257)]


def _decoder(seed, attention=attention, rope=apply_rope, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(CONFIG, attention, rope)
    for weight in decoder.parameters():
        if weight.ndim == 2:
            weight.data = randn(generator, *weight.shape, size=2 * weight.shape[1] ** -0.5)
    return decoder.requires_grad_(False).to(dtype)


def _answer_ids(seed, question, max_new_tokens, dtype):
    """The library's own answer, without a cache."""
    prompt = SmallTokenizer().chat([{"role": "user", "content": question}])
    return generate(_decoder(seed, dtype=dtype), prompt, max_new_tokens).tokens[0]


def _cases(generator):
    def draw(question, max_new_tokens, ends_at, label, dtype=torch.float32):
        while True:
            seed = int(torch.randint(10**6, (1,), generator=generator))
            free = _answer_ids(seed, question, max_new_tokens, dtype)
            if ends_at is None or free[ends_at] not in free[:ends_at]:
                break  # the EOS must not come before its place
        eos = (259,) if ends_at is None else (259, free[ends_at])
        inputs = {"question": question, "max_new_tokens": max_new_tokens, "seed": seed, "eos_ids": eos}
        return Case({**inputs, "dtype": dtype}, label)

    return [
        draw("Why?", 6, None, "6 new tokens"),
        draw("Where is it?", 9, 3, "an answer that ends"),
        draw("How?", 3, None, "a model in float64", torch.float64),
    ]


def _observe(answer, case):
    given, fed = {}, []

    def load(*, attention=attention, rope=apply_rope, **_):
        given.update(attention=attention, rope=rope)
        decoder = _decoder(case["seed"], attention, rope, case["dtype"])
        decoder.register_forward_pre_hook(lambda _, args: fed.append(args[0].shape[1]))
        return decoder, SmallTokenizer(case["eos_ids"])

    load.__qualname__ = "load"  # as errors call it
    back = answer(load, case["question"], case["max_new_tokens"])
    if back is None or back is ...:
        return None
    if not given:
        raise WrongAnswer(
            "Your function should get its model from `load`, which it is given; it never called it."
        )
    if not isinstance(back, tuple | list) or len(back) != 2:
        raise WrongAnswer("Two things are wanted back: the list of new tokens, and the cache.")
    tokens, cache = back
    return {
        "attention of your own": given["attention"] is not attention,
        "RoPE of your own": given["rope"] is not apply_rope,
        "cache": isinstance(cache, KVCache),
        "cache of your own": type(cache) not in (type(None), GrowingCache, StaticCache),
        "number of new tokens": len(tokens) if isinstance(tokens, list | tuple) else None,
        "new tokens": tokens,
        "token-positions fed": sum(fed),
        "slots in the cache": cache.length if isinstance(cache, KVCache) else 0,
    }


def _explain(case, got, want):
    if got["cache"] != want["cache"]:
        return (
            "The second of the two things should be the cache that the model has filled, and it is no cache."
        )
    for what in ("attention of your own", "RoPE of your own", "cache of your own"):
        if got[what] != want[what]:
            return f"The model ran without {'a ' * ('cache' in what)}{what}."
    if got["number of new tokens"] != want["number of new tokens"]:
        return (
            f"The answer has {got['number of new tokens']} new tokens and should have "
            f"{want['number of new tokens']}: the result's `.tokens` holds one list of ids per prompt."
        )
    if list(got["new tokens"]) != want["new tokens"]:
        return None  # the engine says where
    return (
        f"The answer is right. But the model was fed {got['token-positions fed']} token-positions and the "
        f"cache holds {got['slots in the cache']} slots; both should be {want['slots in the cache']}, each "
        "token of prompt and answer once but the last. Is the cache that you give back the one that the "
        "model ran with?"
    )


# -- right and wrong ---------------------------------------------------------------------------


class _OwnCache(GrowingCache):
    """A cache that is not the library's."""


def _own_attention(q, k, v, mask=None):
    return attention(q, k, v, mask)


def _own_rope(x, positions, theta):
    return apply_rope(x, positions, theta)


def _with(
    load,
    question,
    max_new_tokens,
    own=(_own_attention, _own_rope),
    cache=_OwnCache,
    chat=True,
    eos=True,
    role="user",
    dtype=None,
):
    pieces = dict(zip(("attention", "rope"), own, strict=True))
    model, tokenizer = load(**{name: piece for name, piece in pieces.items() if piece is not None})
    message = [{"role": role, "content": question}]
    prompt = tokenizer.chat(message) if chat else tokenizer.encode(question)
    made = None if cache is None else cache(model.config, dtype=dtype or model.dtype, device=model.device)
    ends = tokenizer.eos_ids if eos else ()
    new = generate(model, prompt, max_new_tokens, cache=made, eos_ids=ends).tokens[0]
    return prompt, new, made


def your_own_llm(load, question, max_new_tokens):
    """Oracle: the library's pieces under other names."""
    return _with(load, question, max_new_tokens)[1:]


def _library_attention(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, own=(None, _own_rope))[1:]


def _library_rope(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, own=(_own_attention, None))[1:]


def _library_all(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, own=(None, None))[1:]


def _library_cache(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, cache=GrowingCache)[1:]


def _no_cache(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, cache=None)[1:]


def _no_chat(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, chat=False)[1:]


def _as_the_assistant(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, role="assistant")[1:]


def _own_dtype(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, dtype=torch.float32)[1:]


def _no_eos(load, question, max_new_tokens):
    return _with(load, question, max_new_tokens, eos=False)[1:]


def _prompt_too(load, question, max_new_tokens):
    prompt, new, cache = _with(load, question, max_new_tokens)
    return prompt + new, cache


YOUR_OWN_LLM = Exercise(
    name="your_own_llm",
    lesson=4,
    title="Your own LLM",
    minutes=15,
    difficulty=2,
    why="Every piece that decides what a token sees is now yours. The model does not notice, and that is the "
    "proof.",
    signature="your_own_llm(load, question, max_new_tokens)",
    reference=your_own_llm,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    misconceptions=(
        Misconception(
            "none of your functions is in the model",
            _library_all,
            "The answer is right, and the library gave it: load was called without your attention and your "
            "RoPE.",
        ),
        Misconception(
            "the attention is still the library's",
            _library_attention,
            "The answer is right, but your attention had no part in it.",
        ),
        Misconception(
            "the rotary function is still the library's",
            _library_rope,
            "The answer is right, but your RoPE had no part in it.",
        ),
        Misconception(
            "the cache is the library's",
            _library_cache,
            "The answer is right, and the library's cache kept the past. Yours can.",
        ),
        Misconception(
            "there is no cache",
            _no_cache,
            "The answer is right, and the whole text was computed at every step.",
        ),
        Misconception(
            "the question went in without the chat form",
            _no_chat,
            "The model was trained on conversations with marks for who speaks. Without them it goes on with "
            "your sentence and does not answer it.",
        ),
        Misconception(
            "the question was put into the assistant's mouth",
            _as_the_assistant,
            'The role says who speaks. The person who asks is the "user"; the model answers as "assistant".',
        ),
        Misconception(
            "the cache has a dtype of its own",
            _own_dtype,
            "The cache must hold what the model computes, in its dtype: `model.dtype`. Left out, it is "
            "torch's default, float32, and a model in another dtype cannot use it.",
            raises=True,
        ),
        Misconception(
            "the answer does not stop at its end",
            _no_eos,
            "The tokenizer knows which ids end an answer, and generate was not told. What comes after the "
            "end is nobody's answer.",
        ),
        Misconception(
            "the prompt comes back with the answer",
            _prompt_too,
            "Only the new tokens are wanted.",
        ),
    ),
    hints=(
        "Four steps: load with your two functions, turn the question into token ids, make your cache, "
        "generate.",
        "`load` takes attention= and rope=. The tokenizer has a method for questions, and it knows the ids "
        "that end an answer.",
        "A cache must have the model's dtype and be on its device.",
    ),
)
