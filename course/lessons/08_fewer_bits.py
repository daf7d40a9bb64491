# %% [markdown]
# # 08 · Fewer bits: the quantised cache
#
# **The question.** A cached key is 16 or 32 bits a number. How few bits
# will do, what do they really cost in memory, and what does the model
# forget when they are too few?
#
# You need lessons 04 and 05. About 70 minutes.
#
# | letter | meaning |
# |---|---|
# | `B` | texts side by side (batch) |
# | `Hkv` | key/value heads |
# | `T` | stored tokens |
# | `D` | numbers in one head (head_dim): the channels |

# %%
import torch

import kvlearn
from kvlearn import QuantSpec, figures, measure, quantize

torch.set_printoptions(precision=2, sci_mode=False)
model, tokenizer = kvlearn.load_or_tiny(device=measure.device())
config = model.config
place = {"dtype": model.dtype, "device": model.device}

# %% [markdown]
# ## A number as a count of steps
#
# Take three numbers. Choose a step, and say of each number how many steps
# it is, rounded. The counts are small whole numbers: **codes**. The step is
# the **scale**.

# %%
x = torch.tensor([0.50, -2.54, 1.01])
scale = x.abs().max() / 127  # so that the largest is 127 steps
codes = (x / scale).round().to(torch.int8)
print("scale", round(scale.item(), 4), " codes", codes.tolist())
print("and back:", codes * scale)

# %% [markdown]
# int8 reaches from -128 to 127; we use -127 to 127, so that 0 is in the
# middle. The error of a number is half a step at most, and the largest
# number decides how large a step is. Before you run this: one number grows
# to 254. What happens to the other two?

# %%
x = torch.tensor([0.50, -254.0, 1.01])
scale = x.abs().max() / 127
codes = (x / scale).round().to(torch.int8)
print("codes", codes.tolist(), " and back:", codes * scale)

# %% [markdown]
# The scale is 2 now, and everything below 1 is 0. Nothing is wrong with the
# large number. It is those who **share a scale** with it who pay.
#
# That is the whole subject: few bits are harmless where the numbers that
# share a scale are of one size.
#
# ## What real keys look like
#
# So let us look. A text goes through the real model, and we keep what each
# layer stores.


# %%
class Seen(kvlearn.GrowingCache):
    def _append(self, layer, k, v):
        K, V = super()._append(layer, k, v)
        seen[layer] = K.cpu(), V.cpu()
        return K, V


text = """A lighthouse keeper writes down the weather every evening.
On Monday the wind came from the west and the sea was grey. On Tuesday
it rained until noon, and a ship with red sails passed close to the rocks.
On Wednesday there was fog, and he rang the bell every ten minutes.
On Thursday the supply boat brought bread, oil, letters and a new lamp."""
tokens = tokenizer.encode(text)[:64]
seen = {}
with torch.no_grad():
    model(torch.tensor([tokens], device=model.device),
          Seen(config, **place))
K, V = seen[10]  # (B, Hkv, T, D)
print("keys", tuple(K.shape), " values", tuple(V.shape))

# %%
figures.magnitude_map({"keys of layer 10, head 1": K[0, 1],
                       "values of layer 10, head 1": V[0, 1]},
                      shared=False)

# %% [markdown]
# The keys have a dark column: a **channel** that is large in nearly every
# token. A few channels of the values are larger, and none stands out like
# that. How is it in the other heads and layers?

# %%
size = K[0, 1].abs().mean(dim=0)  # of each channel
print("largest channel of these keys:", size.argmax().item())


def over_the_middle(x):  # (B, Hkv, T, D) -> (Hkv,)
    sizes = x[0].abs().mean(dim=1)
    return sizes.amax(dim=1) / sizes.median(dim=1).values


for side, name in enumerate(("keys  ", "values")):
    every = torch.cat([over_the_middle(kv[side]) for kv in seen.values()])
    here = over_the_middle(seen[10][side])[1].item()
    print(f"{name}: the largest is {here:.1f} times the middle one; more "
          f"than 5 times in {int((every > 5).sum())} of {len(every)} heads")

