# %% [markdown]
# # 00 · Start here
#
# **The question of this lesson:** what is a KV cache, why does everybody who
# serves a language model talk about it, and how does this course work?
#
# You need some Python, and to have met a matrix product. Allow 20 minutes.
# The lesson itself asks you to write nothing. Click into a cell, press
# Shift+Enter to run it, and read what comes out.
#
# | letter | what it counts |
# |---|---|
# | `B` | texts side by side: the batch |
# | `L` | tokens of a text |
# | `H` | attention heads |
# | `D` | numbers in one head's vector (head_dim) |

# %% [markdown]
# ## 1 · A taste
#
# Here is a real language model, small enough for a laptop: SmolLM2-135M. It
# reads and writes **tokens**, which are words or pieces of words, each with a
# number. A stack of layers turns the tokens so far into a guess of the next.

# %%
import torch
from einops import rearrange

import kvlearn
from kvlearn import figures, measure

model, tokenizer = kvlearn.load_or_tiny(device=measure.device())
print("layers:", model.config.num_layers)
print("parameters:", f"{sum(p.numel() for p in model.parameters()):,}")

# %% [markdown]
# Ask it something. `chat` wraps the question in the form that this model was
# trained on, and turns it into tokens.

# %%
question = "What is the capital of France? Answer in one sentence."
prompt = tokenizer.chat([{"role": "user", "content": question}])
print(len(prompt), "tokens, the first five of them:", prompt[:5])

# %% [markdown]
# Now let it answer, and watch: the text comes one token at a time, because
# the model must have written a token before it can guess the next. The last
# token says that the answer is complete.
#
# (The `with` line counts some of the model's work. We look at the count
# below.)

# %%
def show(row, token):
    print(tokenizer.decode([token]), end="", flush=True)


with measure.count_projections(model) as naive_work:
    naive = kvlearn.generate(model, prompt, 20, on_token=show,
                             eos_ids=tokenizer.eos_ids)

# %% [markdown]
# For each new token the whole text so far went through the whole model again:
# first the prompt, then the prompt and one token, then the prompt and two.
# We call this the **naive** way.
#
# The same again, with one argument more: a cache.

# %%
cache = kvlearn.GrowingCache(model.config, device=model.device)

with measure.count_projections(model) as cached_work:
    cached = kvlearn.generate(model, prompt, 20, on_token=show,
                              eos_ids=tokenizer.eos_ids, cache=cache)

print()
print("the same tokens:", cached.tokens == naive.tokens)

# %% [markdown]
# The same answer, and you may have seen that it came faster.
# How long each took on your machine:

# %% tags=["nbval-ignore-output"]
for name, run in (("naive", naive), ("cached", cached)):
    seconds = run.prefill_seconds + run.decode_seconds
    print(f"{name:7} {seconds:.1f} s for {len(run.tokens[0])} tokens")

# %% [markdown]
# Seconds depend on the machine. Work does not, and it can be counted.
#
# Inside each layer a token's vector is multiplied by a matrix that makes its
# **key**, and by another that makes its **value**. Lesson 01 says what these
# are for. Here we count how many tokens went through the key matrix of the
# first layer, over the whole answer.
#
# Take T tokens of prompt and N new ones. Naive, the passes work on T, T + 1,
# T + 2, … tokens: N × T for the prompt, and 0 + 1 + … + (N − 1), which is
# N(N − 1)/2, for the tokens added on the way. With a cache every token goes
# through once, and the last new token never has to.
#
# **Before you run this:** how many times more work is the naive way?

