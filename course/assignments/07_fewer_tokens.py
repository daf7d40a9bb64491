# %% [markdown]
# # Assignment 07: fewer tokens
#
# Six exercises and one question, about 105 minutes: the mask of a window, a
# prompt that goes through one in pieces, the ring buffer, what a rollback may do,
# and at the end a cache whose memory does not grow. The real model runs on it.
#
# | letter | what it counts |
# |---|---|
# | `B` | rows in the batch |
# | `H` | heads |
# | `L` | new tokens of this step |
# | `S` | slots that are looked at |
# | `W` | the window: a query sees itself and the `W - 1` positions before it |
# | `D` | numbers in one head's vector (head_dim) |
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import torch

import kvlearn
from kvlearn import measure

# %% [markdown]
# ## Exercise: `window_mask`
#
# *10 minutes · difficulty 1 of 3*
#
# The mask of lesson 02 with one condition more. `query_positions` is
# `(B, L)`, `key_positions` is `(B, S)`, in any order, and -1 marks a slot
# that holds nothing. The result is boolean, `(B, 1, L, S)`, True = may
# attend: a query at position p sees itself and the `window - 1` positions
# before it.
#
# **By hand.** Window 3, a query at position 7, keys at positions
#
# | 8 | 4 | 5 | 6 | 7 | -1 |
# |---|---|---|---|---|---|
# | no | no | yes | yes | yes | no |
#
# A query at -1 is padding and sees nothing.


# %% answer="window_mask"
def window_mask(query_positions, key_positions, window):
    """(B, L) and (B, S) -> (B, 1, L, S) booleans"""
    ### BEGIN SOLUTION
    query = query_positions[:, None, :, None]
    key = key_positions[:, None, None, :]
    return (key >= 0) & (key <= query) & (key > query - window)
    ### END SOLUTION


# %% check="window_mask"
kvlearn.check("window_mask", window_mask)

# %% [markdown]
# ## Exercise: `windowed_prefill`
#
# *15 minutes · difficulty 2 of 3*
#
# Lesson 04's prompt in pieces, through a window. `q`, `k` and `v` are those
# of a whole prompt, `(B, H, L, D)` each. Compute the attention of all tokens
# in pieces of at most `chunk` queries, first tokens first, and return it as
# one tensor `(B, H, L, D)`. A query sees itself and the `window - 1` tokens
# before it.
#
# You are given `attend(q, k, v, mask)`; the mask is boolean, `(queries,
# keys)`. Between two pieces you may keep `window` keys and values, no more:
# no call gets more than `window + chunk` keys.
#
# **By hand.** Window 3, chunks of 4, a prompt of 8 tokens. The second call
# has the queries 4 to 7. Query 4 sees tokens 2, 3 and 4; query 7 sees 5, 6
# and 7. So the call needs the keys 2 to 7, and keys 0 and 1 may be gone.


# %% answer="windowed_prefill"
def windowed_prefill(attend, q, k, v, window, chunk):
    """three times (B, H, L, D) -> (B, H, L, D)"""
    ### BEGIN SOLUTION
    kept_k, kept_v, outputs = k[:, :, :0], v[:, :, :0], []
    for start in range(0, q.shape[2], chunk):
        piece = slice(start, start + chunk)
        keys = torch.cat((kept_k, k[:, :, piece]), dim=2)
        values = torch.cat((kept_v, v[:, :, piece]), dim=2)
        queries = q[:, :, piece]
        mask = kvlearn.causal_mask(queries.shape[2], keys.shape[2], window)
        outputs.append(attend(queries, keys, values, mask))
        kept_k, kept_v = keys[:, :, -window:], values[:, :, -window:]
    return torch.cat(outputs, dim=2)
    ### END SOLUTION


# %% check="windowed_prefill"
kvlearn.check("windowed_prefill", windowed_prefill)

# %% [markdown]
# ## Exercise: `ring_positions`
#
# *10 minutes · difficulty 2 of 3*
#
# A ring of `window` slots. Tokens 0, 1, 2, ... come one after another, and
# the token at position p goes to slot `p % window`, whatever stood there.
# After `length` tokens: which position stands in each slot? Return a list
# of `window` numbers, -1 for a slot that is still empty.
#
# **By hand.** A ring of 3:
#
# | tokens so far | slot 0 | slot 1 | slot 2 |
# |---|---|---|---|
# | 2 | 0 | 1 | -1 |
# | 3 | 0 | 1 | 2 |
# | 5 | 3 | 4 | 2 |


# %% answer="ring_positions"
def ring_positions(length, window):
    """two numbers -> a list of `window` positions"""
    ### BEGIN SOLUTION
    slots = []
    for slot in range(window):
        laps = (length - 1 - slot) // window
        slots.append(slot + laps * window if slot < length else -1)
    return slots
    ### END SOLUTION


