# %% [markdown]
# # Assignment 04: the KV cache
#
# Five exercises and one question, about 95 minutes: two caches, decoding with
# one, a prompt in pieces, and at the end a real language model that runs on your
# own attention, rotary positions and cache.
#
# | letter | what it counts |
# |---|---|
# | `B` | rows in the batch |
# | `Hkv` | key/value heads |
# | `L` | new tokens of this step |
# | `S` | tokens that are looked at: the stored ones and the new ones |
# | `D` | numbers in one head's vector (head_dim) |
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import torch

import kvlearn
from kvlearn import measure

# %% [markdown]
# ## Exercise: `growing_cache`
#
# *15 minutes · difficulty 2 of 3*
#
# A decoder hands each layer's new keys and values to
# `cache.update(layer, k, v)` and attends over what comes back. The base
# class `KVCache` checks them and keeps the positions. Your class keeps the
# tensors:
#
# | method | what it does |
# |---|---|
# | `_start(batch_size)` | makes the cache empty, for so many rows; called when it is made, reset, or given another number of rows |
# | `_append(layer, k, v)` | stores copies; returns the layer's keys and values, all of them, in the order they came |
# | `_truncate(layer, length)` | keeps the layer's first `length` slots |
# | `_tensors()` | a list of the tensors that hold the stored slots |
#
# `k` and `v` are `(B, Hkv, L, D)`, and what comes back is
# `(B, Hkv, S, D)`. `self.num_layers` says how many layers there are.
#
# **By hand.** Layer 0 gets keys a, b (a prompt of two), then c. The first
# call returns a, b; the second a, b, c. Layer 1 has its own three. After
# `truncate(1)` and a new key d the call returns a, d.
#
# Three traps. The very first call finds nothing stored, and going back or
# counting bytes may find nothing either. The tensors that you are given
# belong to the model, which may write to them later. And `length`,
# `positions` and `batch_size` are the base class's own: use other names.
#
# The lesson's cache kept a list of chunks. Keep one tensor a layer instead.


# %% answer="growing_cache"
class MyGrowingCache(kvlearn.KVCache):
    def _start(self, batch_size):
        ### BEGIN SOLUTION
        self.keys = [None] * self.num_layers
        self.values = [None] * self.num_layers
        ### END SOLUTION

    def _append(self, layer, k, v):
        ### BEGIN SOLUTION
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = k.clone(), v.clone()
        else:
            self.keys[layer] = torch.cat((self.keys[layer], k), dim=2)
            self.values[layer] = torch.cat((self.values[layer], v), dim=2)
        return self.keys[layer], self.values[layer]
        ### END SOLUTION

    def _truncate(self, layer, length):
        ### BEGIN SOLUTION
        if self.keys[layer] is not None:
            self.keys[layer] = self.keys[layer][:, :, :length].clone()
            self.values[layer] = self.values[layer][:, :, :length].clone()
        ### END SOLUTION

    def _tensors(self):
        ### BEGIN SOLUTION
        stored = self.keys + self.values
        return [tensor for tensor in stored if tensor is not None]
        ### END SOLUTION


# %% check="growing_cache"
kvlearn.check("growing_cache", MyGrowingCache)

# %% [markdown]
# ## Exercise: `static_cache`
#
# *20 minutes · difficulty 2 of 3*
#
# The same class again, without the copying: room for `max_length` tokens in
# every layer, made once, and every new token is written into its place.
#
# **By hand.** Room for 4, a prompt of two keys a, b, then c:
#
# | call | the room of layer 0 | comes back |
# |---|---|---|
# | a, b | a b · · | a, b |
# | c | a b c · | a, b, c |
#
# What the dots hold is whatever was in that memory before, and nobody may
# ever see it. Each layer counts its own tokens. The base class keeps what
# your room needs: `self.num_layers`, `self.key_shape` (heads, head_dim),
# `self.max_length`, `self.dtype`, `self.device`.
#
# `used_bytes` and `allocated_bytes` are computed from your `_tensors()`: of
# each tensor its own size, and the size of the storage behind it. A view of
# the written part tells both.


# %% answer="static_cache"
class MyStaticCache(kvlearn.KVCache):
    def __init__(self, config, batch_size=1, max_length=20,
                 dtype=None, device=None):
        super().__init__(config, batch_size, max_length=max_length,
                         dtype=dtype, device=device)

    def _start(self, batch_size):
        ### BEGIN SOLUTION
        heads, head_dim = self.key_shape
        shape = (self.num_layers, batch_size, heads,
                 self.max_length, head_dim)
        self.keys = torch.empty(shape, dtype=self.dtype, device=self.device)
        self.values = torch.empty_like(self.keys)
        self.lengths = [0] * self.num_layers
        ### END SOLUTION

    def _append(self, layer, k, v):
        ### BEGIN SOLUTION
        start = self.lengths[layer]
        end = start + k.shape[2]
        self.keys[layer, :, :, start:end] = k
        self.values[layer, :, :, start:end] = v
        self.lengths[layer] = end
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
        ### END SOLUTION

    def _truncate(self, layer, length):
        ### BEGIN SOLUTION
        self.lengths[layer] = length
        ### END SOLUTION

    def _tensors(self):
        ### BEGIN SOLUTION
        return [room[layer, :, :, :length]
                for room in (self.keys, self.values)
                for layer, length in enumerate(self.lengths)]
        ### END SOLUTION


