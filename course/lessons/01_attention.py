# %% [markdown]
# # 01 · Attention
#
# **The question of this lesson:** how does a token look at other tokens, and
# what exactly are Q, K and V?
#
# You need lesson 00 and the dot product. Allow about an hour.
#
# | letter | what it counts |
# |---|---|
# | `B` | texts in the batch |
# | `H` | heads (`Hq` query heads and `Hkv` key/value heads where they differ) |
# | `L` | tokens that look: the queries |
# | `S` | tokens that are looked at: the keys |
# | `D` | numbers in one head's vector (head_dim) |

# %%
import math

import torch
import torch.nn.functional as F
from einops import rearrange

import kvlearn
from kvlearn import figures, measure

torch.set_printoptions(precision=2, sci_mode=False)

# %% [markdown]
# ## 1 · How alike are two vectors?
#
# In a language model every token is a vector: a list of numbers, learned,
# that says what the token means so far. We make up three, short enough to
# draw.

# %%
cat = torch.tensor([2.0, 1.0])
kitten = torch.tensor([1.5, 1.5])
car = torch.tensor([-1.0, 2.0])

figures.arrows(torch.stack([cat, kitten, car]), ["cat", "kitten", "car"])

# %% [markdown]
# Attention measures likeness with the **dot product**: multiply number by
# number, and add up. *cat* and *kitten* point nearly the same way, *cat* and
# *car* stand at a right angle.

# %%
print("cat · kitten =", (cat * kitten).sum().item())
print("cat · car    =", (cat @ car).item())

# %% [markdown]
# A large number for the same direction, zero at a right angle, and below zero
# when two vectors point away from each other.
#
# **Before you run this:** we make *kitten* twice as long and leave its
# direction alone. What is the dot product now?

# %%
print("cat · (2 kitten) =", (cat @ (2 * kitten)).item())

# %% [markdown]
# Twice as much. So it is not the angle alone that counts: a longer vector has
# a louder voice.
#
# One more property, for later. Turn both vectors by the same angle, and the
# dot product does not notice.

# %%
turn = torch.tensor([[0.6, -0.8],
                     [0.8, 0.6]])
turned = (turn @ cat) @ (turn @ kitten)
print("unchanged:", torch.allclose(turned, cat @ kitten))

# %% [markdown]
# Lesson 03 turns vectors by an angle that depends on their position in the
# text, and this is why that works.

# %% [markdown]
# ## 2 · One token looks at three, by hand
#
# The text is *the cat sat*, one vector a token. The token *sat* wants to know
# what is around it. First it compares itself with every token, itself
# included. The results are its **scores**.

# %%
x = torch.tensor([[0.0, 1.0],   # the
                  [1.0, 2.0],   # cat
                  [1.0, 1.0]])  # sat

scores = [(x[2] @ x[s]).item() for s in range(3)]
print("scores of sat:", scores)

# %% [markdown]
# We want shares instead: positive numbers that add up to 1. Raise e to each
# score, so that all are positive, and divide by the sum. That is the
# **softmax**, and its results are the attention **weights**.

# %%
powers = [math.exp(score) for score in scores]
weights = [power / sum(powers) for power in powers]
print("weights:", [round(w, 2) for w in weights])

# %% [markdown]
# *sat* gives *cat* a larger share than itself. One point more of score is a
# factor of e, about 2.7, in weight: what counts is by how much a score leads.
#
# Last, *sat* takes a **weighted average** of the three vectors.

# %%
mix = sum(weights[s] * x[s] for s in range(3))
print(f"result for sat: {mix}")

figures.arrows(x, ["the", "cat", "sat"], average=mix)

# %% [markdown]
# The result lies inside the triangle, whatever the weights are: an average
# cannot leave the space between the vectors that it averages. Attention mixes
# what is there. Making something new is the job of other parts of the model.
#
# Scores, softmax, average: that was attention. All three tokens at once are
# two matrix products with a softmax between them.

# %%
scores = x @ x.T                          # (L, S): a row for each query
weights = torch.softmax(scores, dim=-1)   # each row adds up to 1
out = weights @ x                         # (L, D)
print("row of sat as by hand:", torch.allclose(out[2], mix))

