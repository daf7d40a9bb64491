# %% [markdown]
# # 04 · The KV cache
#
# **The question.** The naive decoder of lesson 03 runs the whole text
# through the model for every new token, and almost all of that work gives
# the numbers it gave before. What must be kept so that a token is computed
# once, and what work is left all the same?
#
# You need lessons 01 to 03. About 65 minutes.
#
# | letter | meaning |
# |---|---|
# | `B` | texts side by side (batch) |
# | `Hq`, `Hkv` | query heads, key/value heads |
# | `L` | new tokens in this step: the queries |
# | `S` | tokens that are looked at: the stored ones and the new ones |
# | `D` | numbers in one head (head_dim) |

# %%
import torch

import kvlearn
from kvlearn import figures, measure

torch.manual_seed(0)
model, tokenizer = kvlearn.load_or_tiny(device=measure.device())
config = model.config

# %% [markdown]
# ## What does one step need?
#
# Lesson 02 showed that with a causal mask the past does not change: append
# a token, and every earlier key and value stays what it was. So the
# newest token brings one new row of everything. Take one head of three
# tokens, and let a fourth arrive.

# %%
D = 4
q, k, v = (torch.randn(4, D, dtype=torch.float64) for _ in range(3))
mask = torch.ones(4, 4).tril().bool()
scores = (q @ k.T / D**0.5).masked_fill(~mask, -torch.inf)
everything = torch.softmax(scores, dim=-1) @ v
print("all four outputs", tuple(everything.shape))

# %% [markdown]
# Lesson 03 said that the next layer needs the outputs of *all* positions. It
# does, to make their keys and values. Those it has made already, at earlier
# steps, and they are final. So in every layer the new token's row is enough.
#
# The next word is read off the last row alone. Which rows of q, k and v
# went into that row? Its own query, and **all** the keys and values. Let us
# compute it from these only.

# %%
weights = torch.softmax(q[3] @ k.T / D**0.5, dim=-1)  # four of them
last = weights @ v
print("the last row, from one query:",
      torch.allclose(last, everything[3]))

# %% [markdown]
# That is the idea whole. Put the keys and values of the past on a shelf.
# When a token arrives, project **it**, put its key and value beside the
# others, and let its query read the shelf.

# %%
shelf_k = torch.empty(0, D, dtype=torch.float64)
shelf_v = torch.empty(0, D, dtype=torch.float64)
outputs = []
for t in range(4):  # the tokens arrive one by one
    shelf_k = torch.cat((shelf_k, k[t : t + 1]))
    shelf_v = torch.cat((shelf_v, v[t : t + 1]))
    weights = torch.softmax(q[t] @ shelf_k.T / D**0.5, dim=-1)
    outputs.append(weights @ shelf_v)
print("one by one = all at once:",
      torch.allclose(torch.stack(outputs), everything))

# %% [markdown]
# There was no mask in that loop. It was not forgotten: when token `t`
# arrives, the keys after it do not exist yet. Time itself is the mask.
#
# ## Why not keep Q as well?
#
# Keep everything, then find out who reads it. The test is a poison: after
# each step we overwrite what we kept with NaN. Whatever is read later turns
# the output into NaN.


# %%
def decode(poison):
    kept, outputs = {"q": q.clone(), "k": k.clone(), "v": v.clone()}, []
    for t in range(4):
        now = kept["k"][: t + 1], kept["v"][: t + 1]
        weights = torch.softmax(kept["q"][t] @ now[0].T / D**0.5, -1)
        outputs.append(weights @ now[1])
        kept[poison][t] = torch.nan  # spoiled once the step is over
    return torch.stack(outputs)


# %% [markdown]
# Before you run the next cell: for which of the three does the text
# survive?

# %%
for name in ("q", "k", "v"):
    spoiled = bool(decode(name).isnan().any())
    print("poisoned", name, "->", "NaN in the outputs" if spoiled
          else "all outputs as before")

# %% [markdown]
# A query is a question that is asked once. Its answer became that token's
# output, and under the causal mask that output is final.
#
# And the attention weights? They cannot be reused, because they are
# different at every step. The same past keys, seen by two tokens in turn:

