# %% [markdown]
# # 02 · Causal masking, and why it makes K and V final
#
# **The question of this lesson:** why may a token not look ahead, and why is
# that the reason a cache can exist at all?
#
# You need lesson 01: queries, keys, values, and
# `softmax(q kᵀ / √D) v`. Allow 90 minutes; the end of section 9 is a good place
# for a pause.
#
# | letter | what it counts |
# |---|---|
# | `B` | rows in the batch |
# | `Hq`, `Hkv` | query heads, key/value heads |
# | `L` | new tokens: the queries |
# | `S` | all tokens that are looked at: the keys |
# | `D` | numbers in one head's vector (head_dim) |

# %%
import torch
import torch.nn.functional as F

import kvlearn
from kvlearn import figures, measure

torch.set_printoptions(precision=2, sci_mode=False)

# %% [markdown]
# ## 1 · Every position is an exam, and the answers are in the room
#
# A language model learns from all positions of a text at once. In
# *the cat sat down* it must say *cat* after *the*, *sat* after *the cat*, and
# so on: four tokens in, four guesses out, in one pass.
#
# The trouble: the token that position 1 must guess stands at position 2, in
# the same tensor. Here is attention over four tokens as lesson 01 left it,
# with batch and heads left out.

# %%
torch.manual_seed(2)
L, D = 4, 2
q, k, v = torch.randn(3, L, D)

scores = q @ k.T / D**0.5  # (L, S): one row a query, one column a key
out = torch.softmax(scores, dim=-1) @ v
print("scores:", tuple(scores.shape), " outputs:", tuple(out.shape))

# %% [markdown]
# **Before you run this:** we swap the last token, position 3, for another one.
# It comes after all the others. Which rows of the output will change?

# %%
k_new, v_new = k.clone(), v.clone()
k_new[3], v_new[3] = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 1.0])

out_new = torch.softmax(q @ k_new.T / D**0.5, dim=-1) @ v_new
changed = (out != out_new).any(dim=-1)
print("output changed at position:", changed.nonzero().flatten().tolist())

# %% [markdown]
# All of them. Position 0 knows something of what is said three tokens later.
#
# A model that may look ahead has no need to learn a language. It is enough to
# copy. We build that cheat by hand: the query at position p asks for the key
# at position p + 1, and each value says which token stands there.

# %%
tokens = torch.tensor([3, 1, 4, 1, 5, 9])
values = F.one_hot(tokens).float()
place = 9 * torch.eye(6)  # one direction for each position

asks_for_the_next = place.roll(1, dims=1)
weights = torch.softmax(asks_for_the_next @ place, dim=-1)
guess = (weights @ values).argmax(dim=-1)
print("the next tokens:", tokens[1:].tolist())
print("its guesses:    ", guess[:-1].tolist())

# %% [markdown]
# A perfect mark, without a thought. And worth nothing: when the model
# *generates*, the next token does not exist yet, and there is nobody to copy
# from. (Later in this lesson two small models are trained, and you will see
# one of them find this cheat by itself.)
#
# So the rule is: **a token may attend to itself and to what came before it.**

# %% [markdown]
# ## 2 · The triangle
#
# Write down who may see whom, one row a query, one column a key. Query 0 sees
# one key, query 1 sees two: a triangle. `tril` keeps the lower one. (`long`
# prints True as 1.)

# %%
triangle = torch.ones(L, L).tril().bool()
print(triangle.long())

# %% [markdown]
# In this course a mask is boolean, and **True means: may attend**.
#
# How do we forbid a key? The softmax turns a score s into eˢ. The lower the
# score, the nearer to zero; and at minus infinity it is zero exactly.

# %%
masked_scores = scores.masked_fill(~triangle, float("-inf"))
print(masked_scores)

# %% [markdown]
# Now the softmax.

# %%
weights = torch.softmax(masked_scores, dim=-1)
print("rows sum to one:", torch.allclose(weights.sum(-1), torch.ones(L)))

figures.attention_map(weights, mask=triangle)

# %% [markdown]
# Row 0 has one key to choose from, so it takes its own value whole. Each row
# shares a 1 among the keys that it may see, and every hatched cell is zero.
#
# Note what a score of zero would have done: e⁰ is 1, a rather good mark. Zero
# forbids nothing.
#
# **Before you run this:** the same swap of token 3 as before. Which outputs
# change now?

