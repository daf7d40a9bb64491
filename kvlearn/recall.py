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
from pathlib import Path

import torch
from torch import Tensor

from kvlearn.values import is_plain, is_whole, is_whole_tensor, kind_of, whole

# The ids of the pairs' vocabulary: a start token, then the keys, then the values.
START, NUM_KEYS, NUM_VALUES = 0, 512, 128
FIRST_KEY, FIRST_VALUE = 1, 1 + NUM_KEYS
PAIRS_VOCABULARY = 1 + NUM_KEYS + NUM_VALUES

HEAD = "A pass key is hidden somewhere in the text that follows. Find it and remember it.\n\n"
NEEDLE = "\n\nThe pass key is {digits}. Remember it: {digits} is the pass key.\n\n"
QUESTION = "\n\nWhat is the pass key? The pass key is "
DIGITS = 5
FILLER = Path(__file__).parent / "texts" / "python_reference.txt"


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
        ValueError: sizes that are none, fewer than one pair or text, or more pairs than keys; no generator.
    """
    num_pairs, num_keys = whole(num_pairs, "num_pairs", at_least=0), whole(num_keys, "num_keys", at_least=0)
    batch_size = whole(batch_size, "batch_size")
    _check_generator(generator)
    if not 1 <= num_pairs <= num_keys <= NUM_KEYS:
        raise ValueError(
            f"A text has no key twice, so num_pairs is 1 to num_keys, and num_keys at most {NUM_KEYS}; got "
            f"num_pairs={num_pairs} and num_keys={num_keys}."
        )

    def shuffled(count):  # (B, count): in each row 0 to count - 1 in random order
        numbers = torch.rand(batch_size, count, generator=generator, device=generator.device)
        return numbers.cpu().argsort(dim=1)

    keys = FIRST_KEY + shuffled(num_keys)[:, :num_pairs]
    values = torch.randint(NUM_VALUES, (batch_size, num_pairs), generator=generator, device=generator.device)
    pairs = torch.stack((keys, FIRST_VALUE + values.cpu()), dim=2)  # (B, N, 2)
    order = shuffled(num_pairs)[:, :, None].expand(-1, -1, 2)
    start = torch.full((batch_size, 1), START, device="cpu")
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
    """A long English text: Python's own language reference, as `help()` of Python 3.11.7 shows it.

    Repeated sentences would not do: between them a pass key is easy to see even with a blurred cache. The
    text ships with the package, because it differs between versions of Python, and every perplexity with it.
    Its licence stands beside it.
    """
    return FILLER.read_text(encoding="utf-8")


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
        ValueError: `length` leaves no room for the pass key, or the filler is too short for it; arguments of
            another kind.
    """
    length, following = whole(length, "length"), whole(following, "following", at_least=0)
    _check_generator(generator)
    if not isinstance(filler, list | tuple):
        raise ValueError(f"filler is a list of token ids, as tokenizer.encode gives; got {kind_of(filler)}.")
    drawn = {"generator": generator, "device": generator.device}
    digits = "".join(str(digit) for digit in torch.randint(10, (DIGITS,), **drawn).tolist())
    share = 0.05 + 0.75 * torch.rand((), **drawn).item()
    end = int(torch.randint(len(filler), (), **drawn)) if filler else 0
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
    if not all(is_whole(token) for token in text):
        raise ValueError("filler is a list of token ids, and some of what it has are no whole numbers.")
    before = round(share * room)
    return Passkey(
        context=_ids([head + text[:before] + needle + text[before:room]]),
        rest=_ids([question + answer[:-1]]),
        answer=_ids(answer),
        following=_ids([text[room:]]),
        depth=(len(head) + before) / length,
    )


def _ids(tokens: list) -> Tensor:
    return torch.tensor(tokens, dtype=torch.long, device="cpu")


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
    """(B,) mean of -log p over the targets (1, L) or (B, L), from logits (B, L, vocab_size).

    Raises:
        ValueError: tensors of other shapes or kinds, or targets that are not in the vocabulary.
    """
    if not is_plain(logits) or not logits.is_floating_point() or logits.ndim != 3:
        raise ValueError(f"logits are numbers of shape (B, L, vocab_size); got {_described(logits)}.")
    rows, length, vocabulary = logits.shape
    if not is_whole_tensor(targets) or targets.shape not in ((1, length), (rows, length)):
        raise ValueError(
            f"targets are token ids of shape (1, {length}) or ({rows}, {length}), one for each logit; "
            f"got {_described(targets)}."
        )
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < vocabulary:
        raise ValueError(
            f"targets are token ids 0 to {vocabulary - 1}; got {int(targets.min())} to {int(targets.max())}."
        )
    log_probabilities = logits.float().log_softmax(dim=2)
    targets = targets.long().expand(rows, -1)[:, :, None]
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
    if not is_whole_tensor(tokens) or tokens.ndim != 2 or len(tokens) != 1:
        raise ValueError(f"tokens are ids of shape (1, T), one row; got {_described(tokens)}.")
    context_length = whole(context_length, "context_length", at_least=0)
    if not 1 <= context_length <= tokens.shape[1] - 2:
        raise ValueError(
            f"{tokens.shape[1]} tokens have no two left after a context of {context_length}; make the "
            f"context 1 to {tokens.shape[1] - 2}."
        )
    context, rest = tokens.to(model.device).split((context_length, tokens.shape[1] - context_length), dim=1)
    return float(losses(read(model, context, rest[:, :-1], cache), rest[:, 1:]).exp())


# What is given ------------------------------------------------------------------------------------


def _check_generator(generator) -> None:
    """Without one the numbers would come from torch's own, and no seed would give them again."""
    if not isinstance(generator, torch.Generator):
        raise ValueError(
            "The random numbers come from a generator, such as torch.Generator().manual_seed(0); got "
            f"{kind_of(generator)}."
        )


def _described(given) -> str:
    return f"{kind_of(given)} of shape {tuple(given.shape)}" if is_plain(given) else kind_of(given)
