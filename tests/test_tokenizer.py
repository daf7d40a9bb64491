import itertools
import json

import pytest
import regex
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import SIZES, llama, write_gguf
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from kvlearn.families import ModelError
from kvlearn.gguf_file import GGUFFile
from kvlearn.model_store import fetch
from kvlearn.recall import filler_text
from kvlearn.tokenizer import Tokenizer, byte_tokenizer, from_folder, from_gguf

BYTES = byte_tokenizer()
HELLO = [{"role": "user", "content": "Hello"}]
TEXTS = [
    "Hello, world! I'll say it's fine.",
    "12345 and 3.14",
    "  two  spaces\n\n\ttabs  ",
    "²③ ٣٤ 五 ½",
    "naïve café — 日本語 🙂",
    "<|im_start|>user\nHi<|im_end|>",
    "",
]


def byte_alphabet():
    """GPT-2's printable character for each byte, from its rule: those that print stand for themselves, the
    others are numbered from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def slow_ids(text, vocabulary, merges, special):
    """Byte-level BPE written out: specials, then single digits, then GPT-2's words, then the best merge."""
    ranks, alphabet = {pair: rank for rank, pair in enumerate(merges)}, byte_alphabet()
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    ids = []
    for part in regex.split("(" + "|".join(map(regex.escape, special)) + ")", text):
        if part in special:
            ids.append(vocabulary[part])
            continue
        for piece in regex.split(r"(\p{N})", part):
            for word in regex.findall(words, piece):
                symbols = [alphabet[byte] for byte in word.encode()]
                while True:
                    pairs = enumerate(itertools.pairwise(symbols))
                    found = [(ranks[pair], i) for i, pair in pairs if pair in ranks]
                    if not found:
                        break
                    i = min(found)[1]
                    symbols[i : i + 2] = ["".join(symbols[i : i + 2])]
                ids += [vocabulary[symbol] for symbol in symbols]
    return ids


