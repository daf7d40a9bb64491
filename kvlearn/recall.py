"""Probes of what a cache still knows: seeded texts, each with questions that only the text can answer.

Pairs      a tiny trained model (`load("recall")`) reads N pairs of a key and a value, and is then asked for
           the value of each key. The keys are alike: a blurred cache gives another key's value.
           Multi-query associative recall, as in Arora et al. 2023 (arXiv 2312.04927).
Passkey    a language model reads a long text with five digits in it, and is then asked for them (Mohtashami
           and Jaggi 2023, arXiv 2305.16300).
Perplexity the same model goes on reading: how well it expects the words that follow.

Each text is fed in two parts. The context goes in first, exactly, and whatever the cache does to it
(quantise, evict) is done by the time the rest follows. The rest is the question together with the right
answer: each answer token is predicted from the cache, and one mistake does not lead to the next.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# The ids of the pairs' vocabulary: a start token, then the keys, then the values.
START, NUM_KEYS, NUM_VALUES = 0, 512, 128
FIRST_KEY, FIRST_VALUE = 1, 1 + NUM_KEYS
PAIRS_VOCABULARY = 1 + NUM_KEYS + NUM_VALUES

HEAD = "A pass key is hidden somewhere in the text that follows. Find it and remember it.\n\n"
NEEDLE = "\n\nThe pass key is {digits}. Remember it: {digits} is the pass key.\n\n"
QUESTION = "\n\nWhat is the pass key? The pass key is "
DIGITS = 5


def read(model, context: Tensor, rest: Tensor, cache) -> Tensor:
    """Feed the context, then the rest; what the model expects after each token of the rest.

    Args:
        model: a `Decoder`.
        context: (B, S) ids.
        rest: (B, L) ids.
        cache: an empty cache for B rows.

    Returns:
        (B, L, vocab_size) logits.
    """
    model(context, cache, last_only=True)
    return model(rest, cache)


# Pairs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Texts of N pairs, each key asked for once.

    context: (B, 1 + 2N) ids: the start, then key, value, key, value, ...
    rest: (B, 2N) ids: the same keys in another order, each followed by its value.
    """

    context: Tensor
    rest: Tensor

    @property
    def answers(self) -> Tensor:
        """(B, N) ids: what should follow `rest[:, ::2]`."""
        return self.rest[:, 1::2]

    def right(self, logits: Tensor) -> Tensor:
        """(B, N) booleans: which answers the logits of the rest, (B, 2N, vocab_size), give."""
        return logits[:, ::2].argmax(dim=2) == self.answers


def draw_pairs(num_pairs: int, batch_size: int, generator: torch.Generator, num_keys=NUM_KEYS) -> Pairs:
    """Random texts of `num_pairs` pairs; the same ones for the same state of the generator.

    Args:
        num_pairs: N, 1 to num_keys: a text has no key twice.
        batch_size: B.
        generator: where the random numbers come from; it moves on.
        num_keys: draw from the first so many keys alone.

    Raises:
        ValueError: fewer than one pair or text, or more pairs than keys.
    """
    if not 1 <= num_pairs <= num_keys <= NUM_KEYS:
        raise ValueError(
            f"A text has no key twice, so num_pairs is 1 to num_keys, and num_keys at most {NUM_KEYS}; got "
            f"num_pairs={num_pairs} and num_keys={num_keys}."
        )
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")

    def shuffled(count):  # (B, count): in each row 0 to count - 1 in random order
        return torch.rand(batch_size, count, generator=generator).argsort(dim=1)

    keys = FIRST_KEY + shuffled(num_keys)[:, :num_pairs]
    values = FIRST_VALUE + torch.randint(NUM_VALUES, (batch_size, num_pairs), generator=generator)
    pairs = torch.stack((keys, values), dim=2)  # (B, N, 2)
    order = shuffled(num_pairs)[:, :, None].expand(-1, -1, 2)
    start = torch.full((batch_size, 1), START)
    return Pairs(torch.cat((start, pairs.flatten(1)), dim=1), pairs.gather(1, order).flatten(1))


def pairs_accuracy(model, pairs: Pairs, cache) -> float:
    """The share of keys whose value the model still knows: 1 / NUM_VALUES by guessing.

    Args:
        model: the decoder of `load("recall")`.
        pairs: from `draw_pairs`.
        cache: an empty cache for as many rows as there are texts.
    """
    device = model.device
    logits = read(model, pairs.context.to(device), pairs.rest.to(device), cache)
    return pairs.right(logits.cpu()).float().mean().item()


# A pass key in a long text -------------------------------------------------------------------------


