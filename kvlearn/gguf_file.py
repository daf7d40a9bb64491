"""A GGUF file into the fields and tensors of a Hugging Face Llama.

GGUF is llama.cpp's format: one file with metadata, the tokenizer and (mostly quantised) tensors. The `gguf`
package, which llama.cpp's own project keeps, parses and dequantises it; here the names are translated, and
one thing is undone: llama.cpp stores the rows of the query and key projections in the order that rotates
neighbouring coordinates (2i, 2i + 1), while Hugging Face, and `rope.py`, rotate i with i + D/2. A model
loaded without that step still talks, and badly.
"""

import re
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from kvlearn.families import ModelError

TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
FAMILIAR = "Only plain models of the llama architecture are read from GGUF"


class GGUFFile:
    """An open GGUF file of the llama architecture.

    Attributes:
        metadata: the file's own keys and values, `tokenizer.ggml.tokens` and the like included.
        fields: what the model's Hugging Face config.json would say.
        tensors: Hugging Face name -> `GGUFTensor`.

    Raises:
        ModelError: not GGUF, cut short, another architecture, or a feature that `Decoder` does not have.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
            self.metadata = {name: field.contents() for name, field in reader.fields.items()}
        except FileNotFoundError:
            raise ModelError(f"{path} is not there.") from None
        # What the package raises on bytes that are missing or make no sense depends on where they are.
        except (OSError, ValueError, IndexError, KeyError, OverflowError, MemoryError, TypeError) as error:
            raise ModelError(
                f"{path} cannot be read as GGUF ({error}). It is cut short, damaged or another kind of file."
            ) from error
        self.fields = self._fields({tensor.name for tensor in reader.tensors})
        self.tensors = {self._hf_name(t.name): GGUFTensor(self, t) for t in reader.tensors}

    def _fields(self, names: set[str]) -> dict:
        read = self.metadata.get
        if read("general.architecture") != "llama":
            raise ModelError(
                f"{self.path}: general.architecture is {read('general.architecture')!r}. {FAMILIAR}."
            )
        if read("split.count", 1) > 1:
            raise ModelError(f"{self.path} is one of {read('split.count')} parts; join them first.")
        if read("llama.expert_count", 0):
            raise ModelError(f"{self.path}: llama.expert_count is {read('llama.expert_count')}. {FAMILIAR}.")
        scaling = read("llama.rope.scaling.type", "none")
        for key in ("llama.rope.scale_linear", "llama.rope.scaling.factor"):  # older files have no type
            if read(key, 1) not in (0, 1):
                raise ModelError(f"{self.path}: {key} is {read(key)}. {FAMILIAR}, without rotary scaling.")
        if scaling != "none" or "rope_freqs.weight" in names:
            raise ModelError(f"{self.path} scales its rotary frequencies ({scaling!r}). {FAMILIAR}.")

        heads, hidden = self._required("attention.head_count"), self._required("embedding_length")
        head_dim = read("llama.attention.key_length", hidden // heads)
        for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
            if read(key, head_dim) != head_dim:
                raise ModelError(f"{self.path}: {key} is {read(key)}, but head_dim {head_dim}. {FAMILIAR}.")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(read("tokenizer.ggml.tokens", [])) or self._required("vocab_size"),
            "hidden_size": hidden,
            "num_hidden_layers": self._required("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": read("llama.attention.head_count_kv", heads),
            "head_dim": head_dim,
            "intermediate_size": self._required("feed_forward_length"),
            "max_position_embeddings": self._required("context_length"),
            "rope_theta": _shortest(read("llama.rope.freq_base", 10000.0)),
            "rms_norm_eps": _shortest(self._required("attention.layer_norm_rms_epsilon")),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": "output.weight" not in names,
            "bos_token_id": read("tokenizer.ggml.bos_token_id"),
            "eos_token_id": read("tokenizer.ggml.eos_token_id"),
        }

    def _required(self, key: str) -> int | float:
        value = self.metadata.get(f"llama.{key}")
        if not isinstance(value, int | float):
            raise ModelError(f"{self.path}: llama.{key} should be a number; got {value!r}.")
        return value

    def _hf_name(self, name: str) -> str:
        """Names that are not known stay as they are, and `assemble` refuses them."""
        stem, _, kind = name.rpartition(".")
        in_layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if in_layer and in_layer[2] in LAYER_NAMES:
            return f"model.layers.{in_layer[1]}.{LAYER_NAMES[in_layer[2]]}.{kind}"
        return f"{TENSOR_NAMES[stem]}.{kind}" if stem in TENSOR_NAMES else name


class GGUFTensor:
    """A tensor of an open file, dequantised to float32 when it is read."""

    stored_as = "F32"  # what `read` gives, as safetensors spells it

    def __init__(self, file: GGUFFile, tensor):
        self.file, self.tensor = file, tensor
        self.shape = tuple(reversed(tensor.shape.tolist()))  # GGUF counts its axes from the last

    def read(self) -> Tensor:
        kind = self.tensor.tensor_type
        try:
            weights = gguf.quants.dequantize(self.tensor.data, kind)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.file.path}: {self.tensor.name} is stored as {kind.name}, which the gguf package does "
                "not dequantise."
            ) from error
        # A copy, because the file is mapped read-only.
        weights = torch.from_numpy(np.array(weights, dtype=np.float32))
        fields = self.file.fields
        if self.tensor.name.endswith("attn_q.weight"):
            return half_split_rows(weights, fields["num_attention_heads"])
        if self.tensor.name.endswith("attn_k.weight"):
            return half_split_rows(weights, fields["num_key_value_heads"])
        return weights


def half_split_rows(weights: Tensor, heads: int) -> Tensor:
    """Rows of a projection from llama.cpp's order into Hugging Face's, head by head.

    Args:
        weights: (heads * D, hidden); in each head the rows 2i and 2i + 1 are rotated together.

    Returns:
        (heads * D, hidden); in each head the rows i and i + D/2 are rotated together.
    """
    rows, hidden = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, hidden).transpose(1, 2).reshape(rows, hidden)


def _shortest(value: float) -> float:
    """1e-05 for the float32 that a file stores as 9.999999747378752e-06."""
    return float(str(np.float32(value)))