# %%
def masked_out(k, v, mask):
    scores = (q @ k.T / D**0.5).masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


changed = masked_out(k, v, triangle) != masked_out(k_new, v_new, triangle)
print("changed at:", changed.any(dim=-1).nonzero().flatten().tolist())

# %% [markdown]
# Only position 3 itself. What came before cannot notice. Hold on to this; it
# is half of the answer to the lesson's question.

# %% [markdown]
# ## 3 · Before the softmax, not after it
#
# A tempting shortcut: take the softmax of all scores and strike out the
# forbidden weights afterwards. Two things go wrong. The first can be seen in
# the sums of the rows.

# %%
struck = torch.softmax(scores, dim=-1) * triangle
print("rows sum to one:", (struck.sum(-1) - 1).abs().lt(1e-6).tolist())

# %% [markdown]
# Only the last row is whole. The others lost what they had already given to
# the future, so early tokens speak with a lower voice.
#
# The second is worse, for it hides. Each weight is eˢ divided by the sum over
# *all* keys, and that sum has seen the future.

# %%
struck_new = torch.softmax(q @ k_new.T / D**0.5, dim=-1) * triangle
changed = (struck @ v != struck_new @ v_new).any(dim=-1)
print("changed at:", changed.nonzero().flatten().tolist())

# %% [markdown]
# The leak is back. Dividing each row by its sum seems to mend both: it takes the
# future out of the sum again.

# %%
mended = struck / struck.sum(-1, keepdim=True)
print("struck out and divided = masked before:",
      torch.allclose(mended, weights))

# %% [markdown]
# But it comes too late when the future shouts. Here the last of three keys is
# forbidden, and has by far the best score.

# %%
shares = torch.softmax(torch.tensor([1.0, 2.0, 200.0]), dim=-1)
print("shares of the keys:", shares)

# %% [markdown]
# The two allowed keys have been rounded to zero. Strike out the third, and there
# is nothing left to divide. With −∞ *before* the softmax, the future never comes
# in.

# %% [markdown]
# ## 4 · Fewer queries than keys
#
# In training there is one query for each key and the triangle is a square cut
# in half. A model that generates is different: it has read a text already, and
# asks only for the new tokens. Say three tokens are stored and two are new:
# **two queries, five keys.**
#
# Which triangle is it now? The corner that touches the top left, or the one
# that touches the bottom right?

# %%
top_left = torch.ones(2, 5).tril().long()
bottom_right = torch.ones(2, 5).tril(diagonal=5 - 2).long()
print("top left:", top_left, "\nbottom right:", bottom_right, sep="\n")

# %% [markdown]
# The two queries are tokens 3 and 4 of the text. Token 3 sees tokens 0 to 3:
# four keys. Token 4 sees five. The corner is at the **bottom right**: the last
# query sees the last key.
#
# With the top-left corner token 3 would see token 0 alone, and not even
# itself. Two rows out of the full 5 × 5 triangle settle the matter.

# %%
full = torch.ones(5, 5).tril().long()
print("bottom right = last two rows of the full triangle:",
      torch.equal(bottom_right, full[-2:]))

# %% [markdown]
# Code that adds a cache to a model often gets this wrong, because a ready-made
# flag invites it. We ask torch itself, with two new queries and with one. If each
# value is a row of the identity matrix, the output *is* the row of weights, and we
# can see which keys a query used.

# %%
q5, k5 = torch.randn(1, 1, 5, D), torch.randn(1, 1, 5, D)
see_weights = torch.eye(5)[None, None]

for new in (2, 1):
    used = F.scaled_dot_product_attention(
        q5[:, :, -new:], k5, see_weights, is_causal=True)
    print(f"new queries: {new}", (used[0, 0] > 0).long(), sep="\n")

# %% [markdown]
# No error, no warning, and the wrong triangle: `is_causal=True` starts at the
# top left (`pytorch/pytorch#108108`). A single query, the everyday case of a
# cached decoder, sees the oldest key and nothing else
# (`pytorch/pytorch#103082`).
#
# **Before you run this:** one new token over eight keys. What should the
# right mask look like?

# %%
print(torch.ones(1, 8).tril(diagonal=8 - 1).long())

# %% [markdown]
# All ones. The newest token may see all that came before, so with a single query
# there is nothing to hide.