# %%
torch.set_printoptions(precision=2, sci_mode=False)
for t in (2, 3):
    print(f"token {t} weighs keys 0 to {t}:",
          torch.softmax(q[t] @ k[: t + 1].T / D**0.5, -1))

# %% [markdown]
# Another query asks, so the shares are others; and a share must be given
# to the new key too. Nothing in the first row helps with the second.
#
# So it is a **KV** cache: keys and values, of every layer, of every
# key/value head, of every token so far.
#
# ## A cache for a whole model
#
# The decoder gives each layer's new keys and values to
# `cache.update(layer, k, v, positions)`, and attends over what comes back.
# The base class `KVCache` keeps the positions and the lengths. What is left
# to write is four short methods.


# %%
class MyCache(kvlearn.KVCache):
    def _start(self, batch_size):
        self.chunks = [[] for _ in range(self.num_layers)]

    def _append(self, layer, k, v):
        self.chunks[layer].append((k.clone(), v.clone()))
        return self.joined(layer)

    def joined(self, layer):  # (B, Hkv, S, D): the tokens are axis 2
        return tuple(torch.cat(part, dim=2)
                     for part in zip(*self.chunks[layer]))

    def _truncate(self, layer, length):
        if self.chunks[layer]:
            k, v = self.joined(layer)
            self.chunks[layer] = [(k[:, :, :length], v[:, :, :length])]

    def _tensors(self):
        return [t for layer in self.chunks for pair in layer for t in pair]


# %% [markdown]
# `_start` makes an empty cache, `_append` is the cache itself: it keeps each
# chunk as it came and joins them when attention asks. Each is a copy
# (`clone`), because what the model handed over is the model's and may be
# written over. `_truncate` is for going back, `_tensors` for counting bytes.
#
# Now let the
# real model generate with it. Naive and cached differ by one argument.

# %%
prompt = tokenizer.encode("The capital of Italy is Rome. The capital of")
place = {"dtype": model.dtype, "device": model.device}
naive = kvlearn.generate(model, prompt, 8)
mine = kvlearn.generate(model, prompt, 8, cache=MyCache(config, **place))
print(tokenizer.decode(prompt + mine.tokens[0]))
print("the same tokens:", mine.tokens == naive.tokens)

# %% [markdown]
# The text is the same, token by token. A KV cache is not an approximation:
# it changes when a number is computed and not which number, up to the
# rounding that the section "How equal is equal?" looks at.
#
# The library's version is `GrowingCache`.

# %%
growing = kvlearn.GrowingCache(config, **place)
library = kvlearn.generate(model, prompt, 8, cache=growing)
print("the same tokens:", library.tokens == naive.tokens)
print(f"slots in the cache: {growing.length}, in {config.num_layers}"
      f" layers, of {config.num_kv_heads} heads x {config.head_dim}")

# %% [markdown]
# A **slot** is the place of one token in the cache. Count them: they are
# one fewer than prompt and new tokens together.
# The last token has been chosen, and nobody has fed it yet.

# %%
print("prompt", len(prompt), "+ new", len(library.tokens[0]),
      "- 1 =", len(prompt) + len(library.tokens[0]) - 1)

# %% [markdown]
# ## Two phases: prefill and decode
#
# The first pass sees the whole prompt at once. Every later pass sees one
# token. They are called **prefill** and **decode**, and they are two
# different kinds of work for a machine. Watch the shapes that reach the
# cache.


# %%
class Watched(kvlearn.GrowingCache):
    def _append(self, layer, k, v):
        K, V = super()._append(layer, k, v)
        if layer == 0:
            print("new keys", tuple(k.shape), "-> attends over",
                  tuple(K.shape))
        return K, V


_ = kvlearn.generate(model, prompt, 4, cache=Watched(config, **place))

# %% [markdown]
# In prefill a weight that is read serves all tokens of the prompt, so
# arithmetic sets the pace. In a decode step it serves one token of each
# text, so with few texts the reading sets the pace.
#
# In a decode step `L` is 1 and `S` is the whole text. The new token's
# position is not 0: it is the number of tokens before it, and RoPE has to
# turn its key by that angle. The cache knows the number, and refuses a
# token that comes again at an old position.

