# %% [markdown]
# # 03 · The naive decoder
#
# **The question of this lesson:** what does a whole language model do with
# attention, and how much work does it repeat for each new token?
#
# You need lesson 01 (attention) and lesson 02 (the causal mask, and why past
# keys and values are final). Allow 90 minutes; the end of section 10 is a good
# place for a pause.
#
# | letter | what it counts |
# |---|---|
# | `B` | rows in the batch |
# | `Hq`, `Hkv` | query heads, key/value heads |
# | `L` | tokens that are fed |
# | `S` | tokens that are looked at: the keys |
# | `D` | numbers in one head's vector (head_dim) |

# %%
import math
from functools import partial

import torch
import torch.nn.functional as F

import kvlearn
from kvlearn import figures, measure

torch.set_printoptions(precision=2, sci_mode=False)

# %% [markdown]
# ## 1 · The whole way, from far off
#
# Attention is one part of a language model. In this lesson you build the
# other parts, one at a time, from loose tensors, until a real model writes
# through your lines. The model is SmolLM2-135M: a small one, of the family
# that Llama began.

# %%
device = measure.device()
model, tokenizer = kvlearn.load_or_tiny(device=device)
config = model.config
print(config.num_layers, "layers,", config.hidden_size, "numbers a token")

# %% [markdown]
# And this is its map. We shall walk along the thick line from left to right,
# and at each box write a few lines of our own and compare them with the
# library's. (The dashed frame is one of the layers of lesson 02. Other texts call
# it a block, and the library's class for it is `Block`.)

# %%
figures.decoder_map(config)

# %% [markdown]
# ## 2 · From text to token ids
#
# A model knows no letters. Its **tokenizer** cuts a text into pieces from a
# fixed list, the vocabulary. A token id is the number of a piece in that list.

# %%
text = "The capital of France is"
ids = tokenizer.encode(text)
print(ids)
print([tokenizer.decode([i]) for i in ids])
print("back to the text:", tokenizer.decode(ids) == text)

# %% [markdown]
# A blank belongs to the word after it. Common words are one piece, rare ones
# are put together from several.
#
# **Before you run this:** how many tokens is `12345`? And `unbelievable`, with a
# blank before it?

# %%
for word in ("12345", " unbelievable", " the"):
    print([tokenizer.decode([i]) for i in tokenizer.encode(word)])

# %% [markdown]
# This tokenizer splits numbers digit by digit. The rare word is put together, from
# pieces that mean nothing by themselves. Every model family has rules of its own, so
# a count of tokens means little unless you say whose tokens.

# %% [markdown]
# ## 3 · A table, and a stream
#
# The model owns a table with one row of numbers for each piece of the
# vocabulary. The first box, the **embedding**, picks rows.

# %%
table = model.embed_tokens.weight
tokens = torch.tensor([ids], device=device)  # (B, L)
x = table[tokens]

print("table:", tuple(table.shape), " x:", tuple(x.shape))
print("same as the library's:", torch.equal(x, model.embed_tokens(tokens)))

# %% [markdown]
# `x` is the **stream**, (B, L, hidden). It keeps this shape to the end. A
# layer never replaces it. It reads it, computes something, and *adds* the
# result: `x = x + something(x)`. This is called a residual connection, and `x`
# the residual stream.
#
# ## 4 · RMSNorm: one size for all
#
# What is added makes the numbers grow, and not evenly: you will see one token
# that is a hundred times as large as its neighbours. So before a layer reads
# the stream, each token's vector is divided by its size: the **root** of the
# **mean** of its **squares**.

# %%
v = torch.tensor([1.0, 7.0])
size = v.pow(2).mean().sqrt()
print("size:", size, " divided by it:", v / size)

# %% [markdown]
# The direction stays, the size becomes 1. Two details complete it: a tiny
# `eps` under the root, so that a vector of zeros is not divided by zero, and a
# learned weight for each **channel**: for each of the numbers that a token's vector
# holds.

# %%
def rms_norm(x, weight, eps):
    mean_square = x.pow(2).mean(dim=-1, keepdim=True)  # (B, L, 1)
    return x / torch.sqrt(mean_square + eps) * weight


layer = model.layers[0]
y = rms_norm(x, layer.input_layernorm.weight, config.norm_eps)
print("same as the library's:", torch.allclose(
    y, layer.input_layernorm(x), atol=1e-5))