figures.attention_map(weights, ["the", "cat", "sat"])

# %% [markdown]
# ### Break it: the softmax along the wrong axis
#
# `dim=-1` runs along the keys. **Before you run this:** with `dim=0`, do the
# rows still add up to 1?

# %%
wrong = torch.softmax(scores, dim=0)
ones = torch.ones(3)
print("rows add up to 1:   ", torch.allclose(wrong.sum(dim=1), ones))
print("columns add up to 1:", torch.allclose(wrong.sum(dim=0), ones))

# %% [markdown]
# Now each *key* hands out a share of 1 among the queries, and a
# query that nobody has much left for gets almost nothing. The shape is right,
# so nothing complains.

# %% [markdown]
# ### Break it: large scores
#
# e¹⁰⁰ has 44 digits, more than a float32 holds. It becomes infinity, and
# infinity divided by infinity is not a number. But only leads count: subtract
# the largest score from all of them first, and the largest power is e⁰ = 1.

# %%
large = torch.tensor([99.0, 100.0, 98.0])
powers = (large - large.max()).exp()

print(f"as written above:   {large.exp() / large.exp().sum()}")
print(f"largest subtracted: {powers / powers.sum()}")
print(f"torch.softmax:      {torch.softmax(large, dim=-1)}")

# %% [markdown]
# The same weights as for the scores 1, 2, 0 in that order. `torch.softmax`
# subtracts for you.

# %% [markdown]
# ## 3 · Why divide by √D?
#
# Our vectors had two numbers each. In the model of lesson 00 a head's vectors
# have 64, and a dot product adds up all of them. Let us see what that does,
# with many pairs of random vectors whose numbers have variance 1.

# %%
torch.manual_seed(0)
for D in (4, 16, 64, 256):
    q, k = torch.randn(2, 20_000, D)
    variance = (q * k).sum(dim=-1).var()
    print(f"D = {D:3}:  variance / D = {variance / D:.1f}")

# %% [markdown]
# The variance grows like D: each of the D products adds its own. The usual
# size of a score, its **spread**, is the root of that: **√D**. So vectors of
# more numbers make larger leads for no other reason.
#
# What do large leads do to a softmax? We let random queries look at eight
# random keys, and note the largest of the eight weights, in percent.

# %%
def largest_weight(D, divide_by):
    torch.manual_seed(1)
    q, k = torch.randn(1000, 1, D), torch.randn(1000, 8, D)
    scores = (q * k).sum(dim=-1) / divide_by
    largest = torch.softmax(scores, dim=-1).amax(dim=-1)
    return round(100 * largest.mean().item())


figures.show(figures.bars(
    {f"D = {D}": {"not divided": largest_weight(D, 1),
                  "divided by √D": largest_weight(D, D**0.5),
                  "divided by D": largest_weight(D, D)}
     for D in (4, 64, 256)}, ylabel="percent"),
    caption="The largest of eight attention weights, on average.")

# %% [markdown]
# Not divided: at D = 256 one key takes nearly everything. Divided by D: the
# larger D, the flatter, and at D = 256 all eight keys get nearly an eighth.
# Divided by √D: the same behaviour at every size.
#
# "One key takes everything" is not wrong by itself. A trained head may want
# just that. The harm is that such a softmax has stopped learning: the
# derivative of the largest weight with respect to its score goes to zero.

# %%
for size in (1, 4, 16):
    scores = size * torch.tensor([2.0, 1.0, 0.0])
    scores.requires_grad_()
    weight = torch.softmax(scores, dim=-1)[0]
    weight.backward()
    print(f"weight {weight.item():.2f}  derivative {scores.grad[0]:.2f}")

# %% [markdown]
# ## 4 · Three readings of one vector: Q, K and V
#
# In section 2 each token used the same vector for three jobs: to ask, to be
# compared with, and to be averaged. That ties its hands.

# %%
scores = x @ x.T
print("scores equal their mirror image:", torch.equal(scores, scores.T))

