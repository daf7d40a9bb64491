# %% [markdown]
# # Assignment 06: fewer heads
#
# Six functions and one question, about 90 minutes: attention that leaves its
# keys where they lie, the heads of a trained model made fewer, and latent
# attention, first expanded and then absorbed. All weights come without a bias.
#
# Close the lesson before you begin, and write from the tables.
#
# | letter | what it counts |
# |---|---|
# | `B` | rows in the batch |
# | `Hq`, `Hkv` | query heads, key/value heads |
# | `L` | new tokens: the queries |
# | `S` | stored tokens: the keys |
# | `D` | numbers in one head's vector (head_dim) |
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import torch

import kvlearn

# %% [markdown]
# ## Exercise: `attend_in_groups`
#
# *15 minutes · difficulty 2 of 3*
#
# Grouped attention without a mask, as in a decode step: every query sees
# every key. Query head `h` reads key/value head `h // (Hq // Hkv)`. You wrote
# this in lesson 03 by repeating heads. **Now nothing may be repeated.** The
# check counts the bytes that are alive while your function runs, and refuses
# right numbers if a copy of the keys for every query head was among them.
# (A broadcast or expanded operand of `@` or einsum is copied by torch too.)
#
# | tensor | shape |
# |---|---|
# | `q` | `(B, Hq, L, D)` |
# | `k`, `v` | `(B, Hkv, S, D)` |
# | result | `(B, Hq, L, D)` |
#
# **By hand.** Two query heads on one key/value head, one query each, `D` 1.
# The queries are 0 and 0, the keys anything, the values 2 and 4. Zero
# queries score all keys alike, so both heads answer 3. The two queries were
# two rows in front of the same two keys.