# %%
T, N = len(prompt), len(naive.tokens[0])
predicted = {"naive": N * T + N * (N - 1) // 2, "cached": T + N - 1}
measured = {"naive": naive_work.positions(layer=0),
            "cached": cached_work.positions(layer=0)}

print("predicted", predicted)
print("measured ", measured)
print("times more:", round(predicted["naive"] / predicted["cached"], 1))

# %% [markdown]
# Predicted and measured agree to the last token. This is how
# the course works: what it says about work and memory, it predicts, and then
# counts.

# %%
figures.bars({name: {"predicted": predicted[name],
                     "measured": measured[name]} for name in predicted})

# %% [markdown]
# ### So what is a KV cache?
#
# The naive way computes the keys and values of old tokens again and again,
# and gets the same numbers each time. **A KV cache keeps each layer's keys
# and values, so that every later step reads them instead of computing them
# again.** The cache is those two tables of numbers, and nothing else.
#
# A new token then goes through the layers alone. It adds its own key and
# value to each layer's tables, and reads all that is in them.

# %% [markdown]
# ### And why does everybody talk about it?
#
# Because it is not small. Attention runs several times side by side in a
# layer; each run is a **head**, with its own slice of the numbers (lesson
# 01). So: two tables in each layer; in each table one vector a token for each
# key/value head (this model has three); four bytes a number.

# %%
c = model.config
numbers = 2 * c.num_layers * c.num_kv_heads * c.head_dim * cache.length
print("predicted bytes:", numbers * 4)
print("measured bytes: ", cache.used_bytes)

# %% [markdown]
# Divide by the tokens that it holds, and you have the price of a token. Then
# take a large model instead: Llama-3.1-70B has 80 layers, 8 key/value heads
# and `D` = 128, at two bytes a number, and reads texts of up to 131,072
# tokens.

# %%
print("here, bytes a token:", cache.used_bytes // cache.length)

large = 2 * 80 * 8 * 128 * 131_072 * 2
print("Llama-3.1-70B, one full text:", large // 2**30, "GiB")

# %% [markdown]
# One text of one user fills a large part of a GPU. And the
# tables are not only stored: **each new token reads every key and value of
# the text again.** The cache took away repeated work and left two bills, for
# memory and for reading. Nearly every trick of LLM serving makes one of them
# smaller. Section 4 has the list.

# %% [markdown]
# ## 2 · Shapes
#
# Keys and values lie in tensors of the shape `(B, H, L, D)` everywhere in
# this course. Getting there is the one step where beginners lose an
# afternoon, so we do it now, with numbers that say where they come from: the
# tens are the token, the ones the column.

# %%
x = 10 * torch.arange(4)[:, None] + torch.arange(6)
x = x[None]  # a batch of one text
print("B, L, width =", tuple(x.shape))
print(x[0])

# %% [markdown]
# Two heads share the width. Head 0 owns columns 0 to 2 of every token, head 1
# owns columns 3 to 5. First give the width two axes.

# %%
B, L, width = x.shape
H, D = 2, 3

apart = x.view(B, L, H, D)
print("token 2:", apart[0, 2].tolist())

# %% [markdown]
# Token 2 is now a list of two heads. But a head works on all of its tokens at
# once, so the head axis goes in front of the tokens.

# %%
heads = apart.transpose(1, 2)
print("B, H, L, D =", tuple(heads.shape))
print("head 0:", heads[0, 0].tolist())
print("head 1:", heads[0, 1].tolist())

# %% [markdown]
# Read head 1 aloud: columns 3 to 5 of token 0, of token 1, and so on. Right.
#
# The library einops lets you write the same in one line that says what it
# means. The decoder of this course uses it.

# %%
named = rearrange(x, "b l (h d) -> b h l d", h=H)
print("equal:", torch.equal(named, heads))

# %% [markdown]
# **Before you run this:** why two steps? `view` can go to the final shape at
# once. What will head 0 hold?

# %%
scrambled = x.view(B, H, L, D)
print("same shape:", scrambled.shape == heads.shape)
print("head 0:", scrambled[0, 0].tolist())

# %% [markdown]
# Head 0 holds two whole tokens, and has never met the other
# two. `view` moves no number: it reads them in the order in which they lie in
# memory. The shape is right, nothing crashes, and the model talks nonsense.

# %%
figures.split_heads_map(x[0], num_heads=2)

# %% [markdown]
# This bug has a nasty habit. With one token there is nothing to scramble, and
# one token at a time is how a model with a cache writes.

# %%
one = x[:, :1]
print("one token, equal:",
      torch.equal(one.view(B, H, 1, D),
                  one.view(B, 1, H, D).transpose(1, 2)))

# %% [markdown]
# So a test with one token passes, and the prompt comes out wrong. That is why
# checks here use several tokens, and sizes that are all different.
#
# After attention the heads are **merged**: the same two steps backwards.

# %%
merged = heads.transpose(1, 2).reshape(B, L, H * D)
print("back again:", torch.equal(merged, x))

# %% [markdown]
# ## 3 · How the exercises talk to you
#
# Each lesson has exercises, and each exercise has a check. Here is what it
# says of a function that nobody has written yet. (The cell ends in an error,
# and is meant to.)

# %% tags=["raises-exception"]
def split_heads(x, num_heads):
    raise NotImplementedError


kvlearn.check("split_heads", split_heads)

# %% [markdown]
# Now hand in the scramble from above.

# %% tags=["raises-exception"]
def split_heads(x, num_heads):
    B, L, width = x.shape
    return x.reshape(B, num_heads, L, width // num_heads)


kvlearn.check("split_heads", split_heads)

# %% [markdown]
# The check did not look at the code. It keeps a bank of wrong
# answers that can be run, and found one that does what yours does. If none
# fits, it shows the first place where the numbers differ.
#
# Stuck? Ask for a hint. Ask again for the next one. None gives the answer
# away.

# %%
kvlearn.hint("split_heads")

# %% [markdown]
# And a right answer gets one line.

# %%
def split_heads(x, num_heads):
    return rearrange(x, "b l (h d) -> b h l d", h=num_heads)


result = kvlearn.check("split_heads", split_heads)

# %% [markdown]
# In the first exercise you write this function yourself. Try it
# without einops.

# %% [markdown]
# ## 4 · The map of the course
#
# Lessons 01 to 04 build attention, the mask, a decoder and the cache, each
# from loose tensors, until the model above runs on code of your own. The
# lessons after them take one trick of LLM serving each.

# %%
figures.course_path(ready=9)

# %% [markdown]
# The tricks look like a zoo until you ask of each: *which limit of the cache
# does it answer?*
#
# | optimisation | the limit that it answers | met in | lesson |
# |---|---|---|---|
# | the KV cache itself | without it each step computes every old key and value again | every serving engine | **04** |
# | preallocated storage | a cache that grows by concatenation copies the whole history at each step | gpt-fast, `StaticCache` of transformers | **04** |
# | chunked prefill | a long prompt holds up everybody else's next token | vLLM | **04**, 11 |
# | sizing | bytes grow with tokens × texts, and decide how many texts fit at all | | **05** |
# | MQA, GQA, MLA: fewer or smaller keys and values | every head stores a key and a value of its own | Llama 3 (GQA), DeepSeek-V2 (MLA) | **06** |
# | sliding windows | the cache grows with the text, without end | Mistral 7B | **07** |
# | quantised cache | each number takes two or four bytes, to store and to read at each step | KIVI, llama.cpp | **08** |
# | pages | room kept free for the longest possible text lies idle | vLLM (PagedAttention) | 09 |
# | shared prefixes | the same opening is computed and stored once for each text | vLLM, SGLang (RadixAttention) | 10 |
# | continuous batching, preemption | memory bounds the texts at a time, and they end at different times | vLLM | 11 |
# | speculative decoding | a step reads all the weights and the whole cache for one token | gpt-fast | 12 |
# | split and fused kernels | one query over a long cache waits for memory, not for arithmetic | FlashInfer | 13 |
# | splitting over devices | the cache of one text, or of many, outgrows one device | vLLM | 14 |
#
# **Bold** lessons are there now; the others are to come. Lesson 15, the
# interview, will ask you about all of it.

# %% [markdown]
# ## 5 · How to work
#
# - **Open and close.** `python3 dev.py lab` prepares everything and opens
#   your copies of the notebooks. The second start takes seconds.
# - **Where you work.** `dev.py lab` puts copies of the notebooks into `work/`,
#   one folder per lesson: the lesson, its exercises, and their solutions. The
#   copies are yours to run and to change. A course update replaces the
#   copies that you have not changed, and leaves the others alone.
# - **The rhythm.** Read a lesson and run it; change a number and run it
#   again; then do its exercises. From 01 on a lesson takes an hour, or an hour
#   and a half, and its exercises take as long again.
# - **Stuck?** Read the message of the check, then `kvlearn.hint(...)`, then
#   the section of the lesson. The solutions are most useful after an honest
#   try.
# - **Something broken?** `python3 dev.py python -m kvlearn doctor` looks at
#   your machine and says what to do. `python3 dev.py test` runs every check
#   of the course.
# - **Teaching this?** The notebooks under `solutions/` are valid nbgrader
#   sources, and those under `exercises/` are nbgrader's release of them.
# - **Preparing for an interview?** Every lesson ends with the answer in sixty
#   seconds, and with the sentences that give a beginner away.

# %% [markdown]
# ## The answer in sixty seconds
#
# A decoder writes one token at a time, and each layer lets the new token look
# at the keys and values of all tokens so far, its own included. A token only
# ever looks back. So the keys and values of old tokens never change, and
# computing them again at each step is waste. A KV cache keeps them: two
# tables a layer, one row a token. A step then puts only the new token through
# the model. The price is memory, 2 × layers × key/value heads × head_dim ×
# tokens × bytes, for each text, and the reading of all of it at each step.
# Serving many users is largely the art of paying that price: fewer heads,
# fewer tokens, fewer bits, pages, sharing, batching.

# %% [markdown]
# ## Sentences that give a beginner away
#
# - *"The cache stores the answers to earlier questions."* It stores keys and
#   values of the tokens of this text. No answer is looked up. (Lesson 10
#   shares them between texts with the same beginning.)
# - *"With a cache each token costs the same, however long the text."* What is
#   projected for it stays the same. What is read grows with the text: every
#   stored key and value, at every step.
# - *"The cache is a detail; the weights are what fills the GPU."* For one
#   short text, yes. Multiply by the length and by the number of texts, and
#   compare.
# - *"A cache makes the answer a little different."* Up to rounding it is the
#   same computation. You saw the same tokens.
# - *"The shapes fit, so the code is right."* A `view` fits too.

# %% [markdown]
# ## Where you meet it
#
# - transformers stores keys and values as `(B, Hkv, L, D)`, one pair of
#   tensors a layer: the layout of this lesson.
# - `meta-llama/llama#899`, `Mikyx-1/TinyLLM#17`: masks that go wrong only
#   once a cache is attached. Lesson 02 is about them.
# - `ludwig-ai/ludwig` PR#1726: a `squeeze` that loses the batch axis when
#   there is one text. Sizes of 1 hide bugs here as they do above.

# %% [markdown]
# ## Exercises
#
# About 15 minutes: `split_heads` (10, easy) and `merge_heads` (5, easy), in
# [the exercises of lesson 00](../exercises/00_start_here/00_start_here.ipynb).
#
# Next: [01 · Attention](01_attention.ipynb).
