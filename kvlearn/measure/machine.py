"""The device to run on, and what a measurement must say about where it was taken."""

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = (
    "torch",
    "numpy",
    "einops",
    "transformers",
    "safetensors",
    "tokenizers",
    "triton",
    "optimum-quanto",
    "hqq",
)


def device() -> torch.device:
    """The best device here: "cuda" when there is one, else "mps", else "cpu"."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def synchronize() -> None:
    """Wait until the accelerator has done what it was given: its work runs behind Python's back."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def machine() -> dict:
    """Facts for a recorded measurement, fit for JSON: hardware, threads, versions. No host or user names."""
    where = device()
    facts = {
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))}
        | {
            "torch": torch.__version__
        },  # the package's own version leaves out which build it is: +cpu, +cu130
        "device": where.type,
        "device_name": None,
        "driver": None,
    }
    if where.type == "cuda":
        facts["device_name"] = torch.cuda.get_device_name()
        facts["device_memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
        facts["driver"] = _driver()
        facts["cuda"] = torch.version.cuda
    return facts


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = {}
        for line in info.read_text(errors="replace").splitlines():
            name, _, value = (part.strip() for part in line.partition(":"))
            fields.setdefault(name, value)
        if "model name" in fields:
            # A virtual machine's name says little ("AMD EPYC"); family and model tell one chip from the next.
            family, model = fields.get("cpu family", "?"), fields.get("model", "?")
            isa = torch.backends.cpu.get_cpu_capability()
            return f"{fields['model name']} (family {family}, model {model}, {isa})"
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None


def _driver() -> str | None:
    lines = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return lines.splitlines()[0] if lines else None


def _output(*command: str) -> str | None:
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