# %% [markdown]
# Each vector is measured by itself; no token looks at another. That matters
# for us: nothing here can spoil what lesson 02 found, that the past is final.

# %% [markdown]
# ## 5 · Attention does not know the order
#
# Take one query over five keys, and shuffle the keys together with their
# values.
#
# **Before you run this:** will the result be another?

# %%
torch.manual_seed(0)
q = torch.randn(1, 1, 1, 4)
k, v = torch.randn(2, 1, 1, 5, 4)
order = torch.tensor([3, 0, 4, 1, 2])

before = kvlearn.attention(q, k, v)
after = kvlearn.attention(q, k[:, :, order], v[:, :, order])
print("the same result:", torch.allclose(before, after))

# %% [markdown]
# It is the same. A sum has no order. To the word that comes after them, *dog bites
# man* and *man bites dog* are one bag of words. Somebody has to tell it where things
# stand.
#
# (That is one layer of attention. In the layers above it the mask lets a little
# order through, since each token has seen a different beginning. It is not enough, as
# section 14 shows.)

# %% [markdown]
# **Rotary positions** (RoPE) tell it in a way that costs nothing to store:
# take two coordinates of a query or key as a point in the plane, and **turn**
# the point around the origin, further and further the later its position.

# %%
def turn(point, angle):
    a, b = point
    return torch.stack([a * math.cos(angle) - b * math.sin(angle),
                        b * math.cos(angle) + a * math.sin(angle)])


point = torch.tensor([1.0, 0.0])
for position in range(4):
    print("position", position, "->", turn(point, 1.0 * position))

# %% [markdown]
# The point walks around a circle and keeps its length. Now turn a query and a
# key, each by its own position, and take their dot product: the score.
#
# **Before you run this:** three of these four scores are equal. Which?

# %%
query, key = torch.tensor([1.0, 0.5]), torch.tensor([0.8, -0.2])
speed, places = 0.4, {}

for p, s in ((5, 3), (9, 7), (112, 110), (112, 105)):
    pair = turn(query, speed * p), turn(key, speed * s)
    places[f"query at {p}, key at {s}"] = pair
    print(f"query at {p:3}, key at {s:3}: score {pair[0] @ pair[1]:.2f}")

# %% [markdown]
# The three in which the key stands two places back. The picture shows why.

# %%
figures.turned_pairs(places)

# %% [markdown]
# Turning both arrows by the same amount more leaves the angle between them
# alone. So the score depends on **how far apart** the two tokens are and not
# on where they stand. "Two words back" means the same on the first page and
# on the last.
#
# ## 6 · Many pairs, fast and slow
#
# One pair is not enough. At 0.4 radians a position it has gone once around
# after some sixteen positions, and then near and far look alike. So a head of
# D numbers is cut into D/2 pairs, and pair i turns at a speed of its own:
# `theta ** (-2 * i / D)` radians a position.

# %%
D, theta = 8, 10000
speeds = theta ** (-torch.arange(0, D, 2) / D)
print([f"{speed:g}" for speed in speeds.tolist()])

# %% [markdown]
# Like the hands of a clock: the first pair tells neighbours apart, and soon it has
# come around. Here are four of the pairs of our model at positions 0 to 7.

# %%
figures.rope_clock(range(8), config.head_dim, config.rope_theta)

# %% [markdown]
# Eight positions are too few for the slow ones. Here are four of the slower half,
# over the whole length that this model can read, with a hand at every eighth of it.