# %% [markdown]
# ## 5 · One rule instead of many triangles
#
# Corners and diagonals are easy to get wrong. There is a rule that needs
# neither. Give each token its **position** in the text, and say:
#
# > the query at position p sees the keys at positions 0 to p.

# %%
query_positions = torch.tensor([3, 4])
key_positions = torch.tensor([0, 1, 2, 3, 4])

mask = key_positions <= query_positions[:, None]
print(mask.long())
print("same triangle:", torch.equal(mask.long(), bottom_right))

# %% [markdown]
# The query positions stand as a column, the key positions as a row, and one
# comparison fills the table. No corner appears in it.
#
# The rule also does not care in which order the keys lie in memory. Later
# lessons keep them in rings and in pages; the mask will be this line.

# %%
shuffled = torch.tensor([3, 4, 2, 0, 1])
print((shuffled <= query_positions[:, None]).long())

# %% [markdown]
# Column 0 is the key at position 3, column 1 the one at position 4. Only the query
# at 3 may not see the key at 4; all else is allowed, wherever it lies.
#
# ### Padding
#
# Two texts of unequal length in one batch: the shorter is filled up on the
# left, `[PAD, PAD, a, b]` beside `[c, d, e, f]`. The token a is the *first*
# of its text, so its position is 0, in whatever column it lies. (Column numbers
# would call it 2.) A slot that holds nothing gets **position −1**, and the rule
# gets its second half: a key at −1 is seen by nobody.

# %%
positions = torch.tensor([[-1, -1, 0, 1],
                          [0, 1, 2, 3]])
query, key = positions[:, :, None], positions[:, None, :]

mask = (key >= 0) & (key <= query)  # (B, L, S)
print(mask.long())

# %% [markdown]
# In the first text a sees itself, b sees a and b, and nobody sees the padding.
# The padding sees nothing either: no key is at −1 or below *and* at 0 or above.
#
# The test for padding is always the same: each text must come out as if it had
# been alone.

# %%
torch.manual_seed(3)
B, H, D = 2, 3, 6
q, k, v = torch.randn(3, B, H, 4, D, dtype=torch.float64)
mask = mask[:, None]  # (B, 1, L, S): the 1 serves all heads

together = kvlearn.attention(q, k, v, mask)
alone = kvlearn.attention(*(x[:1, :, 2:] for x in (q, k, v)),
                          torch.ones(2, 2).tril().bool())
print("first text, padded = alone:",
      torch.allclose(together[:1, :, 2:], alone))

# %% [markdown]
# ## 6 · A query that sees nothing
#
# The padding's own rows of the mask are empty. What is the softmax of nothing
# but minus infinities?

# %%
nothing = torch.full((3,), float("-inf"))
print(torch.softmax(nothing, dim=-1))

# %% [markdown]
# Zero divided by zero. You may say: nobody reads the output of padding, so let
# it be NaN. But that output goes on to the next layer, becomes a key and a
# value there, and then this happens to those who give it no weight at all:

# %%
weight = torch.tensor([0.0, 1.0])  # nothing for padding, all for the token
value = torch.tensor([float("nan"), 5.0])
print(weight @ value)

# %% [markdown]
# Zero times NaN is NaN. One padded slot poisons every token of its text
# (`pytorch/pytorch#103749`).
#
# A large negative number in place of −∞ avoids the NaN, and many libraries use
# one. But what does the softmax make of a row that holds nothing else?

# %%
print(torch.softmax(torch.full((4,), -1e9), dim=-1))

# %% [markdown]
# The padding takes an even share of everything it must not see: a number that means
# nothing, and that nobody notices.
#
# This course says: **a query that may see nothing gives zeros.** Strike out
# the forbidden weights once more after the softmax, and it does.

# %%
def loose_attention(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)
    return weights @ v


out = loose_attention(q, k, v, mask)
print("padding gives zeros:", bool((out[0, :, :2] == 0).all()))
print("NaN anywhere:", bool(out.isnan().any()))

# %% [markdown]
# ## 7 · Name it
#
# You have built three things that the library has under these names:
# `kvlearn.causal_mask(L, S)`, `kvlearn.position_mask(queries, keys)`, and the
# `mask` of `kvlearn.attention`. Are they the same as yours?

# %%
print("causal_mask:", torch.equal(
    kvlearn.causal_mask(2, 5), bottom_right.bool()))
print("position_mask:", torch.equal(
    kvlearn.position_mask(positions, positions), mask))
