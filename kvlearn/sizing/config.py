"""A Hugging Face config.json, as people really have them, into a `ModelShape`.

Read are the old and new names of each size, a nested text_config, windows in each way they are said, and
latent attention. What is left out has the value that transformers' class of that family gives it, where the
family is known (`families.py`), and the shape's `notes` say so. A field whose name speaks of what a cache
holds and that is not read here is refused by name: a wrong size looks as good as a right one.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from kvlearn.sizing.families import DEFAULTS, FULL_EVERY
from kvlearn.sizing.fields import (
    ATTN_CONFIG,
    ENCODERS,
    FLAGS,
    HARMLESS,
    KINDS,
    NAMES,
    NESTED,
    OTHER_CACHES,
    READ,
    READS_AT_ONCE,
    SOUNDS_LIKE,
)
from kvlearn.sizing.parameters import count_parameters
from kvlearn.sizing.shape import MOST_LAYERS, ModelShape


class ConfigError(ValueError):
    """A config that cannot be read: the field, its value, and what would be."""


def shape_from_config(config) -> ModelShape:
    """See `ModelShape.from_config`.

    Raises:
        ConfigError: a field that is missing, lies, contradicts another or is not understood; it is named.
    """
    if hasattr(config, "num_layers") and hasattr(config, "num_kv_heads"):  # a DecoderConfig
        return _from_decoder(config)
    return _Reader(*_load(config)).shape()


def _from_decoder(config) -> ModelShape:
    """Of a `DecoderConfig`, whose names are those of a shape."""
    names = "num_layers num_heads num_kv_heads head_dim hidden_size vocab_size max_position".split()
    return _shape(
        **{name: getattr(config, name) for name in names}, windows=getattr(config, "windows", None) or None
    )


def _shape(**sizes) -> ModelShape:
    try:
        return ModelShape(**sizes)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _load(config) -> tuple[dict, str]:
    """The fields, and a name for the model."""
    if hasattr(config, "to_dict"):
        return dict(config.to_dict()), str(getattr(config, "name_or_path", "") or "")
    if isinstance(config, Mapping):
        return dict(config), str(config.get("_name_or_path") or "")
    if not isinstance(config, str | Path):
        raise ConfigError(f"A config is a dict, or the path of a config.json; got a {type(config).__name__}.")
    path = Path(config, "config.json") if os.path.isdir(config) else Path(config)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there. Give a config.json, or the folder that holds one.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} should hold a JSON object; got a {type(fields).__name__}.")
    return fields, str(fields.get("_name_or_path") or path.parent.name)


def _check_kinds(fields: Mapping) -> None:
    """Refuse what would be passed over, or taken for true, because it is of another kind."""
    for name in (*NESTED, "attn_config"):
        if not isinstance(fields.get(name), Mapping | None):
            raise ConfigError(f"{name} should be an object with fields of its own; got {fields[name]!r:.60}.")
    for name in FLAGS:
        if not isinstance(fields.get(name), bool | None):
            raise ConfigError(f"{name} should be true or false; got {fields[name]!r:.60}.")


def _nothing(value) -> bool:
    return value is None or value is False or value in (0, "", [], {})


def _not_understood(name: str, value) -> str:
    shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
    return (
        f"{name} is {shown}: it seems to change what the cache holds, and it is not understood here. Make "
        "the ModelShape by hand, or take the field out if it does not."
    )


class _Reader:
    """One config, read field by field. `notes` collects what it did not say."""

    def __init__(self, fields: dict, name: str):
        self.name, self.notes = name, []
        outer = fields.get("model_type")
        _check_kinds(fields)
        self.nested = next((key for key in NESTED if fields.get(key) is not None), None)
        if fields.get("is_encoder_decoder"):
            raise ConfigError(
                "is_encoder_decoder is true: such a model also keeps the keys and values of its encoder, and "
                "only decoders are understood."
            )
        if self.nested:
            fields = {"model_type": f"{outer}_text", **fields[self.nested]}
            _check_kinds(fields)
        if fields.get("attn_config") is not None:  # MPT and DBRX keep the key/value heads there
            strange = {
                k: v for k, v in fields["attn_config"].items() if k not in ATTN_CONFIG and not _nothing(v)
            }
            if strange:
                name, value = next(iter(strange.items()))
                raise ConfigError(_not_understood(f"attn_config.{name}", value))
            fields = {**fields, **{k: v for k, v in fields["attn_config"].items() if k == "kv_n_heads"}}
        self.fields = fields
        self.family = fields.get("model_type") if isinstance(fields.get("model_type"), str) else None
        for family in (outer, self.family):
            if isinstance(family, str) and family in OTHER_CACHES:
                raise ConfigError(f"model_type {family!r}: {OTHER_CACHES[family]}.")
            if isinstance(family, str) and family in ENCODERS and not fields.get("is_decoder"):
                raise ConfigError(f"model_type {family!r}: {READS_AT_ONCE}")
        self.defaults = DEFAULTS.get(self.family, {})

    def shape(self) -> ModelShape:
        self._refuse_what_is_not_read()
        layers = self.size("num_hidden_layers")
        if layers > MOST_LAYERS:  # before anything is listed layer by layer
            raise ConfigError(f"num_hidden_layers={layers}: no model has more than {MOST_LAYERS:,} layers.")
        heads = self.size("num_attention_heads")
        latent, rope = self._latent()
        head_dim = self.size("qk_nope_head_dim", required=False) if latent else None
        head_dim = self._head_dim(heads) if head_dim is None else head_dim + rope
        kv_heads = heads if latent else self._kv_heads(heads)
        value_dim = self.size("v_head_dim", required=False)
        shared = self.number("num_kv_shared_layers", at_least=0) or 0
        return _shape(
            num_layers=layers, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim,
            latent_dim=latent, rope_dim=rope, windows=self._windows(layers), shared_layers=shared,
            hidden_size=self.size("hidden_size", required=False),
            vocab_size=self.size("vocab_size", required=False),
            max_position=self.size("max_position_embeddings", required=False),
            parameters=count_parameters(self.family, self.fields, layers, heads, kv_heads, head_dim),
            name=self.name or self.family or "", notes=tuple(self.notes),
        )  # fmt: skip

    # One field --------------------------------------------------------------------------------------

    def find(self, name: str):
        """The value under those of a field's names that are there, or None; two that disagree are refused."""
        there = {n: self.fields[n] for n in NAMES.get(name, (name,)) if self.fields.get(n) is not None}
        if len({repr(value) for value in there.values()}) > 1:
            raise ConfigError(
                f"{' and '.join(f'{n}={v!r}' for n, v in there.items())} contradict each other."
            )
        return next(iter(there.values()), None)

    def absent(self, name: str) -> bool:
        """Not even null."""
        return not any(n in self.fields for n in NAMES.get(name, (name,)))

    def number(self, name: str, at_least: int = 1) -> int | None:
        """A whole number, or None where the field is null or not there; anything else is refused."""
        value = self.find(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            each = " (one for each layer is not understood)" if isinstance(value, list | tuple) else ""
            raise ConfigError(f"{name} should be a whole number, at least {at_least}; got {value!r}{each}.")
        return value

    def size(self, name: str, required: bool = True) -> int | None:
        value = self.number(name)
        if value is None and required and self.nested and self.absent(name):
            value = self.default(name)
        if value is None and required:
            raise ConfigError(
                f"The config has no {' or '.join(NAMES[name])}, and without it nothing can be counted."
            )
        return value

    def default(self, name: str):
        """What transformers' class of this family fills in, noted; None where it has none."""
        value = self.defaults.get(name)
        if value is not None:
            self.notes.append(
                f"{name} is not in the config; {self.family} has {value} unless told otherwise."
            )
        return value

    def setting(self, name: str):
        """A field as it is, or what the family has where it is not there."""
        return self.default(name) if self.absent(name) else self.find(name)

    # What a cache holds --------------------------------------------------------------------------------

    def _refuse_what_is_not_read(self) -> None:
        read = READ | HARMLESS | {n for names in NAMES.values() for n in names}
        for name, value in self.fields.items():
            if SOUNDS_LIKE.search(str(name)) and name not in read and not _nothing(value):
                raise ConfigError(_not_understood(name, value))

    def _head_dim(self, heads: int) -> int:
        head_dim = self.number("head_dim")
        if head_dim is None and self.absent("head_dim"):
            head_dim = self.default("head_dim")
        if head_dim is None:
            hidden = self.size("hidden_size")
            if hidden % heads:
                raise ConfigError(
                    f"head_dim is not in the config, and hidden_size={hidden} is not a multiple of "
                    f"num_attention_heads={heads}, so it cannot be worked out."
                )
            head_dim = hidden // heads
            self.notes.append(
                f"head_dim is not in the config; hidden_size / num_attention_heads is {head_dim}."
            )
        return head_dim

    def _kv_heads(self, heads: int) -> int:
        if self.fields.get("multi_query_attention"):  # ChatGLM's way of saying how many
            return self.size("multi_query_group_num")
        kv_heads = self.number("num_key_value_heads")
        old_falcon = self.family == "falcon" and not self.fields.get("new_decoder_architecture")
        if kv_heads is None or old_falcon:  # Falcon-7B has one head, whatever num_kv_heads says
            if self.setting("multi_query"):
                return 1
        if kv_heads is None and self.absent("num_key_value_heads"):
            kv_heads = self.default("num_key_value_heads")
            if kv_heads is None:
                self.notes.append(f"num_key_value_heads is not in the config; taken as all {heads} heads.")
        kv_heads = heads if kv_heads is None else kv_heads
        if heads % kv_heads:
            raise ConfigError(f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}.")
        return kv_heads

    def _latent(self) -> tuple[int | None, int | None]:
        latent = self.number("kv_lora_rank") or (
            self.default("kv_lora_rank") if self.absent("kv_lora_rank") else None
        )
        if latent is None:
            return None, None
        rope = self.number("qk_rope_head_dim") or self.default("qk_rope_head_dim")
        if rope is None:
            raise ConfigError(
                "kv_lora_rank means latent attention, and qk_rope_head_dim, the rotary key, is missing."
            )
        return latent, rope

    def _windows(self, layers: int) -> tuple[int | None, ...]:
        kinds = self.find("layer_types")
        if kinds is None:
            return self._windows_by_rule(layers)
        if not isinstance(kinds, list | tuple) or len(kinds) != layers:
            raise ConfigError(
                f"layer_types should list {layers} layers, as num_hidden_layers says; got {kinds!r:.80}."
            )
        for kind in kinds:
            if not isinstance(kind, str) or kind not in KINDS:
                raise ConfigError(
                    f"layer_types has {kind!r}; the cache of a layer is known for {', '.join(KINDS)} only."
                )
        sizes = {kind: self._window(KINDS[kind]) if KINDS[kind] else None for kind in set(kinds)}
        return tuple(sizes[kind] for kind in kinds)

    def _window(self, name: str) -> int:
        window = self.number(name)
        if window is None and self.absent(name):
            window = self.default(name)
        if window is None:
            raise ConfigError(f"layer_types has layers with a window, and {name} is {self.find(name)!r}.")
        return window

    def _windows_by_rule(self, layers: int) -> tuple[int | None, ...]:
        name = "attention_chunk_size" if self.family == "llama4_text" else "sliding_window"
        on = self.setting("use_sliding_window") if name == "sliding_window" else True
        if on is False or (self.find(name) is None and not self.absent(name)) or self.find(name) is False:
            return (None,) * layers
        window = self.number(name)
        window = self.default(name) if window is None else window
        if window is None:
            return (None,) * layers
        first = 0
        if "max_window_layers" in self.defaults:  # Qwen: the layers from this one on
            first = self.number("max_window_layers", at_least=0)
            first = self.default("max_window_layers") if first is None else first
        pattern = (
            "sliding_window_pattern" if self.absent("_sliding_window_pattern") else "_sliding_window_pattern"
        )
        every = self.number(pattern) or FULL_EVERY.get(self.family)
        if every is None and self.family not in DEFAULTS:
            self.notes.append(f"{name}={window} and no layer_types: taken as the window of every layer.")
        return tuple(None if i < first or (every and (i + 1) % every == 0) else window for i in range(layers))