# %% check="ring_positions"
kvlearn.check("ring_positions", ring_positions)

# %% [markdown]
# ## Exercise: `ring_write`
#
# *15 minutes · difficulty 3 of 3*
#
# The same for a batch, with the numbers themselves. `ring` is
# `(B, H, W, D)`, `new` is `(B, H, L, D)`, `positions` is `(B, L)`. Each row
# is a text of its own, at its own place; -1 is padding and takes no slot.
# The chunk may be longer than the ring. Return the new ring; the one that
# you were given stays as it is.
#
# **By hand.** `W` is 3. A row that held tokens a, b, c of positions 0, 1
# and 2 is given two columns x, y:
#
# | positions | the row's ring afterwards |
# |---|---|
# | 3, 4 | x y c |
# | -1, 3 | y b c |
# | -1, -1 | a b c |


# %% answer="ring_write"
def ring_write(ring, new, positions):
    """(B, H, W, D), (B, H, L, D), (B, L) -> (B, H, W, D)"""
    ### BEGIN SOLUTION
    ring = ring.clone()
    rows = torch.arange(len(ring), device=ring.device)
    for column in range(positions.shape[1]):  # later tokens win
        position = positions[:, column]
        real = position >= 0
        slot = position[real] % ring.shape[2]
        ring[rows[real], :, slot] = new[rows[real], :, column]
    return ring
    ### END SOLUTION


# %% check="ring_write"
kvlearn.check("ring_write", ring_write)

# %% [markdown]
# ## Exercise: `may_roll_back`
#
# *10 minutes · difficulty 2 of 3*
#
# Take tokens back until `length` are left. `stored` is a list of the
# positions that the ring holds now, in any order, -1 for empty slots. The
# next query will stand at position `length`, with the window as it was. Is
# everything that it sees, besides itself, still stored? Return True or
# False.
#
# **By hand.** A window of 3, 6 tokens seen, so that positions 3, 4 and 5
# are stored. With 5 left the next query, at position 5, sees 3 and 4: True.
# With 4 left it would see 2 and 3: False.


# %% answer="may_roll_back"
def may_roll_back(stored, length, window):
    """a list and two numbers -> True or False"""
    ### BEGIN SOLUTION
    oldest = max(0, length - window + 1)
    return set(range(oldest, length)) <= set(stored)
    ### END SOLUTION


# %% check="may_roll_back"
kvlearn.check("may_roll_back", may_roll_back)

# %% [markdown]
# ## Exercise: `sliding_window_cache`
#
# *30 minutes · difficulty 3 of 3*
#
# All of it in one class. Two new things that the base class asks a cache
# of this kind:
#
# | method | what it does |
# |---|---|
# | `_settle()` | called when the last layer of a step has been written, and `length` has moved: drop what is too old, now |
# | `_kept_positions(layer)` | `(B, S)` positions of what the layer holds without the step under way, in the order in which `_append` returns it; -1 = empty |
#
# The others you know. `_append(layer, k, v)` returns what is kept, and
# behind it the whole chunk, and must not change the ring yet: until the step
# is over it may be dropped. Then `_truncate(layer, length)` is called for
# each layer that had been written, and the ring must be as before. `k` and
# `v` are not yours: put copies aside.
#
# In `_settle`, `self.positions` are those of all slots so far, `(B,
# length)`; the step's are its last `L` columns. `self.next_position` is
# `(B,)`.
#
# `filled`, `_tensors` and `truncate` are written already, for these three
# attributes:
#
# - `self.rings`: `(num_layers, 2, B, Hkv, W, D)`, keys and values;
# - `self.slots`: `(B, W)`, the position in each slot, the same for all
#   layers, -1 = empty;
# - `self.chunks`: a dict, layer -> the step's `(k, v)`, empty between steps.
#
# Other attributes are as good, if you change those methods as well.
# (`reorder`, for beam search, is left out.)
#
# **By hand.** `W` is 3, one row, positions 0 to 4 have been seen: the ring
# holds 3, 4, 2. A chunk of two tokens comes: `_append` returns the slots of
# 3, 4, 2 and then 5, 6. After `_settle` the ring holds 6, 4, 5.