print("attention:", torch.allclose(
    kvlearn.attention(q, k, v, mask), loose_attention(q, k, v, mask)))

# %% [markdown]
# torch has the right triangle too, under a name that says its corner.

# %%
from torch.nn.attention.bias import causal_lower_right

theirs = F.scaled_dot_product_attention(
    q[:, :, -2:], k, v, attn_mask=causal_lower_right(2, 4))
ours = kvlearn.attention(q[:, :, -2:], k, v, kvlearn.causal_mask(2, 4))
print("causal_lower_right = causal_mask:", torch.allclose(theirs, ours))

# %% [markdown]
# ## 8 · Count it
#
# How many pairs does a mask let through? Query 0 sees one key, query 1 two,
# up to n: together n(n + 1)/2. When L queries are the last of S keys, each of
# them sees the S − L older keys as well: L(S − L) + L(L + 1)/2.

# %%
for L, S in ((4, 4), (100, 100), (2, 5), (1, 8), (64, 1000)):
    predicted = L * (S - L) + L * (L + 1) // 2
    counted = int(kvlearn.causal_mask(L, S).sum())
    print(f"{L:3} queries, {S:4} keys: predicted {predicted:5},"
          f" counted {counted:5}, of {L * S:6} pairs")
    assert predicted == counted

# %% [markdown]
# The square cases let half of the pairs through, and half a diagonal more. Our
# attention computes all of them and throws the rest away; fast kernels skip
# the parts of the table that lie wholly above the diagonal.

# %% [markdown]
# ## 9 · See it: two models, one of them peeks
#
# Now the promise from section 1. From here on we need a whole model, a **decoder**.
# A text passes through it in this order:
#
# 1. token ids;
# 2. the **embedding**: a row of numbers for each token;
# 3. the **layers**, one after another. Each is attention, which lets tokens hear
#    one another, and then an **MLP**, which works on each token alone;
# 4. the **logits**: for each token one score for every possible next one.
#
# Lesson 03 builds all of them. Here we take the library's, `kvlearn.Decoder`, which
# accepts the attention function as an argument.

# %% [markdown]
# We train two tiny decoders, equal in all but the mask, on **random digits**.
# Nothing in random digits can be predicted: who guesses well has seen the answer.

# %%
def without_mask(q, k, v, mask=None):
    return kvlearn.attention(q, k, v)


tiny = kvlearn.DecoderConfig(
    vocab_size=10, hidden_size=32, num_layers=1, num_heads=2,
    num_kv_heads=2, head_dim=32, intermediate_size=48, tie_embeddings=False)

# %% [markdown]
# The training is the ordinary kind: at each position guess the next digit, and
# be told. You need not follow these lines. Again and again they move the weights a
# little towards better guesses.

