# %% [markdown]
# # Assignment 01: attention
#
# Three functions and one question, about 60 minutes: the weights, the
# attention, and a whole attention layer with several heads. Nothing is masked
# yet; that is the next assignment.
#
# Shapes are `(batch, heads, length, head_dim)` throughout. In comments,
# `L` counts the queries, `S` the keys and `D` the channels of one head. The
# number of queries and the number of keys need not agree, and once there
# is a cache they will not: one new query, and the keys of all the text.
#
# Every result keeps the dtype of its inputs. Models often compute in
# `bfloat16`, and a single float32 tensor of your own would turn all that
# comes after it into float32. The checks try `float64` and `bfloat16` too.
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import torch

import kvlearn

# %% [markdown]
# ## Exercise: `attention_weights`
#
# *15 minutes · difficulty 2 of 3*
#
# Each query has a share of exactly 1 to hand out among the keys: the better
# a key matches, the more it gets.
#
# $$\text{weights} = \text{softmax}\left(\frac{q\,k^\top}{\sqrt{D}}\right)$$
#
# Why the root? A dot product is a sum of $D$ products. If they are random and
# independent, it spreads like $\sqrt{D}$. Divided by it, the scores have the
# same spread for every width of a head, and the softmax starts out neither
# flat nor decided.
#
# **By hand.** One query, two keys, $D = 4$:
#
# | | numbers | dot product | scaled |
# |---|---|---|---|
# | query | 1 1 1 1 | | |
# | key 0 | 1 1 0 0 | 2 | 1 |
# | key 1 | 0 0 0 0 | 0 | 0 |
#
# The weights are $e^1 / (e^1 + e^0) \approx 0.73$ and
# $e^0 / (e^1 + e^0) \approx 0.27$. They are positive and add up to 1.
#
# Scores can be large, and `exp` of a large number is `inf`. The check tries
# that as well.


# %% answer="attention_weights"
def attention_weights(q, k):
    """(B, H, L, D), (B, H, S, D) -> weights (B, H, L, S)"""
    ### BEGIN SOLUTION
    scores = q @ k.transpose(-2, -1)  # (B, H, L, S)
    scores = scores / q.shape[-1] ** 0.5
    return torch.softmax(scores, dim=-1)
    ### END SOLUTION


# %% check="attention_weights"
kvlearn.check("attention_weights", attention_weights)

# %% [markdown]
# ## Exercise: `scaled_dot_product_attention`
#
# *10 minutes · difficulty 1 of 3*
#
# The weights say where to look. The values are what is seen there: a
# query's result is the average of the values, with its weights.
#
# **By hand.** With the weights 0.73 and 0.27 from above, and the values
# (10, 0, 0, 0) and (0, 100, 0, 0), the result is (7.3, 27, 0, 0).
#
# Notice what it costs to add one more query: every key and every value is
# needed again, and not one of the old queries. A cache is built on this.


# %% answer="scaled_dot_product_attention"
def scaled_dot_product_attention(q, k, v):
    """(B, H, L, D), (B, H, S, D), (B, H, S, D) -> (B, H, L, D)"""
    ### BEGIN SOLUTION
    return attention_weights(q, k) @ v
    ### END SOLUTION


# %% check="scaled_dot_product_attention"
kvlearn.check("scaled_dot_product_attention",
              scaled_dot_product_attention)

# %% [markdown]
# ## Your functions from assignment 00
#
# The last exercise needs heads to be split and merged. Paste your two
# functions here; they are checked again.


# %% paste="split_heads"
def split_heads(x, num_heads):
    """(B, L, num_heads * D) -> (B, num_heads, L, D)"""
    ### BEGIN SOLUTION
    B, L, width = x.shape
    per_head = x.view(B, L, num_heads, width // num_heads)
    return per_head.transpose(1, 2)
    ### END SOLUTION


# %% check="split_heads"
kvlearn.check("split_heads", split_heads)


# %% paste="merge_heads"
def merge_heads(x):
    """(B, H, L, D) -> (B, L, H * D)"""
    ### BEGIN SOLUTION
    B, H, L, D = x.shape
    return x.transpose(1, 2).reshape(B, L, H * D)
    ### END SOLUTION


# %% check="merge_heads"
kvlearn.check("merge_heads", merge_heads)

# %% [markdown]
# ## Exercise: `multi_head_attention`
#
# *25 minutes · difficulty 2 of 3*
#
# A whole attention layer. A token's vector is projected three times: into
# what it looks for (query), what it can be found by (key), and what it hands
# over (value). The heads work side by side, each on its own slice, and a
# last projection mixes what they found.
#
# Weights are stored as `(out, in)`, as in `torch.nn.Linear`: the other way
# round from the lesson, where `x @ W` worked. `inner` is
# `num_heads * head_dim`. In many models it equals `width`; in some it does
# not, so do not rely on it.
#
# | tensor | shape |
# |---|---|
# | `x` | `(B, L, width)` |
# | `w_q`, `w_k`, `w_v` | `(inner, width)` |
# | `w_o` | `(width, inner)` |
# | result | `(B, L, width)` |
#
# **By hand.** Two tokens, `width` 2, two heads of one channel each, and all
# four weights the identity matrix. Token 0 is (2, 0), token 1 is (0, 2).
# Head 0 sees only the first channel: token 0 scores 2 · 2 = 4 with itself
# and 2 · 0 = 0 with token 1, so its weights are about 0.98 and 0.02, and
# its result about 1.96. Head 1 sees only the second channel: token 0 scores
# 0 with both tokens, so both weigh 0.5 and the result is 1. Token 0 comes
# out as about (1.96, 1). One head alone would have used the same weights
# for both channels.


# %% answer="multi_head_attention"
def multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads):
    """(B, L, width) -> (B, L, width)"""
    ### BEGIN SOLUTION
    q = split_heads(x @ w_q.T, num_heads)  # (B, H, L, D)
    k = split_heads(x @ w_k.T, num_heads)
    v = split_heads(x @ w_v.T, num_heads)
    out = scaled_dot_product_attention(q, k, v)
    return merge_heads(out) @ w_o.T  # (B, L, width)
    ### END SOLUTION


# %% check="multi_head_attention"
kvlearn.check("multi_head_attention", multi_head_attention)

# %% [markdown]
# ## Why? One more token
#
# *10 minutes · 3 points · in a class, read by a person*
#
# In three to five sentences. A model answer and what earns each point are in
# `solutions/`; look there when you have written yours.
#
# Give this layer one more token, at the end of the text. Of the tokens that were
# there before: which of `q`, `k`, `v`, the weights and the result stay as they
# are, number for number, and which change? Say why for each. (Nothing is masked
# here. The next assignment does the experiment.)

# %% [markdown] why="one_more_token"
# <!-- ### BEGIN SOLUTION -->
# A token's query, key and value are products of its own vector with three
# matrices. No other token takes part, so the old ones stay as they are. The
# weights change: each old query now has one score more, and its share of 1 goes
# to one key more, so every other key's share is smaller. With them the result
# changes: it is an average with other weights, and the new token's value is in
# it. So what the next layer gets for the old tokens is not what it got before.
#
# **Rubric**
#
# - says that old queries, keys and values stay, because each is made from its
#   own token's vector alone (1 point)
# - says that the weights of old queries change, because a share of the same 1
#   goes to the new key (1 point)
# - says that the old results change: an average with other weights, in which
#   the new value takes part (1 point)
# <!-- ### END SOLUTION -->
