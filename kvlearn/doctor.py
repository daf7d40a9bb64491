"""What is on this machine, and what to do about what is not: the findings behind `kvlearn doctor`."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import kvlearn
from kvlearn import linear, measure, model_store
from kvlearn.families import ModelError
from kvlearn.sizing.known import models
from kvlearn.weights import model_is_required

GOOD, NOTE, MISSING = "good", "note", "missing"
MEMORY_BYTES = 2_000_000_000  # the real model in float32, its cache, and room for a second of each
LESSON_PACKAGES = ("jupyterlab", "ipykernel", "ipywidgets", "matplotlib")
TEST_PACKAGES = ("pytest", "nbval", "nbgrader", "jupytext", "transformers")


@dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` says what to do, and is empty where there is nothing to do."""

    subject: str
    found: str
    state: str = GOOD  # NOTE: the course runs all the same; MISSING: it does not
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Everything that the course stands on, the most basic first."""
    yield python()
    yield package()
    yield from variables()
    yield pytorch()
    yield device()
    yield threads()
    yield processor()
    yield memory()
    yield disk()
    yield model()
    yield packages("Jupyter", LESSON_PACKAGES, MISSING, "notebooks")
    yield packages("Tests", TEST_PACKAGES, NOTE, "test")
    yield grading()


def python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("Python", found)
    advice = "The course needs Python 3.11, 3.12 or 3.13; install one of them."
    return Finding("Python", found, MISSING, advice)


def package() -> Finding:
    """Which kvlearn a lesson imports: it runs in a different folder, and may find a different kvlearn."""
    ours = Path(kvlearn.__file__).resolve().parent
    code = "import importlib.util as u; spec = u.find_spec('kvlearn'); print(spec.origin if spec else '')"
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run([sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True)
    found = done.stdout.strip()
    if found and Path(found).resolve().parent == ours:
        return Finding("kvlearn", str(ours))
    lesson = f"{Path(found).parent} instead" if found else "nothing: it is not installed"
    advice = (
        f"A lesson would import {lesson}. `python3 dev.py lab` fixes this. In an environment of your "
        f"own, in the folder of the course: {_pip()} install -e ."
    )
    return Finding("kvlearn", f"{ours}, but lessons do not import it", MISSING, advice)


def variables() -> Iterator[Finding]:
    """Variables that stop the lessons in an environment of your own; `dev.py` does not pass them on."""
    if sys.flags.optimize > 1:
        advice = "It removes the docstrings that checks quote. Unset PYTHONOPTIMIZE and start without -OO."
        yield Finding("Python", "started with -OO or PYTHONOPTIMIZE=2", MISSING, advice)
    for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"):
        for one in (name, name.lower()):
            if os.environ.get(one, "").lower().startswith("socks"):
                advice = f"JupyterLab cannot use a SOCKS proxy. Start it without: env -u {one} jupyter lab"
                yield Finding("Proxy", f"{one} names a SOCKS proxy", MISSING, advice)


def pytorch() -> Finding:
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU"
    found = f"{torch.__version__} ({build} build)"
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) >= (2, 9):
        return Finding("torch", found)
    advice = f'The course needs torch 2.9 or newer: {_pip()} install --upgrade "torch>=2.9"'
    return Finding("torch", found, MISSING, advice)


def device() -> Finding:
    chosen = torch.device(measure.device())
    if chosen.type == "cuda":
        return Finding("Device", f"{chosen} ({torch.cuda.get_device_name(chosen)})")
    if chosen.type == "cpu" and shutil.which("nvidia-smi"):
        advice = "There is an NVIDIA driver that torch does not use; a CUDA build of torch would."
        return Finding("Device", str(chosen), NOTE, advice)
    return Finding("Device", str(chosen))


def threads() -> Finding:
    found = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    setting = os.environ.get("OMP_NUM_THREADS")
    return Finding("Threads", found + (f" (OMP_NUM_THREADS={setting})" if setting else ""))


def processor() -> Finding:
    """The processor, and the fastest products for the course's model on it, measured by `kvlearn.linear`."""
    config, threads = models()[model_store.DEFAULT]["config"], torch.get_num_threads()
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    kv_rows = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {  # rows and columns of the joined weights
        "q k v": (hidden + 2 * kv_rows, hidden),
        "o": (hidden, hidden),
        "gate up": (2 * wide, hidden),
        "down": (hidden, wide),
        "head": (config["vocab_size"], hidden),
    }
    said = []
    for dtype in (torch.float32, torch.bfloat16):
        ways = {name: linear.fastest(*shape, dtype, threads)[0].__name__ for name, shape in shapes.items()}
        groups = {way: ", ".join(n for n in ways if ways[n] == way) for way in dict.fromkeys(ways.values())}
        few = "; ".join(f"{names} {way}" for way, names in groups.items())
        many = linear.fastest_for_many(dtype, threads).__name__
        said.append(f"{str(dtype).removeprefix('torch.')}: {few}; prompts {many}")
    found = f"{measure.machine()['cpu']}. The fastest ways to multiply, measured just now (kvlearn/linear.py)"
    return Finding("Processor", f"{found}, in {'. In '.join(said)}")