# %%
print("the next token stands at position", growing.next_position.tolist())
token = torch.tensor([[library.tokens[0][-1]]], device=model.device)
try:
    model(token, growing, positions=torch.zeros_like(token))
except ValueError as error:
    print(error)

# %% [markdown]
# ## Count it
#
# How many token-positions does one matrix of one layer project? Without
# a cache: the prompt, then the prompt and one more, and so on. With one:
# each position once. The counters sit inside the model; the formulas know
# only the two lengths.

# %%
T, N = len(prompt), 8
with measure.count_projections(model) as naive_count:
    kvlearn.generate(model, prompt, N)
with measure.count_projections(model) as cached_count:
    kvlearn.generate(model, prompt, N,
                     cache=kvlearn.GrowingCache(config, **place))
print("naive   predicted", measure.naive_projections(T, N),
      " measured", naive_count.positions(layer=0))
print("cached  predicted", measure.cached_projections(T, N),
      " measured", cached_count.positions(layer=0))

# %% [markdown]
# What does that cost in memory? Two tables (keys and values), in each
# layer, for each key/value head, `D` numbers a token. The cache counts the
# bytes of its real storages.

# %%
per_token = (2 * config.num_layers * config.num_kv_heads
             * config.head_dim * model.dtype.itemsize)
print("bytes a token, predicted:", per_token)
print("the whole cache, predicted:", per_token * growing.length,
      " measured:", growing.used_bytes)

# %% [markdown]
# Here are both runs, frame by frame, as the real model did them. A row is
# a position; each frame is one step.

# %%
with measure.trace_cache(model) as naive_trace:
    kvlearn.generate(model, prompt[:4], 4)
with measure.trace_cache(model) as cached_trace:
    kvlearn.generate(model, prompt[:4], 4,
                     cache=kvlearn.GrowingCache(config, **place))
runs = {"naive": naive_trace.steps, "cached": cached_trace.steps}
figures.cache_frames(runs)

# %% [markdown]
# Look at the lower strip from left to right. Each position is *new* once.
# But look also at how many are *read*: the whole column, at every step. We
# come back to that.
#
# Step through it yourself:

# %% tags=["nbval-ignore-output"]
from kvlearn import widgets

widgets.stepper(
    len(runs["cached"]),
    lambda step: figures.cache_frame(runs, step),
)

# %% [markdown]
# ## The copy inside `torch.cat`
#
# `GrowingCache` is right, and wasteful in one way. `torch.cat` cannot make
# a tensor longer: it makes a new one and copies. At every step the whole
# history is copied, and while that happens the old and the new tensor
# of a layer are both alive.
#
# The remedy is older than language models: take room for `max_length`
# tokens at the start, and write each token into its place.

# %%
room = torch.empty(3, 6, D)  # Hkv heads, room for 6 tokens
length = 0
for new in (2, 1, 1):  # a prompt of two tokens, then one by one
    k_new = torch.randn(3, new, D)
    room[:, length : length + new] = k_new
    length += new
    stored = room[:, :length]  # a view: nothing is copied
    print("stored", tuple(stored.shape), "in the same memory:",
          stored.data_ptr() == room.data_ptr())

# %% [markdown]
# The view matters. What lies beyond `length` is whatever was in that memory
# before. Hand the whole room to attention, and the empty slots take part.
# Before you run this: an empty slot full of zeros, what weight does it get?

# %%
query = torch.tensor([1.0, 0.0])
keys = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
print("one stored key   ", torch.softmax(query @ keys[:1].T, -1))
print("with empty slots ", torch.softmax(query @ keys.T, -1))

# %% [markdown]
# A score of 0 is not "nothing": exp(0) is 1. More than half of the
# attention went to slots that hold no token. So: return the written slots
# only, or mask the rest.
#
# The library's version is `StaticCache`. Same tokens again:

# %%
static = kvlearn.StaticCache(config, max_length=64, **place)
kept = kvlearn.generate(model, prompt, 8, cache=static)
print("the same tokens:", kept.tokens == naive.tokens)
print("used", static.used_bytes, "bytes of", static.allocated_bytes)
print("growing uses ", growing.used_bytes, "of", growing.allocated_bytes)

