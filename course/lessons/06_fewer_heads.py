# %% [markdown]
# # 06 · Fewer heads
#
# **The question.** Open the config.json of nearly any model of the last
# years: many query heads, and only a few key/value heads. Why so few? And
# how can DeepSeek have 128 heads and still a smaller cache than
# models that have eight?
#
# You need lessons 04 and 05. About 60 minutes; a good place to stop is
# after the pooling of the real model.
#
# | letter | meaning |
# |---|---|
# | `B` | texts side by side (batch) |
# | `Hq`, `Hkv` | query heads, key/value heads |
# | `L` | new tokens: the queries |
# | `S` | stored tokens |
# | `D` | numbers in one head (head_dim) |

# %%
import torch

import kvlearn
from kvlearn import figures, measure, sizing

torch.manual_seed(0)
torch.set_printoptions(precision=2, sci_mode=False)
model, tokenizer = kvlearn.load_or_tiny(device=measure.device())
config = model.config

# %% [markdown]
# ## Who reads what
#
# In multi-head attention (**MHA**) every query head has a key/value head of
# its own. Six query heads, six keys and six values for each token. Here is
# one decode step of it: one new query over seven stored tokens.

# %%
B, Hq, L, S, D = 1, 6, 1, 7, 4
q = torch.randn(B, Hq, L, D)
k, v = torch.randn(B, Hq, S, D), torch.randn(B, Hq, S, D)
weights = torch.softmax(q @ k.mT / D**0.5, dim=-1)
print("one output for each head", tuple((weights @ v).shape))
print("numbers stored for a token:", 2 * Hq * D)

# %% [markdown]
# Now keep only two key/value heads and let the query heads share: 0, 1, 2
# read the first, 3, 4, 5 the second. Queries are not stored, so each
# head can go on asking its own question.

