# %% [markdown]
# # Assignment 00: split and merge heads
#
# Two small functions, about 15 minutes. They move numbers between axes
# and compute nothing. They come first because almost every cache in this
# course stores its keys and values in the layout that they make, and
# because a reshape that is wrong keeps the right shape: nothing crashes,
# and the model quietly talks nonsense.
#
# **How an exercise works.** Write your answer in the answer cell, in place
# of the `raise` line, and run the cell. Then run the check below it. If
# something is wrong, the check says what; if it is a mistake that others
# make too, it knows its name. You may check as often as you like.
#
# Stuck? `kvlearn.hint("split_heads")` in a cell of your own gives a first
# hint; call it again for the next one.
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import torch

import kvlearn

# %% [markdown]
# ## Exercise: `split_heads`
#
# *10 minutes · difficulty 1 of 3*
#
# A token enters attention as one vector, 12 numbers wide, say. With 3
# heads, head 0 works on the first 4 of them, head 1 on the next 4, head 2
# on the last 4. Each head then looks at all tokens, so the heads go before
# the tokens:
#
# `(batch, length, heads * head_dim)` → `(batch, heads, length, head_dim)`
#
# This holds for any number of heads that divides the width, and for numbers
# of any dtype, which stays as it is.
#
# **By hand.** One text (batch 1) of two tokens, four numbers each, and two
# heads. The first digit says which token a number belongs to, the second
# which channel:
#
# | token | numbers |
# |---|---|
# | 0 | 00 01 02 03 |
# | 1 | 10 11 12 13 |
#
# becomes
#
# | head | token 0 | token 1 |
# |---|---|---|
# | 0 | 00 01 | 10 11 |
# | 1 | 02 03 | 12 13 |
#
# Read it twice: in which order do the eight numbers lie in memory before,
# and in which order does the second table read them? They are not the
# same, so a `view` alone cannot do this.


# %% answer="split_heads"
def split_heads(x, num_heads):
    """(B, L, num_heads * D) -> (B, num_heads, L, D)"""
    ### BEGIN SOLUTION
    B, L, width = x.shape
    per_head = x.view(B, L, num_heads, width // num_heads)
    return per_head.transpose(1, 2)
    ### END SOLUTION


# %% check="split_heads"
kvlearn.check("split_heads", split_heads)

# %% [markdown]
# Did you use `transpose`? Then no number was copied: the result is a
# *view*, another way to read the same memory. Keep that in mind until
# assignment 04: a cache that keeps what it was handed, and not a copy,
# finds it changed.

# %% [markdown]
# ## Exercise: `merge_heads`
#
# *5 minutes · difficulty 1 of 3*
#
# After attention, every token is to be one vector again. This undoes the
# exercise before, number by number:
#
# `(batch, heads, length, head_dim)` → `(batch, length, heads * head_dim)`
#
# **By hand.** Take the second table above and write down the vector of
# token 0. It must be 00 01 02 03 again. If you got 00 01 10 11, you have
# met the mistake that this exercise is about.


# %% answer="merge_heads"
def merge_heads(x):
    """(B, H, L, D) -> (B, L, H * D)"""
    ### BEGIN SOLUTION
    B, H, L, D = x.shape
    return x.transpose(1, 2).reshape(B, L, H * D)
    ### END SOLUTION


# %% check="merge_heads"
kvlearn.check("merge_heads", merge_heads)

# %% [markdown]
# ## Both together
#
# Splitting and merging should give back exactly what went in, for any
# number of heads that divides the width.

# %%
x = torch.arange(2 * 5 * 12).view(2, 5, 12)
for num_heads in (1, 2, 3, 4, 6, 12):
    back = merge_heads(split_heads(x, num_heads))
    print(num_heads, "heads:", torch.equal(back, x))

# %% [markdown]
# **Think before you go on.** A wrong `split_heads` (a `view` straight to
# the final shape) followed by the wrong `merge_heads` (a `reshape` straight
# back) also gives back what went in. Why is that no proof that they are
# right? It is the reason that the checks here compare with an independent
# calculation, and never one of your functions with another.
