# %% [markdown]
# # Assignment 03: the naive decoder
#
# Five functions and one question, about 80 minutes: three parts of a decoder,
# the loop that makes it write, and the count of what that loop does over and
# over. Your `apply_rope` and your `grouped_attention` will run the real model in
# assignment 04, so they have exactly the library's parameters.
#
# Close the lesson before you begin. Its lines would pass, and you would have typed
# them. Write each function from its table and its example; when you are stuck,
# `kvlearn.hint("rms_norm")` and its like say a little at a time.
#
# | letter | what it counts |
# |---|---|
# | `B` | rows in the batch |
# | `Hq`, `Hkv` | query heads, key/value heads |
# | `L` | new tokens: the queries |
# | `S` | all tokens that are looked at: the keys |
# | `D` | numbers in one head's vector (head_dim) |
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import torch

import kvlearn

# %% [markdown]
# ## Exercise: `rms_norm`
#
# *10 minutes · difficulty 1 of 3*
#
# Every layer adds something to the stream, so its numbers grow with depth.
# Before a layer reads the stream, each token's vector is brought to the same
# size: divided by its root mean square, then multiplied by a learned weight,
# one number for each channel (each of the `width` numbers of a token). For
# channel i:
#
#     result[i] = x[i] / sqrt(mean of all x[j]² + eps) · weight[i]
#
# | tensor | shape |
# |---|---|
# | `x` | `(B, L, width)` |
# | `weight` | `(width,)` |
# | result | `(B, L, width)` |
#
# **By hand.** The vector (1, 7), `weight` (1, 2), `eps` 0. The squares are 1
# and 49, their mean 25, the root of it 5. The result is (0.2, 2.8).
#
# A vector of zeros is asked for as well. That is what `eps` is for.


# %% answer="rms_norm"
def rms_norm(x, weight, eps):
    """(B, L, width), (width,) -> (B, L, width)"""
    ### BEGIN SOLUTION
    mean_square = x.pow(2).mean(dim=-1, keepdim=True)  # (B, L, 1)
    return x / torch.sqrt(mean_square + eps) * weight
    ### END SOLUTION


# %% check="rms_norm"
kvlearn.check("rms_norm", rms_norm)

# %% [markdown]
# ## Exercise: `apply_rope`
#
# *20 minutes · difficulty 2 of 3*
#
# To a query, the tokens before it are a bag of words: *dog bites man* is *man bites
# dog*. Rotary positions tell it the order: every query and every key is turned by an
# angle that grows with its position.
#
# A head's `D` coordinates make `D/2` pairs. **Pair i is coordinate i of the
# first half and coordinate i of the second half.** It is turned
# counter-clockwise by
#
#     angle = position / theta ** (2i / D)        for i = 0, 1, ..., D/2 − 1
#
# so pair 0 turns by one radian a position, and each later pair is slower. A
# point (a, b) turned by an angle φ is
# (a cos φ − b sin φ, b cos φ + a sin φ).
#
# | tensor | shape |
# |---|---|
# | `x` | `(B, H, L, D)`, queries or keys |
# | `positions` | `(B, L)`, whole numbers; rows may stand at other places |
# | result | `(B, H, L, D)`, in the dtype of `x` |
#
# **By hand.** `D` 4, `theta` 16, position 2, `x` (1, 1, 0, 0). The pairs are
# coordinates (0, 2) and (1, 3), and both are the point (1, 0). Pair 0 turns
# by 2 / 16⁰ = 2 radians and becomes (cos 2, sin 2) ≈ (−0.42, 0.91). Pair 1
# turns by 2 / √16 = 0.5 radians and becomes (0.88, 0.48). Each goes back to
# where it came from: the result is about (−0.42, 0.88, 0.91, 0.48).
#
# One case is in bfloat16, with positions beyond 256. bfloat16 cannot tell 301
# from 300, so compute the angles in float32, whatever `x` is.


