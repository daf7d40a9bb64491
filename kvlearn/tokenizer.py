"""From text to token ids and back, and a conversation into the prompt that its model was trained on.

The splitting and merging is the `tokenizers` library's; this file builds it from what a checkpoint brings,
and adds the chat template, which is a small Jinja program that comes with the model. A template is somebody
else's code: it runs in Jinja's sandbox.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from kvlearn.checkpoint import read_json
from kvlearn.families import ModelError

# The turns of a conversation between markers, as SmolLM2 and many others have them.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL, USER_DEFINED = 3, 4  # GGUF's numbers for a special token, and for one that is never split


class Tokenizer:
    """A model's tokenizer.

    Args:
        backend: a `tokenizers.Tokenizer`.
        eos_ids: the ids that end a text.
        chat_template: Jinja source, or None for a model that was not trained to chat.
        template_variables: what the template may ask for besides the messages (bos_token, eos_token).
    """

    def __init__(
        self,
        backend: Backend,
        eos_ids: Iterable[int] = (),
        chat_template: str | None = None,
        template_variables: Mapping[str, str] | None = None,
    ):
        self.backend = backend
        self.eos_ids = tuple(eos_ids)
        self.chat_template = chat_template
        self.template_variables = dict(template_variables or {})
        self.backend.no_truncation()  # a tokenizer.json may hold both, as they were set when it was saved;
        self.backend.no_padding()  # transformers sets them anew at each call, and so to none
        self.model_rows = 0  # of the model's embedding, where `load` has one

    @property
    def vocab_size(self) -> int:
        """One more than the largest id; ids may have gaps. A model may have more rows, never fewer."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """The ids of a text. A special token's own spelling in the text becomes that token.

        A tokenizer that puts a token in front of every text (Llama's begin-of-text) puts it here.
        """
        if not isinstance(text, str):
            raise ValueError(f"encode takes a text (str); got {type(text).__name__}.")
        return self.backend.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids (a list, or a tensor of one axis); special tokens are spelled out.

        Bytes that are not a whole UTF-8 character yet come out as U+FFFD, and so does an id without a token,
        which a model can draw if its embedding has more rows than its tokenizer has tokens.
        """
        ids, last = [int(i) for i in ids], max(self.vocab_size, self.model_rows) - 1
        wrong = [i for i in ids if not 0 <= i <= last]
        if wrong:
            raise ValueError(f"Token {wrong[0]} is not in the vocabulary of 0 to {last}.")
        text, known = "", lambda i: self.backend.id_to_token(i) is not None
        for has_token, run in itertools.groupby(ids, known):
            run = list(run)
            text += self.backend.decode(run, skip_special_tokens=False) if has_token else "\ufffd" * len(run)
        return text

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation, up to where the assistant's answer begins.

        Args:
            messages: `[{"role": "user", "content": "..."}, ...]`, roles system, user, assistant. The template
                gets them as they are, so a content may be a list of parts, or None, where it knows those.

        Raises:
            ValueError: the messages are not such a list, the model has no chat template, or the template
                refuses them.
        """
        if self.chat_template is None:
            raise ValueError("This model has no chat template; write the prompt yourself and encode it.")
        if isinstance(messages, str | Mapping) or not all(
            isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in messages
        ):
            raise ValueError('chat takes a list of messages: [{"role": "user", "content": "Hello"}].')
        # As in transformers, a field that is None is a field that is not there.
        messages = [{k: v for k, v in message.items() if v is not None} for message in messages]
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            text = _environment().from_string(self.chat_template).render(given | self.template_variables)
        except (jinja2.TemplateError, TypeError, AttributeError, KeyError, ValueError) as error:
            raise ValueError(f"The model's chat template refused these messages: {error}") from error
        # The template writes the begin-of-text token itself where the model wants one.
        return self.backend.encode(text, add_special_tokens=False).ids

    def save(self, folder: Path) -> None:
        """Write the files that `from_folder`, and transformers, read."""
        self.backend.save(str(folder / "tokenizer.json"))
        fields = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        text = json.dumps(fields | self.template_variables, indent=2) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks what the assistant says, for training; here: text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    """What transformers gives a chat template, and nothing that reaches the machine."""

    def raise_exception(message: str):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder, or None where there is no tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}.") from error
    fields = _optional_json(folder / "tokenizer_config.json")
    names = {
        name: _spelling(fields[name])
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if fields.get(name) is not None
    }
    return Tokenizer(backend, _eos_ids(folder, backend, names), _chat_template(folder, fields), names)


def _optional_json(path: Path) -> dict:
    return read_json(path) if path.exists() else {}


def _spelling(token: str | Mapping) -> str:
    """tokenizer_config.json writes a special token as text, or as an object with its text in "content"."""
    return token if isinstance(token, str) else token["content"]


def _eos_ids(folder: Path, backend: Backend, names: Mapping[str, str]) -> tuple[int, ...]:
    """The most particular file wins: a chat model lists more ids in generation_config.json than elsewhere."""
    for name in ("generation_config.json", "config.json"):
        ids = _optional_json(folder / name).get("eos_token_id")
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (ids,)
    eos = backend.token_to_id(names["eos_token"]) if "eos_token" in names else None
    return () if eos is None else (eos,)


def _chat_template(folder: Path, fields: Mapping) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = fields.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def from_gguf(metadata: Mapping) -> Tokenizer | None:
    """The tokenizer in a GGUF file's metadata, or None where it is of a kind that is not built here.

    A byte-level BPE that splits off every digit first ("smollm" in llama.cpp's words). A wrong way to split
    gives other ids on some texts only, so another kind is left out rather than approximated.
    """
    if (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")) != ("gpt2", "smollm"):
        return None
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = list(zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True))
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(_special(token for token, kind in kinds if kind == CONTROL))
    backend.add_tokens([AddedToken(t, normalized=False) for t, kind in kinds if kind == USER_DEFINED])
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    names = {f"{name}_token": tokens[i] for name, i in ids.items() if i is not None}
    around = {name: metadata.get(f"tokenizer.ggml.add_{name}_token") for name in ("bos", "eos")}
    added = [(names[f"{name}_token"], ids[name]) for name in ids if around[name] and ids[name] is not None]
    if added:
        before, after = (f"{names[f'{name}_token']}" if around[name] else "" for name in ("bos", "eos"))
        backend.post_processor = processors.TemplateProcessing(f"{before} $A {after}".strip(), None, added)
    eos = () if ids["eos"] is None else (ids["eos"],)
    return Tokenizer(backend, eos, metadata.get("tokenizer.chat_template"), names)


def _special(tokens: Iterable[str]) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


def byte_tokenizer() -> Tokenizer:
    """A tokenizer without training: one id a byte of UTF-8, behind the special tokens of the real model.

    0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|> (which ends a text), then the 256 bytes: 259 ids.
    """
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # a printable character for each byte
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(special + alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(_special(special))
    return Tokenizer(backend, (2,), CHATML, {"bos_token": special[1], "eos_token": special[2]})
