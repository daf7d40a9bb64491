"""A Hugging Face folder (config.json + safetensors) into a `Decoder`.

Only safetensors are read here, and GGUF in `gguf_file.py`: both are tables of numbers. A pickle, which is
what pytorch_model.bin is, runs whatever code it holds when it is opened.

Everything is checked before a single number is read: the fields of the config (`families.py`), then the name,
shape and type of each tensor. What does not fit is refused with the field or tensor that is to blame.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvlearn.decoder import Decoder, DecoderConfig
from kvlearn.families import SUPPORTED, ModelError, config_from_fields
from kvlearn.inference import PreparedDecoder

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_json(path: Path) -> dict:
    """A JSON object from a file, or a ModelError that names the file."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is not there. {SUPPORTED}.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path} should hold a JSON object; got {type(fields).__name__}.")
    return fields


def load_folder(folder: Path, dtype: torch.dtype, device: torch.device, **functions: Callable) -> Decoder:
    """A `Decoder` from config.json and model.safetensors, or the shards that its index names.

    Args:
        folder: the checkpoint.
        dtype, device: of the weights.
        functions: `attention` and `rope` of the decoder.

    Raises:
        ModelError: see `config_from_fields` and `assemble`; a file that is missing or cut short.
    """
    paths = list(_weight_files(folder))
    config = config_from_fields(read_json(folder / "config.json"), folder / "config.json")
    with ExitStack() as stack:
        tensors = {}
        for path in paths:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ModelError(
                    f"{path} cannot be read as safetensors: {error}. It is cut short or damaged."
                ) from error
            for name in file.keys():
                if name in tensors:
                    raise ModelError(f"{path} holds the tensor {name} a second time; each has one file.")
                tensors[name] = SafeTensor(file, name)
        return assemble(config, tensors, folder, dtype, device, **functions)


class SafeTensor:
    """A tensor of an open file: its shape and type are known, its numbers not read yet."""

    def __init__(self, file, name: str):
        entry = file.get_slice(name)
        self.file, self.name = file, name
        self.shape, self.stored_as = tuple(entry.get_shape()), entry.get_dtype()

    def read(self) -> Tensor:
        return self.file.get_tensor(self.name)


def _weight_files(folder: Path) -> Iterator[Path]:
    if (folder / WEIGHTS).exists():
        yield folder / WEIGHTS
    elif (folder / INDEX).exists():
        yield from _shards(folder)
    elif any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise ModelError(
            f"{folder} holds its weights as pickles; only safetensors and GGUF are read, never pickles, "
            "because opening one runs the code in it. Ask for the safetensors files of the same model."
        )
    else:
        other = sorted(path.name for path in folder.glob("*.gguf"))
        advice = f"Load the file itself: {folder / other[0]}" if other else SUPPORTED
        raise ModelError(f"{folder} holds neither {WEIGHTS} nor {INDEX}. {advice}.")


def _shards(folder: Path) -> Iterator[Path]:
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{folder / INDEX} has no weight_map that says which tensor is in which file.")
    for name in sorted(set(map(str, places.values()))):
        if Path(name).name != name:  # a shard lies beside its index, never elsewhere on the disk
            raise ModelError(f"{folder / INDEX} names the shard {name!r}, which is not a plain file name.")
        if not (folder / name).exists():
            raise ModelError(f"{folder / name} is not there, and {INDEX} names it; copy it there too.")
        yield folder / name


class _NoInitialNumbers(TorchFunctionMode):
    """Leave new weights as they are: drawing numbers on the meta device makes torch import its compiler."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def empty_decoder(config: DecoderConfig, **functions: Callable) -> PreparedDecoder:
    """A decoder on the meta device: weights with shapes, without memory and numbers."""
    with torch.device("meta"), _NoInitialNumbers():
        return PreparedDecoder(config, **functions)


def assemble(
    config: DecoderConfig,
    tensors: Mapping[str, SafeTensor],
    source: str | Path,
    dtype: torch.dtype,
    device: torch.device,
    **functions: Callable,
) -> Decoder:
    """Put tensors under Hugging Face's names ("model.layers.0. ...", "lm_head.weight") into a `Decoder`.

    Args:
        config: the sizes that the tensors must have.
        tensors: objects with `.shape`, `.stored_as` (as safetensors spells types) and `.read()`.
        source: the file or folder, for messages.

    Raises:
        ModelError: a tensor is missing, unexpected, of another shape, or not floating-point numbers.
    """
    decoder = empty_decoder(config, **functions)
    wanted = {hf_name(name): tensor for name, tensor in decoder.state_dict().items()}
    found = {name: t for name, t in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    head, table = "lm_head.weight", "model.embed_tokens.weight"
    if config.tie_embeddings:
        del wanted[head]
        stored_head = found.pop(head, None)
    _compare(wanted, found, source)
    if config.tie_embeddings and stored_head and not torch.equal(stored_head.read(), found[table].read()):
        raise ModelError(f"{source}: tie_word_embeddings is true, and {head} is not the embedding table.")

    # Where neither changes, `to` copies nothing and the weights stay mapped from the file, privately: writing
    # to them does not reach the disk. `prepare` then copies those that it joins.
    weights = {own_name(name): found[name].read().to(device=device, dtype=dtype) for name in wanted}
    if config.tie_embeddings:
        weights[head] = weights[own_name(table)]
    decoder.load_state_dict(weights, assign=True)
    if config.tie_embeddings:
        decoder.lm_head.weight = decoder.embed_tokens.weight  # one parameter again
    return decoder.requires_grad_(False).eval().prepare()


def hf_name(name: str) -> str:
    """Our parameter names are Hugging Face's without the "model." in front."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def own_name(name: str) -> str:
    return name.removeprefix("model.")


def _compare(wanted: Mapping[str, Tensor], found: Mapping[str, SafeTensor], source: str | Path) -> None:
    missing, unexpected = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing:
        raise ModelError(f"{source} lacks the tensor {missing[0]}{_and_more(missing)}; it is not complete.")
    if unexpected:
        raise ModelError(
            f"{source} holds the tensor {unexpected[0]}{_and_more(unexpected)}, which its config does "
            f"not speak of. {SUPPORTED}."
        )
    for name, tensor in wanted.items():
        if found[name].shape != tuple(tensor.shape):
            raise ModelError(
                f"{source}: {name} has the shape {found[name].shape}, and the config asks for "
                f"{tuple(tensor.shape)}."
            )
        if found[name].stored_as not in DTYPES:
            raise ModelError(
                f"{source}: {name} is stored as {found[name].stored_as}; weights are {', '.join(DTYPES)}."
            )


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