@dataclass(frozen=True)
class Passkey:
    """One text with a pass key in it.

    context: (1, length) ids, the pass key among them.
    rest: (1, L) ids: the question, and the answer but for its last token.
    answer: (5,) ids, one a digit.
    following: (1, F) ids: how the filler would go on after the context.
    depth: where the pass key stands, as a share of the context.
    """

    context: Tensor
    rest: Tensor
    answer: Tensor
    following: Tensor
    depth: float

    def score(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """How the answer fared, from logits (B, L, vocab_size) of the rest.

        Returns:
            (B,) booleans: all five digits are what the model expects most, as greedy decoding would give
            them; and (B,) the mean log-probability of a digit, 0 at best.
        """
        expected = logits[:, -len(self.answer) :].float()  # (B, 5, vocab_size)
        chosen = expected.log_softmax(dim=2)[:, range(len(self.answer)), self.answer]  # (B, 5)
        return (expected.argmax(dim=2) == self.answer).all(dim=1), chosen.mean(dim=1)


def filler_text() -> str:
    """A long English text that every CPython has: the language reference behind `help()`.

    Repeated sentences would not do: between them a pass key is easy to see even with a blurred cache. The
    text differs between versions of Python.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def draw_passkey(
    tokenizer, length: int, filler: list[int], generator: torch.Generator, following: int = 0
) -> Passkey:
    """A text of exactly `length` tokens with five random digits, at 5 to 80 % of its filler.

    The same state of the generator gives, whatever the length, the same digits, the same share of the filler
    before them and the same place at which the filler ends. So do texts of several lengths make pairs.

    Args:
        tokenizer: of the model; each digit is a token of its own.
        length: of the context, in tokens.
        filler: ids to cut the filler from, for example of `filler_text()`; its end is joined to its start.
        generator: where the random numbers come from; it moves on.
        following: how many tokens of filler to give on top, which are no part of the context.

    Raises:
        ValueError: `length` leaves no room for the pass key, or the filler is too short for it.
    """
    digits = "".join(str(digit) for digit in torch.randint(10, (DIGITS,), generator=generator).tolist())
    share = 0.05 + 0.75 * torch.rand((), generator=generator).item()
    end = int(torch.randint(len(filler), (), generator=generator)) if filler else 0
    head, needle, question = (
        tokenizer.encode(text) for text in (HEAD, NEEDLE.format(digits=digits), QUESTION)
    )
    answer = [tokenizer.encode(digit)[0] for digit in digits]
    room = length - len(head) - len(needle)
    if room < 1 or room + following > len(filler):
        raise ValueError(
            f"A text of {length} tokens has {room} of filler beside the pass key, with {following} to "
            f"follow; it needs at least 1, and there are {len(filler)} to cut from."
        )
    text = [filler[place % len(filler)] for place in range(end - room, end + following)]
    before = round(share * room)
    return Passkey(
        context=torch.tensor([head + text[:before] + needle + text[before:room]]),
        rest=torch.tensor([question + answer[:-1]]),
        answer=torch.tensor(answer),
        following=torch.tensor([text[room:]], dtype=torch.long),
        depth=(len(head) + before) / length,
    )


def passkey_recall(model, passkey: Passkey, cache) -> tuple[bool, float]:
    """Whether the model still knows the pass key, and the mean log-probability of a digit of it.

    Args:
        model: a language model's decoder.
        passkey: from `draw_passkey`.
        cache: an empty cache for one row.
    """
    device = model.device
    logits = read(model, passkey.context.to(device), passkey.rest.to(device), cache)
    right, log_probability = passkey.score(logits.cpu())
    return bool(right), float(log_probability)


# What follows -------------------------------------------------------------------------------------


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """(B,) mean of -log p over the targets (1, L) or (B, L), from logits (B, L, vocab_size)."""
    log_probabilities = logits.float().log_softmax(dim=2)
    targets = targets.expand(len(logits), -1)[:, :, None]
    return -log_probabilities.gather(2, targets).mean(dim=(1, 2))


def perplexity(model, tokens: Tensor, context_length: int, cache) -> float:
    """exp of the mean loss over the tokens that follow the context, the first of them aside.

    (The first is expected by the pass over the context itself, which saw no cache yet.)

    Args:
        model: a language model's decoder.
        tokens: (1, T) ids, T at least context_length + 2.
        context_length: how many of them go in first.
        cache: an empty cache for one row.
    """
    if not 1 <= context_length <= tokens.shape[1] - 2:
        raise ValueError(
            f"{tokens.shape[1]} tokens have no two left after a context of {context_length}; make the "
            f"context 1 to {tokens.shape[1] - 2}."
        )
    context, rest = tokens.to(model.device).split((context_length, tokens.shape[1] - context_length), dim=1)
    return float(losses(read(model, context, rest[:, :-1], cache), rest[:, 1:]).exp())