# %% [markdown]
# It is so in most heads' keys, and in few heads' values. KIVI (arXiv
# 2402.02750) is built on it.
#
# ## Who shares a scale?
#
# A head's keys are a table, tokens down and channels across. One scale a
# **token** (a row) puts the large channel together with all the small
# ones. One scale a **channel** (a column) gives the large one a scale of
# its own. Compare both with 4 bits, which leaves codes from -7 to 7.


# %%
def blur(x, dim, steps=7):
    scale = x.abs().amax(dim=dim, keepdim=True) / steps
    return (x / scale).round() * scale


def error(x, blurred):
    return ((blurred - x).norm() / x.norm()).item()


for name, side in (("keys  ", K), ("values", V)):
    by_token, by_channel = blur(side, -1), blur(side, -2)
    print(f"{name}: error by token {error(side, by_token):.2f},",
          f"by channel {error(side, by_channel):.2f}")

# %% [markdown]
# And the whole error flatters the scale by token, because the large channel
# holds more than half of the squared norm. Look at the small channels
# alone: how large is the error against what they hold?

# %%
energy = K[0, 1].square().sum(dim=0)
print(f"the large channel's share: {energy.max() / energy.sum():.0%}")
small = size < 2 * size.median()
for name, dim in (("one scale a token  ", -1), ("one scale a channel", -2)):
    lost = error(K[0, 1][:, small], blur(K[0, 1], dim)[:, small])
    print(f"{name}: error of the small channels {lost:.1f}")

# %% [markdown]
# Then why not treat values so, too? In this text they gain a little.
# But a scale by channel runs over *tokens*, and they arrive one at a time.
# Each new token could change every scale, and with it the codes of the whole
# past. So keys are quantised in **groups** of tokens (32 of them here), and
# a group waits until it is full. A value's scale is its own token's, and
# waits for nobody.
#
# Not every number needs codes on both sides of 0. An **asymmetric** grid
# begins at the group's smallest number, the **zero**, and ends at its
# largest. It costs a second number a group, and no code is spent on numbers
# that the group does not have.


# %%
def by_group(x, bits, group):  # (T, D); `group` tokens share a scale
    groups = x.unflatten(0, (-1, group))
    zero = groups.amin(dim=1, keepdim=True)
    scale = (groups.amax(dim=1, keepdim=True) - zero) / (2**bits - 1)
    codes = ((groups - zero) / scale).round()
    return codes.flatten(0, 1), scale, zero


codes, scale, zero = by_group(K[0, 1], 4, 32)
print("codes", tuple(codes.shape), "from", int(codes.min()),
      "to", int(codes.max()))
print("scales", tuple(scale.squeeze(1).shape), "groups x channels")

# %% [markdown]
# The library says this as a `QuantSpec`: how many bits, and which axis owns
# the scale. (It keeps scales in float16 unless told otherwise; here we
# choose float32, to compare.)

# %%
spec = QuantSpec("int4", axis="channel", quant_group=32,
                 scale_dtype=torch.float32)
ours = (codes.unflatten(0, (-1, 32)) * scale + zero).flatten(0, 1)
print("the same numbers:", torch.allclose(
    quantize(K, spec).dequantize()[0, 1].float(), ours.float(), atol=1e-5))

# %% [markdown]
# ## What goes wrong
#
# Three small traps. A group of zeros has the scale 0, and 0 / 0 is no
# number (openvinotoolkit/openvino#28326):

# %%
print("a group of zeros:", torch.zeros(3) / torch.zeros(3).abs().max())
quiet = quantize(torch.zeros(1, 32), QuantSpec("int4"))
print("with a guard:    ", quiet.dequantize()[0, :3])

# %% [markdown]
# uint8 has no sign, and a number that is too large or too small comes round
# at the other end:

# %%
print(torch.tensor([-1, 255, 256, 300]).to(torch.uint8).tolist())

# %% [markdown]
# And the batch is an axis like any other to `amax`. A scale over it makes
# what one user gets depend on who else is being served:

# %%
two = torch.stack((K[0, 1], 100 * K[0, 1]))  # a second row, far larger
print("row 0 alone = row 0 beside the other:",
      torch.allclose(blur(two, (0, 1))[0], blur(two[:1], (0, 1))[0]))

