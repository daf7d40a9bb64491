"""greedy_decode: the loop that turns a decoder into a writer."""

import torch

from kvlearn.checks.engine import Case, Exercise, Misconception
from kvlearn.checks.lesson_03 import decoding_mistakes as mistakes


class SmallModel:
    """Stands in for a decoder: the logits after a prefix depend on every token of it, and on nothing else.

    A random decoder would soon repeat one token, and then most wrong loops would look right.
    """

    def __init__(self, vocab_size: int, seed: int):
        self.vocab_size, self.seed = vocab_size, seed

    def __call__(self, tokens):
        """(1, L) token ids -> logits (1, L, vocab_size)."""
        if not isinstance(tokens, torch.Tensor):
            raise TypeError(f"The model takes a tensor of token ids; got a {type(tokens).__name__}.")
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.is_floating_point() or not tokens.numel():
            raise ValueError(
                f"The model takes whole numbers of shape (1, length); got {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}."
            )
        logits = torch.empty(1, tokens.shape[1], self.vocab_size)
        state = self.seed
        for i, token in enumerate(tokens[0].tolist()):
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"Token {token} is not in the vocabulary of 0 to {self.vocab_size - 1}.")
            state = (state * 1_000_003 + token + 1) % (2**31 - 1)
            logits[0, i] = torch.randn(self.vocab_size, generator=torch.Generator().manual_seed(state))
        return logits


class Counting:
    """The model of the statement's example: the next number is always the likeliest."""

    vocab_size = 9

    def __call__(self, tokens):
        return 300.0 * torch.nn.functional.one_hot(tokens + 1, self.vocab_size)  # exp(300) is infinite


class Repeating:
    """Says 7 after any text, and finds everything unlikely."""

    vocab_size = 11

    def __call__(self, tokens):
        logits = torch.full((*tokens.shape, self.vocab_size), -50.0)
        logits[..., 7] = -3.0
        return logits


def greedy_decode(model, tokens, max_new_tokens, eos_ids):
    """Oracle: the whole text at every step, its last logits, the largest of them."""
    text = torch.tensor([tokens])
    for _ in range(max_new_tokens):
        best = max(enumerate(model(text)[0, -1].tolist()), key=lambda pair: pair[1])[0]
        text = torch.cat((text, torch.tensor([[best]])), dim=1)
        if best in eos_ids:
            break
    return text[0, len(tokens) :].tolist()


def _cases(generator):
    def whole_number(below):
        return int(torch.randint(below, (1,), generator=generator))

    def draw(prompt_length, max_new_tokens, label, ends_at=None, before=0, after=0, zero=False, vocab=50):
        """`ends_at`: the new token, counted from 0, that is an EOS, with so many other ids beside it.

        `zero`: its id is 0.
        """
        while True:
            model = SmallModel(vocab, seed=whole_number(10**6))
            prompt = torch.randperm(vocab, generator=generator)[:prompt_length].tolist()
            free = greedy_decode(model, prompt, max_new_tokens, ())
            if zero and free[ends_at]:
                continue
            if len({*free, *prompt}) == len(free) + len(prompt):
                break  # no token comes twice, so that an EOS ends the text where it should
        others = [token for token in range(vocab) if token not in (*free, *prompt)]
        eos = () if ends_at is None else (*others[:before], free[ends_at], *others[before : before + after])
        inputs = {"model": model, "tokens": prompt, "max_new_tokens": max_new_tokens, "eos_ids": eos}
        return Case(inputs, label)

    def again(label, tokens, max_new_tokens, eos_ids):
        inputs = {"model": Repeating(), "tokens": tokens, "max_new_tokens": max_new_tokens}
        return Case({**inputs, "eos_ids": eos_ids}, label)

    in_prompt = draw(5, 3, "an EOS inside the prompt")
    in_prompt.inputs["eos_ids"] = (in_prompt["tokens"][1],)
    at_its_end = draw(7, 2, "a prompt that ends with an EOS")
    at_its_end.inputs["eos_ids"] = (at_its_end["tokens"][-1],)
    by_hand = {"model": Counting(), "tokens": [3, 4], "max_new_tokens": 3, "eos_ids": (6,)}
    return [
        draw(4, 7, "no EOS"),
        draw(3, 8, "an EOS on the way", ends_at=4),
        draw(6, 4, "the EOS comes first", ends_at=0),
        draw(2, 6, "the second EOS id of two", ends_at=3, before=1),
        draw(2, 5, "the first EOS id of three", ends_at=2, after=2),
        in_prompt,
        at_its_end,
        draw(4, 3, "an EOS with the id 0", ends_at=1, zero=True, vocab=12),
        draw(70, 2, "a prompt of 70 tokens", vocab=400),
        again("the same token again and again", [2, 5], 20, ()),
        again("an EOS that is in the prompt as well", [7, 2], 3, (7,)),
        Case(by_hand, "the example by hand"),
        draw(1, 1, "one token of prompt"),
        draw(3, 0, "nothing wanted"),
    ]


def _explain(case, got, want):
    first = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
    if first is None:
        return None
    return (
        f"New token {first} should be {want[first]}, the likeliest after "
        f"{len(case['tokens']) + first} tokens of text; yours is {got[first]}. The tokens before it agree."
    )