def as_slow(metadata):
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    special = [t for t, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    return {token: i for i, token in enumerate(tokens)}, merges, special


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """The metadata of a GGUF with a handful of merges, "1 2" among them."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path, llama(SIZES | {"hidden_size": 42}, dtype=torch.float32))
    return GGUFFile(path).metadata


@pytest.mark.parametrize("text", [*TEXTS, "hello the hell 1212"])
def test_ids_equal_a_slow_loop(metadata, text):
    """Would catch digits that merge ("12" is in the vocabulary), merges out of order, specials cut up."""
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode(text) == slow_ids(text, *as_slow(metadata))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_another_kind_of_splitting_is_left_out(metadata):
    """Would catch a tokenizer that is right on most texts and wrong on some."""
    assert from_gguf(metadata | {"tokenizer.ggml.pre": "llama-bpe"}) is None
    assert from_gguf(metadata | {"tokenizer.ggml.model": "llama"}) is None
    assert from_gguf({}) is None


def test_what_a_gguf_says_besides(metadata):
    """Would catch an eos that is the bos, and a chat that ignores the model's own template."""
    tokenizer = from_gguf(metadata)
    assert (tokenizer.eos_ids, tokenizer.vocab_size) == ((2,), SIZES["vocab_size"])
    assert tokenizer.decode(tokenizer.chat(HELLO)) == "<|im_start|>user Hello<|im_end|>"


def test_user_defined_tokens_and_the_ones_that_are_added(metadata):
    """Type 4 was split like any text, and add_bos_token passed over."""
    kinds, tokens = list(metadata["tokenizer.ggml.token_type"]), metadata["tokenizer.ggml.tokens"]
    place = tokens.index("<unused3>")
    kinds[place] = 4
    changed = metadata | {"tokenizer.ggml.token_type": kinds}
    assert from_gguf(changed).encode("a<unused3>") == [*from_gguf(metadata).encode("a"), place]
    assert len(from_gguf(metadata).encode("<unused3>")) > 1
    plain = from_gguf(metadata).encode("hello")
    assert from_gguf(metadata | {"tokenizer.ggml.add_bos_token": True}).encode("hello") == [1, *plain]
    assert from_gguf(metadata | {"tokenizer.ggml.add_eos_token": True}).encode("hello") == [*plain, 2]
    assert from_gguf(metadata | {"tokenizer.ggml.add_bos_token": False}).encode("hello") == plain


@pytest.mark.slow
@given(st.text())
def test_bytes_go_round(text):
    """Any text comes back, one id a byte of UTF-8: would catch bytes that have no id."""
    text = text.replace("<|", "")
    ids = BYTES.encode(text)
    assert len(ids) == len(text.encode()) and all(3 <= i < 259 for i in ids)
    assert BYTES.decode(ids) == text


def test_special_tokens_are_one_id():
    """Would catch `<|im_start|>` as twelve letters: the model then never sees a turn of a conversation."""
    tokenizer = byte_tokenizer()
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert tokenizer.decode([1, 2]) == "<|im_start|><|im_end|>"
    assert (tokenizer.eos_ids, tokenizer.vocab_size) == ((2,), 259)
    ids = tokenizer.chat([{"role": "user", "content": "Hé"}])
    assert tokenizer.decode(ids) == "<|im_start|>user\nHé<|im_end|>\n<|im_start|>assistant\n"
    assert [i for i in ids if i < 3] == [1, 2, 1]


def test_decode_takes_tensors_and_half_characters():
    """A row of `generate` may end within a character: would catch an error there."""
    tokenizer = byte_tokenizer()
    ids = torch.tensor(tokenizer.encode("né"))
    assert tokenizer.decode(ids) == "né"
    assert tokenizer.decode(ids[:-1]) == "n\ufffd"


def test_ids_without_a_token_that_a_model_can_draw():
    """`generate` drew a row of the embedding that no token has, or an id in a gap, and `decode` raised."""
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "c": 5}, unk_token="a"))
    tokenizer = Tokenizer(backend)
    assert tokenizer.vocab_size == 6 and tokenizer.decode([0, 3, 5]) == "a\ufffdc"
    tokenizer.model_rows = 9
    assert tokenizer.decode([8, 8, 1]) == "\ufffd\ufffdb"
    with pytest.raises(ValueError, match="Token 9 is not in the vocabulary of 0 to 8"):
        tokenizer.decode([9])


@pytest.mark.parametrize("ids", [[259], [5, -1], torch.tensor([999])])
def test_ids_outside_the_vocabulary(ids):
    """Would catch padding (-1) that is decoded to nothing, or an error from below without the id."""
    with pytest.raises(ValueError, match="Token (259|-1|999) is not in the vocabulary of 0 to 258"):
        byte_tokenizer().decode(ids)


@pytest.mark.parametrize("messages", ["Hello", {"role": "user", "content": "x"}, [{"role": "user"}], ["x"]])
def test_messages_of_another_form(messages):
    """Would catch a string taken letter by letter."""
    with pytest.raises(ValueError, match="chat takes a list of messages"):
        byte_tokenizer().chat(messages)
    with pytest.raises(ValueError, match=r"encode takes a text \(str\); got list"):
        byte_tokenizer().encode([1, 2])


def chatting(template):
    return Tokenizer(byte_tokenizer().backend, (2,), template, {"bos_token": "<s>"})


def test_templates_reach_nothing():
    """A template comes with a file from elsewhere: would catch one that runs code of its own."""
    for attack in ("''.__class__.__mro__", "messages.append.__globals__", "messages.clear()"):
        with pytest.raises(ValueError, match="template refused"):
            chatting("{{ " + attack + " }}").chat(HELLO)


