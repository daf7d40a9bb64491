# %% [markdown]
# # 05 · Napkin maths
#
# **The question.** How many bytes does the cache of a real model take, how
# many people fit on one card, and when does the cache outweigh the model
# itself? In an interview or a design review you have a napkin and a minute.
#
# You need lesson 04. About 55 minutes.
#
# | letter | meaning |
# |---|---|
# | `B` | sequences side by side (batch) |
# | `Hq`, `Hkv` | query heads, key/value heads |
# | `S` | tokens stored for one sequence |
# | `D` | numbers in one head (head_dim) |

# %%
import kvlearn
from kvlearn import figures, measure, sizing

GiB, GB = 2**30, 10**9

# %% [markdown]
# ## One token, counted by hand
#
# In each layer, each key/value head keeps a key and a value of `D`
# numbers. So one token leaves behind this many numbers in a model with
# 2 layers, `Hkv` 3 and `D` 4:

# %%
layers, Hkv, D = 2, 3, 4
count = 0
for layer in range(layers):
    for head in range(Hkv):
        count += D  # a key
        count += D  # a value
print("by loop:", count, " by formula:", 2 * layers * Hkv * D)

# %% [markdown]
# Times the bytes of a number, times the tokens, times the sequences. That
# is the formula whole:
#
# $$\text{bytes} = 2 \times \text{layers} \times H_{kv} \times D \times S
# \times B \times \text{bytes a number}$$
#
# Lesson 04 checked it on one model. Now take the model at hand, and let
# the library make the prediction.

# %%
model, tokenizer = kvlearn.load_or_tiny(device=measure.device())
shape = sizing.ModelShape.from_config(model.config)
prompt = tokenizer.encode("A napkin is a small sheet of paper.")
cache = kvlearn.GrowingCache(model.config, dtype=model.dtype,
                             device=model.device)
kvlearn.generate(model, prompt, 12, cache=cache)
fed = len(prompt) + 12 - 1  # the last new token is never fed
print("predicted", sizing.cache_bytes(shape, fed, dtype=model.dtype))
print("measured ", cache.used_bytes)

# %% [markdown]
# The two numbers are equal, to the byte. Mind `fed`: after twelve new
# tokens the cache holds eleven of them.
#
# ## Where the numbers come from
#
# A checkpoint for transformers has a `config.json`. Three fields matter:
# `num_hidden_layers`, `num_key_value_heads`, `head_dim`. There are three
# traps. Before you run the next cell: what is the width of a head of this
# model, Qwen3-0.6B, with a hidden size of 1,024 and 16 heads?

# %%
config = {
    "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024,
    "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936,
}
qwen = sizing.ModelShape.from_config(config)
print("width of a head:", qwen.head_dim)
print("bytes a token:", sizing.bytes_per_token(qwen))

# %% [markdown]
# Not 1024 / 16. `head_dim` is a field of its own, and in Qwen3-0.6B and
# 32B, in Gemma 3 and in gpt-oss it is not the quotient. Code that divides
# has been shipped (LMCache/LMCache#688).
#
# The second trap: query heads are not stored. Take a 7B model of 2023 and
# an 8B model of 2024. Which cache is larger?

# %%
for name in ("llama-2-7b", "llama-3-8b"):
    m = sizing.model(name)
    print(f"{name:11} {m.num_heads} heads, {m.num_kv_heads} key/value "
          f"heads: {sizing.bytes_per_token(m):7,} bytes a token")

# %% [markdown]
# The larger model has a quarter of the cache, because its query heads
# share key/value heads. A public calculator left that out
# (jranaraki/vllm-fit#2).
#
# The third trap: a config may leave a field out. The library then does what
# transformers does, and says so; what it does not understand it refuses by
# name.

# %%
import textwrap

gemma = sizing.ModelShape.from_config({"model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
                    "num_hidden_layers": 34, "sliding_window": 1024}})
print(gemma.num_kv_heads, "key/value heads of", gemma.head_dim)
print(gemma.notes[-1])
try:
    sizing.ModelShape.from_config({**config, "mamba_d_state": 16})
except ValueError as error:
    print(textwrap.fill(str(error), 72))

# %% [markdown]
# ## GiB or GB
#
# A GB is 10^9 bytes and a GiB is 2^30, seven percent more. Always say which.

# %%
size = sizing.cache_bytes(sizing.model("llama-3.1-70b"), tokens=131072)
print(size / GiB, "GiB")
print(round(size / GB, 2), "GB")
print(sizing.show_bytes(size))
print("an H100 'with 80 GB':", sizing.show_bytes(sizing.gpu("h100")))