GREEDY_DECODE = Exercise(
    name="greedy_decode",
    lesson=3,
    title="The greedy loop",
    minutes=15,
    difficulty=2,
    why="Every language model that writes is this loop. In lesson 04 you give it a cache and change "
    "nothing else.",
    signature="greedy_decode(model, tokens, max_new_tokens, eos_ids)",
    reference=greedy_decode,
    cases=_cases,
    explain=_explain,
    misconceptions=(
        Misconception(
            "the prompt was given back too",
            mistakes.prompt_too,
            "The new tokens are right. The caller has the prompt and wants the new ones alone.",
        ),
        Misconception(
            "the EOS is missing from the result",
            mistakes.without_eos,
            "The text ends in the right place. Its EOS belongs to it: the caller must be able to see that "
            "the model stopped of itself and did not run out of tokens.",
        ),
        Misconception(
            "it goes on after the EOS",
            mistakes.never_ends,
            "With one of eos_ids the model says that the text is over. What comes after it means nothing.",
        ),
        Misconception(
            "the list was filled up after the EOS",
            mistakes.filled_up,
            "A text that ends early is a shorter list. Filling up is for the rows of a batch, and even "
            "there it is never given back.",
        ),
        Misconception(
            "an EOS in the prompt ended the text",
            mistakes.ends_by_the_prompt,
            "Only a *new* token can end the text. The prompt of a conversation is full of the ends of "
            "earlier turns.",
        ),
        Misconception(
            "the text ended before it began: the prompt's last token was taken for an EOS",
            mistakes.ends_at_the_prompts_end,
            "Only a *new* token can end the text. A prompt in a chat format often ends with the id that "
            "also ends a turn.",
        ),
        Misconception(
            "the id 0 was taken for no token",
            mistakes.zero_is_nothing,
            "0 is an id like any other, and in a condition it counts as false. Ask whether the token is in "
            "eos_ids, and nothing else.",
        ),
        Misconception(
            "only the end of a long prompt was fed",
            mistakes.prompt_cut,
            "Each new token depends on the whole prompt. Cutting it to a fixed length changes the text as "
            "soon as a prompt is longer.",
        ),
        Misconception(
            "only the first of eos_ids ends the text",
            mistakes.first_eos_only,
            "A model may have several ids that end a text, and any of them does.",
        ),
        Misconception(
            "only the last of eos_ids ends the text",
            mistakes.last_eos_only,
            "A model may have several ids that end a text, and any of them does.",
        ),
        Misconception(
            "the first of eos_ids was taken for all of them, even where there is none",
            mistakes.first_eos_always,
            "A model may have several ids that end a text, or none.",
            raises=True,
        ),
        Misconception(
            "one token too many",
            mistakes.one_too_many,
            "max_new_tokens counts what is generated, the first new token included.",
        ),
        Misconception(
            "one token too few",
            mistakes.one_too_few,
            "The prompt's own pass gives the first new token, so there are as many passes as new tokens.",
        ),
        Misconception(
            "the prompt was counted against max_new_tokens",
            mistakes.prompt_counted,
            "The limit is on new tokens. A limit on the whole text goes by the name of max_length elsewhere.",
        ),
        Misconception(
            "the first new token was lost",
            mistakes.first_token_lost,
            "It was fed back, since what follows is right, but it never reached the result.",
        ),
        Misconception(
            "the logits of the first position were read",
            mistakes.first_position,
            "The model guesses after every token of the text. What follows the *first* one is known long "
            "since.",
        ),
        Misconception(
            "the logits of the last position but one were read",
            mistakes.position_before,
            "They predict the last token of the text, which is there already.",
        ),
        Misconception(
            "the largest logit was sought over the positions",
            mistakes.over_positions,
            "That says at which place one token of the vocabulary fits best. The choice is among the "
            "tokens of the vocabulary, at one place.",
        ),
        Misconception(
            "the largest logit was sought over all positions at once",
            mistakes.over_everything,
            "`argmax` without an axis counts through the flattened tensor, and its answer is no token id: "
            "with more than one position it soon leaves the vocabulary.",
            raises=True,
        ),
        Misconception(
            "only the last token of the text was fed, from the beginning",
            mistakes.last_token_alone,
            "This model has no memory. It knows of the text what you feed it, so here it guessed from one "
            "token.",
        ),
        Misconception(
            "after the prompt only the newest token was fed",
            mistakes.prompt_then_last_token,
            "That is how one feeds a model *with* a cache. This one has no memory, and has forgotten the "
            "prompt.",
        ),
        Misconception(
            "the new tokens were fed without the prompt",
            mistakes.new_tokens_alone,
            "After the first step the model no longer sees the question it is answering.",
        ),
        Misconception(
            "every step sees the prompt alone",
            mistakes.never_fed_back,
            "The same input gives the same token, again and again. Each new token becomes part of the text.",
        ),
        Misconception(
            "the caller's list of tokens grew",
            mistakes.in_place,
            "The new tokens are right. But the list belongs to the caller, who may want to use the prompt "
            "again, and finds it longer than before.",
        ),
    ),
    hints=(
        "A loop with three lines: run the model, choose, remember. Where does it stop, and what has it "
        "remembered by then?",
        "The logits are (1, L, vocab): at every place of the text, the guess for the place after it. Only "
        "one of the L guesses is news.",
        "The model takes a tensor of shape (1, L): a batch of one text. And a list of your own can grow "
        "without touching the caller's.",
    ),
)
