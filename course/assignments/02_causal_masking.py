# %% [markdown]
# # Assignment 02: causal masking
#
# Four functions and one question, about 65 minutes: two masks, attention that
# keeps to them, and an experiment that proves what every cache relies on.
#
# Close the lesson before you begin. Its lines would pass, and you would have typed
# them. Write each function from its table, by hand; when you are stuck,
# `kvlearn.hint("causal_mask")` and its like say a little at a time.
#
# Masks are boolean and **True means: may attend**. In shapes, `B` counts the
# rows of the batch, `H` the heads, `L` the queries, `S` the keys and `D` the
# channels of a head.
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import torch

import kvlearn

# %% [markdown]
# ## Exercise: `causal_mask`
#
# *10 minutes · difficulty 1 of 3*
#
# The queries are the newest tokens of a text, the keys are all of its tokens.
# Give the mask of `query_length` queries over `key_length` keys, shape
# `(L, S)`: a token sees itself and what came before it.
#
# **By hand.** A text of four tokens, of which the last two are new:
#
# | | key 0 | key 1 | key 2 | key 3 |
# |---|---|---|---|---|
# | query 0 (token 2) | True | True | True | False |
# | query 1 (token 3) | True | True | True | True |
#
# Before you write, draw the mask of two queries over *five* keys, and the one
# of a single query over eight. On paper; then open this:
#
# <details>
# <summary>The two masks</summary>
#
# Two queries over five keys: the first sees all but the last key, the second sees
# all five. A single query sees all eight.
#
# </details>


# %% answer="causal_mask"
def causal_mask(query_length, key_length):
    """The newest query_length tokens over all key_length: bool (L, S)"""
    ### BEGIN SOLUTION
    everything = torch.ones(query_length, key_length, dtype=torch.bool)
    return everything.tril(diagonal=key_length - query_length)
    ### END SOLUTION


# %% check="causal_mask"
kvlearn.check("causal_mask", causal_mask)

# %% [markdown]
# The number of True cells tells whether a triangle is whole. Six queries over
# ten keys see 5, 6, 7, 8, 9 and 10 of them. What is the sum?

# %%
print(int(causal_mask(6, 10).sum()))

# %% [markdown]
# <details>
# <summary>What it should say</summary>
#
# 45, the sum of 5 to 10: six numbers, 7.5 on average. If yours is 21, the corner of
# your triangle is at the wrong end.
#
# </details>

# %% [markdown]
# ## Exercise: `position_mask`
#
# *10 minutes · difficulty 2 of 3*
#
# The same, for any order of the keys and any padding. Each query and each key
# comes with its position in its own text. The query at position p sees the
# keys at positions 0 to p. Position −1 marks a place that holds nothing: as a
# key it is seen by nobody, and as a query it sees nobody.
#
# `query_positions` is `(B, L)`, `key_positions` is `(B, S)`; the mask is
# `(B, 1, L, S)`. Its axis of size 1 serves all heads.
#
# **By hand.** One row. The keys lie at positions `[2, 0, −1, 1]`, the queries
# are at 1 and 2:
#
# | | key at 2 | key at 0 | empty | key at 1 |
# |---|---|---|---|---|
# | query at 1 | False | True | False | True |
# | query at 2 | True | True | False | True |


# %% answer="position_mask"
def position_mask(query_positions, key_positions):
    """(B, L) and (B, S) positions -> bool (B, 1, L, S)"""
    ### BEGIN SOLUTION
    query = query_positions[:, None, :, None]  # (B, 1, L, 1)
    key = key_positions[:, None, None, :]  # (B, 1, 1, S)
    return (key >= 0) & (key <= query)
    ### END SOLUTION


# %% check="position_mask"
kvlearn.check("position_mask", position_mask)

# %% [markdown]
# Your two masks should agree where both apply: no padding, keys in order.

# %%
positions = torch.arange(7)[None]
by_position = position_mask(positions[:, -3:], positions)
print("the two masks agree:",
      torch.equal(by_position[0, 0], causal_mask(3, 7)))

# %% [markdown]
# ## Exercise: `masked_attention`
#
# *15 minutes · difficulty 2 of 3*
#
# Attention as in assignment 01, scaled by the square root of D, in which each
# query takes from the keys that its mask allows and from no others. A query
# that may see nothing gives zeros. No NaN comes out, whatever the mask.
#
# `q` is `(B, H, L, D)`, `k` and `v` are `(B, H, S, D)`, `mask` is
# `(B, 1, L, S)`; the result has the shape and the dtype of `q`, whichever that
# is: float64 and bfloat16 are tried too. Scores may be large.
#
# **By hand.** Three keys with equal scores, whose values are 6, 9 and 30:
#
# | the query may see | result |
# |---|---|
# | all three | 15 |
# | the first two | 7.5 |
# | the first | 6 |
# | none | 0 |
#
# Work out what a mask *after* the softmax would give in the second line.
#
# <details>
# <summary>The result of the wrong order</summary>
#
# Each of the three keys gets a third, and striking one out changes nothing for the
# others: 6/3 + 9/3 = 5. The right 7.5 is what remains when the two share the whole.
#
# </details>


# %% answer="masked_attention"
def masked_attention(q, k, v, mask):
    """q (B, H, L, D); k, v (B, H, S, D); mask bool (B, 1, L, S)"""
    ### BEGIN SOLUTION
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return weights.masked_fill(~mask, 0.0) @ v
    ### END SOLUTION


# %% check="masked_attention"
kvlearn.check("masked_attention", masked_attention)