# %% [markdown]
# Whatever *sat* thinks of *cat*, *cat* must think of *sat*.
# Language is not like that: an adjective may search for its noun while the
# noun has no use for the adjective.
#
# So each token gets three vectors, made from its one vector, its **hidden
# state** in this layer, by three learned matrices:
#
# - the **query**: what this token looks for;
# - the **key**: what it can be found by;
# - the **value**: what it hands over when it is found.
#
# We take three tokens with hidden states of four numbers, and heads of two.
# In a real model training finds the matrices. Here they are random.

# %%
torch.manual_seed(0)
L, hidden, D = 3, 4, 2
x = torch.randn(L, hidden)
W_q, W_k, W_v = torch.randn(3, hidden, D)

q, k, v = x @ W_q, x @ W_k, x @ W_v
print("hidden states", tuple(x.shape), " W_k", tuple(W_k.shape))
print("q", tuple(q.shape), " k", tuple(k.shape), " v", tuple(v.shape))

# %% [markdown]
# Such a multiplication is called a **projection**. Now attention is: scores
# from queries and keys, averages of the values.

# %%
def attend(q, k, v):
    scores = q @ k.T / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v


out = attend(q, k, v)
print("out", tuple(out.shape))
scores = q @ k.T
print("scores equal their mirror image:", torch.allclose(scores, scores.T))

# %% [markdown]
# One thing here will carry the whole course. **A token's key
# and value are made from its own hidden state alone.** No other token takes
# part.

# %%
print("key of token 2, made alone:", torch.allclose(x[2] @ W_k, k[2]))

# %% [markdown]
# So a key is made once and may be kept. A query is asked once and done with.
# That is a KV cache in two sentences, and why there is no Q in it. (What must
# be true of the hidden states for this to hold is lesson 02.)

# %% [markdown]
# ## 5 · A picture, and where it breaks
#
# You will hear this picture: *each token leaves a note. The key is the label
# on the note, the value is what the note says. A query goes round, reads the
# labels, and copies from the notes that match.*
#
# It helps. It says why two things are kept for each token and not one, why
# keys and values go together, and why nobody keeps the queries. Then it
# misleads, in at least three places.
#
# **A label is shorter than a note?** Not here. Key and value have the same
# size, and cost the same memory.

# %%
print("same shape:", k.shape == v.shape)

# %% [markdown]
# (Some designs make the two different on purpose. DeepSeek's
# latent attention, lesson 06, is one.)
#
# **A query takes the note that matches?** It takes some of every note. No
# softmax weight of finite scores is zero, unless it is too small to be
# written as a float.

# %%
weights = torch.softmax(q @ k.T / math.sqrt(D), dim=-1)
above = int((weights > 0).sum())
print("weights above zero:", above, "of", weights.numel())

# %% [markdown]
# **You could read a note?** A value is four numbers squeezed
# into two, so it cannot say which four they were. To show it we look for a
# direction that W_v maps to zero (the last row of an SVD gives one) and move
# a hidden state along it.

# %%
blind = torch.linalg.svd(W_v.T).Vh[-1]
other = x[0] + 3 * blind

print("another hidden state:", not torch.allclose(other, x[0]))
print("the same value:      ",
      torch.allclose(other @ W_v, v[0], atol=1e-5))

# %% [markdown]
# Keys and values are not text, and not a short and a long form
# of it. They are two learned projections of the same hidden state, of equal
# size, and only dot products and averages ever look at them.

# %% [markdown]
# ## 6 · Attention does not know the order
#
# **Before you run this:** we shuffle the keys, and the values in the same
# way. Which outputs change? And if we shuffle the keys alone?

# %%
order = torch.tensor([2, 0, 1])
together = attend(q, k[order], v[order])
keys_alone = attend(q, k[order], v)
print("both shuffled, same output: ", torch.allclose(together, out))
print("keys shuffled, same output: ", torch.allclose(keys_alone, out))

# %% [markdown]
# A sum does not depend on the order of its terms. To attention
# the tokens are a *set* of pairs (key, value). Take away a pair's partner and
# all is lost; move the pair and nothing happens.
#
# For language that is a calamity. *dog bites man* and *man bites dog* are the
# same set.