def test_templates_have_what_transformers_gives_them():
    """Would catch the blanks after a block kept, and the helpers that models' templates call."""
    template = (
        "{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content | tojson }}\n"
        "    {% endif %}{% break %}{% endfor %}\n{% if add_generation_prompt %}>{% endif %}"
        "{{ strftime_now('%%') }}"
    )
    ids = chatting(template).chat([{"role": "user", "content": "é'<"}])
    assert chatting(None).decode(ids) == '<s>\n"é\'<"\n>%'


# What templates of real models do, each beside what transformers makes of it.
FEATURES = {
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "tojson": "{{ messages[0] | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}",
    "tojson, indent": "{{ messages | tojson(indent=2) }}",
    "tools": "{% if tools is none and documents is none %}none{% endif %}{{ tools is defined }}",
    "parts": "{% for p in messages[0].content %}{% if p is mapping %}{{ p.text }}{% endif %}{% endfor %}",
    "nothing": "{% if messages[0].content is none %}nothing{% else %}{{ messages[0].content }}{% endif %}",
    "namespace": "{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = 2 %}{% endfor %}{{ n.i }}",
}
CONTENTS = {"parts": [{"type": "text", "text": "Hé"}, {"type": "text", "text": "!"}], "nothing": None}


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
def test_templates_render_as_in_transformers(feature, tmp_path):
    """Would catch a template that runs there and not here, or says something else."""
    messages = [{"role": "user", "content": CONTENTS.get(feature, "Hé <there>")}]
    tokenizer = chatting(FEATURES[feature])
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(tokenizer.chat(messages)) == text


def test_a_content_that_the_template_cannot_take():
    """None, or parts, where a template joins texts: would catch a TypeError from inside Jinja."""
    for content in (None, [{"type": "text", "text": "x"}]):
        with pytest.raises(ValueError, match="refused these messages"):
            chatting("{{ 'user: ' + messages[0].content }}").chat([{"role": "user", "content": content}])


def test_a_template_that_refuses():
    """Would catch a model's own words about wrong roles that are lost in a traceback."""
    with pytest.raises(ValueError, match="refused these messages: Roles must alternate"):
        chatting("{{ raise_exception('Roles must alternate') }}").chat(HELLO)
    with pytest.raises(ValueError, match="refused these messages"):
        chatting("{% if %}").chat(HELLO)
    with pytest.raises(ValueError, match="no chat template"):
        chatting(None).chat(HELLO)


# --- Hugging Face folders ---


@pytest.fixture
def folder(tmp_path):
    byte_tokenizer().save(tmp_path)
    return tmp_path


def write(folder, name, fields):
    (folder / name).write_text(json.dumps(fields), encoding="utf-8")


def test_saved_and_read_back(folder):
    """Would catch anything that the files do not carry: ids, template, eos."""
    before, after = byte_tokenizer(), from_folder(folder)
    assert after.encode("Hé <|im_end|>") == before.encode("Hé <|im_end|>")
    assert after.chat(HELLO) == before.chat(HELLO)
    assert (after.eos_ids, after.vocab_size) == (before.eos_ids, before.vocab_size)


def test_transformers_reads_what_is_saved(folder):
    """Would catch a template or special tokens that only this course understands."""
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    text = theirs.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
    assert byte_tokenizer().chat(HELLO) == theirs(text)["input_ids"]
    assert (theirs.eos_token_id, theirs.bos_token_id) == (2, 1)


def test_where_the_ids_that_end_a_text_come_from(folder):
    """Would catch a chat model that never stops: its second EOS stands in generation_config.json alone."""
    assert from_folder(folder).eos_ids == (2,)
    write(folder, "config.json", {"eos_token_id": 7})
    assert from_folder(folder).eos_ids == (7,)
    write(folder, "generation_config.json", {"eos_token_id": [0, 2]})
    assert from_folder(folder).eos_ids == (0, 2)
    write(folder, "generation_config.json", {})
    assert from_folder(folder).eos_ids == (7,)