# %%
whole = config.max_position
figures.show(
    figures.rope_clock(range(0, whole, whole // 8), config.head_dim,
                       config.rope_theta, pairs=(20, 24, 28, 31)),
    caption="Slower pairs, over the whole length that the model reads.")

# %% [markdown]
# Middle pairs such as 20 and 24 tell far from near. The last ones hardly turn at all
# in any text that this model reads, so they can compare what two tokens mean,
# wherever these stand.

# %% [markdown]
# Which two coordinates make a pair? That is a convention, and there are two.
# Hugging Face's Llama checkpoints, and this course, go by halves.

# %%
first, second = torch.arange(D).chunk(2)
print("by halves:    ", list(zip(first.tolist(), second.tolist())))
print("by neighbours:", torch.arange(D).view(-1, 2).tolist())

# %% [markdown]
# Both are right if the weights were made for them. Mixing them up is a bug
# that we will provoke later.
#
# Now all of it at once: a speed for each pair, an angle for each position and
# pair, one turn.

# %%
def rope(x, positions, theta):
    D = x.shape[-1]
    speeds = theta ** (-torch.arange(0, D, 2, device=x.device) / D)
    angles = positions[:, None, :, None] * speeds  # (B, 1, L, D/2)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, dim=-1)  # the two halves
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

# %% [markdown]
# The library's name for it is `kvlearn.apply_rope`. Two rows that stand at
# different places, three heads:

# %%
q = torch.randn(2, 3, 5, 8)
positions = torch.tensor([[0, 1, 2, 3, 4], [70, 71, 72, 73, 74]])

mine = rope(q, positions, 10000)
theirs = kvlearn.apply_rope(q, positions, 10000)
print("same as the library's:", torch.allclose(mine, theirs, atol=1e-5))

# %% [markdown]
# Does the whole head of 64 numbers still feel distances only? We put a query
# at position 100, then at 2,000, with keys 0 to 64 places before it. All
# vectors are ones, so that nothing but the turning makes a difference.

# %%
ones, scores = torch.ones(1, 1, 65, 64), {}
for place in (100, 2000):
    keys = rope(ones, place - torch.arange(65)[None], config.rope_theta)
    query = keys[:, :, :1]  # distance 0: turned like the first key
    row = query @ keys.mT  # mT: the last two axes swapped
    scores[f"query at {place}"] = row.flatten()

print("the same at both places:", torch.allclose(
    *scores.values(), atol=1e-3))  # angles are float32

# %% [markdown]
# Drawn over the distance:

# %%
figures.score_by_distance({
    name: (range(65), score) for name, score in scores.items()})

# %% [markdown]
# The lines lie on one another. And they fall in waves: on the whole a nearer key
# gets the higher score, but not always. (Find two keys of which the farther one
# wins.) With other vectors the curve has another shape; it is always a curve over
# the distance.
#
# ### Queries and keys are turned, values are not
#
# A value is not compared with anything. It is handed over. If it were turned,
# what a token hears would depend on where in the book it stands. Try it: the
# same four tokens at positions 0 to 3, and at 10 to 13.

# %%
q, k, v = torch.randn(3, 1, 1, 4, 8)

def heard(start, turn_the_values):
    place = start + torch.arange(4)[None]
    turned = [rope(t, place, 10000) for t in (q, k, v)]
    value = turned[2] if turn_the_values else v
    return kvlearn.attention(*turned[:2], value, kvlearn.causal_mask(4))


for choice in (False, True):
    same = torch.allclose(heard(0, choice), heard(10, choice), atol=1e-5)
    print("values turned:", choice, " same result 10 places on:", same)

# %% [markdown]
# ## 7 · Nine heads that ask, three that answer
#
# Back to our five tokens of real text, and the real weights of layer 0. Three
# matrices make queries, keys and values out of the normed stream.

# %%
L, D = len(ids), config.head_dim
part = layer.self_attn
q, k, v = (y @ m.weight.T for m in (part.q_proj, part.k_proj, part.v_proj))

print("q:", tuple(q.shape), "= heads of 64:", q.shape[-1] // D)
print("k:", tuple(k.shape), "= heads of 64:", k.shape[-1] // D)

# %% [markdown]
# Nine query heads, and only three heads of keys and values. Each of these is
# read by a **group** of three query heads. (Why would anyone do that? Keys and
# values are what a cache must store; lesson 06 is about this.)

# %%
figures.heads_diagram(config.num_heads, config.num_kv_heads)

# %% [markdown]
# Query head h reads key/value head `h // group_size`. The plain way to get
# there: give each query head a copy. torch can repeat in two ways, and one of
# them is right.

# %%
kv_heads = torch.arange(3)
print("h // 3:            ", [h // 3 for h in range(9)])
print("repeat:            ", kv_heads.repeat(3).tolist())
print("repeat_interleave: ", kv_heads.repeat_interleave(3).tolist())

# %% [markdown]
# `repeat` (numpy calls it tile) has the right shape too, and sends six of the
# nine heads to the wrong place. Heads 0, 4 and 8 are right by luck. So it is
# `repeat_interleave`.
#
# Split everything into heads, turn queries and keys, hand out the copies:

# %%
def split(x):
    """(B, L, heads * D) -> (B, heads, L, D)"""
    return x.unflatten(-1, (-1, D)).transpose(1, 2)


positions = torch.arange(L, device=device)[None]
q = rope(split(q), positions, config.rope_theta)
k = rope(split(k), positions, config.rope_theta)
v = split(v)
k9, v9 = (t.repeat_interleave(3, dim=1) for t in (k, v))
print("q:", tuple(q.shape), " k:", tuple(k.shape), "->", tuple(k9.shape))

# %% [markdown]
# The rest is lesson 02, unchanged.

# %%
def attend(q, k, v):
    """Masked attention; as many key/value heads as query heads."""
    L = q.shape[2]
    mask = torch.ones(L, L, dtype=torch.bool, device=q.device).tril()
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


mask = kvlearn.causal_mask(L, device=device)
print("same as the library's:", torch.allclose(
    attend(q, k9, v9), kvlearn.attention(q, k, v, mask), atol=1e-5))

# %% [markdown]
# The library was given the three heads and copied none of them. Lesson 06
# shows how. It also computes the scores in float32 when the model is in
# half precision; your `attend` would round them to half precision. Here
# everything is float32, and the two agree.
#
# ## 8 · SwiGLU: a gate for each channel
#
# Attention carries things from token to token. The second half of a layer, the
# MLP, works on each token alone. Its heart is a gate that lets large numbers
# pass and shuts out negative ones, called silu or Swish: z times sigmoid(z).

# %%
z = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0])
print(z * torch.sigmoid(z))

# %% [markdown]
# In the MLP one projection decides how far each channel is opened, another
# what would pass, and a third brings the result back to the width of the
# stream. The three together are a SwiGLU: a gated linear unit (GLU) whose gate is a
# Swish.

# %%
def mlp(y, part):
    gate = F.silu(y @ part.gate_proj.weight.T)  # (B, L, intermediate)
    up = y @ part.up_proj.weight.T
    return (gate * up) @ part.down_proj.weight.T


out = mlp(y, layer.mlp)
print("wide inside:", config.intermediate_size, " out:", tuple(out.shape))
print("each token alone:", torch.allclose(
    out[:, 2], mlp(y[:, 2], layer.mlp), atol=1e-5))

# %% [markdown]
# ## 9 · One layer
#
# All the pieces are there. First those of attention, in their order: project,
# turn, share the heads, attend, merge the heads, project back.

# %%
def attention_part(y, part, positions):
    q, k, v = (split(y @ m.weight.T)
               for m in (part.q_proj, part.k_proj, part.v_proj))
    q, k = (rope(t, positions, config.rope_theta) for t in (q, k))
    k, v = (t.repeat_interleave(config.group_size, dim=1) for t in (k, v))
    out = attend(q, k, v).transpose(1, 2).flatten(2)  # merge the heads
    return out @ part.o_proj.weight.T

# %% [markdown]
# Then two norms, and two lines with a plus sign: that is a layer.

# %%
def my_layer(x, layer, positions):
    y = rms_norm(x, layer.input_layernorm.weight, config.norm_eps)
    x = x + attention_part(y, layer.self_attn, positions)
    y = rms_norm(x, layer.post_attention_layernorm.weight, config.norm_eps)
    return x + mlp(y, layer.mlp)

# %% [markdown]
# The library's layer takes the same weights, no cache (`None`), and the
# attention and rotary functions that it should use.

# %%
theirs = layer(x, positions, None, kvlearn.attention, kvlearn.apply_rope)
print("one layer, same as the library's:",
      torch.allclose(my_layer(x, layer, positions), theirs, atol=1e-4))

# %% [markdown]
# ## 10 · The whole decoder
#
# All the layers in a row, a last norm, and the **output head**: from each
# token's vector to one number for every piece of the vocabulary, its
# *logit*. In this model the head is the embedding table once more (the two
# are "tied"). A logit is the dot product of the stream, after that last norm, with
# the piece's own row.

# %%
def head(x):
    return rms_norm(x, model.norm.weight, config.norm_eps) @ table.T


def my_decoder(tokens):
    """(B, L) ids -> logits (B, L, vocab)"""
    x = table[tokens]
    positions = torch.arange(tokens.shape[1], device=device)[None]
    for layer in model.layers:
        x = my_layer(x, layer, positions)
    return head(x)

# %% [markdown]
# The same tokens through the library's decoder:

# %%
mine, theirs = my_decoder(tokens), model(tokens)

print("the head is the table:", model.lm_head.weight is table)
print("logits:", tuple(mine.shape))
print("whole decoder, same as the library's:",
      torch.allclose(mine, theirs, atol=1e-5 * float(theirs.abs().max())))

# %% [markdown]
# You have just run a language model in some forty lines. What does it say? The
# logits at place i are its guess for the token *after* place i.

# %%
for place in range(L):
    best = mine[0, place].topk(3).indices.tolist()
    said = [tokenizer.decode([token]) for token in best]
    print(f"{tokenizer.decode(ids[: place + 1])!r:27} -> {said}")

# %% [markdown]
# Five guesses, and four of them are about words that we know already. Only the
# last is news.
#
# And here is what the layers do to the stream: the size of each token's vector, after
# so many of them.

# %%
x, after = table[tokens], {}
for number, each in enumerate(model.layers, start=1):
    x = after[number] = my_layer(x, each, positions)

for number, stream in after.items():
    if number in (1, 6, 12, 24, 30):
        sizes = stream.pow(2).mean(-1).sqrt()[0].tolist()
        print(f"after {number:2} layers:", [round(size) for size in sizes])

# %% [markdown]
# There is the large one: the first token. Each layer reads all five through its norm,
# and there they are alike.
#
# When does the answer appear? We hand the stream to the head too early, after so many
# layers, and ask two things: which token is in front, and at what place ' Paris'
# stands.

# %%
paris = tokenizer.encode(" Paris")[0]
for number, stream in after.items():
    if number in (24, 27, 28, 29, 30):
        logits = head(stream)[0, -1]
        first = tokenizer.decode([int(logits.argmax())])
        place = 1 + int((logits > logits[paris]).sum())
        print(f"after {number} layers: {first!r:10}  ' Paris' at {place}")

# %% [markdown]
# The answer is not there at once. It climbs in the last few layers, and takes the
# lead in the very last.
#
# This trick has a name, the *logit lens*. It has a limit too: the head was trained to
# read only what the last layer leaves. That it makes nothing of an earlier stream does
# not mean that nothing is there.
#
# You have a whole language model now. It is a good place for a pause.

# %% [markdown]
# ## 11 · The loop that writes
#
# A model that guesses the next token can write: append the guess, ask again.

# %%
text = "The capital of France is Paris. The capital of Italy is"

written = tokenizer.encode(text)
for _ in range(9):
    logits = my_decoder(torch.tensor([written], device=device))
    written.append(int(logits[0, -1].argmax()))

print(tokenizer.decode(written))

# %% [markdown]
# Real text, from a real model, through nothing but the lines above. Taking the
# likeliest token each time is called **greedy** decoding. It throws no dice:
# the same prompt gives the same text, on the same machine and run in the same way.
# (Another batch size, kernel or dtype rounds differently, and that can tip the scales
# where two tokens are nearly equal.)
#
# The library's loop is `kvlearn.generate`. With `cache=None`, its default, it
# does what we did.

# %%
prompt = tokenizer.encode(text)
result = kvlearn.generate(model, prompt, 9, cache=None)
print("same tokens:", prompt + result.tokens[0] == written)

# %% [markdown]
# When does it stop? A model that was taught to converse has a token for "I
# have finished", its **EOS**. The tokenizer knows which, and how a question
# is wrapped so that the model takes it for one.

# %%
question = tokenizer.chat(
    [{"role": "user", "content": "What is the capital of France?"}])
reply = kvlearn.generate(model, question, 20, eos_ids=tokenizer.eos_ids)

print(repr(tokenizer.decode(reply.tokens[0])))
print(len(reply.tokens[0]), "tokens of at most 20")

# %% [markdown]
# ## 12 · What was repeated
#
# Look at the loop again. To choose one token it feeds the *whole* text, every
# time. We count: how many token-positions go through the key projection of
# one layer, pass by pass?
#
# **Before you run this:** a prompt of five tokens and five new ones. How many
# passes, and how many positions in each?

# %%
T, N = len(ids), 5
with measure.count_projections(model, "k_proj") as count:
    new = kvlearn.generate(model, ids, N).tokens[0]
print("positions in each pass:", count.per_step())

# %% [markdown]
# The prompt's own pass gives the first new token. Each later pass is longer
# by one, and the last new token is never fed: nobody asks what comes after
# it. As a formula: T + (T+1) + ... over N passes.

# %%
predicted = N * T + N * (N - 1) // 2
print("predicted:", predicted, " measured:", count.positions())
print("positions that there are:", T + N - 1)

# %% [markdown]
# So most of this was done before. And it came out the same each time, as
# lesson 02 promised. Here are the keys of the five prompt tokens, in the last
# layer, as each of the passes computed them. (The hook sits on the key projection: it
# sees them before they are turned.)

# %%
keys = []
hook = model.layers[-1].self_attn.k_proj.register_forward_hook(
    lambda module, args, out: keys.append(out[0, :T]))
kvlearn.generate(model, ids, N)
hook.remove()
print("same as in the first pass:",
      [torch.allclose(again, keys[0], atol=1e-3) for again in keys])

# %% [markdown]
# Now see it. Each frame is one pass over the table of keys and the table of
# values: green is new, orange was computed before and thrown away.

# %%
with measure.trace_cache(model) as trace:
    kvlearn.generate(model, ids, N)

labels = [tokenizer.decode([token]) for token in ids + new[:-1]]
figures.cache_frames({"naive": trace.steps}, labels)

# %% [markdown]
# Step through it yourself, if this page is connected to a kernel.

# %% tags=["nbval-ignore-output"]
from kvlearn import widgets

widgets.cache_stepper({"naive": trace.steps}, labels)

# %% [markdown]
# What does that cost in time? One pass over texts of several lengths, on this
# machine, a moment ago. (`last_only=True` asks for the logits of the last token
# alone. That is all a step needs.)

# %% tags=["nbval-ignore-output"]
long = torch.tensor([prompt * 8], device=device)
lengths = (8, 32, 64, 96)
seconds = measure.interleaved(
    {n: partial(model, long[:, :n], last_only=True) for n in lengths},
    repeats=2)
figures.time_per_token(
    {"naive": (lengths, [measure.median(seconds[n]) for n in lengths])})

# %% [markdown]
# The later a token stands, the longer it takes: its pass carries all the
# positions before it. The line does not start at zero, because even one token has to
# pass through all the layers, and every weight is read for it.

# %% [markdown]
# ## 13 · A number that you may be told, taken apart
#
# A claim of this kind: without a cache each step does O(T) projections and O(T)
# attention, O((T+N)²) in all; so with T = 8,000 and N = 500 there are about 70 million
# extra projections per layer. Let us count, with the formula that has just been
# measured.

# %%
T, N = 8000, 500
naive = sum(T + step for step in range(N))
cached = T + N - 1

print(f"naive:  {naive:>10,} = {measure.naive_projections(T, N):,}")
print(f"cached: {cached:>10,}")
print(f"extra:  {naive - cached:>10,} for one matrix of one layer")
print(f"        {2 * (naive - cached):>10,} for keys and values together")

# %% [markdown]
# That is far from 70 million, for one matrix and for the two. Where does that
# number come from?

# %%
square = (T + N) ** 2
print(f"(T + N)²:       {square:>10,}")
print(f"times naive:    {square // naive:>10}")
print(f"(T + N)² - T²:  {square - T**2:>10,}")
print("equals 2 x naive + N:", square - T**2 == 2 * naive + N)

# %% [markdown]
# It is a square, rounded. Draw each pass as a column, as high as it has positions:

# %%
figures.work_area(T, N)

# %% [markdown]
# The square would be right if each of the 8,500 tokens had a pass of its own,
# over the whole text. But the prompt goes in at once, and there are only 500
# passes. As a bound, O((T+N)²) is true and loose; the count is
# NT + N(N−1)/2. (Leave out the prompt's own square, and (T+N)² − T² is twice the
# naive count and N more: about right for keys and values together, and still far from
# 70 million.)
#
# ### And the attention?
#
# "O(T) attention per step" is wrong the other way: it is too little. How many
# pairs of a query and a key does the mask let one head *use*, in a pass over n
# tokens? A triangle, n(n+1)/2. And how many does our attention compute?

# %%
with measure.count_pairs(model) as pairs:
    kvlearn.generate(model, ids, 5)

passes = range(len(ids), len(ids) + 5)
print("used in each pass:", pairs.per_step())
print("predicted:        ", [n * (n + 1) // 2 for n in passes])
print("used in all:", pairs.pairs(), " computed:", pairs.computed())
print("n² in all:", sum(n * n for n in passes))

# %% [markdown]
# It computes the whole square, n², and throws nearly half of it away. Used or
# computed, it grows with T²: O(T²) in every step.
#
# Could we not score the last query alone, since only its guess is wanted? In the last
# layer, yes. But every layer before it must give *every* position's output, because
# the next layer makes that position's key and value from it.
#
# With a cache, O(T) is right: one query over all keys. The pairs that are used, for
# the 8,000 and 500:

# %%
print(f"naive:  {measure.naive_pairs(T, N):>14,}")
print(f"cached: {measure.cached_pairs(T, N):>14,}, prefill included")
ratio = measure.naive_pairs(T, N) // measure.cached_pairs(T, N)
print("times as many:", ratio)

# %% [markdown]
# (The **prefill** is the pass over the prompt. It has to be made once, cache or not.)
#
# ### How large is one projection?
#
# It is a vector times a matrix, and not one operation: each number of the
# matrix is multiplied and added once. (In Llama-2-7B the key matrix is
# 4,096 × 4,096, so one projection is 16.8 million of these.) And keys and
# values are not the only thing that is done again.

# %%
each = {name: weight.numel() for name, weight
        in layer.named_parameters() if weight.ndim == 2}
for name, multiply_adds in each.items():
    print(f"{name:24} {multiply_adds:>8,} multiply-adds a token")

kv = sum(each[f"self_attn.{name}_proj.weight"] for name in "kv")
print("keys and values are", 100 * kv // sum(each.values()), "% of it")

# %% [markdown]
# Is all of it really repeated? The counter can watch any part of a layer.

# %%
with measure.count_projections(model, "q_proj") as queries, \
        measure.count_projections(model, "mlp") as mlps:
    kvlearn.generate(model, ids, 5)
print("positions: queries", queries.positions(), " MLP", mlps.positions())

# %% [markdown]
# So a careful person says:
#
# > Without a cache, N new tokens after a prompt of T push NT + N(N−1)/2
# > token-positions through every matrix of every layer; with one, T + N − 1.
# > That is a count *per matrix and layer*, and one token-position is as many
# > multiply-adds as the matrix has numbers. The attention is worse off: O(T²)
# > score pairs per head and step, against O(T).
#
# ## 14 · When it breaks
#
# The library's decoder takes its rotary function and its attention as
# arguments, so we can put in wrong ones. Three ways to get positions wrong:

# %%
def turned_twice(x, positions, theta):
    return rope(rope(x, positions, theta), positions, theta)

def neighbours_paired(x, positions, theta):
    halves = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
    a, b = rope(halves, positions, theta).chunk(2, dim=-1)
    return torch.stack((a, b), dim=-1).flatten(-2)

def not_turned(x, positions, theta):
    return x

# %% [markdown]
# And one way to get the heads wrong: `repeat` for `repeat_interleave`.

# %%
def tiled(q, k, v, mask=None):
    k, v = (t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v))
    return kvlearn.attention(q, k, v, mask)


right = kvlearn.apply_rope, kvlearn.attention
faults = {
    "right": right,
    "turned twice": (turned_twice, right[1]),
    "neighbours paired": (neighbours_paired, right[1]),
    "not turned": (not_turned, right[1]),
    "heads tiled": (right[0], tiled)}

# %% [markdown]
# **Before you run this:** which of them will ruin the text, and which will you
# hardly notice?

# %%
for name, functions in faults.items():
    model.rope, model.attention = functions
    new = kvlearn.generate(model, prompt, 6).tokens[0]
    print(f"{name:18} {tokenizer.decode(new)!r}")
model.rope, model.attention = right

# %% [markdown]
# Tiled heads ruin everything at once, and without any turning the text loses the
# thread. With neighbours paired the city is still right. The surprise is the second
# line: turned twice, every token seems to stand twice as far away, and the text is
# *the same, word for word*. Probably because twice a short distance is still a
# distance that this model has met.
#
# So a text that reads well proves nothing. Ask instead how surprised the model
# is by a text that it did not choose: the mean of −log(probability) over the
# tokens of a passage.

# %%
passage = torch.tensor([tokenizer.encode(
    "Long ago, a small town lay by the sea. Every morning the fishermen "
    "went out in their boats, and every evening they came home with fish. "
    "One day a great storm came, and only one boat came back.",
)], device=device)

for name, functions in faults.items():
    model.rope, model.attention = functions
    surprise = F.cross_entropy(model(passage)[0, :-1], passage[0, 1:])
    print(f"{name:18} {surprise:.1f}")
model.rope, model.attention = right
print(f"{'guessing blindly':18} {math.log(config.vocab_size):.1f}")

# %% [markdown]
# Now every fault shows, the silent one too. This is why the course compares
# numbers and not impressions.
#
# One more: a rotary function that ignores the positions it is given and counts
# from 0. We try it in the naive loop, and with the cache of the next lesson.

# %%
def counts_from_zero(x, positions, theta):
    places = torch.arange(x.shape[2], device=x.device)
    return rope(x, places.expand_as(positions), theta)


model.rope = counts_from_zero
for cache in (None, kvlearn.GrowingCache(config, device=device)):
    new = kvlearn.generate(model, prompt, 6, cache=cache).tokens[0]
    print("naive: " if cache is None else "cached:",
          repr(tokenizer.decode(new)))
model.rope = kvlearn.apply_rope

# %% [markdown]
# The naive loop cannot notice: it feeds the whole text, and the whole text
# does begin at 0. With a cache each new token arrives alone, takes itself for
# the first, and the text goes astray. The bug was there before; it waited.

# %% [markdown]
# ## The answer in sixty seconds
#
# A decoder turns token ids into rows of a table, and that stream passes through
# a stack of layers. Each layer reads the stream through a norm and adds to it
# twice: attention, which moves information between tokens, and an MLP, which
# works on each token alone. Queries and keys are turned by their position, so
# that scores feel distance; query heads share key/value heads in groups. At
# the end the table is used again to give every token of the vocabulary a
# logit, and the last position's logits choose the next token. To write N tokens
# after a prompt of T, the naive loop runs the whole text N times: NT + N(N−1)/2
# token-positions through every matrix instead of T + N − 1, and in every pass the
# scores of all queries with all keys again. Nearly all of it recomputes numbers that,
# under a causal mask, cannot have changed.
#
# ## Sentences that give a beginner away
#
# - *"RoPE adds the position to the embedding."* It adds nothing. It turns
#   queries and keys, in every layer; the stream and the values stay as they
#   are.
# - *"`num_kv_heads` = 8 means groups of eight."* It means that eight key/value
#   heads exist. The group size is `num_heads // num_kv_heads`.
# - *"head_dim is hidden_size / num_heads."* It is a number of its own. For
#   gpt-oss-20b it is 64, and the quotient would be 45.
# - *"Without a cache, K and V are computed again."* Everything is: queries,
#   output projections, MLPs, and all the earlier rows of attention. K and V are
#   the smaller part.
# - *"Naive attention is O(T) per step."* It is O(T²): every position's output
#   is needed by the next layer.
# - *"That makes 70 million extra projections."* That is (T+N)². The count is
#   NT + N(N−1)/2, and say of what: one matrix, one layer.
# - *"Greedy decoding finds the likeliest text."* It takes the likeliest next
#   token, each time. The likeliest whole text may begin with another.
#
# ## Where you meet it
#
# - The parts are those of Llama (arXiv 2302.13971): RMSNorm (arXiv 1910.07467),
#   RoPE (arXiv 2104.09864), SwiGLU (arXiv 2002.05202); grouped heads are arXiv
#   2305.13245.
# - Heads tiled where they should be interleaved: `apple/axlearn#842`,
#   `onnx/onnx#7274`.
# - Positions not offset when a cache is used: `pytorch/executorch#2010`. Cached
#   keys turned a second time: `NeuraLegion/shainet#110`, caught in review.
# - Two conventions of pairs: the GGUF file that this model comes in has its
#   query and key rows in the order for neighbours. `kvlearn/gguf_file.py` puts
#   them back.
# - head_dim taken as a quotient in a cache calculator: `LMCache/LMCache#688`.
#   "KV groups" read as a group size: `rasbt/LLMs-from-scratch#922`.
#
# ## Exercises
#
# In [the exercises of lesson 03](../exercises/03_naive_decoder/03_naive_decoder.ipynb):
#
# | exercise | minutes |
# |---|---|
# | `rms_norm` | 10 |
# | `apply_rope` | 20 |
# | `grouped_attention` | 15 |
# | `greedy_decode` | 15 |
# | `count_projections` | 10 |
#
# Lesson 04 keeps what this loop throws away.
