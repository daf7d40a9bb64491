# %% [markdown]
# # 07 · Fewer tokens: sliding windows
#
# **The question.** A cache grows with the text. If a layer looks back over
# no more than the last `W` tokens, its cache can stop growing. What must be
# kept, where does it lie, how far does the model still reach, and what is
# lost?
#
# You need lessons 02 to 04. About 60 minutes.
#
# | letter | meaning |
# |---|---|
# | `B` | texts side by side (batch) |
# | `Hq`, `Hkv` | query heads, key/value heads |
# | `L` | new tokens in this step: the queries |
# | `S` | slots that are looked at: the kept ones and the new ones |
# | `D` | numbers in one head (head_dim) |
# | `W` | the window: a query sees itself and the `W - 1` positions before it |

# %%
import torch

import kvlearn
from kvlearn import figures, measure

torch.manual_seed(0)
model, tokenizer = kvlearn.load_or_tiny(device=measure.device())
config = model.config
place = {"dtype": model.dtype, "device": model.device}

# %% [markdown]
# ## A window, by hand
#
# Six tokens, a window of 3. The rule has two halves: a key may not be later
# than the query, and it may not be older than the window.

# %%
W = 3
query = torch.arange(6)[:, None]
key = torch.arange(6)[None, :]
mask = (key <= query) & (key > query - W)
figures.mask_map(mask)

# %% [markdown]
# Count a row: the query itself and two before it are three. "Three before
# it" would be a window of 4, and that slip has been shipped
# (ml-explore/mlx-lm#390). Nothing crashes. The model sees one token more
# than in training, and is a little worse for reasons that nobody finds.
#
# Lesson 02's masks know the rule:

# %%
print("the library's mask is the same:",
      torch.equal(kvlearn.causal_mask(6, window=W), mask))
positions = torch.arange(6)[None]
print("and from positions:", torch.equal(
    kvlearn.position_mask(positions, positions, window=W)[0, 0], mask))

# %% [markdown]
# How many (query, key) pairs are left? The first queries see fewer than
# `W`, all others exactly `W`. So the work grows with the text, and no longer
# with its square.