# %%
Hkv = 2
k, v = torch.randn(B, Hkv, S, D), torch.randn(B, Hkv, S, D)
shared_k = k.repeat_interleave(Hq // Hkv, dim=1)
shared_v = v.repeat_interleave(Hq // Hkv, dim=1)
weights = torch.softmax(q @ shared_k.mT / D**0.5, dim=-1)
out = weights @ shared_v
print("one output for each head", tuple(out.shape))
print("numbers stored for a token:", 2 * Hkv * D)

# %% [markdown]
# That is **grouped-query attention** (GQA, arXiv 2305.13245). The six outputs
# are still six different ones. With one key/value head for all it is called
# **multi-query attention** (MQA, arXiv 1911.02150).

# %%
figures.heads_diagram(Hq, Hkv)

# %% [markdown]
# Which heads share is a convention: neighbours do. `repeat` lays heads out
# 0 1 0 1 0 1, and `repeat_interleave` 0 0 0 1 1 1. Before you run this: how
# many of the six outputs stay right if you take the wrong one?

# %%
wrong_k, wrong_v = (t.repeat(1, Hq // Hkv, 1, 1) for t in (k, v))
wrong = torch.softmax(q @ wrong_k.mT / D**0.5, dim=-1) @ wrong_v
print("heads laid out", torch.arange(Hkv).repeat(3).tolist())
print("outputs that stay right:",
      [bool(torch.allclose(wrong[:, h], out[:, h])) for h in range(Hq)])

# %% [markdown]
# All shapes fit, some heads are even right, and no error is raised. In a
# real model the text falls apart (apple/axlearn#842 was this mistake).
#
# ## Without copies
#
# There is something odd in our code. We stored two heads to save memory, and
# then made six again, by copying, at every step. Copying is not needed:
# three query heads that read the same key are three rows of one matrix.

# %%
tall = q.reshape(B, Hkv, Hq // Hkv * L, D)
print("queries", tuple(q.shape), "->", tuple(tall.shape))
weights = torch.softmax(tall @ k.mT / D**0.5, dim=-1)
grouped = (weights @ v).reshape(B, Hq, L, D)
print("the same outputs:", torch.allclose(grouped, out))
print("the library's:", torch.allclose(kvlearn.attention(q, k, v), out))

# %% [markdown]
# Does it matter? Count the bytes that are alive while each of them runs, over
# a longer text.


# %%
def repeated(q, k, v):
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1)
            for t in (k, v))
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


# %%
long_q = torch.randn(1, 32, 1, 64)
long_k, long_v = torch.randn(2, 1, 4, 1000, 64)
print(f"the cache itself: {long_k.nbytes + long_v.nbytes:,} bytes")
for name, attend in (("repeated", repeated),
                     ("in groups", kvlearn.attention)):
    with measure.StorageMeter() as meter:
        attend(long_q, long_k, long_v)
    print(f"{name}: peak {meter.peak:,} bytes of working memory")

# %% [markdown]
# Repeating takes many times the cache. And what is copied must be written
# and read again, which is what a decode step has least time for.
#
# ## What it saves
#
# The cache has `Hkv` heads, so it shrinks by the size of a group. The real
# model of this course has fewer key/value heads than query heads.

# %%
print(config.num_heads, "query heads,",
      config.num_kv_heads, "key/value heads")
figures.heads_diagram(config.num_heads, config.num_kv_heads)

# %%
from dataclasses import replace

for heads in (config.num_heads, config.num_kv_heads, 1):
    cache = kvlearn.GrowingCache(replace(config, num_kv_heads=heads))
    keys = torch.zeros(1, heads, 10, config.head_dim)
    for layer in range(config.num_layers):
        cache.update(layer, keys, keys)
    predicted = 2 * config.num_layers * heads * config.head_dim * 4 * 10
    print(f"Hkv {heads}, 10 tokens: predicted {predicted:,}",
          f"measured {cache.used_bytes:,}")

# %% [markdown]
# (Four bytes a number here, because the cache is in float32.)
#
# The weights of the key and value projections shrink too, but they are a
# small part of a model. The cache is the point: as many times more tokens
# or texts fit into the same memory.
#
# Move the number of key/value heads yourself:

# %% tags=["nbval-ignore-output"]
from kvlearn import widgets

widgets.head_explorer(12, 3)

# %% [markdown]
# ## Can a trained model be changed?
#
# Suppose you have a model with many key/value heads and want few. The recipe
# of arXiv 2305.13245: **average the projections** of the heads that are to
# share, then train a little more (5 % of the original compute). First the
# averaging, on a matrix small enough to see. Four heads of width 2, one
# column:

# %%
from kvlearn.pooling import mean_pool_heads, pool_kv_heads

weight = torch.tensor([[1.0], [2], [3], [4], [50], [60], [70], [80]])
heads = weight.reshape(2, 2, 2, 1)  # new heads, old in each, D, hidden
print("by hand", heads.mean(dim=1).flatten().tolist())
print("library", mean_pool_heads(weight, 2, 2).flatten().tolist())

# %% [markdown]
# Neighbours are averaged, because neighbours will share. And it is a mean,
# not a sum: where the heads agree, a mean leaves the scores as they were and
# a sum of three multiplies them by three.
#
# Now the real model: all its key/value heads become one. Before
# you run the next cells: will it still know the capital of France? Half as
# well? Not at all?

# %%
pooled = pool_kv_heads(model, 1)
print("heads", config.num_kv_heads, "->", pooled.config.num_kv_heads)
print("bytes a token", measure.kv_bytes(model, 1), "->",
      measure.kv_bytes(pooled, 1))

# %% tags=["nbval-ignore-output"]
prompt = tokenizer.encode("The capital of Italy is Rome. The capital of")
for name, one in (("before", model), ("pooled", pooled)):
    text = kvlearn.generate(one, prompt, 8).tokens[0]
    print(f"{name}: {tokenizer.decode(text)!r}")

# %% [markdown]
# Not at all. A number says how badly. **Perplexity** is the number of tokens
# among which the model hesitates, on average, before each next one of a
# given text. A model that guesses blindly has the size of its vocabulary.

# %%
text = (
    "Bread is flour, water, salt and time. Yeast eats the sugar in "
    "the flour and breathes out gas, and the dough rises."
)
ids = torch.tensor([tokenizer.encode(text)], device=model.device)


@torch.no_grad()
def perplexity(one):
    logits = one(ids)[0, :-1].float()
    loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
    return loss.exp().item()


# %% tags=["nbval-ignore-output"]
print(f"before {perplexity(model):,.0f},",
      f"pooled {perplexity(pooled):,.0f}, blind {config.vocab_size:,}")

# %% [markdown]
# So the cache is a third, and the model is lost. Averaging is where further
# training *begins*. Why is it so bad? Compare the key projections of the
# three heads of one layer: 1 means the same direction, 0 nothing in common.

# %% tags=["nbval-ignore-output"]
middle = model.layers[config.num_layers // 2].self_attn.k_proj.weight
heads = middle.detach().cpu().unflatten(0, (config.num_kv_heads, -1))
print(torch.corrcoef(heads.flatten(1)))

# %% [markdown]
# As matrices the heads have nothing in common, and the mean of unrelated
# directions is none of them. (That does not say that they look for different
# things: two heads that do the same may have written it in different
# coordinates. Averaging fails either way.)
#
# How much does it hurt to pool **one** layer and leave the others?


# %%
def pool_one_layer(number):
    changed = pool_kv_heads(model, config.num_kv_heads)  # a copy
    attn = changed.layers[number].self_attn
    for proj in (attn.k_proj, attn.v_proj):
        mean = mean_pool_heads(proj.weight.data, config.head_dim, 1)
        proj.weight.data = mean.repeat(config.num_kv_heads, 1)
    return changed


# %% tags=["nbval-ignore-output"]
for number in (0, config.num_layers // 2, config.num_layers - 1):
    print(f"layer {number} pooled:",
          f"perplexity {perplexity(pool_one_layer(number)):,.0f}")

# %% [markdown]
# The middle and the last layer are hardly missed; the first is. All thirty
# together are too much: each works on what the damaged ones below it have
# made. Models with few key/value heads are
# good because they were **trained** with them, from the start or for a while
# at the end.
#
# ## One latent for all heads
#
# Sharing says: heads, use the same key. **Latent attention** (MLA,
# DeepSeek-V2, arXiv 2405.04434) says: heads, make your own keys, but from
# the same small vector. A token's hidden state is projected *down* to a
# **latent**, the latent is stored, and each head has a matrix that goes *up*
# again. Small numbers: hidden size 4, a latent of 2, two heads of width 3.

# %%
torch.manual_seed(2)
down = torch.randint(-2, 3, (2, 4)).double()
W_UK = torch.randint(-2, 3, (2, 3, 2)).double()  # up, keys: head by head
x = torch.randint(-2, 3, (5, 4)).double()  # hidden states of 5 tokens
latent = x @ down.T
print("stored: latents", tuple(latent.shape))
keys = latent @ W_UK.mT
print("made from them: keys", tuple(keys.shape), "(head, token, width)")

# %% [markdown]
# The two heads have different keys of the same token, and only the latent
# was stored:

# %%
print("latent of token 0 ", latent[0].tolist())
for head in range(2):
    print(f"key of it, head {head}", keys[head, 0].tolist())

# %% [markdown]
# Values are made in the same way, by matrices `W_UV`. This is the
# **expanded** form. It stores little, and at every decode step it makes all
# keys of all stored tokens again. That is a lot of work for one query.
#
# ## Absorb the matrix
#
# The key is only there to be multiplied by the query. The score is
# q · (W c). Put the brackets elsewhere: (Wᵀ q) · c. The matrix
# moves to the query's side, where it is applied **once** and not once for
# each stored token.

# %%
query = torch.randint(-2, 3, (2, 1, 3)).double()  # head, one query, width
expanded = query @ keys.mT
moved = query @ W_UK  # (head, 1, latent)
absorbed = moved @ latent.T
print("expanded", expanded[:, 0].tolist())
print("absorbed", absorbed[:, 0].tolist())

# %% [markdown]
# Equal, and no key was made. The other end goes the same way: the weighted
# sum of values W c is W times the weighted sum of latents.

# %%
W_UV = torch.randint(-2, 3, (2, 3, 2)).double()
weights = torch.softmax(expanded / 3**0.5, dim=-1)
values = latent @ W_UV.mT
print("sum of values = value of the sum:",
      torch.allclose(weights @ values, (weights @ latent) @ W_UV.mT))

# %% [markdown]
# Look at what the absorbed form is: two query heads, and both read the same
# latents, as keys and as values. It is **multi-query attention** with one
# wide key/value head.
#
# ## What positions do to it
#
# RoPE turns a key by its position (lesson 03). Then a matrix that differs
# at every position stands between W and the query, and there is no one
# matrix that the query could take in. What would the query have to
# absorb for a key at position 0, and at position 3?


# %%
def turn(position):  # a turn of the first two of three coordinates
    angle = torch.tensor(float(position))
    c, s = angle.cos(), angle.sin()
    return torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]]).double()


for position in (0, 3):
    print(f"key at {position}:", query[0] @ turn(position) @ W_UK[0])

# %% [markdown]
# Another vector for each stored position: nothing can be done once.
# DeepSeek's answer is to keep positions **out of the latent**. Each token
# leaves a second, small key, turned by RoPE, and all heads share it. Each
# query has two parts as well, and the score is the sum:
#
#     (q_nope · W c  +  q_rope · k_rope) / √(nope_dim + rope_dim)
#
# ("nope": no position.) The root is that of the width of the *whole
# expanded key*. (V3 multiplies in a factor of its position scaling.) In
# the absorbed form the vectors that are multiplied are wider, and it is
# tempting to take their width. With DeepSeek-V3's sizes, what happens to a
# query's favourite among 1,000 keys?

# %%
scores = torch.zeros(1000)
scores[0] = 140.0  # before scaling; all others 0
for name, width in (("nope + rope", 128 + 64), ("latent + rope", 512 + 64)):
    share = torch.softmax(scores / width**0.5, dim=-1)[0]
    print(f"root of {name} = {width}: the favourite gets {share:.2f}")

# %% [markdown]
# The scores are the same numbers in both forms, so the scale must be the
# same number.
#
# ## The layer
#
# `LatentAttention` has the whole of it, with the names of DeepSeek's
# checkpoints, and `LatentCache` stores its two sides: the latent where other
# caches have keys, and the rotary key where they have values. (The latent is
# normed, then stored; the norm belongs to *down*, so absorbing is untouched.)
# Expanded and absorbed, a prompt and then token by token:

# %%
from kvlearn.latent_attention import LatentAttention, LatentConfig

sizes = LatentConfig(hidden_size=40, num_heads=8, latent_dim=16,
                     nope_dim=12, rope_dim=6, value_dim=10)
layer = LatentAttention(sizes).double().requires_grad_(False)
hidden = torch.randn(1, 9, 40, dtype=torch.float64)
whole = layer(hidden, absorbed=False)
print("absorbed = expanded:", torch.allclose(layer(hidden), whole))

# %%
cache = kvlearn.LatentCache(sizes, dtype=torch.float64)
steps = [layer(chunk, cache=cache)
         for chunk in hidden.split((5, 1, 1, 1, 1), dim=1)]
print("cached = whole:", torch.allclose(torch.cat(steps, dim=1), whole))
print("stored for a token:", cache.key_shape, "and", cache.value_shape)
print("bytes predicted", (16 + 6) * 9 * 8, "measured", cache.used_bytes)

# %% [markdown]
# There is no factor 2 in that formula, because keys and values come from one
# latent, and no number of heads, because they all read it. Had the
# layer stored each head's expanded key and value:

# %%
tokens, float64 = 9, 8  # bytes of a number
key_width = sizes.nope_dim + sizes.rope_dim
one_token = sizes.num_heads * (key_width + sizes.value_dim)
print("expanded:", one_token * tokens * float64, "bytes")

# %% [markdown]
# And the work? A counter of floating-point operations watches one decode
# step over 500 stored tokens.

# %%
from torch.utils.flop_counter import FlopCounterMode

long = kvlearn.LatentCache(sizes, dtype=torch.float64)
layer(torch.randn(1, 500, 40, dtype=torch.float64), cache=long)
for absorbed in (False, True):
    with FlopCounterMode(display=False) as counter:
        layer(hidden[:, :1], None, long, absorbed)
    long.truncate(500)
    print("absorbed" if absorbed else "expanded",
          f"{counter.get_total_flops():,} operations")

# %% [markdown]
# (Hugging Face transformers 5.24 stores the latent and runs the expanded
# form: it saves the memory and not the work. For a prompt the
# expanded form is the cheaper one: there every expanded key serves many
# queries, and its vectors are narrower.)
#
# ## Bytes a token, across real models
#
# The napkin of lesson 05 knows the sizes. One token, all layers, 16 bits a
# number:

# %%
names = ("llama-2-7b llama-2-70b llama-3-8b llama-3.1-405b qwen2.5-7b "
         "falcon-7b smollm2-135m deepseek-v2 deepseek-v3").split()
print("model            kind   Hq  Hkv   bytes a token")
for name in names:
    shape = sizing.model(name)
    heads = "  -" if shape.latent else f"{shape.num_kv_heads:3}"
    print(f"{name:15}  {shape.kind:4} {shape.num_heads:4}  {heads}",
          f"{sizing.bytes_per_token(shape):15,}")

# %% [markdown]
# DeepSeek-V3 and Llama-3.1-405B have 128 query heads each. What would
# DeepSeek-V3 store with other kinds of attention?

# %%
v3 = sizing.model("deepseek-v3")
plain = v3.but(latent_dim=None, rope_dim=None, head_dim=128, value_dim=128)
kinds = {
    "MHA, 128": plain,
    "GQA, 8": plain.but(num_kv_heads=8),
    "MLA": v3,
    "MQA, 1": plain.but(num_kv_heads=1),
}
for name, shape in kinds.items():
    print(f"{name:9} {shape.numbers_per_token:6,} numbers a layer,",
          f"{sizing.bytes_per_token(shape):9,} bytes a token")
print("MLA in key/value heads of 128:", v3.numbers_per_token / (2 * 128))

# %% [markdown]
# MLA costs what a little more than two key/value heads would cost, and
# gives every head keys of its own. (Lesson 05's number for all heads was
# larger: V3's own expanded keys are 128 + 64 wide. Here every key is 128
# wide, as in Llama.)

# %%
figures.show(
    figures.bars({name: {"cache": shape.numbers_per_token}
                  for name, shape in kinds.items()},
                 ylabel="numbers a token and layer", log=True),
    caption="What one token leaves in one layer of a model with 128 query "
    "heads of 128. The axis is logarithmic.",
)

# %% [markdown]
# ## "93.3 % smaller"
#
# The README of DeepSeek-V2 says that it reduces the KV cache by 93.3 %
# compared with DeepSeek 67B, an older model of the same makers. Smaller than
# *what*, and from which of the differences? Ask what a cache must have been
# for the sentence to be true of the numbers stored.

# %%
v2 = sizing.model("deepseek-v2")
numbers = v2.num_layers * v2.numbers_per_token
print(f"V2 stores {numbers:,} numbers a token")
print(f"93.3 % less than: {numbers / (1 - 0.933):,.0f} numbers")
mha = 60 * 2 * 128 * 128
print(f"the same model with MHA: {mha:,} numbers,",
      f"{1 - numbers / mha:.1%} smaller")

# %% [markdown]
# So it is not the same model with MHA either: that comparison would give
# more. **If** the 67B model has 95 layers with 8 key/value heads of 128 (we
# have not seen its config, so this is an assumption), then MLA
# alone does not reach the number. It is reached, to the digit, if the new
# cache is also stored in 6 bits and the old one in 16.

# %%
old = 95 * 2 * 8 * 128  # the assumption
print(f"equal precision: {1 - numbers / old:.1%} smaller")
print(f"6 bits against 16: {1 - numbers * 6 / (old * 16):.1%} smaller")

# %% [markdown]
# Whether that is how it was computed we do not know. The lesson is about
# reading: "x % smaller" names no baseline and no precision until you
# ask. Fewer heads, fewer layers and fewer bits are three different savings.
#
# ## Arithmetic intensity
#
# Memory is one reason for fewer heads. Speed is the other. A decode step
# reads the whole cache, and a GPU can do hundreds of operations in the
# time it takes to read one byte. How many does attention have to do? The
# **arithmetic intensity** is operations for each byte.
#
# Take one stored token. A query head multiplies and adds over `D` for
# the score and over `D` for the sum: 4 D operations. A key/value head has
# 2 D numbers of two bytes: 4 D bytes. So it is `Hq / Hkv` in 16 bits.
# Predicted and measured, for six query heads:

# %%
for heads in (6, 2, 1):
    small = replace(config, num_layers=1, num_heads=6, num_kv_heads=heads)
    cache = kvlearn.GrowingCache(small, dtype=torch.bfloat16)
    keys = torch.randn(1, heads, 40, config.head_dim).bfloat16()
    stored = cache.update(0, keys, keys)
    one = torch.randn(1, 6, 1, config.head_dim).bfloat16()
    with FlopCounterMode(display=False) as counter:
        kvlearn.attention(one, *stored)
    shape = sizing.ModelShape.from_config(small)
    print(f"6 on {heads}: predicted", measure.attention_intensity(shape),
          "measured", counter.get_total_flops() / cache.used_bytes)

# %% [markdown]
# Neither the length of the text nor the batch is in it: twice the tokens are
# twice the operations and twice the bytes, and every text reads a cache of
# its own. (Weights are different: a batch shares them.) What raises it: query
# heads that share, one vector that serves as key and value, fewer bits, more
# queries at once, or texts that share a stored prefix.
#
# The second of these is absorbed MLA. In DeepSeek-V3 each of 128 heads does
# 2 · 576 operations for the score and 2 · 512 for the sum, and all of them
# read the same 576 numbers of two bytes: 2 · 128 · (576 + 512) / 1152.
#
# A line to hold it against: a card that does 1,000 · 10¹² operations a
# second and reads 5 · 10¹² bytes does 200 operations a byte. These are round
# numbers for an example; put in those of your card.

# %%
real = {
    "MHA (Llama-2-7B)": "llama-2-7b",
    "GQA (Llama-3-8B)": "llama-3-8b",
    "GQA (Llama-3.1-405B)": "llama-3.1-405b",
    "MQA (Falcon-7B)": "falcon-7b",
    "MLA absorbed (DeepSeek-V3)": "deepseek-v3",
}
figures.intensity_bars(
    {label: measure.attention_intensity(sizing.model(name))
     for label, name in real.items()},
    balance=1000 / 5,
    balance_name="an example card",
)

# %% [markdown]
# With MHA the arithmetic units wait nearly all the time. Groups do the same
# work on fewer bytes. Absorbed MLA is at the other end: all 128 heads use
# each latent twice, as key and as value, and on such a card arithmetic and
# reading take about equally long.
#
# ## When it breaks
#
# - **Tensor parallelism.** Eight ranks can share eight key/value heads, one
#   each. One head, or one latent, cannot be shared out by heads, and every
#   rank holds all of it (unless the tokens or the requests are shared out).

# %%
llama = sizing.model("llama-3-70b")
for ranks in (1, 8, 16):
    print(f"{ranks:2} ranks, bytes a token on each: Llama-3-70B",
          f"{sizing.bytes_per_token(llama, ranks=ranks):7,}, DeepSeek-V3",
          f"{sizing.bytes_per_token(v3, ranks=ranks):7,}")

# %% [markdown]
# On one card MLA's cache is the smaller, on each of eight it is the larger.
#
# - **A cache made with the number of query heads** works and wastes a whole
#   factor (pytorch/torchtune#38 allocated it so).
# - **The wrong pairs in RoPE.** DeepSeek's checkpoints pair neighbours where
#   Hugging Face's Llama checkpoints pair halves. The rotary key is small, and
#   the text wrong.
# - **Quality.** Fewer key/value heads are fewer different things to look
#   up. How few a model can bear is found by training it, and is not in any
#   formula here.
#
# ## The answer in sixty seconds
#
# > A decode step reads every stored key and value, so the cache bounds both
# > how many requests fit and how fast a step is. Its size is proportional to
# > the number of key/value heads, not query heads. GQA lets a group of
# > query heads share one key/value head: the cache shrinks by the group's
# > size, and each byte that is read serves the whole group, so arithmetic
# > intensity grows by the same factor. MQA is the extreme, one head for all.
# > An MHA model can be converted by averaging the projections of
# > neighbouring heads, but only with further training; without it the model
# > is lost. MLA stores one low-rank latent for a token and layer, from which
# > every head makes its own key and value, plus one small rotary key that all
# > share: for DeepSeek 512 + 64 numbers, not times two and not times
# > heads. In decoding the up-projections are absorbed into the query and the
# > output, so that all heads read the latent directly, as in MQA; the
# > softmax scale stays that of the expanded key.
#
# ## Sentences that give a beginner away
#
# - *"GQA has fewer attention heads."* It has fewer key/value heads. The
#   query heads, and the outputs, stay.
# - *"GQA approximates MHA."* It is another model, trained so. Nothing is
#   approximated when it runs.
# - *"You can turn MHA into GQA by averaging the heads."* That is where
#   training begins again. Without it the text is noise.
# - *"MLA compresses the KV cache."* The model was trained with the latent; it
#   is not a compression of something that was there before.
# - *"MLA's cache is 2 × (512 + 64)."* There is no factor 2.
# - *"After absorbing, divide by √576."* The scores are the same
#   numbers, and so is their scale, √192.
# - *"A larger batch makes decode attention efficient."* It shares the
#   weights. Every text still reads its own cache.
#
# ## Where you meet it
#
# - Llama 3 and Qwen: groups of 2 (Qwen3-0.6B, lesson 05) to 16
#   (Llama-3.1-405B). Falcon-7B: one key/value head for 71.
# - DeepSeek-V2 and V3: latent attention (arXiv 2405.04434).
# - Hugging Face transformers: `DeepseekV3Attention` caches the latent and the
#   rotary key, and expands them at every step.
# - Under tensor parallelism the key/value heads of a GQA model are shared
#   out over the ranks, and MLA's latent lies on every rank.
#
# ## Exercises
#
# In [the exercises of lesson 06](../exercises/06_fewer_heads/06_fewer_heads.ipynb):
#
# | exercise | minutes | you write |
# |---|---|---|
# | `attend_in_groups` | 15 | grouped attention without a copy |
# | `mean_pool_heads` | 10 | fewer heads for a trained model |
# | `expand_latents` | 15 | every head's keys and values from one latent |
# | `absorbed_scores` | 20 | scores without keys |
# | `absorbed_values` | 10 | a weighted sum without values |
# | `decode_intensity` | 10 | operations for each byte |