# %% [markdown]
# ## Two codes in one byte
#
# The smallest number that a tensor can hold has 8 bits. Whoever keeps 4-bit
# codes one a byte has saved nothing against int8. So two of them share a
# byte: the first in the low four bits, the second in the high four.

# %%
codes4 = torch.tensor([5, 2, 15, 8], dtype=torch.uint8)
packed = codes4[::2] | (codes4[1::2] << 4)
for first, second, byte in zip(codes4[::2], codes4[1::2], packed):
    print(f"{first:04b} and {second:04b} -> {byte:08b} = {byte}")

# %%
low, high = packed & 15, packed >> 4
print("out again:", torch.stack((low, high), dim=-1).flatten().tolist())

# %% [markdown]
# (If codes have signs, -1 and 15 are the same four bits, and unpacking must
# restore the sign. Codes that count from a zero have none.)
#
# ## Count it: effective bits
#
# The scales and zeros take room, too. A group of 32 numbers at 4 bits has
# 16 bits of scale and 16 of zero. Before you run this: how many bits does a
# number really take, at 4 bits and at 2?

# %%
some = torch.randn(1, 2, 256, 128)
print("                         predicted | measured, bits a number")
for spec in (QuantSpec("int8", quant_group=128), QuantSpec("int4"),
             QuantSpec("int4", symmetric=True), QuantSpec("int2"),
             QuantSpec("int2", axis="channel", quant_group=64)):
    q = quantize(some, spec)
    stored = sum(t.untyped_storage().nbytes() for t in q.tensors)
    name = f"{spec.dtype}, groups of {spec.quant_group}"
    name += ", symmetric" if spec.symmetric else ""
    print(f"{name:31}", spec.bits_per_number(), "|",
          8 * stored / some.numel())

# %% [markdown]
# "2-bit" is 3 bits in groups of 32: 5.3 times smaller than 16 bits, and not
# 8 times. Smaller groups are more exact and cost more. llama.cpp's q4_0, 18
# bytes for 32 numbers, is 4.5 bits.
#
# ## Eight bits with a point: fp8
#
# There is another way to use 8 bits. `float8_e4m3fn` has a sign, four bits
# of exponent, three of fraction: its steps are fine near 0 and coarse far
# away. Its numbers between 1 and 4, and the largest ones:

# %%
every = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn)
every = every.float()
print(every[(every >= 1) & (every <= 4)].tolist())
print("...", every[every.isfinite()][-3:].tolist())

# %% [markdown]
# It ends at 448. What a cast does with 500 depends on the version of torch:
# recent ones give 448, older ones NaN (pytorch/ao#1912). So clamp first,
# always; `quantize` does.

# %%
number = torch.tensor([500.0, -1e6])
print(number.clamp(-448, 448).to(torch.float8_e4m3fn).float().tolist())

# %% [markdown]
# Its step grows with the number, so one large number in a group spoils less.
# But three bits of fraction are coarse: an error of up to a sixteenth of the
# number. Which is nearer for our keys, at 8 bits?

# %%
for spec in (QuantSpec("fp8"), QuantSpec("int8"),
             QuantSpec("int8", axis="channel")):
    back = quantize(K, spec).dequantize()
    off = error(K, back)
    few = error(K[0, 1][:, small], back[0, 1][:, small])
    print(f"{spec.dtype} by {spec.axis:7}: error {off:.1%},",
          f"of the small channels {few:.1%}")

# %% [markdown]
# int8 is nearer, by either axis, and on the small channels as well. fp8
# forgives a bad scale; it is not more exact.
#
# Play with it: the same head's keys, and what is lost of each, with fewer
# and fewer bits. The static figure after it shows two of them.

# %%
def lost(spec):
    back = quantize(K, spec).dequantize()
    return figures.magnitude_map(
        {"keys that come back": back[0, 1], "error": (back - K)[0, 1]},
        top=K[0, 1].abs().max().item(),
        title=f"{spec.dtype}, one scale a {spec.axis}")


schemes = [QuantSpec(bits, axis=axis) for bits in ("int8", "int4", "int2")
           for axis in ("channel", "token")]

