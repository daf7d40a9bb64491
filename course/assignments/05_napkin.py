# %% [markdown]
# # Assignment 05: the napkin
#
# Eight small functions and one question, about 105 minutes. Each function is one
# line of arithmetic once it is understood, and most of the work is to find out
# which line. The checks draw fresh numbers from their seed:
# `kvlearn.check("cache_size", cache_size, seed=7)` is another sheet.
#
# **Sizes in any unit.** Where a size is asked for you may give bytes
# (`1342177280`) or what a person would write: `"1.25 GiB"`, `"1.34 GB"`,
# `"1,280 MiB"`. A rounded number counts as what it rounds: write at least
# three digits, and more where a mistake would round to the same. GiB is
# 2^30 bytes and GB is 10^9.
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import kvlearn

# %% [markdown]
# ## Exercise: `read_sizes`
#
# *15 minutes · difficulty 2 of 3*
#
# `config` is a dictionary, read from a model's config.json. Give three
# numbers as a tuple: the layers, the **key/value** heads, and the width of
# one head. Real files differ:
#
# | field | what may be there |
# |---|---|
# | `num_hidden_layers`, `num_attention_heads`, `hidden_size` | always |
# | `num_key_value_heads` | a number; or null, or missing: as many as heads |
# | `head_dim` | a number; or null, or missing: `hidden_size` shared out over the query heads |
# | `text_config` | where it is there, everything is inside it |
#
# **By hand.** `{"num_hidden_layers": 4, "num_attention_heads": 6,
# "hidden_size": 48, "num_key_value_heads": 2}` gives `(4, 2, 8)`. With
# `"head_dim": 16` in it the result is `(4, 2, 16)`.


# %% answer="read_sizes"
def read_sizes(config):
    """dict -> (layers, key/value heads, width of a head)"""
    ### BEGIN SOLUTION
    config = config.get("text_config", config)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return config["num_hidden_layers"], kv_heads, head_dim
    ### END SOLUTION


# %% check="read_sizes"
kvlearn.check("read_sizes", read_sizes)

# %% [markdown]
# ## Exercise: `bytes_per_token`
#
# *10 minutes · difficulty 1 of 3*
#
# How many bytes of cache does one more token of one sequence cost? You are
# given more than you need, as in life. `bits` is the width of one stored
# number.
#
# | parameter | |
# |---|---|
# | `num_layers` | layers, each with a cache of its own |
# | `num_heads`, `num_kv_heads` | query heads, key/value heads |
# | `head_dim` | width of one head |
# | `hidden_size` | width of the hidden state |
# | `bits` | 16 for bf16, 8 for fp8, 4 for packed int4 |
#
# **By hand.** 2 layers, 4 query heads, 2 key/value heads of width 3, hidden
# size 12, 16 bits. In one layer a token leaves a key and a value in each of
# the two key/value heads, three numbers each: 12 numbers. Two layers: 24
# numbers, 48 bytes.


# %% answer="bytes_per_token"
def bytes_per_token(num_layers, num_heads, num_kv_heads, head_dim,
                    hidden_size, bits):
    """Bytes of cache for one token of one sequence."""
    ### BEGIN SOLUTION
    numbers = num_layers * 2 * num_kv_heads * head_dim
    return numbers * bits // 8
    ### END SOLUTION


# %% check="bytes_per_token"
kvlearn.check("bytes_per_token", bytes_per_token)

# %% [markdown]
# ## Exercise: `cache_size`
#
# *10 minutes · difficulty 1 of 3*
#
# A batch of `batch` sequences, each with a prompt of `prompt` tokens,
# has generated `new_tokens` tokens each. How large is the cache at that
# moment? `token_bytes` is the cost of one token of one sequence.
#
# **By hand.** 100 bytes a token, a prompt of 5, one new token, one
# sequence: the prompt's pass gave the new token, and nothing else has been
# fed. 500 bytes.