# %% answer="sliding_window_cache"
class MyWindowCache(kvlearn.KVCache):
    def __init__(self, config, window, batch_size=1,
                 dtype=None, device=None):
        self.window = window
        super().__init__(config, batch_size, dtype=dtype, device=device)

    def _start(self, batch_size):
        ### BEGIN SOLUTION
        heads, head_dim = self.key_shape
        self.rings = torch.zeros(
            self.num_layers, 2, batch_size, heads, self.window, head_dim,
            dtype=self.dtype, device=self.device)
        self.slots = torch.full((batch_size, self.window), -1,
                                device=self.device)
        self.chunks = {}
        ### END SOLUTION

    def filled(self):  # how many slots of the ring hold something
        return min(int(self.next_position.max()), self.window)

    def _append(self, layer, k, v):
        ### BEGIN SOLUTION
        self.chunks[layer] = k.clone(), v.clone()
        keys, values = self.rings[layer, :, :, :, : self.filled()]
        return torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
        ### END SOLUTION

    def _kept_positions(self, layer):
        ### BEGIN SOLUTION
        return self.slots[:, : self.filled()]
        ### END SOLUTION

    def _settle(self):
        ### BEGIN SOLUTION
        for layer, chunk in self.chunks.items():
            new = self.positions[:, -chunk[0].shape[2] :]
            for ring, side in zip(self.rings[layer], chunk, strict=True):
                ring.copy_(ring_write(ring, side, new))
        table, columns = self.slots[:, None, :, None], new[:, None, :, None]
        self.slots = ring_write(table, columns, new)[:, 0, :, 0]
        self.chunks = {}
        ### END SOLUTION

    def _truncate(self, layer, length):
        ### BEGIN SOLUTION
        self.chunks.pop(layer, None)
        ### END SOLUTION

    def _tensors(self):
        chunks = [side for pair in self.chunks.values() for side in pair]
        return [self.rings[:, :, :, :, : self.filled()], *chunks]

    def truncate(self, length):
        for seen, stored in zip(self.positions[:, :length].tolist(),
                                self.slots.tolist(), strict=True):
            left = max(seen, default=-1) + 1
            if not may_roll_back(stored, left, self.window):
                raise ValueError(f"what token {left} would see is gone")
        super().truncate(length)
        gone = self.slots >= self.next_position[:, None]
        self.slots = self.slots.masked_fill(gone, -1)


# %% check="sliding_window_cache"
kvlearn.check("sliding_window_cache", MyWindowCache)

# %% [markdown]
# ## The real model, on your window
#
# SmolLM2 was not trained with a window, so a narrow one would cost it more
# than memory (lesson 07 shows how much). With a window wider than the text
# nothing is lost, and with a narrower one your cache must do exactly what
# the library's does.

# %%
model, tokenizer = kvlearn.load_or_tiny("smollm2-135m",
                                        device=measure.device())
place = {"dtype": model.dtype, "device": model.device}
prompt = tokenizer.encode("The capital of Italy is Rome. The capital of")
growing = kvlearn.generate(model, prompt, 12, cache=kvlearn.GrowingCache(
    model.config, **place))
wide = MyWindowCache(model.config, 64, **place)
yours = kvlearn.generate(model, prompt, 12, cache=wide)
print(tokenizer.decode(prompt + yours.tokens[0]))
print("the same tokens as without a window:",
      yours.tokens == growing.tokens)

# %%
narrow = MyWindowCache(model.config, 8, **place)
library = kvlearn.SlidingWindowCache(model.config, 8, **place)
yours = kvlearn.generate(model, prompt, 12, cache=narrow)
theirs = kvlearn.generate(model, prompt, 12, cache=library)
print("the same tokens as the library's window of 8:",
      yours.tokens == theirs.tokens)
print("tokens seen", narrow.length, "- bytes", narrow.used_bytes,
      "- the library's", library.used_bytes)

# %% [markdown]
# ## Why? Gone and still heard
#
# *15 minutes · 3 points · in a class, read by a person*
#
# In three to five sentences. A model answer and what earns each point are in
# `solutions/`; look there when you have written yours.
#
# A model has four layers, each with a window of 8. The token at position 100 has
# just been fed. Can the token at position 75 have had a say in its logits, though
# its keys and values left every ring long ago? If so, how, and in which layers'
# rings does something of it lie now? And the token at position 70?

# %% [markdown] why="gone_and_still_heard"
# <!-- ### BEGIN SOLUTION -->
# Each layer hands on what it saw, 7 positions further: four layers reach 28 back,
# to position 72. So 75 can have had a say and 70 cannot. When position 82 was
# fed, its query in layer 0 saw 75, and what came out became its key and value in
# layer 1; there 89 read it, and so on upwards. At position 100 the rings of the
# first layers hold nothing of 75: layer 0's keys are made from the tokens 93 to
# 100 alone, and layers 1 and 2 reach back no further than 86 and 79. It lies in
# the last layer's, in keys and values of later tokens.
#
# **Rubric**
#
# - works out the reach, 4 · 7 = 28 positions: 75 yes, 70 no (1 point)
# - says that it is handed on inside the outputs of tokens in between, which
#   become keys and values in the next layer (1 point)
# - says that it lies in the last layer's ring, in entries of later tokens; that
#   layer 0's ring holds nothing of it is right, but not enough alone (1 point)
# <!-- ### END SOLUTION -->

# %% [markdown]
# **What you can do now.** Keep a text's memory flat with a ring buffer, say
# which position stands in which slot, feed a prompt through a window without
# losing a key too early, and say what a rollback may still do.