def test_where_the_chat_template_comes_from(folder):
    """Would catch older files, which keep it in tokenizer_config.json, once or several by name."""
    (folder / "chat_template.jinja").unlink()
    assert from_folder(folder).chat_template is None
    fields = {"eos_token": {"content": "<|im_end|>", "special": True}, "bos_token": None}
    write(folder, "tokenizer_config.json", fields | {"chat_template": "A{{ eos_token }}"})
    assert from_folder(folder).decode(from_folder(folder).chat(HELLO)) == "A<|im_end|>"
    several = [{"name": "tool_use", "template": "B"}, {"name": "default", "template": "C"}]
    write(folder, "tokenizer_config.json", fields | {"chat_template": several})
    assert from_folder(folder).chat_template == "C"
    (folder / "chat_template.jinja").write_text("D")
    assert from_folder(folder).chat_template == "D"


def test_a_begin_of_text_token_once(tmp_path):
    """Llama's tokenizer puts <s> in front of a text, and its template writes it too: would catch two."""
    backend = Backend(models.BPE(vocab={"<s>": 0, "a": 1, "b": 2}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>"})
    tokenizer = from_folder(tmp_path)
    assert tokenizer.encode("ab") == [0, 1, 2]
    assert tokenizer.chat([{"role": "user", "content": "ba"}]) == [0, 2, 1]


def test_stored_truncation_and_padding_do_nothing(tmp_path):
    """A tokenizer.json saved in the middle of a training: a prompt was cut to 4 ids without a word."""
    tokenizer = byte_tokenizer()
    long = tokenizer.encode("a " * 10)
    for name in ("enable_truncation", "enable_padding"):
        backend = byte_tokenizer().backend
        getattr(backend, name)(**({"max_length": 4} if "trunc" in name else {"length": 64}))
        backend.save(str(tmp_path / "tokenizer.json"))
        assert from_folder(tmp_path).encode("a " * 10) == long


def test_a_folder_without_or_with_a_broken_tokenizer(tmp_path):
    """Would catch a broken file taken for none."""
    assert from_folder(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ModelError, match="tokenizer.json cannot be read as a tokenizer"):
        from_folder(tmp_path)


# --- The real tokenizer ---


@pytest.fixture(scope="module")
def real():
    return from_folder(fetch("smollm2-135m"))


@pytest.mark.slow
def test_the_real_ids_equal_a_slow_loop(real):
    """Would catch the plain byte-level splitting that transformers' GGUF loader builds for this model, which
    differs on digits of other scripts."""
    fields = json.loads(real.backend.to_str())
    vocabulary = real.backend.get_vocab(with_added_tokens=True)
    merges = [tuple(pair) for pair in fields["model"]["merges"]]
    special = [token["content"] for token in fields["added_tokens"]]
    assert len(vocabulary) == 49152 and len(merges) == 48900
    reference = filler_text()
    sections = [reference[reference.index(start) :][:1500] for start in ("Lambdas\n", "Numeric literals\n")]
    for text in [*TEXTS, *sections]:
        assert real.encode(text) == slow_ids(text, vocabulary, merges, special)
        assert real.decode(real.encode(text)) == text


@pytest.mark.slow
def test_the_real_ids_that_are_known(real):
    """Would catch specials in pieces and digits in groups, by counts and ids that the file itself lists."""
    assert real.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert [real.decode([i]) for i in real.encode("2048")] == ["2", "0", "4", "8"]
    ids = real.chat([{"role": "user", "content": "Hi"}])
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)
    assert real.decode(ids).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert "helpful AI assistant named SmolLM" in real.decode(ids)


@pytest.mark.slow
def test_the_real_chat_equals_that_of_transformers(real):
    """Would catch a template that is rendered otherwise than the model was trained on."""
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(fetch("smollm2-135m"))
    for messages in (
        HELLO,
        [{"role": "system", "content": "Be brief."}, *HELLO],
        [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "  1+1? \n"}],
    ):
        text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert real.chat(messages) == theirs(text, add_special_tokens=False)["input_ids"]