# %% [markdown]
# ## Exercise: `changed_layers`
#
# *20 minutes · difficulty 2 of 3*
#
# Now the proof. For a given decoder: when a token is appended to a text, in
# which layers do the keys or values of the *old* tokens change?
#
# `decoder` is a `kvlearn.Decoder` (causal or not: that is for you to find
# out), `tokens` is `(B, L)` and `new_token` is `(B, 1)`. Return a list of
# layer numbers, `[]` if no layer changed. The first layer is layer 0. Leave the
# decoder as you found it: with its own attention, and without hooks of yours.
#
# Old numbers that come out of a longer matrix product can differ in their last
# digits. The decoders compute in float64, so a difference below 1e-9 is rounding;
# anything larger is a change.
#
# To look inside, use this. A decoder hands every layer's K and V to its
# attention function; so we put in one that writes them down first.


# %%
def keys_and_values(decoder, tokens):
    """Run the decoder. For each layer: K and V, each (B, Hkv, L, D)."""
    own, seen = decoder.attention, []

    def recording(q, k, v, mask=None):
        seen.append((k, v))
        return own(q, k, v, mask=mask)

    decoder.attention = recording
    try:
        with torch.no_grad():
            decoder(tokens)
    finally:
        decoder.attention = own  # leave the decoder as it was
    return seen


# %% [markdown]
# **By hand.** A decoder of two layers reads `[5, 3]`, then `[5, 3, 8]`, and
# its K (one head, one channel) comes out as:
#
# | | first run | second run |
# |---|---|---|
# | layer 0 | 0.2, 0.7 | 0.2, 0.7, 0.1 |
# | layer 1 | 0.4, 0.9 | 0.4, 0.6, 0.3 |
#
# If V stays as it was in both layers, the answer is `[1]`. If V of layer 0
# moves, it is `[0, 1]`, whatever its K does.


# %% answer="changed_layers"
def changed_layers(decoder, tokens, new_token):
    """The layers in which K or V of an old token changes: a list"""
    ### BEGIN SOLUTION
    before = keys_and_values(decoder, tokens)
    after = keys_and_values(decoder, torch.cat([tokens, new_token], dim=1))
    old = tokens.shape[1]
    changed = []
    for layer in range(len(before)):
        (k, v), (k_after, v_after) = before[layer], after[layer]
        moved_k = (k_after[:, :, :old] - k).abs().max()
        moved_v = (v_after[:, :, :old] - v).abs().max()
        if max(moved_k, moved_v) > 1e-9:
            changed.append(layer)
    return changed
    ### END SOLUTION


# %% check="changed_layers"
kvlearn.check("changed_layers", changed_layers)

# %% [markdown]
# ## Your experiment, on your own attention
#
# A decoder of four layers, once with the attention that you wrote and once
# with the same attention without its mask. Say what the two lines will show
# before you run the cell.

# %%
config = kvlearn.DecoderConfig(
    vocab_size=50, hidden_size=32, num_layers=4, num_heads=3,
    num_kv_heads=3, head_dim=8, intermediate_size=40)


def without_mask(q, k, v, mask=None):
    return masked_attention(q, k, v, torch.ones_like(mask))


torch.manual_seed(0)
text, new = torch.randint(50, (1, 9)), torch.randint(50, (1, 1))
for name, attention in (("your mask", masked_attention),
                        ("no mask", without_mask)):
    decoder = kvlearn.Decoder(config, attention=attention).double()
    print(name, "-> changed layers:", changed_layers(decoder, text, new))

# %% [markdown]
# <details>
# <summary>What they should say</summary>
#
# With your mask `[]`: no layer. Without it `[1, 2, 3]`: all but the first, whose K
# and V are made before any token has heard of another.
#
# </details>

# %% [markdown]
# ## Why? Layer 0 stays
#
# *10 minutes · 3 points · in a class, read by a person*
#
# In three to five sentences. A model answer and what earns each point are in
# `solutions/`; look there when you have written yours.
#
# Without a mask your experiment names layers 1, 2 and 3, and not layer 0. A
# classmate concludes: "So for a model without a causal mask I keep layer 0, and
# compute only the other three again. That saves a quarter of the work." What is
# true in this, and how much is really saved?

# %% [markdown] why="only_layer_0"
# <!-- ### BEGIN SOLUTION -->
# It is true that the keys and values of layer 0 may be kept: they are made from
# each token's own embedding. But layer 0 is more than that. When a token is
# appended, every old query sees a new key, so the attention of layer 0 comes out
# otherwise for all tokens, and with it all that is behind it: the output
# projection and the MLP. What is saved is two projections, of keys and values, in
# one layer of four (three, if the queries are kept as well); the layers above get
# another input and start from nothing.
#
# **Rubric**
#
# - says that the keys and values of layer 0 may be kept, because they come from
#   each token's own embedding (1 point)
# - says that the old tokens' attention in layer 0 changes all the same, because
#   their queries see the new key, so that the rest of layer 0 is computed again;
#   also right: the attention is only corrected for the new key, and the output
#   projection and the MLP are computed again (1 point)
# - concludes that two projections of one layer are saved (three, if the queries
#   are kept as well), far less than a quarter (1 point)
# <!-- ### END SOLUTION -->

# %% [markdown]
# **What you can do now:** build the mask for any number of new tokens after
# any number of stored ones, padded or not; keep NaN out of a batch; and show,
# rather than claim, that the keys and values of a causal decoder are final.
# In lesson 04 you will keep them.