# %%
dog, bites, man = torch.randn(3, hidden)


def result_for_bites(tokens):
    t = torch.stack(tokens)
    return attend(t @ W_q, t @ W_k, t @ W_v)[1]


print("same result for bites:",
      torch.allclose(result_for_bites([dog, bites, man]),
                     result_for_bites([man, bites, dog])))

# %% [markdown]
# So a model has to put the position into its vectors. Lesson 03 does it by
# turning queries and keys.
#
# For a cache it is good news. Once the keys carry their positions, its slots
# (a slot is the place of one token) may lie in memory in any order, as long
# as a key and its value stay together. Rings and pages, in later lessons,
# live on that.

# %% [markdown]
# ## 7 · Several heads
#
# A softmax gives a token *one* set of weights. If *sat* wants to know both
# who sat and where, one average has to serve both. So a layer runs several
# small attentions side by side, each with projections of its own: **heads**.
#
# Two texts of five tokens, hidden states of 10 numbers, three heads of 4. All
# sizes differ, so that a wrong axis cannot hide.

# %%
torch.manual_seed(0)
B, L, hidden, H, D = 2, 5, 10, 3, 4
x = torch.randn(B, L, hidden)
W_q, W_k, W_v = torch.randn(3, hidden, H * D) / hidden**0.5
W_o = torch.randn(H * D, hidden) / (H * D) ** 0.5

# %% [markdown]
# Project for all heads at once, split as in lesson 00, attend
# in each head, merge, and let a last matrix, the **output projection**, mix
# what the heads found. `@` multiplies the last two axes and runs over all
# others, so batch and heads need no loop.

# %%
def split(t):
    return rearrange(t, "b l (h d) -> b h l d", h=H)


q, k, v = split(x @ W_q), split(x @ W_k), split(x @ W_v)
scores = q @ k.transpose(-2, -1) / math.sqrt(D)
weights = torch.softmax(scores, dim=-1)
per_head = weights @ v
merged = rearrange(per_head, "b h l d -> b l (h d)")
y = merged @ W_o

# %% [markdown]
# When you read code like this, say the axes aloud after every line. Here they
# are.

# %%
for name, tensor, axes in (("x", x, "B, L, hidden"),
                           ("q, k, v", q, "B, H, L, D"),
                           ("scores", scores, "B, H, L, S"),
                           ("per head", per_head, "B, H, L, D"),
                           ("merged", merged, "B, L, H·D"),
                           ("y", y, "B, L, hidden")):
    print(f"{name:9} {str(tuple(tensor.shape)):15} {axes}")

# %% [markdown]
# Note the scores: L × S numbers in every head. They are the only tensor here
# that grows with the square of the text.
#
# Is head 1 really a small attention of its own? Its columns of the matrices
# are 4 to 7.

# %%
mine = slice(4, 8)
alone = attend(x[0] @ W_q[:, mine], x[0] @ W_k[:, mine],
               x[0] @ W_v[:, mine])
print("head 1 alone = head 1 of all:",
      torch.allclose(alone, per_head[0, 1], atol=1e-6))

# %% [markdown]
# **Before you run this:** one attention of width 12 has as many
# numbers in its matrices as three of width 4. Does it give the same result?

# %%
wide = attend(x[0] @ W_q, x[0] @ W_k, x[0] @ W_v)
print("one wide head = three heads:", torch.allclose(wide, merged[0]))

# %% [markdown]
# No: it has one set of attention weights for all 12 numbers.
# Several heads are several *sets of attention weights*, for the same price.
#
# And the output projection? Cut W_o into one piece a head: the layer's result
# is the sum of what each head writes.

# %%
pieces = W_o.view(H, D, hidden)
written = sum(per_head[:, h] @ pieces[h] for h in range(H))
print("sum over heads = y:", torch.allclose(written, y, atol=1e-5))

# %% [markdown]
# ## 8 · The same by its names
#
# Torch has it as one function, and so has kvlearn. The second is short: read
# `kvlearn/attention.py`, which you can now do.