# %% check="static_cache"
kvlearn.check("static_cache", MyStaticCache)

# %% [markdown]
# ## Exercise: `cached_decode`
#
# *20 minutes · difficulty 2 of 3*
#
# The greedy loop of lesson 03, with a cache. `model(tokens, cache)` takes
# ids of shape `(1, L)` and returns logits `(1, L, vocab)`; it puts what it
# was fed into the cache and knows the positions by itself. `tokens` is a list
# of ids, and so is the result: the new ids alone. Here no EOS ends a text.
#
# Feed each token once, and none that nobody needs.
#
# **By hand.** A prompt of 5 tokens and 3 new ones: three passes, which feed
# 5, 1 and 1 tokens. In the end the cache holds 7 slots.


# %% answer="cached_decode"
def cached_decode(model, tokens, max_new_tokens, cache):
    """list of ids -> list of max_new_tokens new ids"""
    ### BEGIN SOLUTION
    new, feed = [], tokens
    for _ in range(max_new_tokens):
        logits = model(torch.tensor([feed]), cache)
        new.append(int(logits[0, -1].argmax()))
        feed = new[-1:]
    return new
    ### END SOLUTION


# %% check="cached_decode"
kvlearn.check("cached_decode", cached_decode)

# %% [markdown]
# ## Exercise: `chunked_prefill`
#
# *15 minutes · difficulty 3 of 3*
#
# Here are the queries, keys and values of a whole prompt, `(B, H, L, D)`
# each, `H` heads and `L` the whole prompt. Compute the causal attention of
# all tokens in pieces of at most `chunk` queries, first tokens first. Give
# back the results of all tokens, in their order, as one tensor. (This is
# how an engine keeps one long prompt from holding up everybody else.)
#
# You are given `attend(q, k, v, mask)`; the mask is boolean, `(queries,
# keys)`, True = may attend. You may use `kvlearn.causal_mask` or a mask of
# your own. Each call gets the chunk's queries, and the keys
# and values that exist by then: all up to the chunk's end.
#
# **By hand.** 5 tokens in chunks of 3: two calls. The first has 3 queries
# and 3 keys, the second 2 queries and 5 keys. Its first query is token 3: it
# may see keys 0 to 3.


# %% answer="chunked_prefill"
def chunked_prefill(attend, q, k, v, chunk):
    """three times (B, H, L, D) -> (B, H, L, D)"""
    ### BEGIN SOLUTION
    outputs = []
    for start in range(0, q.shape[2], chunk):
        piece = q[:, :, start : start + chunk]
        end = start + piece.shape[2]
        mask = kvlearn.causal_mask(piece.shape[2], end)
        outputs.append(attend(piece, k[:, :, :end], v[:, :, :end], mask))
    return torch.cat(outputs, dim=2)
    ### END SOLUTION


# %% check="chunked_prefill"
kvlearn.check("chunked_prefill", chunked_prefill)

# %% [markdown]
# ## Your functions from assignment 03
#
# The last exercise puts your own attention and RoPE into the real model.
# Paste them here; they are checked again.


# %% paste="apply_rope"
def apply_rope(x, positions, theta):
    """(B, H, L, D), (B, L), number -> (B, H, L, D)"""
    ### BEGIN SOLUTION
    D = x.shape[-1]
    pair = torch.arange(D // 2, device=x.device)
    angle = positions[..., None].float() / theta ** (2 * pair / D)
    angle = angle[:, None]  # (B, 1, L, D/2): the same for every head
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    ### END SOLUTION


# %% check="apply_rope"
kvlearn.check("apply_rope", apply_rope)


# %% paste="grouped_attention"
def grouped_attention(q, k, v, mask=None):
    """(B, Hq, L, D), 2 x (B, Hkv, S, D) -> (B, Hq, L, D)"""
    ### BEGIN SOLUTION
    group_size = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group_size, dim=1)  # (B, Hq, S, D)
    v = v.repeat_interleave(group_size, dim=1)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is None:
        return torch.softmax(scores, dim=-1) @ v
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)
    return weights @ v
    ### END SOLUTION


# %% check="grouped_attention"
kvlearn.check("grouped_attention", grouped_attention)

