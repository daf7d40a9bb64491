# %% [markdown]
# # Assignment 08: fewer bits
#
# Eight exercises and one question, about 125 minutes: codes and scales, two codes
# in a byte, groups, fp8, and at the end a quantised cache. The real model runs on it.
#
# | letter | what it counts |
# |---|---|
# | `B` | rows in the batch |
# | `H` | heads |
# | `T` | tokens |
# | `D` | numbers in one head's vector (head_dim): the channels |
#
# Run the next cell first, and again whenever you have restarted the kernel.

# %%
import torch

import kvlearn
from kvlearn import measure

# %% [markdown]
# ## Exercise: `quantize_int8`
#
# *10 minutes · difficulty 1 of 3*
#
# `x` is `(B, H, T, D)`. Give each token of each head a scale of its own, so
# that its largest |number| becomes 127 or -127, and return
#
# - `codes`, int8 `(B, H, T, D)`: how many scales each number is, rounded;
# - `scale`, `(B, H, T, 1)`, in the dtype of `x`.
#
# **By hand.** A token of 0.5, -2.54, 1.0: the scale is 2.54 / 127 = 0.02,
# the codes are 25, -127, 50. A token of zeros has the codes 0, 0, 0, and any
# finite scale.


# %% answer="quantize_int8"
def quantize_int8(x):
    """(B, H, T, D) -> int8 (B, H, T, D), scale (B, H, T, 1)"""
    ### BEGIN SOLUTION
    scale = x.abs().amax(dim=-1, keepdim=True) / 127
    steps = x / scale.masked_fill(scale == 0, 1)
    return steps.round().to(torch.int8), scale
    ### END SOLUTION


# %% check="quantize_int8"
kvlearn.check("quantize_int8", quantize_int8)

# %% [markdown]
# ## Exercise: `quantize_asymmetric`
#
# *15 minutes · difficulty 2 of 3*
#
# The same with a **zero**: the grid of a token begins at its smallest number
# and ends at its largest. A code of `bits` bits is 0 to `2**bits - 1`, and
# a number is nearly `code * scale + zero`. Return
#
# - `codes`, uint8 `(B, H, T, D)`;
# - `scale` and `zero`, `(B, H, T, 1)` each, in the dtype of `x`.
#
# **By hand.** 2 bits, a token of 5, 6, 8: the zero is 5, the scale 3 / 3 =
# 1, the codes 0, 1, 3. A token of 7, 7, 7 has the zero 7, the codes 0, 0, 0,
# and any finite scale.


# %% answer="quantize_asymmetric"
def quantize_asymmetric(x, bits):
    """(B, H, T, D), number -> codes, scale, zero"""
    ### BEGIN SOLUTION
    zero = x.amin(dim=-1, keepdim=True)
    scale = (x.amax(dim=-1, keepdim=True) - zero) / (2**bits - 1)
    steps = (x - zero) / scale.masked_fill(scale == 0, 1)
    return steps.round().to(torch.uint8), scale, zero
    ### END SOLUTION


# %% check="quantize_asymmetric"
kvlearn.check("quantize_asymmetric", quantize_asymmetric)

# %% [markdown]
# ## Exercise: `pack_int4`
#
# *15 minutes · difficulty 2 of 3*
#
# `codes` is int8, `(H, T, D)`, with numbers from -8 to 7 and an even `D`.
# Put two neighbours into each byte: channel 0 into the low four bits of byte
# 0, channel 1 into its high four bits, and so on. Return uint8
# `(H, T, D / 2)`. Of a negative code its low four bits go in, as int8 has
# them: -1 is 1111 and -8 is 1000.
#
# **By hand.** The codes 5, 2, -1, -8 become two bytes: 0010 0101 is 37, and
# 1000 1111 is 143.


# %% answer="pack_int4"
def pack_int4(codes):
    """int8 (H, T, D) -> uint8 (H, T, D / 2)"""
    ### BEGIN SOLUTION
    nibbles = codes.view(torch.uint8) & 15
    return nibbles[..., ::2] | (nibbles[..., 1::2] << 4)
    ### END SOLUTION


# %% check="pack_int4"
kvlearn.check("pack_int4", pack_int4)

# %% [markdown]
# ## Exercise: `unpack_int4`
#
# *10 minutes · difficulty 2 of 3*
#
# The way back: uint8 `(H, T, D / 2)` to int8 `(H, T, D)`, numbers from -8
# to 7.
#
# **By hand.** The bytes 37 and 143 become 5, 2, -1, -8.


# %% answer="unpack_int4"
def unpack_int4(packed):
    """uint8 (H, T, D / 2) -> int8 (H, T, D)"""
    ### BEGIN SOLUTION
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    codes = nibbles.to(torch.int8)
    return torch.where(codes > 7, codes - 16, codes)
    ### END SOLUTION


# %% check="unpack_int4"
kvlearn.check("unpack_int4", unpack_int4)