# %% answer="cache_size"
def cache_size(token_bytes, prompt, new_tokens, batch):
    """Size of the cache when the last new token has been chosen."""
    ### BEGIN SOLUTION
    fed = prompt + new_tokens - 1
    return token_bytes * fed * batch
    ### END SOLUTION


# %% check="cache_size"
kvlearn.check("cache_size", cache_size)

# %% [markdown]
# ## Exercise: `hybrid_bytes`
#
# *10 minutes · difficulty 2 of 3*
#
# `windows` has one entry for each layer: a number W where the layer looks
# back over the last W tokens only (the newest included), or `None` where it
# looks back over all. `tokens` have been fed, in one sequence, and numbers
# take 16 bits. How large is the cache if no layer keeps more than it needs?
#
# **By hand.** Windows `[2, None]`, one key/value head of width 1, 5 tokens.
# The first layer holds 2 tokens and the second 5: seven keys and seven
# values of two bytes, 28 bytes.


# %% answer="hybrid_bytes"
def hybrid_bytes(windows, num_kv_heads, head_dim, tokens):
    """Size of one sequence's cache, each layer with its own window."""
    ### BEGIN SOLUTION
    slots = sum(tokens if window is None else min(tokens, window)
                for window in windows)
    return slots * 2 * num_kv_heads * head_dim * 2
    ### END SOLUTION


# %% check="hybrid_bytes"
kvlearn.check("hybrid_bytes", hybrid_bytes)

# %% [markdown]
# ## Exercise: `latent_bytes`
#
# *5 minutes · difficulty 1 of 3*
#
# Latent attention (DeepSeek) stores two things for each token in each
# layer: one **latent** of `latent_dim` numbers, from which all heads make
# their keys and their values, and one small **rotary key** of `rope_dim`
# numbers, which all heads share. Numbers take 16 bits.
#
# **By hand.** 1 layer, 4 heads, a latent of 8, a rotary key of 2, 3 tokens:
# ten numbers a token, 60 bytes.


# %% answer="latent_bytes"
def latent_bytes(num_layers, num_heads, latent_dim, rope_dim, tokens):
    """Size of one sequence's cache with latent attention."""
    ### BEGIN SOLUTION
    return num_layers * (latent_dim + rope_dim) * tokens * 2
    ### END SOLUTION


# %% check="latent_bytes"
kvlearn.check("latent_bytes", latent_bytes)

# %% [markdown]
# ## Exercise: `quantised_bytes`
#
# *20 minutes · difficulty 3 of 3*
#
# One layer, one key/value head, one sequence of `tokens` tokens, stored in a
# scheme after KIVI (arXiv 2402.02750), simplified in the window of the keys:
#
# - The last `residual` tokens stay in full, 2 bytes a number, keys and
#   values alike. What is older becomes codes of `bits` bits:
# - **values** at once, token by token. Within a token, `quant_group`
#   channels share a scale and a zero.
# - **keys** in whole groups of `quant_group` tokens. For each channel a
#   group has one scale and one zero. Keys that are old enough but do not
#   make a whole group yet stay in full.
#
# A scale and a zero take 2 bytes each. `head_dim` is a multiple of
# `quant_group`, and codes fill their bytes.
#
# **By hand.** 7 tokens, `head_dim` 4, 4 bits, groups of 4, residual 1. Six
# tokens are old enough. Keys: one whole group, 4 tokens, is 8 bytes of
# codes and 4 channels x 4 bytes; the 3 others are 3 x 4 x 2. Together 48.
# Values: 6 tokens are 12 bytes of codes and 6 x 4 bytes; the last one is 8.
# Together 44. The result is 92.


# %% answer="quantised_bytes"
def quantised_bytes(tokens, head_dim, bits, quant_group, residual):
    """Size of the keys and values of one head in one layer."""
    ### BEGIN SOLUTION
    old = max(tokens - residual, 0)
    keys = old - old % quant_group  # whole groups only
    codes = (keys + old) * head_dim * bits // 8
    groups = (keys + old) * head_dim // quant_group
    full = (tokens - keys) + (tokens - old)
    return codes + groups * 4 + full * head_dim * 2
    ### END SOLUTION


