"""cached_decode: feed the prompt once, then each new token once."""

from types import SimpleNamespace

import torch

from kvlearn.cache import GrowingCache
from kvlearn.checks.engine import Case, Exercise, Misconception, WrongAnswer


class CachedModel:
    """Stands in for a decoder with a cache: its logits depend on every token that the cache holds.

    The cache is a real one and stores the token ids as keys, so that a token fed twice, or never, or at the
    wrong place, changes all the text after it. (A small random decoder would often not notice.)
    """

    config = SimpleNamespace(num_layers=1, num_kv_heads=1, head_dim=2, max_position=64)

    def __init__(self, vocab_size: int, seed: int):
        self.vocab_size, self.seed, self.fed, self.passes = vocab_size, seed, 0, 0

    def __call__(self, tokens, cache=None):
        """(1, L) token ids -> logits (1, L, vocab_size)."""
        if not isinstance(tokens, torch.Tensor):
            raise TypeError(f"The model takes a tensor of token ids; got a {type(tokens).__name__}.")
        if tokens.ndim != 2 or tokens.shape[0] != 1 or tokens.is_floating_point() or not tokens.numel():
            raise ValueError(
                f"The model takes whole numbers of shape (1, length), one at least; got {tokens.dtype} of "
                f"shape {tuple(tokens.shape)}."
            )
        self.fed += tokens.shape[1]
        self.passes += 1
        text = tokens
        if cache is not None:
            ids = tokens[:, None, :, None].expand(1, 1, -1, 2).float()
            text = cache.update(0, ids, ids)[0][:, 0, :, 0].long()
        after = [self._logits(text[0, : end + 1].tolist()) for end in range(text.shape[1])]
        return torch.stack(after)[None, -tokens.shape[1] :]

    def _logits(self, text):
        state = self.seed
        for token in text:
            state = (state * 1_000_003 + token + 1) % (2**31 - 1)
        return torch.randn(self.vocab_size, generator=torch.Generator().manual_seed(state))


def _cases(generator):
    def whole_number(below):
        return int(torch.randint(below, (1,), generator=generator))

    def draw(prompt_length, new, label):
        prompt = torch.randperm(50, generator=generator)[:prompt_length].tolist()
        return Case({"seed": whole_number(10**6), "tokens": prompt, "max_new_tokens": new}, label)

    return [
        draw(5, 7, "7 new tokens"),
        draw(1, 4, "a prompt of one token"),
        draw(40, 1, "a prompt of 40, one new token"),
        draw(4, 0, "nothing wanted"),
    ]


def _observe(answer, case):
    model = CachedModel(vocab_size=50, seed=case["seed"])
    cache = GrowingCache(model.config, dtype=torch.float32)
    new = answer(model, case["tokens"], case["max_new_tokens"], cache)
    if isinstance(new, torch.Tensor):
        raise WrongAnswer(
            "A list of token ids is wanted, and this is a tensor; .tolist() makes a list of it."
        )
    if new is None or new is ...:
        return None
    new = list(new) if isinstance(new, tuple) else new
    return {
        "new tokens": new,
        "tokens that the model was fed": model.fed,
        "slots in the cache": cache.length,
        "passes": model.passes,
    }


def _explain(case, got, want):
    if got["new tokens"] != want["new tokens"]:
        pairs = zip(got["new tokens"], want["new tokens"], strict=True)
        first = next(i for i, (ours, right) in enumerate(pairs) if ours != right)
        return (
            f"After a prompt of {len(case['tokens'])} tokens new token {first} should be "
            f"{want['new tokens'][first]}, and it is {got['new tokens'][first]}."
        )
    for what in ("tokens that the model was fed", "slots in the cache"):
        if got[what] != want[what]:
            return (
                f"The text is right. But the {what} are {got[what]}, where {want[what]} were needed "
                f"(prompt {len(case['tokens'])}, new {case['max_new_tokens']})."
            )
    return (
        f"The text is right. But it took {got['passes']} passes, where {want['passes']} were needed: the "
        "prompt goes through the model in one."
    )


# -- right and wrong loops ---------------------------------------------------------------------


def _best(logits):
    return int(logits[0, -1].argmax())


def cached_decode(model, tokens, max_new_tokens, cache):
    """Oracle: whatever the cache does not hold yet, in one pass, so that prefill is not special."""
    text, new = list(tokens), []
    while len(new) < max_new_tokens:
        new.append(_best(model(torch.tensor([text[cache.length :]]), cache)))
        text.append(new[-1])
    return new


def _whole_text_each_time(model, tokens, max_new_tokens, cache):
    text = list(tokens)
    for _ in range(max_new_tokens):
        text.append(_best(model(torch.tensor([text]), cache)))
    return text[len(tokens) :]


def _last_of_prompt_twice(model, tokens, max_new_tokens, cache):
    model(torch.tensor([tokens]), cache)
    new, token = [], tokens[-1]
    for _ in range(max_new_tokens):
        token = _best(model(torch.tensor([[token]]), cache))
        new.append(token)
    return new


def _first_new_lost(model, tokens, max_new_tokens, cache):
    token = _best(model(torch.tensor([tokens]), cache))
    new = []
    for _ in range(max_new_tokens):
        token = _best(model(torch.tensor([[token]]), cache))
        new.append(token)
    return new