# %% [markdown]
# The name on a card settles nothing: take the number that its driver
# reports. Nor does a "k". Here "128k" is 128 · 1,024; not every maker counts
# so, look at the config.
#
# Three claims from the wild, on one sheet. vLLM's announcement (June 2023)
# says that a sequence of LLaMA-13B takes up to 1.7 GB (with 2,048
# tokens). A page on the web says that a token of such a model costs 1.5 MB.
# And llama.cpp logs 272 MiB for 4,096 tokens of an 8B model in its format
# q8_0.

# %%
llama13, llama8 = sizing.model("llama-2-13b"), sizing.model("llama-3-8b")
print("13B, 2,048 tokens:", sizing.show_bytes(
    sizing.cache_bytes(llama13, 2048)))
print("13B, one token:   ", sizing.show_bytes(
    sizing.bytes_per_token(llama13)))
print("8B, 4,096 in q8_0:", sizing.show_bytes(
    sizing.cache_bytes(llama8, 4096, dtype="q8_0"), 0))

# %% [markdown]
# The first is right if GB is meant as it is written. The second is nearly
# twice the truth. The third is right to the byte: q8_0 keeps 32 numbers in
# 34 bytes, because 32 codes of one byte share a scale of two.
#
# ## Fewer bits are not as few as they say
#
# A number stored in 4 bits needs a scale, and mostly a zero, to be turned
# back. With one of each, 16 bits wide, for a group of 32 numbers:

# %%
for name in ("bf16", "fp8", "int8", "int4", "int2", "q8_0", "q4_0"):
    print(f"{name:5}", sizing.cache_type(name).bits_each(128),
          "bits a number")

# %% [markdown]
# (q8_0 and q4_0 have a scale and no zero; fp8 here is a plain cast.)
#
# Some schemes, KIVI's among them (arXiv 2402.02750), also keep the newest
# tokens in full, the **residual window**. Before you run this: a cache in 2
# bits, 100 tokens, the last 32 in full. An eighth of 16 bits? (The keys come
# as whole groups of 32, so up to 31 more wait.)

# %%
for tokens in (32, 100, 1000, 100_000):
    full = sizing.cache_bytes(llama8, tokens)
    small = sizing.cache_bytes(llama8, tokens, dtype="int2")
    print(f"{tokens:7,} tokens: {full / small:.2f} times smaller")

# %% [markdown]
# Short texts gain nothing, and long ones gain 16 / 3, not 8. Predicted
# equals measured here as well: lesson 08 builds this cache, and its bytes
# are these.

# %%
from kvlearn.cache.quantized import QuantizedCache
from kvlearn.quantization import QuantSpec
import torch

small = kvlearn.DecoderConfig(
    vocab_size=9, hidden_size=8, num_layers=2, num_heads=6,
    num_kv_heads=3, head_dim=64, intermediate_size=8)
codes = QuantizedCache(small, QuantSpec("int2", axis="channel"),
                       QuantSpec("int2", axis="token"), residual=32,
                       dtype=torch.bfloat16)
kv = torch.randn(1, 3, 100, 64).bfloat16()
for layer in range(2):
    codes.update(layer, kv, kv)
small_shape = sizing.ModelShape.from_config(small)
print("predicted", sizing.cache_bytes(small_shape, 100, dtype="int2"))
print("measured ", codes.used_bytes)

# %% [markdown]
# ## Models for which the plain formula is wrong
#
# **Windows.** In Gemma 3 five layers of six look back over 1,024 tokens
# only. Each layer keeps min(tokens, window).

# %%
gemma = sizing.model("gemma-3-27b")
full = gemma.but(windows=None)  # what the plain formula would say
for tokens in (1024, 8192, 131072):
    print(f"{tokens:7,} tokens:",
          round(sizing.cache_bytes(gemma, tokens) / GiB, 2), "GiB, and",
          round(sizing.cache_bytes(full, tokens) / GiB, 2), "without")

# %% [markdown]
# **A latent.** DeepSeek-V3 has 128 heads, and stores neither keys nor
# values: one latent of 512 numbers and one rotary key of 64, a token and a
# layer. No factor 2, no heads. Guess the bytes before you look.

# %%
v3 = sizing.model("deepseek-v3")
heads = v3.but(latent_dim=None, rope_dim=None)
print("stored:", sizing.bytes_per_token(v3), "bytes a token")
print("as keys and values of all heads:", sizing.bytes_per_token(heads))

# %% [markdown]
# Lesson 06 builds it. Several kinds of model, on one scale:

# %%
names = ["llama-2-13b", "llama-3.1-70b", "qwen3-32b", "gemma-3-27b",
         "deepseek-v3", "gpt-oss-120b"]