# %% [markdown]
# Used is the same, allocated is not: the price of preallocating is room
# for tokens that may never come. (Lesson 09, on pages, gets rid of most of
# it.)
#
# And what does the copy cost? A meter counts the bytes of all storages that
# are alive while a step runs, and keeps the peak. One layer is enough to
# see it.

# %%
from dataclasses import replace

one_layer = replace(config, num_layers=1)
token_k = torch.randn(1, config.num_kv_heads, 1, config.head_dim)


def peaks(make_cache, steps=64):
    with measure.StorageMeter(torch.float32) as meter:
        cache = make_cache(one_layer, dtype=torch.float32)
        for _ in range(steps):
            cache.update(0, token_k, token_k)
            meter.mark()
    return meter.peaks


# %%
memory = {
    "growing": peaks(kvlearn.GrowingCache),
    "stored": [2 * token_k.nbytes * n for n in range(1, 65)],
    "preallocated": peaks(lambda one_layer, dtype: kvlearn.StaticCache(
        one_layer, max_length=64, dtype=dtype)),
}
figures.show(
    figures.memory_timeline(memory),
    caption="Peak of live bytes in each step, one layer, counted from the "
    "storages. Growing needs half as much again as it stores: the old keys "
    "are alive beside the new ones. Preallocated is flat from the start.",
)

# %% [markdown]
# A model copies one layer after another, and keys and values in
# turn. So with many layers the peak is higher by the old keys of one layer
# only. A cache that keeps all its layers in one tensor and concatenates that
# would need the whole cache twice; transformers had a case of two copies
# alive (huggingface/transformers#30536). The time for the copying is paid in
# every case.
#
# ## A prompt in pieces
#
# A long prompt need not go in at once. Feed it in chunks: each chunk
# attends over what is stored and over itself. Now there are several
# queries *and* more keys than queries, and the mask has to fit: 3 new
# tokens after 4 stored ones.

# %%
figures.mask_map(kvlearn.causal_mask(3, 7))

# %% [markdown]
# The triangle sits at the right edge: the last query sees the last key.
# Compare the last logits of a prompt fed whole with those of the same
# prompt in chunks.


# %%
@torch.no_grad()
def last_logits(chunk):
    cache = kvlearn.GrowingCache(config, **place)
    tokens = torch.tensor([prompt], device=model.device)
    for piece in tokens.split(chunk, dim=1):
        logits = model(piece, cache)
    return logits[0, -1]


# %%
whole = last_logits(len(prompt))
near = 1e-5 * whole.abs().max()
for chunk in (1, 2, 3, 5):
    error = (last_logits(chunk) - whole).abs().max()
    print(f"chunks of {chunk}: same logits:", bool(error <= near))

# %% [markdown]
# Chunks of one token are decoding, one chunk of all tokens is
# prefill, and the same rule holds for everything between. Serving engines use
# this to let a long prompt share a step with other people's decoding
# (Sarathi-Serve, arXiv 2403.02310).
#
# And with the triangle at the wrong edge, as `is_causal=True` of torch's
# attention lays it (pytorch/pytorch#108108)? The mask below is right for
# the first chunk, whose queries and keys are the same tokens, and wrong
# for every later one.


# %%
def top_left_attention(q, k, v, mask=None):
    L, S = q.shape[2], k.shape[2]
    wrong = torch.ones(L, S, device=q.device).tril().bool()
    return kvlearn.attention(q, k, v, mask=wrong)


# %%
broken, _ = kvlearn.load_or_tiny(attention=top_left_attention,
                                 device=measure.device())
cache = kvlearn.GrowingCache(config, **place)
text = kvlearn.generate(broken, prompt, 8, cache=cache).tokens[0]
print(repr(tokenizer.decode(text)))

# %% [markdown]
# No error, no NaN: text that goes wrong, because each new token sees key 0
# and nothing else. Bugs of this kind have been shipped more than once.
#
# ## Several texts at once
#
# Prompts differ in length. `generate` pads the short ones on the left, so
# that every text ends in the last column, where the next token is read. It
# gives padding the position -1, and the one rule of lesson 02 does the rest:
# a slot with position -1 is seen by nobody.

