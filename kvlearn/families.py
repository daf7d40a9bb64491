"""What a Hugging Face config.json says, as a `DecoderConfig`: Llama, Mistral, Qwen2 and Qwen3.

The four share one plan. Llama 3.1 turns its slow pairs more slowly (arXiv 2407.21783), Mistral looks through
a window (arXiv 2310.06825), Qwen2 has biases on q, k and v (arXiv 2407.10671), and Qwen3 norms on q and k in
their place (arXiv 2505.09388). What a file leaves out has the value that transformers gives it. A feature
that `Decoder` does not have is refused by the name of its field, never passed over.
"""

from collections.abc import Mapping
from pathlib import Path

from kvlearn.decoder_config import DecoderConfig
from kvlearn.rope import RopeScaling

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# What transformers gives a field that the file leaves out, where the families differ.
FAMILIES = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SUPPORTED = (
    "kvlearn loads models of the families llama, mistral, qwen2 and qwen3: a Hugging Face folder with "
    "safetensors, or a .gguf file of a llama"
)


class ModelError(ValueError):
    """A model that cannot be loaded: what is wrong with it, and what to do."""


def config_from_fields(fields: Mapping, source: str | Path) -> DecoderConfig:
    """The sizes and features in the fields of a Hugging Face config.json.

    Both spellings of the rotary fields are read: `rope_theta` with `rope_scaling`, and `rope_parameters` of
    transformers 5.

    Raises:
        ModelError: another family, or a feature that `Decoder` does not have; the field is named.
    """
    _refuse_what_is_not_built(fields, source)
    family = fields["model_type"]
    fields = FAMILIES[family] | dict(fields)
    for name in SIZES:
        if not isinstance(fields.get(name), int) or fields[name] < 1:
            raise ModelError(f"{source}: {name} should be 1 or more; got {fields.get(name)!r}.")
    heads = fields["num_attention_heads"]
    rope = _rope_fields(fields)
    try:
        return DecoderConfig(
            vocab_size=fields["vocab_size"],
            hidden_size=fields["hidden_size"],
            num_layers=fields["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=fields.get("num_key_value_heads") or heads,
            head_dim=fields.get("head_dim") or fields["hidden_size"] // heads,
            intermediate_size=fields["intermediate_size"],
            max_position=fields["max_position_embeddings"],
            rope_theta=float(rope.get("rope_theta") or fields.get("rope_theta") or 10000.0),
            norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(fields.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            rope_scaling=_rope_scaling(rope),
            windows=_windows(fields, family),
        )
    except KeyError as error:
        raise ModelError(f"{source}: the rotary fields {rope} lack {error}.") from error
    except (TypeError, ValueError) as error:
        raise ModelError(f"{source}: the sizes do not make a decoder. {error}") from error


def _rope_fields(fields: Mapping) -> Mapping:
    return fields.get("rope_parameters") or fields.get("rope_scaling") or {}


def _rope_scaling(rope: Mapping) -> RopeScaling | None:
    if _rope_type(rope) == "default":
        return None
    numbers = (float(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    return RopeScaling(*numbers, rope["original_max_position_embeddings"])


def _rope_type(rope: Mapping) -> str:
    return rope.get("rope_type", rope.get("type", "default"))


def _windows(fields: Mapping, family: str) -> tuple[int | None, ...]:
    """One window a layer: Mistral's in all, Qwen's where it is switched on, by `layer_types`."""
    layers = fields["num_hidden_layers"]
    window = fields.get("sliding_window")
    if family == "llama" or window is None:
        return ()
    if family == "mistral":
        return (window,) * layers
    if not fields.get("use_sliding_window"):  # Qwen's files name a window and switch it off
        return ()
    first = fields.get("max_window_layers", 28)
    default = ["full_attention"] * min(first, layers) + ["sliding_attention"] * max(layers - first, 0)
    kinds = fields.get("layer_types") or default
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"layer_types should be full_attention or sliding_attention for each of the {layers} layers; "
            f"got {kinds}."
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _refuse_what_is_not_built(fields: Mapping, source: str | Path) -> None:
    """Each refusal is one sentence with the field, its value and what would be accepted."""

    def refuse(name: str, accepted: str) -> None:
        raise ModelError(
            f"{source}: {name} is {fields.get(name)!r}, and only {accepted} is supported. {SUPPORTED}."
        )

    family = fields.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        refuse("model_type", " or ".join(map(repr, FAMILIES)))
    if fields.get("architectures") not in (None, [], [ARCHITECTURES[family]]):
        refuse("architectures", repr([ARCHITECTURES[family]]))
    for name in ("attention_bias", "mlp_bias"):
        if fields.get(name):
            refuse(name, "False")
    if fields.get("hidden_act", "silu") not in ("silu", "swish"):
        refuse("hidden_act", "'silu'")
    if fields.get("quantization_config"):
        refuse("quantization_config", "none (weights as floating-point numbers)")
    for name in ("rope_scaling", "rope_parameters"):
        rope = fields.get(name) or {}
        if not isinstance(rope, Mapping):
            refuse(name, "a table of fields")
        if _rope_type(rope) not in ("default", "llama3") or rope.get("partial_rotary_factor", 1.0) != 1.0:
            refuse(name, "a whole rotary embedding of rope_type 'default' or 'llama3'")
    if fields.get("partial_rotary_factor", 1.0) != 1.0:
        refuse("partial_rotary_factor", "1.0")