tokens = 32768
figures.show(
    figures.bars({n: {"cache": round(
        sizing.cache_bytes(sizing.model(n), tokens) / GiB, 1)}
        for n in names}, ylabel="GiB for 32,768 tokens"),
    caption="One sequence of 32,768 tokens in 16 bits. The size of the "
    "model says little about the size of its cache. (Llama-2-13B ends at "
    "4,096 tokens; it is there to show what it would cost.)",
)

# %% [markdown]
# ## What fits
#
# A card's memory holds the weights first. What is left is shared by the
# sequences. Llama-3.1-8B on one H100, 8,192 tokens each:

# %%
card = sizing.gpu("h100")
llama = sizing.model("llama-3.1-8b")
weights = sizing.weight_bytes(llama)
each = sizing.cache_bytes(llama, 8192)
print("card   ", sizing.show_bytes(card))
print("weights", sizing.show_bytes(weights))
print("each   ", sizing.show_bytes(each))
print("fit:", (card - weights) // each, "=",
      sizing.max_batch(llama, 8192, card))

# %% [markdown]
# A real engine fits a few fewer, because activations and the driver need
# memory too: take that off first. And an engine hands out memory in blocks,
# so a sequence takes whole blocks: `max_batch(..., block=16)`.
#
# ## Claim: at 128k the cache presses more than the weights
#
# It is said of 70B models. Take Llama-3.1-70B, and count at which batch
# the cache of 131,072 tokens a sequence first outweighs the weights.

# %%
llama70 = sizing.model("llama-3.1-70b")
print("weights in    bf16 int8 int4")
for cache_in in ("bf16", "fp8"):
    row = [sizing.crossover_batch(llama70, 131072, cache_in, w)
           for w in ("bf16", "int8", "int4")]
    print(f"cache in {cache_in:4}", *(f"{batch:4}" for batch in row))

# %% [markdown]
# So the claim needs a batch and a precision. With weights and cache in 16
# bits it takes several such sequences; with weights in 4 bits a single one
# is enough. (Scales of quantised weights are not counted here.)
#
# It also needs a model that goes so far: Llama-2-70B ends at 4,096 tokens
# and Llama-3-70B at 8,192. And it needs to say which attention it means.
# Suppose this model stored keys and values for all of its 64 heads:

# %%
mha = llama70.but(num_kv_heads=64)
print("one sequence with 64 key/value heads:",
      sizing.cache_bytes(mha, 131072) / GiB, "GiB")
for w in ("bf16", "int8", "int4"):
    print(f"weights in {w}: outweighed from",
          f"{sizing.crossover_tokens(mha, weights=w):,} tokens")

# %% [markdown]
# No 70B model of this family does that; sentences about "the 70B model"
# that were true of older models are not true of these. The claim, drawn:

# %%
T = 131072
figures.show(
    figures.memory_stack({
        f"weights {w}\ncache {c}, {b} seq.": {
            "weights": sizing.weight_bytes(llama70, w),
            "cache": sizing.cache_bytes(llama70, T, b, c)}
        for w, c, b in (("bf16", "bf16", 1), ("bf16", "bf16", 4),
                        ("int4", "bf16", 1), ("int4", "bf16", 4),
                        ("int4", "fp8", 4))},
        sizing.gpu("h200"), limit_name="one H200"),
    caption="Llama-3.1-70B at 131,072 tokens a sequence. Which of the two "
    "weighs more depends on batch and precision.",
)

# %% [markdown]
# ## Claim: the cache sets the ceiling on every GPU
#
# A decode step reads all weights once, and the cache of every sequence
# once. Every further sequence adds its own cache to what a step reads, and
# nothing to the weights. While all caches together are far smaller than the
# weights that is hardly noticed; at the crossing a step reads twice the
# weights. The 8B model with 8,192 tokens in each sequence:

# %%
batches = list(range(1, 65))
figures.step_reads(batches, weights, [
    sizing.cache_bytes(llama, 8192, b) for b in batches])

# %% [markdown]
# And with short texts, of 512 tokens:

# %%
figures.step_reads(batches, weights, [
    sizing.cache_bytes(llama, 512, b) for b in batches])

# %% [markdown]
# Both regimes exist on every card. At 512 tokens the weights are the larger
# part for all these batches; at 8,192 the cache takes over early. Predict
# before you run: at 16 times the context, is the crossing at a sixteenth of
# the batch?

# %%
for context in (512, 2048, 8192, 32768, 131072):
    print(f"{context:7,} tokens: the cache outweighs the weights from "
          f"batch {sizing.crossover_batch(llama, context)}")

# %% [markdown]
# Yes, up to rounding, because a batch is whole. Batch times context is what
# counts: the number of cached tokens, of all sequences together. For this
# model it is

# %%
print(f"{sizing.crossover_tokens(llama):,} tokens in all")