# %% [markdown]
# ## Exercise: `your_own_llm`
#
# *15 minutes · difficulty 2 of 3*
#
# `load(attention=..., rope=...)` gives a decoder with the functions that you
# pass, and its tokenizer. Answer a question with it:
#
# - `tokenizer.chat([{"role": "user", "content": question}])` gives the
#   prompt's ids in the form that the model was trained on;
# - `kvlearn.generate(model, prompt, max_new_tokens, cache=..., eos_ids=...)`
#   continues it greedily, and its result has `.tokens`, one list a prompt;
# - `tokenizer.eos_ids` are the ids that end an answer;
# - the cache is one of your two, with the model's `dtype` and `device`. A
#   preallocated one needs room for the prompt and the answer.
#
# Return the new token ids and the cache. The check uses a small random
# model in the place of the real one, so that it takes no time.
#
# **By hand.** A prompt of 9 tokens, answered by 4 of which the last is an
# end: the result is a list of 4 ids and a cache of 12 slots.


# %% answer="your_own_llm"
def your_own_llm(load, question, max_new_tokens):
    """-> (list of new ids, your cache)"""
    ### BEGIN SOLUTION
    model, tokenizer = load(attention=grouped_attention, rope=apply_rope)
    prompt = tokenizer.chat([{"role": "user", "content": question}])
    cache = MyStaticCache(model.config,
                          max_length=len(prompt) + max_new_tokens,
                          dtype=model.dtype, device=model.device)
    result = kvlearn.generate(model, prompt, max_new_tokens, cache=cache,
                              eos_ids=tokenizer.eos_ids)
    return result.tokens[0], cache
    ### END SOLUTION


# %% check="your_own_llm"
kvlearn.check("your_own_llm", your_own_llm)

# %% [markdown]
# ## The real model, on your code
#
# Now the 135 million weights of SmolLM2. The library brings the matrices,
# the norms, the mask and the loop. How a token attends, how it is turned by
# its place, and what is remembered is yours.
#
# If your machine has a GPU, the model runs on it, and what your functions
# make must be made there too: `torch.arange(n, device=x.device)`. The
# checks ran on the CPU and could not notice.


# %%
def load(**pieces):
    return kvlearn.load_or_tiny("smollm2-135m", device=measure.device(),
                                **pieces)


question = "What is the capital of France? Answer in one sentence."
yours, cache = your_own_llm(load, question, 16)
_, tokenizer = load()
print(tokenizer.decode(yours))

# %% [markdown]
# And the library's own decoder, naive, without any cache:

# %%
model, tokenizer = load()
prompt = tokenizer.chat([{"role": "user", "content": question}])
naive = kvlearn.generate(model, prompt, 16, eos_ids=tokenizer.eos_ids)
print("the same tokens:", naive.tokens[0] == yours)
print("slots in your cache:", cache.length, "= prompt", len(prompt),
      "+ new", len(yours), "- 1")

# %% [markdown]
# One more thing. `check_cache` is the suite that every cache of the library
# has to pass: rolling back, reordering a batch, errors that leave everything
# as it was. Your two stand on the same base class, so they should pass as
# well.

# %%
kvlearn.check_cache(MyGrowingCache)
kvlearn.check_cache(MyStaticCache)

# %% [markdown]
# ## Why? The size of a chunk
#
# *10 minutes · 3 points · in a class, read by a person*
#
# In three to five sentences. A model answer and what earns each point are in
# `solutions/`; look there when you have written yours.
#
# A prompt of 1,000 tokens is fed in chunks of 1, in chunks of 100, or whole.
# The cache is the same at the end. Which work is the same in all three, and what
# is read how often? So which would you expect to be the slowest, and what may
# speak for chunks of 100 on a server with many users?

# %% [markdown] why="size_of_a_chunk"
# <!-- ### BEGIN SOLUTION -->
# Each token goes through every matrix once, 1,000 token-positions in all three,
# and the mask lets the same pairs through. But each pass reads all the weights:
# 1,000 times, 10 times, or once. So chunks of 1 are the slowest, because reading
# sets their pace: a weight that is read serves one token. Chunks of 100 use a
# weight for 100 tokens each time it is read, and between two of them the server
# can take a decode step for everybody else.
#
# **Rubric**
#
# - says that the projections are the same: each token once, 1,000 in all
#   (1 point)
# - says that the weights are read once a pass: 1,000 times, 10 times, once; and
#   therefore expects chunks of 1 to be the slowest; naming only the stored keys
#   and values, which each later chunk reads again, is not enough (1 point)
# - says that between two chunks others need not wait for the whole prompt
#   (1 point)
# <!-- ### END SOLUTION -->

# %% [markdown]
# **What you can do now.** Write a KV cache from nothing, say what it holds to
# the byte, feed a model through it in one piece or in many, and know from
# the count of slots whether a token was fed twice.