# %%
print("torch:  ", torch.allclose(
    F.scaled_dot_product_attention(q, k, v), per_head, atol=1e-6))
print("kvlearn:", torch.allclose(
    kvlearn.attention(q, k, v), per_head, atol=1e-6))
print("weights:", torch.allclose(
    kvlearn.attention_weights(q, k), weights, atol=1e-6))

# %% [markdown]
# Nothing says that there must be as many queries as keys. Ask for the last
# token alone: one query, five keys and values.

# %%
last = kvlearn.attention(q[:, :, -1:], k, v)
print("q", tuple(q[:, :, -1:].shape), " k", tuple(k.shape))
print("= last row:", torch.allclose(last, per_head[:, :, -1:], atol=1e-6))

# %% [markdown]
# Remember this shape. It is a **decode step**, one token
# written with a cache: one query, all keys, all values, and none of the old
# queries.
#
# Two more things the function takes, for later: a mask (lesson 02), and fewer
# key/value heads than query heads (lessons 03 and 06). The model below has
# nine query heads that share three key/value heads.

# %% [markdown]
# ## 9 · What does it cost?
#
# Count multiply-adds for one text of n tokens. A score takes D of them, there
# are n × n scores a head, and averaging the values costs the same again. A
# projection takes hidden × H·D for each token, and there are four.
#
# Torch can count too: two operations, one multiplication and one addition,
# for each of ours.

# %%
from torch.utils.flop_counter import FlopCounterMode