# %% answer="apply_rope"
def apply_rope(x, positions, theta):
    """(B, H, L, D), (B, L), number -> (B, H, L, D)"""
    ### BEGIN SOLUTION
    D = x.shape[-1]
    pair = torch.arange(D // 2, device=x.device)
    speeds = theta ** (-2 * pair / D)  # (D/2,)
    angles = positions[:, None, :, None] * speeds  # (B, 1, L, D/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    ### END SOLUTION


# %% check="apply_rope"
kvlearn.check("apply_rope", apply_rope)

# %% [markdown]
# ## Exercise: `grouped_attention`
#
# *15 minutes · difficulty 2 of 3*
#
# The real model asks with nine heads and keeps keys and values for three. Two
# numbers describe such a model, `Hq` and `Hkv`, and a third follows: each
# key/value head is read by a **group** of `Hq // Hkv` query heads. The query
# heads of a group are neighbours.
#
# The rest is your masked attention of lesson 02; start from that cell if you
# have it. The scale is `1 / sqrt(D)`. In the mask True means: may attend, and
# `None` means that every query sees every key. A query that may see nothing
# gives zeros.
#
# | tensor | shape |
# |---|---|
# | `q` | `(B, Hq, L, D)` |
# | `k`, `v` | `(B, Hkv, S, D)` |
# | `mask` | `None`, or booleans `(B, 1, L, S)` |
# | result | `(B, Hq, L, D)`, in the dtype of `q` |
#
# **By hand.** Four query heads on two key/value heads, one token, `D` 1. With
# one key there is nothing to choose: its weight is 1 and the result is its
# value. If the values are 10 (head 0) and 20 (head 1), the results of query
# heads 0, 1, 2 and 3 are 10, 10, 20 and 20.


# %% answer="grouped_attention"
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
# ## Exercise: `greedy_decode`
#
# *15 minutes · difficulty 2 of 3*
#
# The model is a function: token ids of shape `(1, L)` in, logits of shape
# `(1, L, vocab)` out, a guess after every token. It remembers nothing from one
# call to the next.
#
# Write the loop. It takes the likeliest token each time, and stops after
# `max_new_tokens` new ones, or right after a new token that is in `eos_ids`
# (a tuple, perhaps empty). It gives back **a list of the new token ids**, that
# last one included.
#
# **By hand.** A model that always thinks the next number is the likeliest:
# after `[3, 4]` it says 5.
#
# | call | result |
# |---|---|
# | `greedy_decode(model, [3, 4], 3, ())` | `[5, 6, 7]` |
# | `greedy_decode(model, [3, 4], 3, (6,))` | `[5, 6]` |
# | `greedy_decode(model, [3, 4], 3, (4,))` | `[5, 6, 7]` |
# | `greedy_decode(model, [3, 4], 0, ())` | `[]` |
#
# `tokens` is a list, and it belongs to the caller: it must come out of this
# as it went in.


# %% answer="greedy_decode"
def greedy_decode(model, tokens, max_new_tokens, eos_ids):
    """list of ids -> list of new ids"""
    ### BEGIN SOLUTION
    new = []
    for _ in range(max_new_tokens):
        logits = model(torch.tensor([tokens + new]))  # (1, L, vocab)
        new.append(int(logits[0, -1].argmax()))
        if new[-1] in eos_ids:
            break
    return new
    ### END SOLUTION


# %% check="greedy_decode"
kvlearn.check("greedy_decode", greedy_decode)

# %% [markdown]
# ## Exercise: `count_projections`
#
# *10 minutes · difficulty 2 of 3*
#
# Your loop feeds the whole text at every step. How much is that? Count
# **token-positions through one matrix of one layer**, say the key projection:
# a pass over 7 tokens is 7 of them.
#
# Two numbers are wanted, as whole numbers: without a cache, and with one. A
# cache keeps the keys of every token that has been fed, so no token is ever
# projected twice. There is at least one new token, and no EOS cuts the text
# short.
#
# **By hand.** A prompt of 3 tokens, 2 new ones. Without a cache the first pass
# sees 3 tokens and gives the first new token; the second sees 4 and gives the
# other. That is 7. With a cache the second pass has only one token to project:
# 4. `count_projections(3, 2)` is `(7, 4)`.
#
# The check counts in runs of a small decoder, and then asks for a prompt of
# 8,000 tokens.


# %% answer="count_projections"
def count_projections(prompt_length, new_tokens):
    """-> (without a cache, with a cache)"""
    ### BEGIN SOLUTION
    again = new_tokens * (new_tokens - 1) // 2
    naive = prompt_length * new_tokens + again
    return naive, prompt_length + new_tokens - 1
    ### END SOLUTION


# %% check="count_projections"
kvlearn.check("count_projections", count_projections)

# %% [markdown]
# ## Why? Counted from zero
#
# *10 minutes · 3 points · in a class, read by a person*
#
# In three to five sentences. A model answer and what earns each point are in
# `solutions/`; look there when you have written yours.
#
# A prompt of eight tokens goes through a model in two pieces of four, and the
# second piece also attends to the first. A rotary function counts the positions
# of each piece from 0. Which scores come out right and which do not? And why
# would it have done no harm to add 100 to every position instead?

# %% [markdown] why="counted_from_zero"
# <!-- ### BEGIN SOLUTION -->
# A score depends on how far apart the query and the key stand, because only the
# difference of their two angles counts. Inside a piece all positions are off by
# the same number, so the distances, and the scores, are right. Across the pieces
# they are not: the query at position 5 is turned as if it stood at 1, so to it
# the key at position 2 stands one place ahead instead of three back. Adding 100
# to all positions turns every query and every key by the same amount more, and
# that cancels in each difference.
#
# **Rubric**
#
# - says that scores inside a piece are right, because a score depends on the
#   distance alone (1 point)
# - names a query of the second piece and a key of the first, with their true
#   and their counted distance (1 point)
# - says that the same number added to all positions cancels, and that here only
#   one side of a pair is moved (1 point)
# <!-- ### END SOLUTION -->

# %% [markdown]
# **What you can do now.** You can read the code of any Llama and know what each
# line is for, make it write, and say to the unit what writing without a cache
# repeats. In assignment 04 you stop repeating it.
