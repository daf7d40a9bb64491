"""The probes: what is drawn, how answers are scored, and what the tiny trained model knows."""

import hashlib
import json
import math

import pytest
import torch
import transformers

from kvlearn import GrowingCache, recall, weights
from kvlearn.model_store import ModelError
from kvlearn.recall import (
    FIRST_KEY,
    FIRST_VALUE,
    NUM_KEYS,
    PAIRS_VOCABULARY,
    START,
    Pairs,
    Passkey,
    draw_pairs,
    draw_passkey,
    filler_text,
    losses,
    pairs_accuracy,
    passkey_recall,
    perplexity,
)
from kvlearn.weights import load


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def tiny():
    return load("tiny")


@pytest.fixture(scope="module")
def trained():
    return load("recall")[0]


# Pairs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pairs", "batch", "keys"), [(1, 1, NUM_KEYS), (7, 3, 16), (NUM_KEYS, 2, NUM_KEYS)])
def test_pairs_are_asked_for_as_they_were_given(pairs, batch, keys):
    """Would catch a key that is there twice (it would have two right answers), a value that moved to another
    key when the order was drawn, and ids of keys and values that overlap."""
    drawn = draw_pairs(pairs, batch, seeded(), num_keys=keys)
    assert drawn.context.shape == (batch, 1 + 2 * pairs) and drawn.rest.shape == (batch, 2 * pairs)
    assert (drawn.context[:, 0] == START).all() and drawn.answers.shape == (batch, pairs)
    for context, rest in zip(drawn.context.tolist(), drawn.rest.tolist(), strict=True):
        given = dict(zip(context[1::2], context[2::2], strict=True))
        asked = dict(zip(rest[::2], rest[1::2], strict=True))
        assert given == asked and len(given) == pairs
        assert all(FIRST_KEY <= key < FIRST_KEY + keys for key in given)
        assert all(FIRST_VALUE <= value < PAIRS_VOCABULARY for value in given.values())


def test_pairs_are_asked_for_in_another_order():
    """Would catch questions in the order of the text, which a model could answer by counting."""
    drawn = draw_pairs(40, 5, seeded())
    assert (drawn.context[:, 1::2] != drawn.rest[:, ::2]).float().mean() > 0.8