def memory() -> Finding:
    try:
        import psutil  # comes with ipykernel
    except ImportError:
        return Finding("Memory", "not known: psutil, which comes with ipykernel, is not installed", NOTE)
    now = psutil.virtual_memory()
    found = f"{now.available / 1e9:.1f} GB free of {now.total / 1e9:.1f} GB"
    if now.available >= MEMORY_BYTES:
        return Finding("Memory", found)
    advice = f"The real model needs about {MEMORY_BYTES / 1e9:.0f} GB; close other programs first."
    return Finding("Memory", found, NOTE, advice)


def disk(name: str = model_store.DEFAULT) -> Finding:
    """The disk that the real model goes to. It needs nothing more once the model is there."""
    try:
        store, folder = model_store.store(), model_store.find(name)
    except ModelError as error:
        return Finding("Disk", "not looked at", MISSING, str(error))
    place = next(path for path in (store, *store.parents) if path.exists())
    free, needed = shutil.disk_usage(place).free, model_store.MODELS[name].needed_bytes
    found = f"{free / 1e9:.1f} GB free for {store}"
    if folder is not None or free >= needed:
        return Finding("Disk", found)
    advice = (
        f"The model needs {needed / 1e9:.2f} GB while it is converted: make room, or set "
        f"{model_store.VARIABLE} to a folder on another disk."
    )
    return Finding("Disk", found, _absent(), advice)


def model(name: str = model_store.DEFAULT) -> Finding:
    """The real model, read whole and compared with its checksums."""
    try:
        folder = model_store.find(name)
    except ModelError as error:
        return Finding("Model", f"{name} not looked for", MISSING, str(error))
    if folder is None:
        command = f"{sys.executable} -c \"import kvlearn; kvlearn.load('{name}')\""
        megabytes = model_store.MODELS[name].download_bytes / 1e6
        advice = (
            f"With a network, load it once ({megabytes:.0f} MB): {command}. Until then the lessons run on a "
            "tiny model with random weights."
        )
        return Finding("Model", f"{name} is not here yet", _absent(), advice)
    wrong = model_store.verify(folder)
    if wrong is None:
        return Finding("Model", f"{name} in {folder}")
    return Finding("Model", f"{name} in {folder} is damaged", MISSING, wrong)


def _absent() -> str:
    """Without the real model the lessons run on a tiny one, unless that is forbidden."""
    return MISSING if model_is_required() else NOTE


def packages(subject: str, names: tuple[str, ...], if_absent: str, extra: str) -> Finding:
    """Packages by their installed versions; none of them is imported."""
    versions = {name: _version(name) for name in names}
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "nothing"
    absent = ", ".join(name for name, version in versions.items() if version is None)
    if not absent:
        return Finding(subject, found)
    advice = f'Not installed: {absent}. In the folder of the course: {_pip()} install -e ".[{extra}]"'
    return Finding(subject, found, if_absent, advice)


def grading() -> Finding:
    """What `kvlearn classroom` needs to run students' code in a sandbox. Learners need nothing of it."""
    if sys.platform != "linux":
        return Finding("Grading", "not on this system: it needs Linux", NOTE, "Only instructors need it.")
    if shutil.which("bwrap"):
        return Finding("Grading", "bubblewrap is installed")
    advice = (
        "Only instructors need it, to run students' code in a sandbox; its tests are skipped. On Debian and "
        "Ubuntu: sudo apt install bubblewrap"
    )
    return Finding("Grading", "bubblewrap is not installed", NOTE, advice)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pip() -> str:
    return f"{sys.executable} -m pip"