# %%
def train(attention, steps=120):
    torch.manual_seed(0)
    model = kvlearn.Decoder(tiny, attention=attention)
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        digits = torch.randint(10, (32, 13))
        guesses = model(digits[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(guesses, digits[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model

# %% [markdown]
# Then a test on fresh digits: how often is the guess right, at each of the
# twelve positions?
#
# **Before you run this:** chance is one in ten. The model without a mask will
# do better. At *every* position?

# %%
def hits(model):
    torch.manual_seed(1)
    digits = torch.randint(10, (2000, 13))
    with torch.no_grad():
        right = model(digits[:, :-1]).argmax(-1) == digits[:, 1:]
    return right.float().mean(dim=0)  # a share for each position


causal, peeking = hits(train(kvlearn.attention)), hits(train(without_mask))
print("better than twice chance, by position:")
print("  causal: ", (causal > 0.2).int().tolist())
print("  no mask:", (peeking > 0.2).int().tolist())

# %% [markdown]
# The shares themselves, at the first position, in the middle, and at the last:

# %% tags=["nbval-ignore-output"]
figures.show(figures.bars(
    {f"position {p}": {"causal": round(100 * causal[p].item()),
                       "no mask": round(100 * peeking[p].item())}
     for p in (0, 5, 11)}, ylabel="percent of guesses right"),
    caption="Random digits, guessed by two models that differ in the mask.")

# %% [markdown]
# The model without a mask found the cheat. Only at the last position is it as
# lost as the other: there is no next token to copy.
#
# And the last position is where a model *always* stands when it generates. On real
# text it would go the same way: nearly perfect marks in training, all of them
# copied, and little learned for the one place where it has to write.
#
# This answers the first half of the question, and it is a good place for a pause.

# %% [markdown]
# ## 10 · What attention receives, a cache could keep
#
# Now to the second half of the question. A language model has many layers, and
# each has keys and values of its own. Which of them change when the text grows?
#
# We ask by experiment. A decoder hands K and V to its attention function, so we
# put in one that writes them down before it does its work.

# %%
def record(decoder, tokens, positions=None):
    """Run; return K and V of the first row: (layers, Hkv, L, D)."""
    own, seen = decoder.attention, []

    def recording(q, k, v, mask=None):
        seen.append((k[0].cpu(), v[0].cpu()))
        return own(q, k, v, mask=mask)

    decoder.attention = recording
    with torch.no_grad():
        decoder(tokens, positions=positions)
    decoder.attention = own
    return [torch.stack(part) for part in zip(*seen)]

# %% [markdown]
# The model: three layers, random weights, in float64 so that rounding stays
# out of the way. The text: eight random tokens. One more stands ready.

# %%
config = kvlearn.DecoderConfig(
    vocab_size=50, hidden_size=24, num_layers=3, num_heads=4,
    num_kv_heads=2, head_dim=6, intermediate_size=40)
torch.manual_seed(0)
decoder = kvlearn.Decoder(config).double()

text = torch.randint(50, (1, 8))
longer = torch.cat([text, torch.tensor([[17]])], dim=1)
K, V = record(decoder, text)
print("K:", tuple(K.shape), "  V:", tuple(V.shape), "  (layers, Hkv, L, D)")

# %% [markdown]
# ## 11 · The experiment
#
# Run the model again on the longer text, and compare the K and V of the eight
# tokens that both runs have. A table says it best: a row a layer, a column a
# position, 1 where a number moved.

# %%
def moved(a, b):
    """(layers, positions): did anything change there?"""
    n = min(a.shape[2], b.shape[2])  # the positions that both have
    difference = (a[:, :, :n] - b[:, :, :n]).abs()
    return difference.amax(dim=(1, 3)) > 1e-7  # less is rounding

# %% [markdown]
# **Before you run this:** where will there be ones?

# %%
K_longer, V_longer = record(decoder, longer)
print("K moved:", moved(K, K_longer).long(), sep="\n")
print("V moved:", moved(V, V_longer).long(), sep="\n")

# %% [markdown]
# Nowhere. Every key and every value of the old text, in every layer, is what it
# was, up to rounding. **Past K and V are final.** To compute them again for each new
# token is to compute the same numbers again.
#
# Now take the mask away, and nothing else.
#
# **Before you run this:** which layers will change? All three?

# %%
decoder.attention = without_mask
K_open, V_open = record(decoder, text)
K_open_longer, V_open_longer = record(decoder, longer)
decoder.attention = kvlearn.attention

print("K moved:", moved(K_open, K_open_longer).long(), sep="\n")
print("V moved:", moved(V_open, V_open_longer).long(), sep="\n")

# %% [markdown]
# Layer 0 stands still even without a mask; everything above it moves. How much?

# %%
figures.show(
    figures.tensor_diff(K, K_longer, rounding=1e-7),
    caption="With the causal mask: a token is appended, and no key of the "
    "first eight changes.")
figures.show(
    figures.tensor_diff(K_open, K_open_longer, rounding=1e-7),
    caption="Without it: layer 0 is as before, and every key above it is "
    "another.")

# %% [markdown]
# ### Why exactly so
#
# Follow one token upwards.
#
# - **Layer 0** makes K and V from the token's own embedding. No other token has
#   had a say yet. Mask or no mask, they cannot change.
# - Then **attention of layer 0** mixes in other tokens. Without a mask also those
#   to the right, and then what comes out depends on the whole text, the new token
#   included.
# - **Everything else in a layer** (the MLP, and what lesson 03 adds to it) works on
#   each token alone. No other token comes in there.
# - **Layer 1** makes K and V from the result. If the future was mixed in below, they
#   change with the future. If not, they depend on tokens 0 to p and on nothing
#   else, and the same is true of the layer above, and so on to the top.
#
# So the mask does not only keep a model honest in training. It keeps the past
# from ever hearing of the future, and **what cannot hear of the future can be
# stored.** That is the whole licence of a KV cache.

# %% [markdown]
# ### The same in a real model
#
# Trained weights, real text, many layers; first with the mask, then without.

# %%
model, tokenizer = kvlearn.load_or_tiny(device=measure.device())
ids = tokenizer.encode("The capital of France is Paris. "
                       "The capital of Italy is Rome")
words = [tokenizer.decode([i]) for i in ids]
real = torch.tensor([ids], device=model.device)

with_mask = record(model, real[:, :-1])[0], record(model, real)[0]
model.attention = without_mask
no_mask = record(model, real[:, :-1])[0], record(model, real)[0]
model.attention = kvlearn.attention

# %% [markdown]
# **Before you run this:** in how many of its layers will the old keys stay, with
# the mask and without?

# %%
for name, (a, b) in (("causal ", with_mask), ("no mask", no_mask)):
    same = (a - b[:, :, :-1]).abs().amax(dim=(1, 2, 3)) < 1e-3
    print(name, "layers whose old keys stay:", int(same.sum()),
          "of", len(same))

# %% [markdown]
# Once more it is layer 0 that stays. The first six layers without a mask:

# %%
figures.show(
    figures.tensor_diff(no_mask[0][:6], no_mask[1][:6], words[:-1],
                        rounding=1e-3),
    caption="No mask: the word Rome is appended, and from layer 1 on the "
    "key of every word before it is another. · stands for a blank.")

# %% [markdown]
# ### What it is good for
#
# If old K and V are final, a step needs to compute those of the new token
# alone, and the old ones can come from a shelf. Here is the shelf, in three
# lines; lesson 04 builds it.

# %%
cache = kvlearn.GrowingCache(config, dtype=torch.float64)
decoder(text, cache)                       # eight tokens go in, once
step = decoder(longer[:, -1:], cache)      # then one token, alone
whole = decoder(longer)                    # or all nine, again

print("same prediction:", torch.allclose(step[:, -1], whole[:, -1]))

# %% [markdown]
# ## 12 · An edit in the middle
#
# Appending is safe. What if the user goes back and changes a word? We swap the
# token at position 3.
#
# **Before you run this:** which cells of the table will be 1? Think of layer 0
# and of the others separately.

# %%
edited = text.clone()
edited[0, 3] = 42
K_edited, V_edited = record(decoder, edited)
print("K moved:", moved(K, K_edited).long(), sep="\n")

# %% [markdown]
# And by how much:

# %%
figures.show(
    figures.tensor_diff(K, K_edited, rounding=1e-7),
    caption="Token 3 is replaced. Layer 0 changes at that position alone; "
    "the layers above it from there to the end; nothing changes before it.")

# %% [markdown]
# In layer 0 only the edited token has another key. Above it every *later* token
# has attended to the edited one and is no longer what it was. What came before
# has noticed nothing.
#
# So after an edit the stored entries are good up to the edit, and void from
# there on. What two texts can share is their **longest common beginning, in
# tokens**. (That layer 0 survives further on is true and of no practical use:
# the layers above it have to be run for these tokens anyway.)
#
# Which means that where an edit falls decides what it costs. Move it yourself.

# %% tags=["nbval-ignore-output"]
from kvlearn import widgets


def edit_at(position):
    other = text.clone()
    other[0, position] = (other[0, position] + 1) % 50
    return figures.tensor_diff(K, record(decoder, other)[0], rounding=1e-7,
                               title=f"edit at position {position}")


widgets.stepper(range(8), edit_at, name="where an edit reaches")

# %% [markdown]
# An *insertion* is an edit as well. All later tokens move one place to the
# right, and position is part of a key. In layer 0 we compare each old token with
# itself, at its new place.

# %%
inserted = torch.cat([text[:, :3], torch.tensor([[42]]), text[:, 3:]], 1)
K_ins, V_ins = record(decoder, inserted)

print("layer 0, tokens after the insertion:")
print("  same V:", torch.allclose(V[0, :, 3:], V_ins[0, :, 4:]))
print("  same K:", torch.allclose(K[0, :, 3:], K_ins[0, :, 4:]))

# %% [markdown]
# The values are the same, the keys are not: a key carries the place of its
# token. (How, is lesson 03.)

# %% [markdown]
# ## 13 · What else must stay as it was
#
# The proof had a silent premise: between the two runs nothing but the text was
# different. Let us go through what may change in practice. First **positions**:
# the same eight tokens, each one place further to the right.

# %%
def layers(table):
    return table.any(dim=1).nonzero().flatten().tolist()


def report(what, K_now, V_now):
    print(f"{what:28} K: {str(layers(moved(K, K_now))):10}",
          f"V: {layers(moved(V, V_now))}")


print("layers that change:")
places = torch.arange(8)[None]
report("nothing", *record(decoder, text, positions=places))
report("positions + 1", *record(decoder, text, positions=places + 1))

# %% [markdown]
# All keys change, and no value. The values of layer 0 know nothing of positions.
# Those above would, but here all tokens moved together, and this model's
# attention depends on distances only.
#
# Next the **weights**. We add a hundredth to one number of one matrix, in the MLP
# of layer 1, and take it back afterwards.

# %%
weight = decoder.layers[1].mlp.up_proj.weight
with torch.no_grad():
    weight[0, 0] += 0.01
report("one weight in layer 1", *record(decoder, text))
with torch.no_grad():
    weight[0, 0] -= 0.01

# %% [markdown]
# Layer 1 made its K and V before its MLP ran, so they stay, like all below;
# everything above is void. A server that loads new weights has to forget its
# cache; vLLM has a call for it, `reset_prefix_cache`.
#
# An **adapter** (LoRA) is a small matrix of low rank that is added to a big one,
# often another for each customer. It is a change of weights like any other.

# %%
torch.manual_seed(5)
down, up = torch.randn(1, 24), torch.randn(2 * 6, 1)  # rank 1
weight = decoder.layers[0].self_attn.v_proj.weight
with torch.no_grad():
    weight += 0.1 * up @ down
report("adapter on V of layer 0", *record(decoder, text))
with torch.no_grad():
    weight -= 0.1 * up @ down

# %% [markdown]
# Note the K of layer 0: an adapter on V leaves it alone. All else has changed.
# Two customers with two adapters cannot share an entry, though their prompts
# are the same to the letter.
#
# Last the **format**. Rounded to bfloat16, the stored numbers are others.

# %%
report("rounded to bfloat16", K.bfloat16().double(), V.bfloat16().double())

# %% [markdown]
# That is not wrong in itself, and lesson 08 makes a trade of it. But it is a
# change of what attention sees, and one has to know.
#
# What is safe? **Appending** (section 11), and **cutting off the end**: what was
# stored for the first five tokens is what five tokens alone would have.

# %%
report("the first five tokens", *record(decoder, text[:, :5]))

# %% [markdown]
# And all **sampling settings**: temperature, top-k, a seed. They work on the
# logits, behind the last layer, and choose the next token. No K or V has them as
# an input.
#
# (Appending has an exception. Some models stretch their positions as the text grows
# longer: dynamic NTK and LongRoPE, two ways of scaling the RoPE of lesson 03. Past
# the length that they were trained for, appending changes what the old keys should
# be.)

# %% [markdown]
# ## 14 · Play with the mask
#
# Choose how many queries and keys. On the left the rule of this lesson, on the
# right what `is_causal=True` would do. Find the sizes for which the two agree.

# %% tags=["nbval-ignore-output"]
widgets.mask_explorer(2, 5)

# %% [markdown]
# The same without sliders, for the two queries and five keys of section 4.

# %%
figures.mask_compare(2, 5)

# %% [markdown]
# ## 15 · When it breaks
#
# **"Transformers have a KV cache."** Not all of them. An encoder such as BERT, a
# model that reads a finished text and writes none, has no causal mask: every token
# sees every token, as in our open decoder. Append a word, and from layer 1 on there
# is nothing old left to reuse.
#
# **In between** there is the prefix language model: the prompt sees itself in
# both directions, the answer is causal. One more condition makes its mask.

# %%
def prefix_mask(positions, prefix):
    key = positions[:, None, None, :]
    return kvlearn.position_mask(positions, positions) | (key < prefix)


figures.mask_map(prefix_mask(torch.arange(6)[None], prefix=3))

# %% [markdown]
# **Before you run this:** a decoder with this mask has read a prompt of three
# tokens. Are its K and V final when an answer token is appended? And when the
# *prompt* grows by a token?

# %%
def run(tokens, prefix):
    def attend(q, k, v, mask=None):
        place = torch.arange(q.shape[2])[None]
        return kvlearn.attention(q, k, v, prefix_mask(place, prefix))
    decoder.attention = attend
    recorded = record(decoder, tokens)[0]
    decoder.attention = kvlearn.attention
    return recorded


prompt = run(text[:, :3], prefix=3)
print("answer grows:", layers(moved(prompt, run(text[:, :4], prefix=3))))
print("prompt grows:", layers(moved(prompt, run(text[:, :4], prefix=4))))

# %% [markdown]
# Final for the answer, void for a longer prompt. Such a model may cache within
# one answer, and starts anew with the next turn of a conversation.
#
# **The triangle has a price.** A causal model reads the beginning of a text
# without knowing its end. If the question comes after a long document, the
# document was read without the question, and its K and V cannot be changed
# afterwards to suit it. That is a loss that an encoder does not have, and the same
# property that lets a server keep the document and ask it ten questions.

# %% [markdown]
# ## The answer in sixty seconds
#
# In training a decoder predicts the next token at all positions in one pass, so
# without a mask it could copy the answer from the next position. The causal mask
# sets the scores of later keys to minus infinity before the softmax: the query at
# position p sees keys at positions 0 to p. The consequence for inference: what a
# layer makes of a token depends on the tokens up to it and on nothing later, for
# all else in a layer works on each token alone. By induction over layers so do
# its keys and values. When a token is appended they do not change, and storing
# them gives the same result as computing them again. Without the mask only the
# first layer's would stay. The licence is lost when something in the past
# changes: an edited token voids everything from its position on, and other
# weights, adapters or positions void the lot. With stored keys the queries are
# fewer than the keys, and the mask is aligned at the last key, not at the first.

# %% [markdown]
# ## Sentences that give a beginner away
#
# - *"The mask is there so that the model does not see the future when it
#   generates."* When it generates there is no future, and for one new token the
#   mask hides nothing. It is there for training, and for prompts, fed whole or in
#   pieces (chunks), where many positions are computed at once.
# - *"Put zeros where it must not look."* A score of zero is a fair share: e⁰ is 1.
#   Minus infinity, before the softmax.
# - *"`is_causal=True` is the causal mask."* In torch only if there are as many
#   queries as keys. With one query over a cache it looks at the first key alone.
# - *"Any transformer can have a KV cache."* Causal ones. In an encoder every token's
#   K and V change when a token is appended, except in the first layer.
# - *"I changed one word, so one entry must be computed again."* In the first layer
#   one entry; in every layer above it, all from that word on.
# - *"A new temperature needs a new cache."* Sampling comes after everything that
#   is stored. New weights or another adapter need one.
# - *"Padding is masked, so its output may be NaN."* In the next layer that output
#   is a value, and zero times NaN is NaN.

# %% [markdown]
# ## Where you meet it
#
# - The mask at the wrong corner: `pytorch/pytorch#108108`, and for a single query
#   `pytorch/pytorch#103082`. `torch.nn.attention.bias` has `causal_lower_right`.
# - A square mask for a later chunk: `meta-llama/llama#899`. No mask at all as soon
#   as a cache is there: `Mikyx-1/TinyLLM#17`.
# - A row that sees nothing: `pytorch/pytorch#103749`. On the CPU, with the torch of
#   this course, `scaled_dot_product_attention` gives zeros, as the course does. That
#   depends on the kernel: `huggingface/transformers#38690` found NaN from one for
#   GPUs and zeros from another.
# - Slots taken for positions under left padding: `unslothai/unsloth#3699`,
#   `huggingface/transformers` PR#22382.
# - transformers asks a cache for its mask's size *before* it stores the new
#   tokens. A layer that forgets to count those it holds raises no error, and the
#   logits are wrong.
# - gpt-fast returns its whole buffer at each step and lets the mask hide what has
#   not been written.
# - vLLM stores K and V in blocks of a few tokens, and finds a block by a hash over
#   its tokens and all before it, and over the adapter: sections 12 and 13 in one
#   line. SGLang keeps a tree of token sequences, whose common beginnings are stored
#   once. Lesson 10 builds one.

# %% [markdown]
# ## Exercises
#
# About an hour: `causal_mask` (10, easy), `position_mask` (10, medium),
# `masked_attention` (15, medium) and `changed_layers` (20, medium), the proof of
# section 11 in your own words, for any decoder, in
# [the exercises of lesson 02](../exercises/02_causal_masking/02_causal_masking.ipynb).
#
# Next: [03 · The naive decoder](03_naive_decoder.ipynb).
