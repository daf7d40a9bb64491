"""Load a real language model into `Decoder`, with your own functions in it if you like.

    decoder, tokenizer = load("smollm2-135m")               the course's model; fetched the first time
    decoder, tokenizer = load("path/to/checkpoint")         a Llama folder of Hugging Face
    decoder, tokenizer = load("path/to/model.gguf")         a llama GGUF file
    decoder, tokenizer = load("tiny")                       random weights, seeded; no file, no network
    decoder, _ = load("recall")                             trained to recall pairs (see kvlearn.recall); here

SmolLM2-135M-Instruct (Allal et al. 2025, arXiv 2502.02737; Apache-2.0) has 30 layers, 9 query heads, 3
key/value heads and head_dim 64: 46,080 bytes of cache a token in float32.
"""

import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kvlearn.attention import attention as library_attention
from kvlearn.checkpoint import assemble, empty_decoder, load_folder, read_json
from kvlearn.decoder import Decoder, DecoderConfig
from kvlearn.families import SUPPORTED, ModelError, config_from_fields
from kvlearn.gguf_file import GGUFFile
from kvlearn.model_store import DEFAULT, MODELS, ModelUnavailable, fetch
from kvlearn.rope import apply_rope
from kvlearn.tokenizer import Tokenizer, byte_tokenizer, from_folder, from_gguf

REQUIRE = "KVLEARN_REQUIRE_MODEL"
RECALL_FOLDER = Path(__file__).parent / "recall_model"  # made by benchmarks/train_recall.py

# Layers, heads and head_dim of the real model, so that a cache has its shapes and bytes; narrow elsewhere.
TINY = DecoderConfig(
    vocab_size=259,
    hidden_size=96,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=160,
    max_position=8192,
    rope_theta=100000.0,
)


@torch.inference_mode(False)  # weights made inside inference mode could never be used with autograd
def load(
    name_or_folder: str | Path,
    attention: Callable[..., Tensor] = library_attention,
    rope: Callable[..., Tensor] = apply_rope,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Decoder, Tokenizer | None]:
    """A model and its tokenizer.

    Args:
        name_or_folder: "smollm2-135m", "tiny", "recall", a Hugging Face folder or a .gguf file. A folder that
            is called like a model is loaded as "./tiny".
        attention, rope: put into the decoder, see `Decoder`.
        dtype: of the weights, a floating-point type.
        device: of the weights; the CPU when left out, whatever torch's default device is.

    Returns:
        The decoder, its weights frozen (`requires_grad` is False) and laid out for speed
        (`kvlearn.inference`), and the tokenizer. The tokenizer is None
        for "recall", whose ids are no text; and, with a warning, where a folder has no tokenizer.json or a
        GGUF one of a kind that is not built here.

    Raises:
        ModelError (a ValueError): a model of another family, or files that are missing, cut short, damaged
            or do not fit each other; `ModelUnavailable` where the model cannot be fetched.
    """
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ModelError(f"dtype is a floating-point type such as torch.float32; got {dtype!r}.")
    device = torch.device(device or "cpu")
    functions = {"attention": attention, "rope": rope}
    if name_or_folder == "tiny":
        return _tiny(dtype, device, **functions), byte_tokenizer()
    if name_or_folder == "recall":
        return _recall(dtype, device, **functions), None
    path = fetch(name_or_folder) if name_or_folder in MODELS else Path(name_or_folder)
    if path.is_dir():
        decoder, tokenizer = load_folder(path, dtype, device, **functions), from_folder(path)
    elif path.is_file():
        file = GGUFFile(path)
        config = config_from_fields(file.fields, path)
        decoder = assemble(config, file.tensors, path, dtype, device, **functions)
        tokenizer = from_gguf(file.metadata)
    else:
        raise ModelError(
            f"{str(name_or_folder)!r} is neither a model's name ({', '.join(MODELS)}, tiny, recall) nor a "
            f"folder or file that is there. {SUPPORTED}."
        )
    if tokenizer is None:
        warnings.warn(f"{path} has no tokenizer that kvlearn can build; feed token ids.", stacklevel=2)
    elif tokenizer.vocab_size > decoder.config.vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, and the model "
            f"{decoder.config.vocab_size} embeddings; they belong to different models."
        )
    else:
        tokenizer.model_rows = decoder.config.vocab_size
    return decoder, tokenizer


def load_or_tiny(
    name: str = DEFAULT,
    attention: Callable[..., Tensor] = library_attention,
    rope: Callable[..., Tensor] = apply_rope,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Decoder, Tokenizer]:
    """`load(name)`; where the model cannot be had, the tiny one, saying so in one line.

    The environment variable KVLEARN_REQUIRE_MODEL=1 makes that an error: CI must run the real model. A model
    that is there and damaged is always an error.
    """
    try:
        return load(name, attention, rope, dtype, device)
    except ModelUnavailable as error:
        if model_is_required():
            raise
        print(f"Running on a tiny model with random weights, so its text means nothing. {error}")
    return load("tiny", attention, rope, dtype, device)


def _recall(dtype: torch.dtype, device: torch.device, **functions: Callable) -> Decoder:
    """The model that ships with the package, once its checksum is that of its recipe."""
    recipe = read_json(RECALL_FOLDER / "recipe.json")
    path = RECALL_FOLDER / "model.safetensors"
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if found != recipe.get("sha256"):
        raise ModelError(
            f"{path} is damaged: its SHA-256 is {found}, and recipe.json says {recipe.get('sha256')}. "
            "Install kvlearn again."
        )
    return load_folder(RECALL_FOLDER, dtype, device, **functions)


def model_is_required() -> bool:
    """Whether KVLEARN_REQUIRE_MODEL forbids the tiny model in the real one's place."""
    return os.environ.get(REQUIRE, "0") not in ("", "0")


def _tiny(dtype: torch.dtype, device: torch.device, **functions: Callable) -> Decoder:
    """Seeded random weights: 1 in the norms, else normal with variance 1 / fan-in."""
    decoder = empty_decoder(TINY, **functions)
    generator = torch.Generator().manual_seed(0)  # its own: the caller's random numbers stay as they were
    weights = {}
    for name, shape in ((name, tensor.shape) for name, tensor in decoder.named_parameters()):
        if len(shape) == 1:
            numbers = torch.ones(shape, dtype=torch.float32, device="cpu")
        else:
            numbers = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
            numbers /= shape[1] ** 0.5
        weights[name] = numbers.to(device=device, dtype=dtype)
    weights["lm_head.weight"] = weights["embed_tokens.weight"]
    decoder.load_state_dict(weights, assign=True)
    decoder.lm_head.weight = decoder.embed_tokens.weight
    return decoder.requires_grad_(False).eval().prepare()