# %% answer="attend_in_groups"
def attend_in_groups(q, k, v):
    """(B, Hq, L, D), (B, Hkv, S, D) twice -> (B, Hq, L, D)"""
    ### BEGIN SOLUTION
    B, Hq, L, D = q.shape
    Hkv = k.shape[1]
    tall = q.reshape(B, Hkv, Hq // Hkv * L, D)  # a group's queries stacked
    weights = torch.softmax(tall @ k.mT / D**0.5, dim=-1)
    return (weights @ v).reshape(B, Hq, L, D)
    ### END SOLUTION


# %% check="attend_in_groups"
kvlearn.check("attend_in_groups", attend_in_groups)

# %% [markdown]
# ## Exercise: `mean_pool_heads`
#
# *10 minutes · difficulty 2 of 3*
#
# `weight` is the matrix that projects hidden states to keys (or to values),
# as a linear layer keeps it: its rows are the channels, all `head_dim` of
# head 0, then all of head 1, and so on. Make the matrix of a model with
# `num_kv_heads` heads, in which each head is the mean of the neighbouring
# heads that it replaces.
#
# | argument | |
# |---|---|
# | `weight` | `(heads · head_dim, hidden)` |
# | `head_dim` | rows of one head |
# | `num_kv_heads` | heads of the result; it divides the old number |
# | result | `(num_kv_heads · head_dim, hidden)` |
#
# **By hand.** One column, `head_dim` 2, four heads: (1, 2), (3, 4), (50, 60),
# (70, 80). Two heads remain. The first is the mean of (1, 2) and (3, 4), so
# the column is 2, 3, 60, 70.


# %% answer="mean_pool_heads"
def mean_pool_heads(weight, head_dim, num_kv_heads):
    """(heads * head_dim, hidden) -> (num_kv_heads * head_dim, hidden)"""
    ### BEGIN SOLUTION
    hidden = weight.shape[1]
    heads = weight.reshape(num_kv_heads, -1, head_dim, hidden)
    return heads.mean(dim=1).reshape(num_kv_heads * head_dim, hidden)
    ### END SOLUTION


# %% check="mean_pool_heads"
kvlearn.check("mean_pool_heads", mean_pool_heads)

# %% [markdown]
# ## Exercise: `expand_latents`
#
# *15 minutes · difficulty 2 of 3*
#
# A token left one latent vector. `up` is the weight of the linear layer that
# makes all heads' keys and values from it. Its rows lie head by head, and
# within a head the `nope_dim` rows of the key come first, then the rows of
# the value. Give back keys and values as a tuple.
#
# | argument | |
# |---|---|
# | `latent` | `(B, 1, S, latent_dim)` |
# | `up` | `(num_heads · (nope_dim + value_dim), latent_dim)` |
# | keys | `(B, num_heads, S, nope_dim)` |
# | values | `(B, num_heads, S, value_dim)` |
#
# `value_dim` is not given; it follows from the shape of `up`.
#
# **By hand.** The latent is (1, 10). Two heads, `nope_dim` 1, and `up` has
# four rows: (1, 0), (0, 1), (1, 1), (2, 0). Head 0 has the first two rows:
# key 1, value 10. Head 1 has the others: key 11, value 2.


# %% answer="expand_latents"
def expand_latents(latent, up, num_heads, nope_dim):
    """(B, 1, S, latent_dim) -> keys and values, (B, num_heads, S, ...)"""
    ### BEGIN SOLUTION
    per_head = up.reshape(num_heads, -1, up.shape[1])
    both = latent @ per_head.mT  # (B, num_heads, S, nope + value)
    return both[..., :nope_dim], both[..., nope_dim:]
    ### END SOLUTION


# %% check="expand_latents"
kvlearn.check("expand_latents", expand_latents)

# %% [markdown]
# ## Exercise: `absorbed_scores`
#
# *20 minutes · difficulty 3 of 3*
#
# The scores of latent attention. In the expanded form a head's key would be
# `w_uk[h]` times the latent, followed by the rotary key that all heads
# share; its query is `q_nope` followed by `q_rope`; the score is their dot
# product, divided by the root of the key's width. Compute the same scores
# **without making those keys**: the check counts the operations that you
# do, all of them in torch.
#
# | tensor | shape |
# |---|---|
# | `q_nope`, `q_rope` | `(B, Hq, L, nope_dim)`, `(B, Hq, L, rope_dim)` |
# | `latent` | `(B, 1, S, latent_dim)` |
# | `rope_key` | `(B, 1, S, rope_dim)`, turned already, as is `q_rope` |
# | `w_uk` | `(Hq, nope_dim, latent_dim)` |
# | result | `(B, Hq, L, S)`, before the softmax |
#
# **By hand.** One head, one query, one token. `q_nope` (1, 2, 0), `q_rope`
# (3), latent (2), `rope_key` (1), `w_uk` ((1), (4), (5)). The key would be
# (2, 8, 10, 1), and the dot product is 2 + 16 + 0 + 3 = 21. It has four
# numbers, so the score is 21 / 2 = 10.5.


# %% answer="absorbed_scores"
def absorbed_scores(q_nope, q_rope, latent, rope_key, w_uk):
    """-> (B, Hq, L, S), scaled, from the latents themselves"""
    ### BEGIN SOLUTION
    moved = q_nope @ w_uk  # (B, Hq, L, latent_dim)
    scores = moved @ latent.mT + q_rope @ rope_key.mT
    key_width = q_nope.shape[-1] + q_rope.shape[-1]
    return scores / key_width**0.5
    ### END SOLUTION


# %% check="absorbed_scores"
kvlearn.check("absorbed_scores", absorbed_scores)

# %% [markdown]
# ## Exercise: `absorbed_values`
#
# *10 minutes · difficulty 2 of 3*
#
# The other end of latent attention. The softmax has given the weights. A
# head's value of a token would be `w_uv[h]` times the latent. Give each
# query's weighted sum of values **without making the values** of the stored
# tokens. Operations are counted.
#
# | tensor | shape |
# |---|---|
# | `weights` | `(B, Hq, L, S)` |
# | `latent` | `(B, 1, S, latent_dim)` |
# | `w_uv` | `(Hq, value_dim, latent_dim)` |
# | result | `(B, Hq, L, value_dim)` |
#
# **By hand.** One head, one query, two tokens with latents (2) and (6),
# weights one half each, `w_uv` ((10)). The values would be 20 and 60, and
# the result is 40.


# %% answer="absorbed_values"
def absorbed_values(weights, latent, w_uv):
    """-> (B, Hq, L, value_dim)"""
    ### BEGIN SOLUTION
    mixed = weights @ latent  # (B, Hq, L, latent_dim)
    return mixed @ w_uv.mT
    ### END SOLUTION


# %% check="absorbed_values"
kvlearn.check("absorbed_values", absorbed_values)

# %% [markdown]
# ## Exercise: `decode_intensity`
#
# *10 minutes · difficulty 2 of 3*
#
# A decode step: one query in each query head meets one stored token. How
# many floating-point operations are done for each **byte** of cache that is
# read? A multiplication is one operation, an addition is another; a dot
# product of n numbers counts as n of each. Leave out the softmax, the
# projections and the query itself. Keys and values are stored apart (so not
# absorbed MLA, which reads its latent once for both).
#
# | parameter | |
# |---|---|
# | `num_heads`, `num_kv_heads` | query heads, key/value heads |
# | `key_width`, `value_width` | numbers in a key, in a value |
# | `bits` | of a stored number: 16, 8, or fewer, such as 6 |
#
# **By hand.** 2 query heads on 1 key/value head, widths 4 and 4, 16 bits.
# A head does 8 operations for the score and 8 for the sum; two heads, 32.
# Eight numbers are read, 16 bytes. The result is 2.


# %% answer="decode_intensity"
def decode_intensity(num_heads, num_kv_heads, key_width, value_width, bits):
    """Operations for each byte of cache."""
    ### BEGIN SOLUTION
    operations = 2 * num_heads * (key_width + value_width)
    numbers = num_kv_heads * (key_width + value_width)
    return operations / (numbers * bits / 8)
    ### END SOLUTION


# %% check="decode_intensity"
kvlearn.check("decode_intensity", decode_intensity)

# %% [markdown]
# ## Why? The mean of two heads
#
# *10 minutes · 3 points · in a class, read by a person*
#
# In three to five sentences. A model answer and what earns each point are in
# `solutions/`; look there when you have written yours.
#
# Two heads of a model without rotary positions do exactly the same, but head 1
# has written it in other coordinates: its queries and keys are those of head 0,
# each turned by the same rotation R. Why do both give the same scores? Why does
# neither head keep its scores, once the key projections of both are replaced by
# their mean? And what would you do first, so that nothing is lost?

# %% [markdown] why="mean_of_two_heads"
# <!-- ### BEGIN SOLUTION -->
# A dot product does not notice when both vectors are turned by the same rotation,
# so R q with R k scores as q with k. The mean of the keys is (k + R k) / 2. Head
# 0's query meets it with half of its old score and half of q · R k, which is
# about something else, and head 1 fares likewise. So first turn head 1 back: undo
# R in its query projection and in its key projection, which changes no score. Now
# the two key projections are equal, and so is their mean.
#
# **Rubric**
#
# - says that turning queries and keys by the same rotation leaves every dot
#   product as it is (1 point)
# - says that the mean holds R k as well, against which a query of head 0 has no
#   meaningful score, so that the scores change (1 point)
# - says that before the mean head 1 must be turned back, its queries and its
#   keys both; also right: head 0 is turned by R, its queries and its keys both
#   (1 point)
# <!-- ### END SOLUTION -->

# %% [markdown]
# You can now attend in groups without a copy, say what pooling heads does
# and what it breaks, and take latent attention apart and put it together
# again in both of its forms.