# %%
prompts = [tokenizer.encode(text) for text in
           ("The capital of Italy is", "One, two, three, four, five,")]
print("lengths", [len(p) for p in prompts])
batch = kvlearn.GrowingCache(config, batch_size=2, **place)
together = kvlearn.generate(model, prompts, 6, cache=batch)
alone = [kvlearn.generate(model, p, 6).tokens[0] for p in prompts]
print("each row as if alone:", together.tokens == alone)

# %%
print(batch.positions[:, :9].cpu())

# %% [markdown]
# Padding takes a slot, and so it costs bytes. It takes no position, and so
# it changes no number.
#
# Here a sequence that has ended still takes one padded slot at every step,
# until the last one ends. Serving engines do not work that way: they give
# its place to the next request at once. You will do the same in lesson 11.
#
# ## The next turn
#
# In a conversation the second question comes after the first answer. The
# cache has seen all of that but the last token. Pass the whole text again:
# only that token and the rest are fed. (`<|im_start|>` and `<|im_end|>` are
# the model's own marks for where somebody begins and ends to speak.)

# %%
talk = kvlearn.StaticCache(config, max_length=256, **place)
text = tokenizer.chat(
    [{"role": "user", "content": "What is the capital of France?"}])
reply = kvlearn.generate(model, text, 12, cache=talk,
                         eos_ids=tokenizer.eos_ids).tokens[0]
print(repr(tokenizer.decode(reply)))

# %%
text = text + reply + tokenizer.encode(
    "\n<|im_start|>user\nAnd of Italy?<|im_end|>\n"
    "<|im_start|>assistant\n")
with measure.count_projections(model) as count:
    reply = kvlearn.generate(model, text, 10, cache=talk,
                             eos_ids=tokenizer.eos_ids).tokens[0]
print(repr(tokenizer.decode(reply)))
print("the text has", len(text), "tokens; the first pass was fed:",
      count.per_step(layer=0)[0])

# %% [markdown]
# The text is continued as **token ids**. Had we glued the strings together
# and encoded them again, the tokens at the seam could have come out
# differently, and the cache would hold another text than the one we mean.
#
# ## What the cache does not take away
#
# It is sometimes said that with a cache generating gets faster as the text
# grows, or that a step costs the same however long the text is. Count
# the (query, key) pairs that one head scores in each step.

# %%
with measure.count_pairs(model) as pairs:
    kvlearn.generate(model, prompt, 8,
                     cache=kvlearn.GrowingCache(config, **place))
print("prefill, then seven decode steps:", pairs.per_step(layer=0))

# %% [markdown]
# The first number is the prompt's whole triangle, paid once. After it: one
# more at every step. A decode step has to read every stored key and
# every stored value, because the new query meets all of them. The cache
# removed the *recomputing*; the *reading* is left, and it grows with the
# text.
#
# Why then do the times often look flat? Because each step reads something
# else too: all the weights of the model. Compare the two.

# %%
weights = measure.weight_bytes(model)
print("weights, read at every step:", weights, "bytes")
for tokens in (128, 2048, 8192):
    print(f"cache of {tokens} tokens:",
          measure.kv_bytes(model, tokens), "bytes")