def test_pairs_come_from_the_generator_alone():
    """Would catch numbers from the global generator: a recorded seed would mean nothing."""
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    one, two, other = (draw_pairs(9, 4, seeded(seed)) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(one.context, two.context) and torch.equal(one.rest, two.rest)
    assert not torch.equal(one.context, other.context)


def test_a_probe_is_the_same_on_every_default_device(tiny):
    """Would catch texts drawn on `torch.set_default_device`, where their generator cannot draw."""
    filler = list(range(97, 117)) * 100
    pairs, passkey = draw_pairs(9, 4, seeded()), draw_passkey(tiny[1], 300, filler, seeded(), following=5)
    with torch.device("meta"):
        same = draw_pairs(9, 4, seeded()), draw_passkey(tiny[1], 300, filler, seeded(), following=5)
    assert torch.equal(pairs.context, same[0].context) and torch.equal(pairs.rest, same[0].rest)
    for name in ("context", "rest", "answer", "following"):
        assert torch.equal(getattr(passkey, name), getattr(same[1], name))


def test_every_key_and_value_is_drawn():
    """Would catch a range that is one short at either end."""
    drawn = draw_pairs(NUM_KEYS, 8, seeded())
    assert drawn.context[:, 2::2].unique().tolist() == list(range(FIRST_VALUE, PAIRS_VOCABULARY))
    assert drawn.context[:, 1::2].unique().tolist() == list(range(FIRST_KEY, FIRST_VALUE))


@pytest.mark.parametrize(
    ("pairs", "batch", "keys", "said"),
    [
        (0, 3, 16, "num_pairs=0 and num_keys=16"),
        (17, 3, 16, "num_pairs=17 and num_keys=16"),
        (4, 3, NUM_KEYS + 1, f"at most {NUM_KEYS}; got num_pairs=4"),
        (4, 0, 16, "batch_size must be at least 1; got 0"),
        (1.5, 1, 16, "num_pairs is a whole number; got 1.5"),
        ("1", 1, 16, "num_pairs is a whole number; got '1'"),
        (True, True, 16, "num_pairs is a whole number; got True"),
        (1, 1.5, 16, "batch_size is a whole number; got 1.5"),
        (1, 1, None, "num_keys is a whole number; got None"),
    ],
)
def test_pairs_that_cannot_be(pairs, batch, keys, said):
    """Would catch a text with fewer keys than were asked for, and an empty batch."""
    with pytest.raises(ValueError, match=said):
        draw_pairs(pairs, batch, seeded(), num_keys=keys)


def test_a_probe_is_drawn_from_a_generator(tiny):
    """Would catch None, with which torch draws from its own generator: texts that no seed gives again."""
    for wrong, got in ((None, "a NoneType"), (0, "a int")):
        with pytest.raises(ValueError, match=f"come from a generator, such as .* got {got}"):
            draw_pairs(2, 1, wrong)
        with pytest.raises(ValueError, match=f"come from a generator, such as .* got {got}"):
            draw_passkey(tiny[1], 500, [1] * 5000, wrong)


def test_an_answer_is_read_where_its_key_is_asked_for():
    """Would catch the answer read one token late, at the value that was fed: everything would be right."""
    drawn = Pairs(torch.tensor([[0, 1, 513, 2, 514, 3, 515]]), torch.tensor([[3, 515, 1, 513, 2, 514]]))
    logits = torch.zeros(1, 6, PAIRS_VOCABULARY)
    logits[0, 0, 515] = logits[0, 2, 514] = logits[0, 4, 514] = 1.0
    logits[0, 1, 515] = logits[0, 3, 513] = 1.0  # after a value: nobody asks
    assert drawn.right(logits).tolist() == [[True, False, True]]


# The tiny trained model ------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [4, 16, 64, 256])
def test_the_trained_model_recalls(trained, pairs):
    """Would catch weights that were not trained to the end, and a decoder that reads them otherwise: with
    the exact cache nearly every answer is right at every number of pairs that it was trained on."""
    batch = 256 // pairs
    drawn = draw_pairs(pairs, batch, seeded(7))
    assert pairs_accuracy(trained, drawn, GrowingCache(trained.config, batch)) >= 0.98


def test_the_trained_model_needs_its_cache(trained):
    """Would catch an answer that leaks through the question: with the pairs of another text nothing but
    guessing is left."""
    drawn, other = draw_pairs(32, 8, seeded(1)), draw_pairs(32, 8, seeded(2))
    mixed = Pairs(other.context, drawn.rest)
    assert pairs_accuracy(trained, mixed, GrowingCache(trained.config, 8)) < 0.1


def test_the_trained_model_is_the_one_of_its_recipe(trained):
    """Would catch weights that were trained again and whose recipe was not: seed, checksum, accuracy and the
    size that the package promises."""
    recipe = json.loads((weights.RECALL_FOLDER / "recipe.json").read_text())
    path = weights.RECALL_FOLDER / "model.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == recipe["sha256"]
    assert path.stat().st_size < 1_000_000
    assert recipe["recipe"]["seed"] == 0 and recipe["pairs_reached"] == 256
    assert min(recipe["accuracy"][str(pairs)] for pairs in (4, 8, 16, 32, 64, 128, 256)) >= 0.99
    sizes = trained.config
    assert (sizes.vocab_size, sizes.num_layers, sizes.num_heads, sizes.head_dim) == (641, 2, 4, 32)
    assert not any(parameter.requires_grad for parameter in trained.parameters())


@pytest.mark.slow
def test_the_trained_model_is_any_llama_folder(trained):
    """Would catch a config.json that says less than the decoder knows: transformers reads the same model."""
    theirs = transformers.LlamaForCausalLM.from_pretrained(weights.RECALL_FOLDER, dtype=torch.float32).eval()
    tokens = draw_pairs(5, 2, seeded()).context
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert (trained(tokens) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_damaged_file_is_refused(monkeypatch, tmp_path):
    """Would catch a file that was cut or changed and still loads: its curves would be somebody's riddle."""
    for file in weights.RECALL_FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(weights, "RECALL_FOLDER", tmp_path)
    load("recall")
    path = tmp_path / "model.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ModelError, match="is damaged: its SHA-256 is .* Install kvlearn again"):
        load("recall")
    path.unlink()
    with pytest.raises(ModelError, match="is damaged: its SHA-256 is no file"):
        load("recall")


# A pass key in a long text -----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [230, 401, 800])
def test_a_passkey_text_has_its_length_and_its_digits_twice(tiny, length):
    """Would catch a text one token short of its length, digits that are cut by the filler, and an answer that
    is not what the text says."""
    tokenizer = tiny[1]
    filler = tokenizer.encode("Grass, trees; no digit at all. " * 40)
    drawn = draw_passkey(tokenizer, length, filler, seeded(), following=13)
    text, digits = tokenizer.decode(drawn.context[0].tolist()), tokenizer.decode(drawn.answer.tolist())
    assert drawn.context.shape == (1, length) and drawn.following.shape == (1, 13)
    assert len(digits) == 5 and digits.isdigit() and text.count(digits) == 2
    assert sum(char.isdigit() for char in text) == 10
    asked = tokenizer.decode(drawn.rest[0].tolist())
    assert asked.startswith(recall.QUESTION) and asked.endswith(digits[:-1])
    assert text.index(recall.NEEDLE.format(digits=digits)) == round(drawn.depth * length)


def test_a_passkey_stands_anywhere_but_at_the_ends(tiny):
    """Would catch one depth for all, and a pass key in the last tokens, which a residual window keeps."""
    filler = list(range(97, 117)) * 100
    depths = [draw_passkey(tiny[1], 1000, filler, seeded(seed)).depth for seed in range(60)]
    assert 0.05 < min(depths) < 0.25 and 0.65 < max(depths) < 0.85


def test_a_seed_gives_the_same_sample_at_every_length(tiny):
    """Would catch lengths that are compared on other digits and other words than each other."""
    filler = [byte % 256 for byte in range(0, 7 * 1201, 7)]
    one, two = (draw_passkey(tiny[1], length, filler, seeded(4), following=9) for length in (300, 700))
    assert torch.equal(one.answer, two.answer) and torch.equal(one.following, two.following)
    assert one.context[0, -20:].tolist() == two.context[0, -20:].tolist()
    other = draw_passkey(tiny[1], 300, filler, seeded(5), following=9)
    assert not torch.equal(one.following, other.following)


def test_what_follows_is_how_the_filler_goes_on(tiny):
    """Would catch a gap between the context and what follows; the end of the filler joins its start."""
    filler = list(range(250))
    for seed in range(6):
        drawn = draw_passkey(tiny[1], 300, filler, seeded(seed), following=20)
        seam = [*drawn.context[0, -3:].tolist(), *drawn.following[0].tolist()]
        assert seam == [(seam[0] + step) % 250 for step in range(23)]


@pytest.mark.parametrize(("length", "filler"), [(100, 500), (600, 400), (200, 0)])
def test_a_passkey_text_that_cannot_be(tiny, length, filler):
    """Would catch a text without filler, or with filler that was never given."""
    with pytest.raises(ValueError, match=f"A text of {length} tokens has .* there are {filler} to cut from"):
        draw_passkey(tiny[1], length, [65] * filler, seeded())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"following": -600}, "following must be at least 0; got -600"),
        ({"following": 1.0}, "following is a whole number; got 1.0"),
        ({"length": "500"}, "length is a whole number; got '500'"),
        ({"filler": None}, "filler is a list of token ids, .* got a NoneType"),
        ({"filler": torch.ones(5000, dtype=torch.long)}, "filler is a list of token ids, .* got torch.int64"),
        ({"filler": ["a"] * 5000}, "some of what it has are no whole numbers"),
    ],
)
def test_a_passkey_of_arguments_that_cannot_be(tiny, changed, said):
    """Would catch a negative `following`, which cut the context short: 145 tokens instead of 500."""
    arguments = {"length": 500, "filler": [1] * 5000, "following": 0, **changed}
    with pytest.raises(ValueError, match=said):
        draw_passkey(tiny[1], generator=seeded(), **arguments)