# %%
for n in (6, 100, 1000):
    predicted = n * W - W * (W - 1) // 2
    counted = int(kvlearn.causal_mask(n, window=W).sum())
    print(n, "tokens: predicted", predicted, " counted", counted,
          " without a window", n * (n + 1) // 2)

# %% [markdown]
# ## What may be thrown away?
#
# Lesson 04 had a test for that: spoil what you believe is not needed, and
# see whether anybody notices. Tokens arrive one by one. Before each step we
# write NaN over all keys and values but the last `keep`, the new one
# included.

# %%
T, D = 9, 4
q, k, v = (torch.randn(T, D, dtype=torch.float64) for _ in range(3))
mask = kvlearn.causal_mask(T, window=W)
scores = (q @ k.T / D**0.5).masked_fill(~mask, -torch.inf)
expected = torch.softmax(scores, dim=-1) @ v


# %%
def decode(keep):
    keys, values, outputs = k.clone(), v.clone(), []
    for t in range(T):
        keys[: max(0, t + 1 - keep)] = torch.nan  # thrown away
        values[: max(0, t + 1 - keep)] = torch.nan
        seen = slice(max(0, t + 1 - W), t + 1)
        weights = torch.softmax(q[t] @ keys[seen].T / D**0.5, -1)
        outputs.append(weights @ values[seen])
    return torch.stack(outputs)


# %% [markdown]
# Before you run this: how many tokens, the new one included, must be there
# in a step?

# %%
for keep in (4, 3, 2):
    same = torch.allclose(decode(keep), expected)
    print("tokens kept:", keep, "-> right:", same)

# %% [markdown]
# `W` in the step, the new token among them. So between two steps `W - 1`
# would do. The caches of this course keep `W`, and one more than needed will
# turn out useful.
#
# ## How far does the model reach?
#
# "A window of 4 096 means that the model cannot use what stands further
# back." Is that so? A key in layer 2 was made from the output of layer 1, and
# that output has looked back itself. Let us measure it: change one token,
# and see whether the **last** token's logits change.


# %%
def windowed(layers, window, dtype=torch.float64):
    torch.manual_seed(2)
    return kvlearn.Decoder(kvlearn.DecoderConfig(
        vocab_size=30, hidden_size=24, num_layers=layers, num_heads=6,
        num_kv_heads=2, head_dim=8, intermediate_size=20,
        windows=(window,) * layers)).to(dtype).requires_grad_(False)


# %%
text = torch.randint(30, (1, 14))


def first_that_matters(decoder):
    logits = decoder(text)[0, -1]
    for position in range(text.shape[1]):
        other = text.clone()
        other[0, position] = (other[0, position] + 1) % 30
        if not torch.equal(decoder(other)[0, -1], logits):
            return position


# %%
W = 4
for layers in (1, 2, 3):
    reach = text.shape[1] - 1 - first_that_matters(windowed(layers, W))
    print(layers, "layers: reaches back", reach,
          " predicted layers x (W - 1) =", layers * (W - 1))

# %% [markdown]
# Each layer hands on what it saw, so the reach adds up. Follow the lines
# from the last token downwards:

# %%
layers, tokens = 3, 14
reached = torch.zeros(layers + 1, tokens, dtype=torch.bool)
reached[layers, -1] = True
for level in range(layers, 0, -1):
    for position in reached[level].nonzero().flatten().tolist():
        reached[level - 1, max(0, position - W + 1) : position + 1] = True
figures.window_reach(reached, W)

# %% [markdown]
# Mistral 7B has 32 layers and a window of 4 096 (arXiv 2310.06825): a reach
# of about 131 thousand tokens. But look at the picture again. What comes
# from far away arrives only inside the vectors of tokens in between, mixed
# with all that they hold themselves. It *can* arrive; whether it does is a
# question of training. We come back to that with a real model.
#
# ## Where does a token lie? The ring
#
# Keep the last `W` tokens. A list that drops its first item would have to
# move all others up, at every token, in every layer. A **ring buffer** moves
# nothing: the token at position `p` goes to slot `p % W`.

# %%
W = 4
ring, frames = [-1] * W, []
for position in range(7):
    ring[position % W] = position
    frames.append(list(ring))
    print("position", position, "-> slot", position % W, " ring", ring)

# %% [markdown]
# From position 4 on each new token lands exactly where the oldest one stood,
# the one that has just left the window. Writing *is* evicting.

# %%
figures.ring_frames(frames[2:],
                    [f"position {p} came" for p in range(2, 7)],
                    before=frames[1])

# %% [markdown]
# Step through it. Before you move on from position 6: where will 7 go, and
# who has to leave?

# %% tags=["nbval-ignore-output"]
from kvlearn import widgets

widgets.stepper(
    len(frames),
    lambda step: figures.ring_frames(
        frames[max(0, step - 1) : step + 1],
        [f"position {p}" for p in range(max(0, step - 1), step + 1)],
        before=frames[step - 2] if step > 1 else ()),
)

# %% [markdown]
# The slots are no longer in the order of the text. Does attention mind? It
# is a weighted sum, and a sum does not care about order, as long as the mask
# knows which key is which. That is why the mask rule of this course speaks
# of **positions** and never of slots.

# %%
q, k, v = (torch.randn(1, 1, n, D, dtype=torch.float64)
           for n in (1, 4, 4))
in_order = torch.tensor([[3, 4, 5, 6]])
as_ring = torch.tensor([[4, 5, 6, 3]])  # the ring after position 6
query = torch.tensor([[7]])
straight = kvlearn.attention(
    q, k, v, kvlearn.position_mask(query, in_order, window=W))
place_of = as_ring[0] - 3  # where each of these stood in the text
turned = kvlearn.attention(
    q, k[:, :, place_of], v[:, :, place_of],
    kvlearn.position_mask(query, as_ring, window=W))
print("the ring's order gives the same:",
      torch.allclose(straight, turned))

# %% [markdown]
# And RoPE? A key is turned by its own position once, before it is stored,
# and stays as it is. A token that lies in slot 0 need not be at position 0.
#
# ## Attend first, trim later
#
# Token by token the order of two lines does not matter. With a chunk it
# does. A window of 4, five tokens seen, and a chunk of three arrives. Its
# last token pushes out what its first query still sees:

# %%
figures.mask_map(kvlearn.causal_mask(3, 6, window=4), ["5", "6", "7"],
                 ["2", "3", "4", "5", "6", "7"])


# %%
def last_tokens(chunk, trim_first):
    T, W = 12, 4
    kept, outputs = torch.empty(0, dtype=torch.long), []
    for new in torch.arange(T).split(chunk):
        there = torch.cat((kept, new))
        if trim_first:
            there = there[-W:]
        mask = kvlearn.position_mask(new[None], there[None], window=W)
        outputs.append(kvlearn.attention(
            Q[:, :, new], K[:, :, there], V[:, :, there], mask))
        kept = there[-W:]
    return torch.cat(outputs, dim=2)


# %%
Q, K, V = (torch.randn(1, 2, 12, D, dtype=torch.float64)
           for _ in range(3))
right = kvlearn.attention(Q, K, V, kvlearn.causal_mask(12, window=4))
for chunk in (1, 3):
    for trim_first in (False, True):
        same = torch.allclose(last_tokens(chunk, trim_first), right)
        print("chunks of", chunk, "- trimmed",
              "first:" if trim_first else "later:", same)

# %% [markdown]
# A test with single tokens would have passed both. So a window's cache gives
# back what is kept **and the whole chunk**, lets the model attend, and only
# then writes the chunk into the ring. There is a second reason: until
# the last layer has been written a step may still be dropped (an error in a
# later layer, a click on Stop), and a ring that has been overwritten cannot
# be put back.
#
# ## Name it: `SlidingWindowCache`
#
# The same rules in the library. The oracle is the windowed decoder without
# any cache, and the prompts are those at which windows break: one token
# less than the window, exactly as many, one more, and far more.

# %%
W = 5
decoder = windowed(3, W)
for length in (W - 1, W, W + 1, 40):
    tokens = torch.randint(30, (2, length + 2))
    whole = decoder(tokens)
    verdicts = []
    for chunk in (1, 3, length):
        cache = kvlearn.SlidingWindowCache(
            decoder.config, W, batch_size=2, dtype=torch.float64)
        steps = [decoder(piece, cache)
                 for piece in tokens.split(chunk, dim=1)]
        verdicts.append(torch.allclose(torch.cat(steps, dim=1), whole))
    print("prompt of", length, "tokens, three ways:", verdicts)

# %% [markdown]
# What is in it after 42 tokens? `length` counts all tokens that were seen:
# the next one's position depends on it. What is *stored* is another number.

# %%
print("seen", cache.length, "- next position",
      cache.next_position.tolist())
cache.update(0, *torch.zeros(2, 2, 2, 1, 8, dtype=torch.float64))
print("a step attends over positions",
      cache.key_positions(0)[0].tolist())

# %% [markdown]
# Five from the ring, in the ring's order, and the new one behind them. The
# mask hides the oldest of the six.
#
# Rows of a batch have rings of their own, because each stands at another
# place of its text. Padding takes no place in a ring:

# %%
prompts = [list(range(1, 12)), [5, 6], [3, 1, 4, 1, 5, 9, 2]]
cache = kvlearn.SlidingWindowCache(decoder.config, W, batch_size=3,
                                   dtype=torch.float64)
together = kvlearn.generate(decoder, prompts, 8, cache=cache)
alone = [kvlearn.generate(decoder, p, 8).tokens[0] for p in prompts]
print("each row as if alone:", together.tokens == alone)

# %% [markdown]
# ## Count it
#
# Bytes stop growing once the window is full: `min(n, W)` slots a layer. The
# cache counts the bytes of its real storages; the real model feeds it.

# %%
W = 16
slot = (2 * config.num_layers * config.num_kv_heads * config.head_dim
        * model.dtype.itemsize)
words = tokenizer.encode("One token after another, and the cache stays. "
                         "It forgets what is old. " * 4)
for n in (8, 16, 17, 48):
    cache = kvlearn.SlidingWindowCache(config, W, **place)
    with torch.no_grad():
        model(torch.tensor([words[:n]], device=model.device), cache)
    print(n, "tokens: predicted", min(n, W) * slot,
          " measured", cache.used_bytes)

# %% [markdown]
# And the memory of a run, one layer, step by step. The meter counts the
# storages that are alive, whatever the cache says of itself.

# %%
from dataclasses import replace

one_layer = replace(config, num_layers=1)
token_k = torch.randn(1, config.num_kv_heads, 1, config.head_dim)


def lives(make_cache, steps=96):
    with measure.StorageMeter(torch.float32) as meter:
        cache = make_cache(one_layer, dtype=torch.float32)
        for _ in range(steps):
            cache.update(0, token_k, token_k)
            meter.mark()
    return meter.lives


# %%
memory = {
    "growing": lives(kvlearn.GrowingCache),
    "window of 32": lives(lambda one_layer, dtype:
                          kvlearn.SlidingWindowCache(
                              one_layer, 32, dtype=dtype)),
}
figures.show(
    figures.memory_timeline(memory),
    caption="Live bytes after each token, one layer. The window grows like "
    "any cache until it is full, and then stays as it is.",
)

# %% [markdown]
# ## Windows in some layers only
#
# Many newer models mix: most layers have a window, a few see everything.
# With `window=None` the cache takes each layer's own from the config.

# %%
hybrid = replace(decoder.config, windows=(6, 6, None))
cache = kvlearn.SlidingWindowCache(hybrid, None, dtype=torch.float64)
mixed = kvlearn.Decoder(hybrid).double().requires_grad_(False)
tokens = torch.randint(30, (1, 25))
cached = [mixed(piece, cache) for piece in tokens.split(4, dim=1)]
print("cached = uncached:",
      torch.allclose(torch.cat(cached, dim=1), mixed(tokens)))
token = 2 * 2 * 8 * 8  # K and V, 2 heads of 8, 8 bytes a number
print("bytes: predicted", sum((6, 6, 25)) * token,
      " measured", cache.used_bytes)

# %% [markdown]
# Bytes of one text are a sum over the layers of `min(n, window)`. Here are
# three real models at 131 072 tokens, in bfloat16. Before you run this: by
# which factor does Gemma-3-27B shrink, with 52 of its 62 layers at a
# window of 1 024?

# %%
n, GiB = 131_072, 2**30
shapes = {  # layers with a window, W, layers without, Hkv, D
    "Mistral-7B v0.1": (32, 4096, 0, 8, 128),
    "gpt-oss-120b": (18, 128, 18, 8, 64),
    "Gemma-3-27B": (52, 1024, 10, 16, 128),
}
for name, (local, window, full, heads, dim) in shapes.items():
    one = 2 * heads * dim * 2
    bytes_ = one * (local * min(n, window) + full * n)
    print(f"{name:16} {bytes_ / GiB:6.2f} GiB, all layers full "
          f"{one * (local + full) * n / GiB:6.2f} GiB")

# %% [markdown]
# The few full layers hold nearly everything that is left. Below the window
# nothing is saved at all: a text of 1 000 tokens costs Gemma-3 the same with
# its windows as without.
#
# ## What is lost
#
# A window may also be laid on a model that was trained without one. The
# memory is flat at once, and people have tried it. Our model, SmolLM2, was
# trained with full attention. Tell it a number, then some other text, then
# ask. (The other text is from Python's own language reference. It ships with
# the course, so that every reader gets the same numbers.)

# %%
from kvlearn import recall

reference = recall.filler_text()
start = reference.index("Objects, values and types\n***")
objects = reference[start : start + 4000]
note = tokenizer.encode("The pass key is 4182. Remember it: 4182 is the "
                        "pass key.\n\n")
filler = tokenizer.encode(objects)[:90]
ask = tokenizer.encode("\n\nThe pass key is")
prompt = note + filler + ask
print(len(prompt), "tokens, of which the note is the first", len(note))

# %%
said = {}
for window in (512, 48):
    cache = kvlearn.SlidingWindowCache(config, window, **place)
    new = kvlearn.generate(model, prompt, 6, cache=cache).tokens[0]
    said[window] = tokenizer.decode(new)
    print("window", window, "- the number is there:",
          "4182" in said[window])

# %% tags=["nbval-ignore-output"]
print(said)

# %% [markdown]
# With 48 the note has left every layer's window long before the question
# comes. Thirty layers of 47 would reach far enough on paper. This model was
# never trained to pass things on, and the number does not arrive. (With the
# first token kept it does not either; see below.) And notice *how* it fails:
# no error, and a few fluent tokens without the number. (Ask for sixty and
# the text falls apart too: the reason is next.)
#
# Let us measure how well it predicts ordinary text. The figure is
# **perplexity** (lesson 06): among how many tokens the model seems to waver
# at each place; less is better. Only the mask changes: everything, a window
# of 64, and a window of 64 that **also keeps the first token**.

# %%
ids = tokenizer.encode(objects)[:224]


def limited(window, first=0):
    def attend(q, k, v, mask=None):
        key = torch.arange(k.shape[2], device=k.device)
        query = key[-q.shape[2] :, None]
        seen = (key > query - window) | (key < first)
        return kvlearn.attention(q, k, v, mask=mask & seen)
    return attend


# %%
@torch.no_grad()
def perplexity(attend):
    model.attention = attend
    tokens = torch.tensor([ids], device=model.device)
    logits = model(tokens)[0, 96:-1].float()
    model.attention = kvlearn.attention
    loss = torch.nn.functional.cross_entropy(logits, tokens[0, 97:])
    return loss.exp().item()


# %%
found = {"everything": perplexity(kvlearn.attention)}

# %%
found["window of 64"] = perplexity(limited(64))

# %%
found["64 + first token"] = perplexity(limited(64, first=1))

# %%
figures.show(
    figures.bars({name: {"perplexity": round(value, 1)}
                  for name, value in found.items()},
                 ylabel="perplexity"),
    caption="Perplexity of the real model on the same text. One kept token "
    "undoes most of the damage.",
)

# %% [markdown]
# One token, of which nobody would say that it matters, makes most of the
# difference. Which token is it? Ask every layer how much of its attention
# goes to position 0.

# %%
share = []


def watching(q, k, v, mask=None):
    weights = kvlearn.attention_weights(q, k, mask)
    share.append(weights[0, :, 64:, 0].mean().item())
    return kvlearn.attention(q, k, v, mask=mask)


with torch.no_grad():
    model.attention = watching
    model(torch.tensor([ids[:128]], device=model.device))
    model.attention = kvlearn.attention
late = share[len(share) // 2 :]
print("the later half gives position 0 more than a third:",
      sum(late) / len(late) > 1 / 3)

# %%
third = max(1, len(share) // 3)
parts = {f"layers {i} to {i + third - 1}": share[i : i + third]
         for i in range(0, third * 3, third)}
figures.show(
    figures.bars({name: {"position 0": round(100 * sum(part) / third)}
                  for name, part in parts.items()},
                 ylabel="percent of the attention"),
    caption="How much of their attention the queries from position 64 on "
    "give to position 0, mean over heads and layers.",
)

# %% [markdown]
# A softmax must give away all of its weight, also when a head has nothing to
# look for. Trained models park it on the first tokens, which every query has
# always been able to see. These are lesson 01's **attention sinks** (Xiao et
# al., arXiv 2309.17453). Evict them, and the weight has to go to tokens that
# mean something. Keep them beside the window, and the text stays fluent, as
# long as the sink is no further away than the model was trained for.
# StreamingLLM goes on beyond that: it counts positions inside the cache, so
# keys are turned when they are used.
#
# Fluent, mind. Does it bring the note back?


# %%
@torch.no_grad()
def likeliest(attend):
    answer = tokenizer.encode(" 4182")
    model.attention = attend
    tokens = torch.tensor([prompt + answer], device=model.device)
    logits = model(tokens)[0, -len(answer) - 1 : -1]
    model.attention = kvlearn.attention
    return logits.argmax(-1).tolist() == answer


# %%
print("everything:", likeliest(kvlearn.attention))
print("48 and the first token:", likeliest(limited(48, first=1)))

# %% [markdown]
# No. Sinks repair the arithmetic, not the memory. What has left the window
# of a model that cannot pass it on is gone.
#
# Models that are *trained* with windows are another matter: they can learn
# to hand things on, or have a full layer here and there for looking far
# back. gpt-oss has a learned number in each head's softmax for this, and no
# token.
#
# ## What a rollback may do
#
# Speculative decoding (lesson 12) guesses some tokens and takes the wrong
# ones back. A cache that kept everything can go back anywhere. And a ring?
# Ten tokens seen, a window of 4: positions 6 to 9 are there. With 9 tokens
# left the next query sees 6, 7 and 8. With 8 left it would see 5.

# %%
decoder = windowed(2, 4)
cache = kvlearn.SlidingWindowCache(decoder.config, 4,
                                   dtype=torch.float64)
tokens = torch.randint(30, (1, 10))
for piece in tokens.split(3, dim=1):
    decoder(piece, cache)
try:
    cache.truncate(8)
except ValueError as error:
    print(error)

# %% [markdown]
# Refused, and nothing has been changed. One token back is possible, thanks
# to the slot that is one more than needed. And a text that has not filled
# its window yet can go back anywhere.

# %%
cache.truncate(9)
again = decoder(tokens[:, 9:], cache)[0, -1]
print("one back and again, the same logits:",
      torch.allclose(again, decoder(tokens)[0, -1]))

# %% [markdown]
# An honest refusal is worth something: going on without the missing keys
# would give other numbers and no error. transformers can go back past the
# window too, if the cache was told beforehand to record what it evicts
# ([PR 47447](https://github.com/huggingface/transformers/pull/47447)). At
# first that was the kind of silent bug that our cache refuses: attention
# received more keys than its mask described. One attention function
# crashed; another gave wrong output without an error
# ([PR 48280](https://github.com/huggingface/transformers/pull/48280)).
#
# ## When it breaks
#
# - The window is one too wide or too narrow in the mask
#   (ml-explore/mlx-lm#390), or the mask has it and the cache stores
#   everything (llm_from_scratch#3).
# - The ring's place is counted from what is stored and not from the
#   position: after the first lap every key is someone else's.
# - The window counts slots, and padding pushes tokens out.
# - `length` is the number of stored tokens: the next token is turned to an
#   old position.
# - Beam search reorders its rows, and some kinds of cache are left out
#   (huggingface/transformers#46612).
#
# ## The answer in sixty seconds
#
# > With a sliding window a query sees itself and the W - 1 positions before
# > it, so a layer's cache needs no more than the last W tokens: its memory
# > and the work of a decode step stop growing. The tokens lie in a ring
# > buffer: position p goes to slot p mod W, right over the one that has left
# > the window. Keys stay turned by their own positions, and the mask goes by
# > positions, so the order of slots does not matter. For a chunk of several
# > tokens you attend over what is kept and the whole chunk, and trim
# > afterwards. Information still travels: up to layers x (W - 1) tokens
# > back, if the model has learned to hand it on. On a model trained without
# > a window you lose what lies outside, and also the first tokens, on which
# > the softmax parks its weight; keeping those restores fluency and not
# > memory. Hybrids keep a full layer now and then, and those layers then
# > hold nearly all of the cache.
#
# ## Sentences that give a beginner away
#
# - *"A window of 4 096 means a context of 4 096."* Each layer hands on what
#   it saw; the reach is about layers times that. What is learned of it is
#   another question.
# - *"W means W tokens before the query."* The query is one of the W.
# - *"The ring must be sorted before attention."* A sum has no order; the
#   mask needs positions.
# - *"The keys must be turned again when they move."* Nothing moves, and a
#   key's angle is its position in the text. (StreamingLLM is the exception.)
# - *"The cache's length is what it stores."* It is what it has seen; the
#   next position depends on it.
# - *"Attention sinks give back the long memory."* They give back sane
#   softmaxes.
# - *"Gemma's windows make its cache small at any length."* Below the window
#   nothing is saved, and the full layers grow as ever.
#
# ## Where you meet it
#
# - Mistral 7B v0.1: a window of 4 096 in all 32 layers, with a rolling
#   buffer (arXiv 2310.06825); v0.3 has none.
# - Gemma-2 alternates windows of 4 096 with full layers; Gemma-3 has five
#   windowed layers (1 024 in the 27B) for a full one.
# - gpt-oss: windows of 128 in every other layer, and a learned sink in each
#   head.
# - transformers' `DynamicSlidingWindowLayer` stores `W - 1` tokens and gives
#   back the untrimmed states for the step: attend first, trim later.
# - Sinks beside a window: StreamingLLM (arXiv 2309.17453).
#
# ## Exercises
#
# In [the exercises of lesson 07](../exercises/07_fewer_tokens/07_fewer_tokens.ipynb):
#
# | exercise | minutes | you write |
# |---|---|---|
# | `window_mask` | 10 | the window's mask, from positions |
# | `windowed_prefill` | 15 | attend first, trim later |
# | `ring_positions` | 10 | who stands in which slot |
# | `ring_write` | 15 | a ring for a batch, padding and all |
# | `may_roll_back` | 10 | what the next query would need |
# | `sliding_window_cache` | 30 | your own, under the real model |