# %% [markdown]
# ## More than one card
#
# A model too large for one card is cut. With **tensor parallelism** every
# card (a **rank**) holds a slice of every matrix, and some of the heads.
# Eight key/value heads can be shared out over eight cards: beyond, each head
# lies on several. A latent belongs to all heads, and under tensor
# parallelism every card holds it whole.

# %%
for name in ("llama-3.1-70b", "deepseek-v3"):
    sizes = [sizing.cache_bytes(sizing.model(name), 8192, ranks=r)
             for r in (1, 4, 8, 16)]
    print(f"{name:13} on 1, 4, 8, 16 ranks, MiB each:",
          [size // 2**20 for size in sizes])

# %% [markdown]
# ## Play
#
# Choose a model, a context, a batch, a type and a card. Find a setting in
# which the cache is the larger part, and one in which nothing fits.

# %% tags=["nbval-ignore-output"]
from kvlearn import widgets

widgets.memory_planner()

# %% [markdown]
# One setting as a picture that needs no kernel:

# %%
figures.memory_stack({
    f"batch {b}": {"weights": weights,
                   "cache": sizing.cache_bytes(llama, 8192, b)}
    for b in (1, 16, 64)}, card, limit_name="one H100")

# %% [markdown]
# For a design document, on the command line:
#
#     kvlearn size llama-3.1-70b --context 128k --batch 4 \
#         --weights int4 --cache fp8 --gpu h200
#
# prints a table, each row with its formula, the numbers put in. (It is the
# one with weights in int4 and cache in fp8, drawn above.)
#
# ## When it breaks
#
# The formula counts what is **used**. What is **allocated** may be more:
#
# - a preallocated cache takes its full length from the start;
# - rows of a batch are padded to the longest;
# - blocks are taken whole (lesson 09);
# - a growing cache holds old and new copies of a layer while it copies.
#
# And it counts one model's keys and values. Draft models, adapters and
# activations come on top.
#
# ## The answer in sixty seconds
#
# > A token leaves a key and a value in every layer, for every key/value
# > head: 2 x layers x key/value heads x head_dim x bytes. Llama-3.1-70B has
# > 80 layers and 8 such heads of 128, so in 16 bits a token is 320 KiB;
# > times the context that is one sequence. The weights are two bytes a
# > parameter. Their quotient is the batch from which the cache outweighs
# > them: at 128k a few sequences, and one where the weights are in 4 bits.
# > Far below the crossing a decode step is bound by reading the weights
# > and batching is nearly free; at the crossing a step reads twice the
# > weights, above it mostly cache; and in any case the cache bounds how many
# > sequences fit. I read head_dim from the config, count key/value heads and
# > not heads, take min(tokens, window) where a layer has a window, drop the
# > factor 2 for a latent, add scales and the residual for low bits, and say
# > GiB or GB.
#
# ## Sentences that give a beginner away
#
# - *"Heads times head_dim is the hidden size."* Often; not in Qwen3-0.6B,
#   Gemma 3 or gpt-oss.
# - *"More parameters, more cache."* It depends on layers and key/value
#   heads.
# - *"A 4-bit cache is a quarter."* Scales and zeros cost bits, and some
#   schemes keep the newest tokens in full.
# - *"At 128k the cache is larger than the weights."* At which batch, in
#   which precision?
# - *"The cache is always the bottleneck."* Far below the crossing it is the
#   weights.
# - *"Sixteen cards hold twice what eight do."* Not as one
#   tensor-parallel group with eight key/value heads: only the weights get
#   smaller on each card. Two groups of eight do.
# - *"It is 40 GB."* 40 GiB, which is nearly 43 GB.
#
# ## Where you meet it
#
# - vLLM takes its share of the card (a setting), subtracts the weights and
#   the peak of a trial run, and divides by the bytes of a block: that is its
#   number of blocks.
# - nano-vllm does the same in one line, and reads `head_dim` from the
#   config with the quotient as its fallback.
# - llama.cpp logs the size of its cache when it starts, keys and values
#   apart, since their types may differ (ggml-org/llama.cpp#4312).
# - The published "93.3 % smaller" of DeepSeek-V2 is not against the same
#   model with all heads stored: lesson 06 takes it apart.
#
# ## Exercises
#
# In [the exercises of lesson 05](../exercises/05_napkin/05_napkin.ipynb):
#
# | exercise | minutes | you write |
# |---|---|---|
# | `read_sizes` | 15 | three numbers from a config.json |
# | `bytes_per_token` | 10 | what one token costs |
# | `cache_size` | 10 | a batch after its last token |
# | `hybrid_bytes` | 10 | layers with windows |
# | `latent_bytes` | 5 | one latent for all heads |
# | `quantised_bytes` | 20 | codes, scales, and the residual window |
# | `sequences_that_fit` | 10 | how many a card serves at once |
# | `crossover_batch` | 10 | where the cache takes over |