def measured(n):
    x, merged = torch.randn(n, hidden), torch.randn(n, H * D)
    q, k, v = torch.randn(3, H, n, D)
    with FlopCounterMode(display=False) as attending:
        torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v
    with FlopCounterMode(display=False) as projecting:
        x @ W_q, x @ W_k, x @ W_v, merged @ W_o
    return [c.get_total_flops() // 2 for c in (attending, projecting)]


# %% [markdown]
# **Before you run this:** the text gets twice as long. By how
# much does each of the two grow?

# %%
print("         attention              projections")
print("tokens   predicted   measured   predicted   measured")
for n in (10, 20, 40):
    attending, projecting = measured(n)
    print(f"{n:6} {2 * H * n * n * D:11} {attending:10}"
          f" {4 * n * hidden * H * D:11} {projecting:10}")

# %% [markdown]
# Twice the text is four times the attention, and twice the projections.
#
# So short texts pay for projections and long texts for attention. Keep both
# in mind: a cache saves the projections of old tokens and the rows of old
# queries. What is left is one new row: the new query looks at every key.

# %% [markdown]
# ## 10 · See it in a real model
#
# The decoder of this course takes its attention function as an argument. So
# we hand it one of our own, which does what section 7 did and keeps the
# weights. (Each key/value head serves three query heads here;
# `repeat_interleave` lines them up.)

# %%
seen = []


def recording_attention(q, k, v, mask=None):
    weights = kvlearn.attention_weights(q, k, mask)  # (B, Hq, L, S)
    seen.append(weights[0].cpu())
    group_size = q.shape[1] // k.shape[1]
    return weights @ v.repeat_interleave(group_size, dim=1)


model, tokenizer = kvlearn.load_or_tiny(
    attention=recording_attention, device=measure.device())

# %% [markdown]
# Give the model a text, and every layer calls our function
# once. We stack what it kept, and ask which token the model would write next.

# %%
def look_at(text):
    """The tokens of a text as words, and the weights (layers, Hq, L, L)."""
    ids = tokenizer.encode(text)
    seen.clear()
    logits = model(torch.tensor([ids], device=model.device))
    best = tokenizer.decode([int(logits[0, -1].argmax())])
    return [tokenizer.decode([i]) for i in ids], torch.stack(seen), best


words, W, best = look_at("The capital of France is Paris. "
                         "The capital of Italy is")
print("layers, heads, queries, keys:", tuple(W.shape))
print("the model goes on with:", best)

# %% [markdown]
# Your function has just run a language model. It has kept a
# heat map for every head of every layer, far too many to look at. So we ask
# which head does a thing most. Three questions:
#
# - who gives most to the **token just before**?
# - who gives most to the **very first token**?
# - *The*, *capital*, *of* and *is* come twice. Who makes the second one look
#   at **what followed** the first one?

# %%
def champion(score):
    """(layers, heads) -> the layer and head with the largest score."""
    return divmod(int(score.argmax()), score.shape[1])


before = champion(W.diagonal(-1, 2, 3).mean(dim=-1))
first = champion(W[:, :, 1:, 0].mean(dim=-1))
second, after_first = [7, 8, 9, 11], [1, 2, 3, 5]
followed = champion(W[:, :, second, after_first].mean(dim=-1))

# %% [markdown]
# The three winners, side by side. (The titles say layer.head.)

# %%
chosen = {"token before": before, "first token": first,
          "what followed": followed}
figures.attention_map(
    torch.stack([W[spot] for spot in chosen.values()]), words,
    heads=[f"{name}: {layer}.{head}"
           for name, (layer, head) in chosen.items()])

# %% [markdown]
# Read row by row: a row is a token that looks, and the dark
# cells are where it looks.
#
# - **All maps:** nothing above the diagonal. No token looks ahead. That is
#   the causal mask, and the next lesson.
# - **Token before:** a dark line one below the diagonal. A head like this can
#   tell a token what it follows.
# - **First token:** one dark column, whatever the token. More on it in a
#   moment.
# - **What followed:** the second *of* looks at *France*, the second *is* at
#   *Paris*. Such heads are called induction heads (arXiv 2209.11895): they
#   find the earlier place of the current token and look at what came after
#   it, which helps a model to go on with a pattern.
#
# Here is the same kind of search with a pronoun: which head, anywhere, makes
# *it* look most at *cat*?

# %%
words, W, _ = look_at("The cat sat on the mat because it was tired.")
it, its_cat = 7, 1
layer, head = champion(W[:, :, it, its_cat])
figures.attention_map(W[layer, head], words,
                      title=f"Layer {layer}, head {head}")

# %% [markdown]
# *it* looks at *cat*. It is tempting to write: "this head
# resolves pronouns". Be careful. We searched hundreds of maps for the one
# that shows what we wanted. An honest next step is to try the same head on
# other sentences.

# %%
def where(text, pronoun):
    words, W, _ = look_at(text)
    position = len(tokenizer.encode(text.split(pronoun)[0]))
    return [words[i] for i in W[layer, head, position].topk(2).indices]


print(where("The trophy did not fit in the suitcase because it was too "
            "big.", " it"))
print(where("The mat was under the cat because it was tired.", " it"))
print(where("Anna gave the book to Peter because she had read it.",
            " she"))

# %% [markdown]
# For the trophy the head is right. In the second text it looks
# at the mat, and it was the cat that was tired; and *she* looks at *Peter*
# first. What this head likes seems to be a noun that the clause before was
# about, and often that is the right one. A heat map is a fine way to find a
# question, and a poor way to prove an answer.

# %% [markdown]
# ## 11 · Play
#
# Every layer and head of *The cat sat on the mat because it was tired.* Move
# the sliders. Look for heads of the kinds above, and for heads that you
# cannot explain. There are many.

# %% tags=["nbval-ignore-output"]
from kvlearn import widgets

widgets.attention_explorer(W, words)

# %% [markdown]
# The same without sliders: one head from six layers.

# %%
layers = range(0, len(W), 5)
figures.attention_map(torch.stack([W[n, 0] for n in layers]), words,
                      heads=[f"layer {n}, head 0" for n in layers])

# %% [markdown]
# ## 12 · Where the heat map lies
#
# How many heads give more than half of their weight to the first token?

# %%
to_first = W[:, :, 1:, 0].mean(dim=-1)
print(int((to_first > 0.5).sum()), "of", to_first.numel(), "heads")

# %% [markdown]
# Most of them, and that token is only the word *The*. Is it that important?
#
# A weight says how much of a value is taken. It does not say how large the
# value is. **Before you run this:** guess how the first token's value
# compares with the others in length.

# %%
values = []


def recording_values(q, k, v, mask=None):
    values.append(v[0].cpu())
    return kvlearn.attention(q, k, v, mask=mask)


model.attention = recording_values
ids = tokenizer.encode("The cat sat on the mat because it was tired.")
_ = model(torch.tensor([ids], device=model.device))

# %% [markdown]
# We take the head that gave most to the first token in section 10.

# %%
layer, head = first
lengths = values[layer][head // model.config.group_size].norm(dim=-1)
for s in range(5):
    print(f"{words[s]:5} {lengths[s]:5.1f}")

# %% [markdown]
# Next to nothing. The softmax forces a head to hand out a whole
# 1, even when it has found nothing. The first token, which every query can
# see, is where it puts that 1 down: its value is short, so hardly anything is
# added. It is known as an **attention sink** (arXiv 2309.17453), and it
# matters for caches: lesson 07 drops old tokens, and dropping this one does
# harm.
#
# So weight is not importance. What a head adds to a token is weight × value,
# passed through W_o.

# %% [markdown]
# ## The answer in sixty seconds
#
# Each token's hidden state is projected by three learned matrices into a
# query, a key and a value. The query's dot products with all keys, divided by
# √D so that their spread does not grow with the size of a head, go through a
# softmax along the keys and become weights that add up to 1. The result is
# the average of the values with these weights. Several heads do this side by
# side with projections of their own; their results are merged and mixed by an
# output projection. The cost of scores and averages grows with queries ×
# keys. Order does not enter unless positions are put into the vectors. Keys
# and values of a token are made from that token's hidden state alone, and
# under a causal mask that state never changes. Every later query needs them;
# a query is needed once. Hence a cache of K and V.

# %% [markdown]
# ## Sentences that give a beginner away
#
# - *"Q, K and V are three inputs."* In self-attention they are three
#   projections of the same hidden states.
# - *"Keys are short labels and values are the text."* They have the same
#   size, and neither is text. (Nor a secret: lesson 04.)
# - *"Attention picks the best matching token."* It averages all of them. A
#   near pick is a special case.
# - *"We divide by √D to keep the numbers small."* To keep their spread the
#   same for every D, so that the softmax is neither flat nor decided when
#   training starts. Dividing by D makes them smaller still, and the softmax
#   starts flat.
# - *"More heads cost more."* With H × D fixed the matrices are the same size,
#   and so is the number of multiply-adds. What there is more of is scores.
# - *"Attention sees the order of the words."* Not without positions.
# - *"A large weight means that the token mattered."* See section 12.

# %% [markdown]
# ## Where you meet it
#
# - Attention as here is in Vaswani et al. 2017 (arXiv 1706.03762); grouped
#   key/value heads are in Ainslie et al. 2023 (arXiv 2305.13245).
# - `torch.nn.functional.scaled_dot_product_attention` has the same layout
#   and, with `enable_gqa=True`, grouped heads.
# - transformers keeps K and V as `(B, Hkv, L, D)` before heads are repeated.
#   gpt-fast keeps them in two buffers of the same layout.
# - head_dim is a number of its own. Code that computes hidden_size //
#   num_heads is wrong for gpt-oss, which has 64 where that gives 45
#   (`NVIDIA/Model-Optimizer#2482`).
# - Turning queries and keys alike leaves scores alone, as in section 1:
#   llama.cpp does it before it quantises a cache (`ggml-org/llama.cpp`
#   PR#21038).
# - FlashInfer returns the logarithm of the softmax's sum with each result, so
#   that attention over two halves of a cache can be merged. FlashInfer uses
#   base 2 and FlashAttention base e. If you merge a result of one with a
#   result of the other, the weights are wrong and nothing raises an error.

# %% [markdown]
# ## Exercises
#
# About 50 minutes: `attention_weights` (15, medium),
# `scaled_dot_product_attention` (10, easy) and `multi_head_attention` (25,
# medium), in
# [the exercises of lesson 01](../exercises/01_attention/01_attention.ipynb).
#
# Next: [02 · Causal masking](02_causal_masking.ipynb).