# %% tags=["nbval-ignore-output"]
from kvlearn import widgets

widgets.stepper(schemes, lost, name="keys with fewer bits")

# %%
back = {f"2 bits, one scale a {axis}: error":
        (quantize(K, QuantSpec("int2", axis=axis)).dequantize() - K)[0, 1]
        for axis in ("channel", "token")}
figures.magnitude_map(back)

# %% [markdown]
# By channel the error stays where the large numbers are. By token it fills
# the whole group of 32 channels that holds the large one: its neighbours
# are gone. The other 32 channels of the same tokens have a scale of their
# own, and fare better.
#
# ## The residual window
#
# Apart from the first token (lesson 07's sink), the newest tokens are looked
# at most, and a group of keys is not full yet. So the last `residual` tokens
# stay exact. Read the figure row by row: a row is a length of the text, here
# with a window of 6 and groups of 4 tokens.

# %%
figures.window_map(24, residual=6, quant_group=4)

# %% [markdown]
# Values lose one token a step; keys lose four at once, so that 6 to 9 of
# them are exact. The rule goes by the **length** alone: in one piece or in
# many, the same tokens are codes, and none is quantised twice. (The codes
# differ a little from layer 1 on: a later piece has attended to the codes
# of an earlier one.)
#
# ## The cache
#
# `QuantizedCache` is those pieces together: codes of the first tokens, exact
# recent ones, and `update` puts one layer's keys and values together for
# this step. What is new comes back exactly; it is quantised after the step.

# %%
prompt = tokenizer.chat([{"role": "user", "content":
                          "What is the capital of France?"}])
exact = kvlearn.GrowingCache(config, **place)
int4 = kvlearn.QuantizedCache(config, residual=8, **place)
for name, cache in (("exact", exact), ("4 bits", int4)):
    new = kvlearn.generate(model, prompt, 12, cache=cache,
                           eos_ids=tokenizer.eos_ids).tokens[0]
    print(f"{name:6} | {tokenizer.decode(new)!r}")

# %% [markdown]
# Count it. Keys in codes are whole groups of 32 tokens; values are all but
# the last 8. What is left is exact.

# %%
T, D, residual = int4.length, config.head_dim, 8
keys = max(0, T - residual) // 32 * 32
values = max(0, T - residual)
bits = (keys + values) * D * 5  # 4, and one of scale and zero
bits += (2 * T - keys - values) * D * 8 * model.dtype.itemsize
print("tokens", T, " keys in codes", keys, " values in codes", values)
print("bytes predicted",
      config.num_layers * config.num_kv_heads * bits // 8,
      " measured", int4.used_bytes, " exact cache", exact.used_bytes)

# %% [markdown]
# Going back keeps the very codes. What was quantised stays quantised: a
# rollback beyond the window does not make exact what is not.

# %%
int4.truncate(T - 20)
print("after 20 tokens less:", int4.length, "slots,",
      int4.used_bytes, "bytes")

# %% [markdown]
# And the peak? A step dequantises one layer, attends, and drops it before
# the next. Here is the most memory that is alive while the 4,096th token is
# written, for caches of this model's size in float16. Everything is counted:
# codes, scales, and what is dequantised for the moment.


# %%
def peak(make_cache, tokens=4096):
    half = {"dtype": torch.float16}
    with measure.StorageMeter() as meter:
        cache = make_cache(config, **half)
        for length in (tokens - 1, 1):
            meter.mark()
            for layer in range(config.num_layers):
                new = torch.ones(1, config.num_kv_heads, length, D, **half)
                cache.update(layer, new, new)
        meter.mark()
    return meter.peaks[-1]


def kivi(bits, residual=32):
    def make(config, **options):
        return kvlearn.QuantizedCache(
            config, QuantSpec(bits, axis="channel"),
            QuantSpec(bits, axis="token"), residual, **options)
    return make


# %%
peaks = {"float16": peak(kvlearn.GrowingCache)}
for bits in ("int4", "int2"):
    peaks[bits] = peak(kivi(bits))