# %% [markdown]
# ## Exercise: `quantize_by_group`
#
# *20 minutes · difficulty 3 of 3*
#
# Which numbers share a scale and a zero? `quant_group` neighbours:
#
# - `axis="channel"`: each channel has scales of its own, one for
#   `quant_group` **tokens**. `scale` and `zero` are
#   `(B, H, T / quant_group, D)`.
# - `axis="token"`: each token has scales of its own, one for `quant_group`
#   **channels**. They are `(B, H, T, D / quant_group)`.
#
# `codes` is uint8, `(B, H, T, D)`. The group always divides its axis.
#
# **By hand.** Two bits, `axis="channel"`, groups of 2 tokens, one head
# with four tokens of two channels:
#
# | token | channel 0 | channel 1 |
# |---|---|---|
# | 0 | 1 | 10 |
# | 1 | 4 | 40 |
# | 2 | 0 | 0 |
# | 3 | 0 | 6 |
#
# The zeros are (1, 10) for tokens 0 and 1, and (0, 0) for 2 and 3. The
# scales are (1, 10), then (any, 2). The codes: (0, 0), (3, 3), (0, 0),
# (0, 3).


# %% answer="quantize_by_group"
def quantize_by_group(x, bits, quant_group, axis):
    """(B, H, T, D) -> codes, scale, zero"""
    ### BEGIN SOLUTION
    dim = -2 if axis == "channel" else -1
    groups = x.unflatten(dim, (x.shape[dim] // quant_group, quant_group))
    zero = groups.amin(dim=dim, keepdim=True)
    scale = (groups.amax(dim=dim, keepdim=True) - zero) / (2**bits - 1)
    steps = (groups - zero) / scale.masked_fill(scale == 0, 1)
    codes = steps.round().to(torch.uint8).reshape(x.shape)
    return codes, scale.squeeze(dim), zero.squeeze(dim)
    ### END SOLUTION


# %% check="quantize_by_group"
kvlearn.check("quantize_by_group", quantize_by_group)

# %% [markdown]
# ## Exercise: `to_fp8`
#
# *5 minutes · difficulty 1 of 3*
#
# `torch.float8_e4m3fn` has 8 bits with a point that moves: small numbers
# are kept finely, large ones coarsely. It ends at 448. Divide `x`
# `(H, T, D)` by `scale` `(T, 1)` and return it in that dtype; what is beyond
# the end becomes the end.
#
# What a cast does with 500 depends on the version of torch: 448 in recent
# ones, NaN in older ones. This check casts as the older ones do.
#
# **By hand.** A scale of 2: 3.0 becomes 1.5, 1000 becomes 448, and -1000
# becomes -448.


# %% answer="to_fp8"
def to_fp8(x, scale):
    """(H, T, D), (T, 1) -> float8_e4m3fn (H, T, D)"""
    ### BEGIN SOLUTION
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    ### END SOLUTION


# %% check="to_fp8"
kvlearn.check("to_fp8", to_fp8)

# %% [markdown]
# ## Exercise: `tokens_in_codes`
#
# *10 minutes · difficulty 2 of 3*
#
# A cache keeps its newest `residual` tokens exact. Keys are quantised by
# channel, over groups of `quant_group` tokens, so they become codes in whole
# groups; values are quantised by token, one by one. Of a text of `length`
# tokens, how many keys are codes, and how many values? Return both, as
# whole numbers.
#
# **By hand.** `residual` 4, groups of 3. At 7 tokens three keys and three
# values are codes. At 8 tokens still three keys, and four values.


# %% answer="tokens_in_codes"
def tokens_in_codes(length, residual, quant_group):
    """-> (keys in codes, values in codes)"""
    ### BEGIN SOLUTION
    old = max(0, length - residual)
    return old // quant_group * quant_group, old
    ### END SOLUTION


# %% check="tokens_in_codes"
kvlearn.check("tokens_in_codes", tokens_in_codes)

# %% [markdown]
# ## Exercise: `quantized_cache`
#
# *30 minutes · difficulty 3 of 3*
#
# Your cache of lesson 04 with fewer bits. Keys and values are treated
# alike here: old tokens as int8 codes with one scale a token and head
# (your `quantize_int8`), the last `residual` tokens exact.
#
# | method | what it does |
# |---|---|
# | `_start(batch_size)` | makes the cache empty, for so many rows |
# | `_append(layer, k, v)` | stores copies; returns the layer's keys and values, all of them: those of codes, the recent ones, the new ones |
# | `_truncate(layer, length)` | keeps the layer's first `length` slots |
# | `_tensors()` | a list of the tensors that are kept: codes, scales, recent ones |
#
# Two rules. What is new comes back **exactly**, and is quantised after
# that. And what is a code stays the code that it is, also when so much is
# forgotten that nothing exact is left.
#
# **By hand.** `residual` 2. A prompt of 5 tokens a b c d e comes back as it
# is; a b c are codes now, d e are exact. Then f: what comes back is a' b'
# c' d e f, and d becomes a code, too. After `truncate(2)` the codes a b are
# left, and then g comes back behind a' b'.
#
# One layer's keys take `D` + 4 bytes for each old token and head, and
# 4 x `D` for each recent one.


# %% answer="quantized_cache"
class MyQuantizedCache(kvlearn.KVCache):
    def __init__(self, config, residual=4, batch_size=1,
                 dtype=None, device=None):
        self.residual = residual
        super().__init__(config, batch_size, dtype=dtype, device=device)

    def _start(self, batch_size):
        ### BEGIN SOLUTION
        heads, head_dim = self.key_shape
        nothing = torch.empty(batch_size, heads, 0, head_dim,
                              dtype=self.dtype, device=self.device)
        # For each layer and side: codes, scales, recent tokens.
        self.sides = [[(*quantize_int8(nothing), nothing)] * 2
                      for _ in range(self.num_layers)]
        ### END SOLUTION

    def _append(self, layer, k, v):
        ### BEGIN SOLUTION
        everything = []
        for side, new in enumerate((k, v)):
            codes, scale, recent = self.sides[layer][side]
            recent = torch.cat((recent, new), dim=2)
            everything.append(torch.cat((codes * scale, recent), dim=2))
            old = max(0, recent.shape[2] - self.residual)
            more, its_scale = quantize_int8(recent[:, :, :old])
            self.sides[layer][side] = (
                torch.cat((codes, more), dim=2),
                torch.cat((scale, its_scale), dim=2),
                recent[:, :, old:].clone())
        return tuple(everything)
        ### END SOLUTION

    def _truncate(self, layer, length):
        ### BEGIN SOLUTION
        kept = []
        for codes, scale, recent in self.sides[layer]:
            left = max(0, length - codes.shape[2])
            kept.append((codes[:, :, :length].clone(),
                         scale[:, :, :length].clone(),
                         recent[:, :, :left].clone()))
        self.sides[layer] = kept
        ### END SOLUTION

    def _tensors(self):
        ### BEGIN SOLUTION
        return [tensor for layer in self.sides for side in layer
                for tensor in side]
        ### END SOLUTION


# %% check="quantized_cache"
kvlearn.check("quantized_cache", MyQuantizedCache)

# %% [markdown]
# ## The real model, on your cache
#
# The same question, once with an exact cache and once with yours.

# %%
model, tokenizer = kvlearn.load_or_tiny(device=measure.device())
place = {"dtype": model.dtype, "device": model.device}
prompt = tokenizer.chat([{"role": "user", "content":
    "What is the capital of France? Answer in one sentence."}])
caches = {"exact": kvlearn.GrowingCache(model.config, **place),
          "yours": MyQuantizedCache(model.config, residual=8, **place)}
for name, cache in caches.items():
    new = kvlearn.generate(model, prompt, 12, cache=cache,
                           eos_ids=tokenizer.eos_ids).tokens[0]
    print(name, "|", tokenizer.decode(new), "|", cache.used_bytes, "bytes")

# %% [markdown]
# ## Why? Scales in advance
#
# *10 minutes · 3 points · in a class, read by a person*
#
# In three to five sentences. A model answer and what earns each point are in
# `solutions/`; look there when you have written yours.
#
# Keys quantised by channel must wait until a group of tokens is full. A
# colleague has a way around it: measure each channel's largest |number| on some
# texts beforehand, and use that as its scale for ever. What is gained? And what
# may happen to a later token, if the scale was measured too small, and if it was
# chosen large to be safe?

# %% [markdown] why="scales_in_advance"
# <!-- ### BEGIN SOLUTION -->
# Every key can be quantised the moment it arrives: nothing waits for a group. And
# no scale is stored for each group, so a code costs little more than its bits.
# But the scale no longer follows the numbers. If a later token is larger than all
# that was measured, its code is cut off at the end of the grid, and the error is
# no longer half a step but whatever lies beyond. If the scale was chosen large to
# be safe, every step is coarse, and the usual, smaller numbers of that channel
# get few of the codes, down to none but 0.
#
# **Rubric**
#
# - says what is gained: no token waits for a group, or no scale has to be
#   stored for each group (1 point)
# - says that a number beyond the measured range is cut off (or comes round, if
#   nobody clamps), so that its error is more than half a step (1 point)
# - says that a scale with room to spare makes the steps coarse for all the
#   usual numbers of the channel (1 point)
# <!-- ### END SOLUTION -->

# %% [markdown]
# **What you can do now.** Say what a code, a scale and a zero are and what
# they cost, pack four bits without losing a sign, choose which numbers
# share a scale, and keep a cache whose old tokens take little more than a
# quarter of their bytes (68 of 256 a head here), without touching what is
# new.