def test_the_filler_is_the_same_text_everywhere():
    """The text came from the Python that ran, and differs between versions: so did each perplexity of lesson
    07, 11.8 on one Python and 13.1 on another. Lesson 07 reads the section on objects."""
    text = filler_text()
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "71f2ff5d99bdc1f9" and len(text) == 465_126
    assert text.count("Objects, values and types\n***") == 1
    licence = recall.FILLER.with_name("python_reference_LICENSE.txt").read_text(encoding="utf-8")
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in licence
    assert "2023 Python Software Foundation;\nAll Rights Reserved" in licence


def passkey(answer):
    nothing = torch.zeros(1, 1, dtype=torch.long)
    return Passkey(nothing, nothing, torch.tensor(answer), nothing, 0.5)


def test_the_score_of_an_answer():
    """Would catch logits of the question among those of the answer, a mean over the vocabulary, and a text
    that counts as right with one digit wrong; rows are schemes, each with a score of its own."""
    answer = [2, 0, 1, 2, 2]
    logits = torch.full((2, 8, 3), -1.0)
    for place, digit in enumerate(answer, start=3):
        logits[:, place, digit] = 1.0
    logits[1, 5] = torch.tensor([4.0, 1.0, -1.0])
    logits[:, :3, 1] = 99.0  # the question: of no account
    right, log_probability = passkey(answer).score(logits)
    good = 1.0 - math.log(math.exp(1) + 2 * math.exp(-1))
    bad = 1.0 - math.log(math.exp(4) + math.exp(1) + math.exp(-1))
    assert right.tolist() == [True, False]
    assert log_probability.tolist() == pytest.approx([good, (4 * good + bad) / 5])