figures.show(
    figures.bars({name: {"peak": round(size / 1e6)}
                  for name, size in peaks.items()},
                 ylabel="MB alive in a decode step"),
    caption="Peak of live bytes while the 4,096th token is written, one "
    "text. The keys and values of one layer, dequantised, are in it.")
print("the largest of the three:", max(peaks, key=peaks.get))

# %% [markdown]
# ## What it costs in time
#
# Fewer bytes are not less time. Before attention can read them, the codes
# of a whole layer become numbers again, at every step. On a GPU a kernel can
# read codes directly (lesson 13); without one, you pay. On the machine in
# front of you:

# %% tags=["nbval-ignore-output"]
long_prompt = (tokens * 8)[:256]
runs = {"growing": kvlearn.GrowingCache, "4 bits": kivi("int4")}
series = {}
for name, make in runs.items():
    where, seconds = measure.token_times(
        model, long_prompt, 7, make(config, **place))
    series[name] = where[1:], seconds[1:]
figures.time_per_token(series)

# %% [markdown]
# Compare the two lines, not the points: six tokens more cost nothing that
# could be seen here. The 4-bit step is the slower one throughout.
#
# ## A test that tests nothing
#
# Is 2 bits enough? Let us take a bad scheme on purpose: 2 bits, one scale a
# token, and a window of 128. First the usual quick look, a short prompt and
# the perplexity of a short text.


# %%
def bad(config, **options):
    two = QuantSpec("int2", axis="token")
    return kvlearn.QuantizedCache(config, two, two, 128, **options)


new = kvlearn.generate(model, prompt, 12, cache=bad(config, **place),
                       eos_ids=tokenizer.eos_ids).tokens[0]
print("2 bits |", repr(tokenizer.decode(new)))

# %%
from kvlearn import recall

short = torch.tensor([tokens])
same = [recall.perplexity(model, short, 40, make(config, **place))
        for make in (kvlearn.GrowingCache, bad)]
print("perplexity of a text of", len(tokens), "tokens, equal:",
      abs(same[0] - same[1]) < 1e-3)

# %% [markdown]
# Passed, to the digit. Of course: both texts are shorter than the window, so
# that **not one number was quantised**. Now hide five digits in 512 tokens
# of other text, and ask for them. (The other text is from Python's own
# language reference.)

# %% tags=["nbval-ignore-output"]
filler = tokenizer.encode(recall.filler_text())
generator = torch.Generator().manual_seed(0)
hidden = recall.draw_passkey(tokenizer, 512, filler, generator)
print("the pass key:", repr(tokenizer.decode(hidden.answer.tolist())))


@torch.no_grad()
def found(make):
    return recall.passkey_recall(model, hidden, make(config, **place))[0]


print("exact cache recalls it:", found(kvlearn.GrowingCache))

# %% tags=["nbval-ignore-output"]
print("2 bits by token, window 128:", found(bad))

# %% tags=["nbval-ignore-output"]
print("4 bits, KIVI, window 32:    ", found(kivi("int4")))

# %% [markdown]
# The same cache that passed the quick test has lost these digits. But one
# text is an anecdote. `benchmarks/recall.py` has asked many such texts, ours
# among them, and what it found was **recorded**:

# %%
import json
from pathlib import Path

folder = Path(kvlearn.__file__).parent.parent / "benchmarks"
recorded = json.loads((folder / "recall.json").read_text())
for name in ("exact", "int2 token 128"):
    texts = recorded["passkey"][name]["512"]["each_right"]
    print(f"{name:14} keeps {sum(texts)} of {len(texts)} texts;",
          "ours, the first:", bool(texts[0]))

# %% [markdown]
# So ours is one of those that are lost, and most are not. One text alone
# could have said either.
#
# Without the window the bad scheme cannot hide, even in the short text:

# %%
def worse(config, **options):
    two = QuantSpec("int2", axis="token")
    return kvlearn.QuantizedCache(config, two, two, 0, **options)


spoilt = recall.perplexity(model, short, 40, worse(config, **place))
print("perplexity at least a quarter worse:", spoilt > 1.25 * same[0])