def _last_fed_too(model, tokens, max_new_tokens, cache):
    logits, new = model(torch.tensor([tokens]), cache), []
    for _ in range(max_new_tokens):
        new.append(_best(logits))
        logits = model(torch.tensor([[new[-1]]]), cache)
    return new


def _prompt_for_nothing(model, tokens, max_new_tokens, cache):
    logits, new = model(torch.tensor([tokens]), cache), []
    for step in range(max_new_tokens):
        new.append(_best(logits))
        if step + 1 < max_new_tokens:
            logits = model(torch.tensor([[new[-1]]]), cache)
    return new


def _prompt_token_by_token(model, tokens, max_new_tokens, cache):
    text, new = list(tokens), []
    while len(new) < max_new_tokens:
        for token in text[cache.length :]:
            logits = model(torch.tensor([[token]]), cache)
        new.append(_best(logits))
        text.append(new[-1])
    return new


def _cache_not_handed_over(model, tokens, max_new_tokens, cache):
    new, feed = [], list(tokens)
    for _ in range(max_new_tokens):
        new.append(_best(model(torch.tensor([feed]))))
        feed = new[-1:]
    return new


def _no_cache(model, tokens, max_new_tokens, cache):
    text = list(tokens)
    for _ in range(max_new_tokens):
        text.append(_best(model(torch.tensor([text]))))
    return text[len(tokens) :]


def _prompt_not_fed(model, tokens, max_new_tokens, cache):
    new, token = [], tokens[-1]
    for _ in range(max_new_tokens):
        token = _best(model(torch.tensor([[token]]), cache))
        new.append(token)
    return new


def _prompt_too(model, tokens, max_new_tokens, cache):
    return [*tokens, *cached_decode(model, tokens, max_new_tokens, cache)]


def _first_logits(model, tokens, max_new_tokens, cache):
    logits, new = model(torch.tensor([tokens]), cache), []
    for step in range(max_new_tokens):
        new.append(int(logits[0, 0].argmax()))
        if step + 1 < max_new_tokens:
            logits = model(torch.tensor([[new[-1]]]), cache)
    return new


def _prefill_without_cache(model, tokens, max_new_tokens, cache):
    logits, new = model(torch.tensor([tokens])), []
    for step in range(max_new_tokens):
        new.append(_best(logits))
        if step + 1 < max_new_tokens:
            logits = model(torch.tensor([[new[-1]]]), cache)
    return new


CACHED_DECODE = Exercise(
    name="cached_decode",
    lesson=4,
    title="Decode with a cache",
    minutes=20,
    difficulty=2,
    why="The loop looks like the naive one and differs in what it feeds. Fed a token too many or too few, "
    "the model still writes text.",
    signature="cached_decode(model, tokens, max_new_tokens, cache)",
    reference=cached_decode,
    cases=_cases,
    observe=_observe,
    explain=_explain,
    misconceptions=(
        Misconception(
            "the whole text is fed at every step, into a cache that has it already",
            _whole_text_each_time,
            "The cache appends whatever comes, so it now holds the prompt several times, and the model reads "
            "a text that nobody wrote.",
        ),
        Misconception(
            "the prompt's last token is fed twice",
            _last_of_prompt_twice,
            "Prefill has fed it already, and its logits choose the first new token. Fed again it stands in "
            "the cache twice.",
        ),
        Misconception(
            "the first new token is lost",
            _first_new_lost,
            "Prefill already chooses a token: the one after the prompt. Yours is fed to the model and never "
            "reported.",
        ),
        Misconception(
            "the last new token is fed too",
            _last_fed_too,
            "The text is right. But the last pass computes logits that nobody reads, and the cache is one "
            "token ahead of what the next call expects.",
        ),
        Misconception(
            "the prompt is fed although nothing is wanted",
            _prompt_for_nothing,
            "For no new token nothing has to be computed. Here the prompt went through the model, and the "
            "cache holds it, although the caller asked for nothing.",
        ),
        Misconception(
            "the prompt is fed token by token",
            _prompt_token_by_token,
            "The text is right. But a prompt goes through the model in one pass, which reads the weights "
            "once; here they were read for every token of it.",
        ),
        Misconception(
            "the cache was not handed to the model",
            _cache_not_handed_over,
            "Your cache is still empty: the model was called without it, and after the prompt it saw one "
            "token at a time and nothing before.",
        ),
        Misconception(
            "the cache is never used",
            _no_cache,
            "The text is right, and every step computes all of it anew: this is the naive decoder.",
        ),
        Misconception(
            "the prompt is never fed, only its last token",
            _prompt_not_fed,
            "A fresh cache knows nothing of the prompt. Somebody has to feed it once.",
        ),
        Misconception(
            "the prompt comes back with the new tokens",
            _prompt_too,
            "Only what is new is wanted; whoever calls has the prompt.",
        ),
        Misconception(
            "the next token is read from the first row of the logits",
            _first_logits,
            "Each row predicts the token after its own. After the prompt, the row of its last token counts.",
        ),
        Misconception(
            "the prompt was run without the cache",
            _prefill_without_cache,
            "The first new token is right, and then the model has forgotten the prompt: nothing of it was "
            "kept.",
        ),
    ),
    hints=(
        "Two phases: the prompt in one pass, then a loop that feeds one token. What does the loop need from "
        "the first pass?",
        "Count the passes: for N new tokens there are N, the prompt's included. Which token is never fed?",
        "A tensor of one token has the shape (1, 1).",
    ),
)