@pytest.mark.slow
def test_passkey_recall_is_that_of_a_pass_over_the_whole_text(tiny):
    """Would catch a question that is fed at the wrong positions, or over a cache that was not filled."""
    model, tokenizer = tiny
    drawn = draw_passkey(tokenizer, 260, tokenizer.encode("Some other words. " * 30), seeded())
    whole = model(torch.cat((drawn.context, drawn.rest), dim=1))
    expected = whole[0, -5:].log_softmax(dim=1)[range(5), drawn.answer].mean()
    right, log_probability = passkey_recall(model, drawn, GrowingCache(model.config))
    assert log_probability == pytest.approx(expected.item(), rel=1e-4) and right is False


def test_perplexity_is_that_of_a_pass_over_the_whole_text(tiny):
    """Would catch targets one token off, and a target whose logits come from the context's own pass."""
    model, tokenizer = tiny
    tokens = torch.tensor([tokenizer.encode("Perplexity is of the tokens that follow a context.")])
    whole = model(tokens).log_softmax(dim=2)[0]
    expected = math.exp(-sum(whole[at, tokens[0, at + 1]].item() for at in range(30, 49)) / 19)
    assert tokens.shape[1] == 50
    assert perplexity(model, tokens, 30, GrowingCache(model.config)) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="50 tokens have no two left after a context of 49; .* 1 to 48"):
        perplexity(model, tokens, 49, GrowingCache(model.config))


def test_losses_go_row_by_row():
    """Would catch a mean over the rows, which are schemes that are compared."""
    logits = torch.randn(3, 4, 5, generator=seeded())
    targets = torch.tensor([[4, 0, 2, 2]])
    expected = [torch.nn.functional.cross_entropy(row, targets[0]).item() for row in logits]
    assert losses(logits, targets).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tokens", "length", "said"),
    [
        (torch.arange(9), 3, r"shape \(1, T\), one row; got torch.int64 of shape \(9,\)"),
        (torch.arange(18).reshape(2, 9), 3, r"got torch.int64 of shape \(2, 9\)"),
        ([[1, 2, 3, 4, 5, 6]], 3, "got a list"),
        (torch.ones(1, 9), 3, "got torch.float32"),
        (torch.ones(1, 9, dtype=torch.long), "3", "context_length is a whole number; got '3'"),
        (torch.ones(1, 9, dtype=torch.long), 2.5, "context_length is a whole number; got 2.5"),
    ],
)
def test_a_perplexity_that_cannot_be(tiny, tokens, length, said):
    """Would catch two rows whose losses are told as one, and a context of 2.5 tokens."""
    with pytest.raises(ValueError, match=said):
        perplexity(tiny[0], tokens, length, GrowingCache(tiny[0].config))


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (torch.tensor([[4, 0, 2, 5]]), "targets are token ids 0 to 4; got 0 to 5"),
        (torch.tensor([[4, 0, 2, -1]]), "targets are token ids 0 to 4; got -1 to 4"),
        (torch.tensor([[4, 0, 2]]), r"shape \(1, 4\) or \(3, 4\), .* got torch.int64 of shape \(1, 3\)"),
        (torch.tensor([[4, 0, 2, 2]] * 2), r"got torch.int64 of shape \(2, 4\)"),
        (torch.tensor([[4.0, 0.0, 2.0, 2.0]]), "got torch.float32"),
        ([[4, 0, 2, 2]], "got a list"),
    ],
)
def test_losses_of_targets_that_cannot_be(targets, said):
    """Would catch fewer targets than logits, whose mean would be that of the first ones alone."""
    with pytest.raises(ValueError, match=said):
        losses(torch.randn(3, 4, 5), targets)
    with pytest.raises(ValueError, match=r"logits are numbers of shape .B, L, vocab_size.; got .* \(4, 5\)"):
        losses(torch.randn(4, 5), torch.tensor([[4, 0, 2, 2]]))


# The real model ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_real_model_recalls_a_passkey():
    """Would catch a text or a question that the model cannot answer even with an exact cache: then a
    quantised one has nothing to lose."""
    model, tokenizer = load("smollm2-135m")
    filler = tokenizer.encode(filler_text())
    for seed in range(3):
        drawn = draw_passkey(tokenizer, 256, filler, seeded(seed))
        assert tokenizer.decode(drawn.answer.tolist()) in tokenizer.decode(drawn.context[0].tolist())
        right, log_probability = passkey_recall(model, drawn, GrowingCache(model.config))
        assert right and log_probability > -1