# %% [markdown]
# Two lessons. A test must be longer than the window, or it tests the
# window. And a test must need the *old* tokens: the next word of ordinary
# prose can mostly be guessed from the last few, five random digits cannot.

# %% [markdown]
# ## A clean probe
#
# A language model may know an answer, or miss it for many reasons. The
# library brings a tiny model for the pure question: is what stands in the
# text still there? It reads pairs of a key and a value, and is then asked
# for the value of each key. With an exact cache it makes no mistake. Before
# you run this: with a window of 32 tokens, how many *pairs* are surely safe?

# %%
tiny, _ = kvlearn.load("recall", device=measure.device())


@torch.no_grad()
def right(make, num_pairs, texts=8):
    generator = torch.Generator().manual_seed(0)
    pairs = recall.draw_pairs(num_pairs, texts, generator)
    cache = make(tiny.config, batch_size=texts, device=tiny.device)
    return recall.pairs_accuracy(tiny, pairs, cache)


# %% tags=["nbval-ignore-output"]
counts = 8, 16, 32, 64, 128
makes = {"exact": kvlearn.GrowingCache, "int8": kivi("int8"),
         "int4": kivi("int4"), "int2": kivi("int2")}
print("right values, of", counts, "pairs")
for name, make in makes.items():
    print(f"{name:6}", *(f"{right(make, n):5.0%}" for n in counts))

# %% [markdown]
# A pair is two tokens, so the window holds 16 pairs; and the key vectors of
# up to 31 more tokens can wait for their group. Eight bits lose nothing,
# four bits a few in a hundred at 64 pairs and more. Two bits look perfect
# while the text is short, and then forget more the longer it is: likely
# because more old keys look alike once they are blurred.
#
# Now let the tiny model surprise you. Is KIVI's choice, keys by channel,
# better here too?

# %% tags=["nbval-ignore-output"]
def by_token(config, **options):
    two = QuantSpec("int2", axis="token")
    return kvlearn.QuantizedCache(config, two, two, 32, **options)


for name, make in (("by channel", kivi("int2")), ("by token", by_token)):
    print(f"2 bits, keys {name:10}: {right(make, 128):.0%} of 128 pairs")

# %% [markdown]
# It is not. Keys by channel is a finding about large language models, and no
# law: which scheme is best depends on the keys that a model makes. Measure
# before you choose.

# %% [markdown]
# ## Recorded: many texts, many schemes
#
# The same questions, asked of many texts and with intervals, take half an
# hour of processor time, and an hour and a half on a busy machine. So they
# are only drawn here, from the recording. A context is read exactly; then
# its cache is quantised, and the question follows.

# %%
figures.recall_by_length(recorded, [
    "exact", "int4 kivi 32", "int2 kivi 32", "int2 kivi 128",
    "int2 token 0"])

# %% [markdown]
# Follow the scheme with a window of 128. At 128 tokens it is exact, because
# nothing is quantised. And beyond?

# %%
texts, words = recorded["passkey"], recorded["perplexity"]
for length, cell in texts["int2 kivi 128"].items():
    kept = sum(cell["each_right"])
    exact = sum(texts["exact"][length]["each_right"])
    low, high = cell["log_probability_change_interval"]
    print(f"{length:>4} tokens: perplexity x",
          f"{words['int2 kivi 128'][length]['ratio']:.2f};",
          f"recalled {kept} of {cell['samples']}, exact {exact};",
          f"a digit {cell['log_probability_change']:.2f}",
          f"[{low:.2f}, {high:.2f}]")

# %% [markdown]
# Its perplexity is a little worse, and no worse at 2,048 tokens than at 512.
# Its recall falls; but so few texts leave wide bars. The surer figure is the
# last one: how much the mean log-probability of a digit changes, with its
# interval of 95 %. It loses about twice as much at 2,048 tokens as at 512,
# and perplexity does not show it.
#
# The tiny model's pairs give cleaner curves of the same. Look for what loses
# nothing: eight bits, and two bits of the **values** alone. (Over real text
# the values' two bits do cost a few per cent of perplexity.)

# %%
figures.recall_by_pairs(recorded, [
    "exact", "int8 kivi 0", "int4 kivi 0", "int2 kivi 0",
    "int2 kivi 0 keys", "int2 kivi 0 values"])