# %%
tokens = [128, 1024, 2048, 4096, 8192]
figures.show(
    figures.bars(
        {f"{n} tokens": {
            "weights": weights // 10**6,
            "cache": measure.kv_bytes(model, n) // 10**6} for n in tokens},
        ylabel="megabytes read in one decode step"),
    caption="What one decode step reads, batch 1. The weights stay; the "
    "cache grows with the text.",
)

# %% [markdown]
# At how many tokens do keys and values weigh as much as the
# weights? For this model, and for Llama-3.1-8B in bfloat16 (32 layers, 8
# key/value heads of 128, 16.06 GB of weights):

# %%
print("this model:", weights // per_token, "tokens")
llama_token = 2 * 32 * 8 * 128 * 2
llama_weights = 8_030_261_248 * 2
print("Llama-3.1-8B:", llama_weights // llama_token, "tokens")

# %% [markdown]
# Below that number the weights dominate and the time for each token looks
# flat; above it the cache does. With many texts in a batch the weights are
# shared, each text reads its own cache, and the crossing comes nearly that
# many times earlier. One text of this model ends before its crossing, at
# position 8,192; a few texts together pass it. (Of Llama's weights 1 GB is
# the input table. A step reads one row of it, so by what is read the
# crossing comes a little earlier.)
#
# Now by the clock, on the machine in front of you: after 16, 48 and 144
# tokens, how long does the next one take? (Medians of a few steps.)

# %% tags=["nbval-ignore-output"] claim="seconds['naive'] == sorted(seconds['naive']) and seconds['naive'][-1] > 3 * seconds['growing'][-1]"
lengths = [16, 48, 144]


def median_step(length, make_cache, steps=5):
    cache = make_cache and make_cache()
    _, took = measure.token_times(
        model, (prompt * 20)[:length], steps, cache)
    return sorted(took[1:])[len(took[1:]) // 2]


kinds = {
    "naive": None,
    "growing": lambda: kvlearn.GrowingCache(config, **place),
    "preallocated": lambda: kvlearn.StaticCache(
        config, max_length=160, **place),
}
seconds = {name: [median_step(n, kind, 5 if kind else 3) for n in lengths]
           for name, kind in kinds.items()}
figures.time_per_token(
    {name: (lengths, took) for name, took in seconds.items()})

# %% [markdown]
# The first new token is left out: it pays for the prompt (prefill), and
# that work the cache does not remove either. Prefill still puts every
# token of the prompt through every matrix, and scores the whole triangle of
# pairs, which grows with the square of the length. It is paid once.
#
# On a CPU the naive decoder takes longer with every token, and lies far
# above. The other two lie close together: at a hundred tokens the copy is
# small beside the weights. (On a GPU all three may
# look alike, because so small a model leaves it waiting.)
#
# ## How equal is equal?
#
# Naive and cached compute the same sums in another order, and floating-point
# sums depend on the order. The yardstick: the largest difference between two
# sets of logits, against the largest logit. A tiny decoder, the same
# weights in three precisions, 24 tokens one by one against all at once:


# %%
@torch.no_grad()
def run(dtype):
    torch.manual_seed(1)
    tiny = kvlearn.Decoder(kvlearn.DecoderConfig(
        vocab_size=50, hidden_size=48, num_layers=3, num_heads=6,
        num_kv_heads=2, head_dim=10, intermediate_size=64)).to(dtype)
    tokens = torch.randint(50, (1, 24))
    cache = kvlearn.StaticCache(tiny.config, dtype=dtype, max_length=24)
    steps = [tiny(token, cache) for token in tokens.split(1, dim=1)]
    return torch.cat(steps, dim=1).double(), tiny(tokens).double()


def differ(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


# %%
_, exact = run(torch.float64)
limits = (1e-5, 1e-3, 1e-2)
print("           cached = full     | full = float64 within")
print("           within            |", *(f"{n:6.0e}" for n in limits))
for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5),
                         (torch.bfloat16, 2e-2)):
    cached, full = run(dtype)
    print(f"{str(dtype)[6:]:10} {tolerance:.0e}:",
          f"{differ(cached, full) <= tolerance!s:10} |",
          *(f"{differ(full, exact) <= n!s:>6}" for n in limits))

# %% [markdown]
# In every format the difference is rounding. In float64 and float32 it is
# tiny. bfloat16 has 8 significant bits (float32 has 24), and there even the
# uncached logits are off by more than a thousandth of the largest one. On
# some machines cached and uncached round alike; on others the rounding tips
# the balance between two tokens whose logits are nearly tied. That is not a
# broken cache (huggingface/transformers#25420). So in bfloat16 compare logits
# within a tolerance, and demand equal tokens only where the best two logits
# are clearly apart.
#
# One thing must not be rounded, though: the scores. A score near 60 in
# bfloat16 can be off by 0.125, and its weight by 13 %. Here are scores with
# a standard deviation of about 10, and the error of the output, compared
# with float64:

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 4, 64, 64)
q, k, v = ((q * 10**0.5).bfloat16(), (k * 10**0.5).bfloat16(), v.bfloat16())


def error(out):
    exact = kvlearn.attention(q.double(), k.double(), v.double())
    return ((out.double() - exact).norm() / exact.norm()).item()


rounded = (q @ k.mT / 8).float().softmax(-1).bfloat16() @ v
torchs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
print(f"scores in bfloat16  {error(rounded):.1%}")
print(f"scores in float32   {error(kvlearn.attention(q, k, v)):.1%}")
print(f"torch's own         {error(torchs):.1%}")

# %% [markdown]
# So `kvlearn.attention` computes its scores in float32 or better, whatever
# the model's format, and rounds only the weights. Fused kernels do the
# same.
#
# ## When it breaks
#
# A cached key is right for **this** model, **this** text and **this**
# position. It becomes wrong, without any error, when
#
# - the cache is not reset between two requests: the new text reads the old
#   one;
# - two layers share one cache entry, or the position advances once a layer
#   and not once a step;
# - keys are stored turned by RoPE and are turned again when they are read;
# - weights or adapters change under a cache that is kept;
# - an earlier token is edited: everything from there on is another text.
#
# The first of these, in code. Here the library notices, because the new
# prompt is shorter than what the cache has seen. A longer one it would
# believe: it would take the old text for the beginning of the new one.
# `reset` is the cure.

# %%
used = kvlearn.GrowingCache(config, **place)
kvlearn.generate(model, prompts[1], 4, cache=used)
try:
    kvlearn.generate(model, prompts[0], 4, cache=used)
except ValueError as error:
    print(error)
used.reset()
again = kvlearn.generate(model, prompts[0], 4, cache=used).tokens[0]
print("after reset, as if fresh:", again == alone[0][:4])

# %% [markdown]
# ## The answer in sixty seconds
#
# > Under a causal mask a token's keys and values never change once they are
# > computed, so a decoder can keep them. Each step then projects only the
# > new token, appends its key and value in every layer, and lets its one
# > query attend over all that is stored. The work falls from projecting the
# > whole text at every step to projecting each token once, and the result is
# > the same up to rounding. Queries are not kept, because a past query is
# > never asked again; attention weights are not kept, because every new
# > query has its own. The price is memory: 2 x layers x key/value heads x
# > head_dim x bytes for every token of every text. What is left is reading:
# > a decode step still reads all weights, shared by the batch, and all
# > stored keys and values of each text. At small batches that binds it to
# > memory bandwidth, and its cost grows with the text.
#
# ## Sentences that give a beginner away
#
# - *"The cache makes the model approximate."* It is exact; only rounding
#   may differ.
# - *"With a cache each token costs the same."* Each step reads every stored
#   key and value. It looks flat only while the weights outweigh them.
# - *"Generation gets faster as the text grows."* It gets slower; prefill is
#   merely over.
# - *"The cache speeds up the prompt."* The first token still needs the whole
#   prompt to be computed, once.
# - *"We should cache Q too."* Nothing would ever read it.
# - *"The cache stores the text."* It stores two tables of numbers a layer.
#   But guard it like the text: who has the weights can often find the
#   tokens again (arXiv 2508.09442).
# - *"The size depends on the number of attention heads."* It depends on the
#   number of key/value heads.
#
# ## Where you meet it
#
# - Hugging Face transformers: `DynamicCache` grows by `torch.cat`,
#   `StaticCache` is preallocated.
# - gpt-fast (meta-pytorch/gpt-fast) writes into preallocated buffers and
#   hands the full buffers to attention, with a mask over the empty tail.
# - vLLM keeps the same keys and values in pages (arXiv 2309.06180), which
#   is lesson 09.
# - llama.cpp preallocates the context when it starts, and can store
#   K and V in fewer bits: lesson 08.
#
# ## Exercises
#
# In [the exercises of lesson 04](../exercises/04_kv_cache/04_kv_cache.ipynb):
#
# | exercise | minutes | you write |
# |---|---|---|
# | `growing_cache` | 15 | a cache that concatenates |
# | `static_cache` | 20 | a cache that writes into its place |
# | `cached_decode` | 20 | prefill, then one token at a time |
# | `chunked_prefill` | 15 | a prompt in pieces |
# | `your_own_llm` | 15 | your attention, RoPE and cache in the real model |