# %% check="quantised_bytes"
kvlearn.check("quantised_bytes", quantised_bytes)

# %% [markdown]
# ## Exercise: `sequences_that_fit`
#
# *10 minutes · difficulty 2 of 3*
#
# A device has `memory` bytes, and the weights take `weight_bytes` of them.
# The rest is handed out in blocks of `block` tokens; a sequence takes whole
# blocks of its own. How many sequences of `tokens` tokens fit? Give a whole
# number. All sizes are in bytes. If the weights alone do not fit, the answer
# is 0.
#
# **By hand.** Memory 100, weights 40, 1 byte a token, sequences of 5
# tokens, blocks of 4. A sequence takes two blocks, 8 bytes; 60 bytes are
# free: 7 sequences.


# %% answer="sequences_that_fit"
def sequences_that_fit(memory, weight_bytes, token_bytes, tokens, block):
    """The most sequences beside the weights, each in whole blocks."""
    ### BEGIN SOLUTION
    blocks = -(-tokens // block)  # rounded up
    each = blocks * block * token_bytes
    return max(memory - weight_bytes, 0) // each
    ### END SOLUTION


# %% check="sequences_that_fit"
kvlearn.check("sequences_that_fit", sequences_that_fit)

# %% [markdown]
# ## Exercise: `crossover_batch`
#
# *10 minutes · difficulty 2 of 3*
#
# What is the smallest batch whose cache weighs **more** than the weights?
# Each sequence has `tokens` tokens of `token_bytes` bytes; the model has
# `parameters` weights of `weight_bits` bits. Give a whole number.
#
# **By hand.** 10 parameters of 8 bits, 2 bytes a token, 2 tokens. The
# weights are 10 bytes and a sequence is 4: two sequences are 8 and three
# are 12. The result is 3.


# %% answer="crossover_batch"
def crossover_batch(parameters, weight_bits, token_bytes, tokens):
    """The smallest batch whose cache outweighs the weights."""
    ### BEGIN SOLUTION
    weight_bytes = parameters * weight_bits // 8
    sequence = token_bytes * tokens
    return weight_bytes // sequence + 1
    ### END SOLUTION


# %% check="crossover_batch"
kvlearn.check("crossover_batch", crossover_batch)

# %% [markdown]
# ## Why? Which one to halve
#
# *15 minutes · 3 points · in a class, read by a person*
#
# In three to five sentences. A model answer and what earns each point are in
# `solutions/`; look there when you have written yours.
#
# Two services run the same model: 16 GB of weights, and a cache of 128 KiB a
# token. Each has 8 sequences side by side. One answers short questions of 500
# tokens, the other reads books of 100,000. Each may halve the bits of the weights
# or the bits of the cache. Which should each of them halve to make a decode step
# read less, and why? And which of the two halvings lets more books in, on a card
# with much memory left?

# %% [markdown] why="which_one_to_halve"
# <!-- ### BEGIN SOLUTION -->
# The short questions' cache is 8 · 500 · 128 KiB, half a GB beside 16 GB of
# weights; the books' is 8 · 100,000 · 128 KiB, 105 GB. A step reads all weights
# and all caches once, so the first service halves its weights, 16.5 GB to 8.5,
# and the second its cache, 121 GB to 68. One more book costs its cache, 13 GB,
# and no weights: with half the bits twice as many fit into what the weights
# leave, while halved weights make room for 8 GB once, which is not even one book.
#
# **Rubric**
#
# - works out both caches, about 0.5 GB and 105 GB, and holds them against the
#   weights (1 point)
# - says that a step reads both, so weights for the short questions and the
#   cache for the books (1 point)
# - says that another book costs cache alone: a halved cache lets twice as many
#   into what the weights leave, halved weights make room once (1 point)
# <!-- ### END SOLUTION -->

# %% [markdown]
# You can now take any config.json and say how large its cache is, what it
# costs in fewer bits, how many sequences fit on a card, and from which
# batch on the cache outweighs the weights.
# `kvlearn size` does the same sums on the command line.