# %% [markdown]
# Keys alone cost what both cost: the two lines lie on each other.
#
# ## When it breaks
#
# "Very low precision degrades long-range recall well before short
# prompts" is supported by what is published, and is no law. Three things
# belong to it.
#
# - It depends on the method and on the model. Four bits usually hold; two
#   may not. KIVI reports for Mistral-7B on passage retrieval 89.33
#   exact, 89.42 at 4 bits and 80.83 at 2 bits, while the average over all
#   tasks moves from 43.54 to 42.43. On LongChat-7B the same 2 bits lose
#   nothing there (30.50 and 32.25).
# - It is partly made by the window: whatever is shorter than the window is
#   exact by construction.
# - Naive schemes break at any length. Two bits with a scale by token spoil
#   short texts as well, once there is no window.
#
# So: check retrieval and not perplexity alone, on texts far longer than the
# window, on your own model.
#
# ## The answer in sixty seconds
#
# > A quantised cache keeps old keys and values as small integer codes with
# > a scale, and usually a zero, for each group of numbers. Which numbers
# > share a scale matters most: keys have a few large channels, so they are
# > quantised by channel over groups of tokens; values are quantised by
# > token. The newest tokens stay exact in a residual window, because groups
# > must fill and attention favours recent tokens. Four bits with groups of 32
# > and half-precision scale and zero are really 5 bits, so about 3.2 times
# > smaller than 16. It saves memory, and so buys batch and context. It saves
# > time only with a kernel that reads the codes; without one a step
# > dequantises a layer at a time and is slower. Four bits usually hold; two
# > depend on method and model. And since short prompts lie in the window, I
# > would test retrieval over texts far longer than it, and not perplexity
# > alone.
#
# ## Sentences that give a beginner away
#
# - *"4-bit is four times smaller than 16."* Scales, zeros and the window
#   count: 5 bits a number here, and the recent ones are exact.
# - *"A quantised cache is faster."* It is smaller. Faster only if a kernel
#   reads the codes.
# - *"We tested it, the answers look the same."* On prompts shorter than the
#   window nothing was quantised.
# - *"Perplexity is unchanged, so quality is."* Most words can be guessed
#   from the last few; perplexity hardly asks for old tokens.
# - *"Quantise everything by token, it is simpler."* Then one large channel
#   of the keys takes the precision of all the others.
# - *"One scale for the tensor will do."* It mixes the rows of the batch, and
#   every new token could change it: the past would be quantised again and
#   again.
# - *"fp8 is just a cast."* A cast without a clamp made NaN of 500 in older
#   versions of torch.
#
# ## Where you meet it
#
# - KIVI (arXiv 2402.02750): keys by channel, values by token. Its own code
#   empties the window of keys whole when it is full, so that 0 to R - 1 of
#   them are exact; of the values exactly the last R.
# - Hugging Face transformers' `QuantizedCache` is not KIVI: it quantises a
#   whole prompt at once, and when its window is full it quantises the whole
#   history again (huggingface/transformers#34189).
# - llama.cpp sets the types of K and V apart; q8_0 is 8.5 bits, q4_0 is
#   4.5. It can rotate the channels first (ggml-org/llama.cpp#21038), so
#   that no channel is an outlier, as QuaRot does.
# - KVQuant quantises keys before RoPE turns them, and keeps the first few
#   tokens exact.
#
# ## Exercises
#
# In [the exercises of lesson 08](../exercises/08_fewer_bits/08_fewer_bits.ipynb):
#
# | exercise | minutes | you write |
# |---|---|---|
# | `quantize_int8` | 10 | codes with one scale a token |
# | `quantize_asymmetric` | 15 | a scale and a zero |
# | `pack_int4` | 15 | two codes in a byte |
# | `unpack_int4` | 10 | and out again, with the sign |
# | `quantize_by_group` | 20 | scales by channel and by token |
# | `to_fp8` | 5 | a clamp before the cast |
# | `tokens_in_codes` | 10 | what is still exact |
# | `quantized_cache` | 30 | codes, and a window of exact tokens |
