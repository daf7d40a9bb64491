import shutil
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from tiny_models import SIZES, llama

from kvlearn import doctor, linear, measure, model_store
from kvlearn.doctor import GOOD, MISSING, NOTE
from kvlearn.linear import by_inputs, whole, widened

ROOM = model_store.MODELS["smollm2-135m"].needed_bytes


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No model on this machine, and nothing that requires it."""
    monkeypatch.setattr(model_store, "cache_folder", lambda: tmp_path / "cache" / "models")
    monkeypatch.delenv("KVLEARN_MODELS", raising=False)
    monkeypatch.delenv("KVLEARN_REQUIRE_MODEL", raising=False)
    return tmp_path / "cache" / "models"


@pytest.mark.parametrize("version, state", [((3, 10), MISSING), ((3, 11), GOOD), ((3, 14), MISSING)])
def test_python(monkeypatch, version, state):
    """Would catch 3.9 > 3.13 by text, and a Python that the course was never run on."""
    monkeypatch.setattr(doctor.sys, "version_info", (*version, 4, "final", 0))
    finding = doctor.python()
    assert finding.state == state and ("3.11, 3.12 or 3.13" in finding.advice) == (state == MISSING)


def lesson_imports(monkeypatch, path):
    """What a Python says that is started in another folder."""
    done = SimpleNamespace(stdout=f"{path}\n")
    monkeypatch.setattr(doctor.subprocess, "run", lambda command, **_: done)


def test_package(monkeypatch, tmp_path):
    """Would catch "The course can run" where lessons import the folder that this one was copied from."""
    ours = Path(doctor.__file__).parent
    lesson_imports(monkeypatch, ours / "__init__.py")
    assert doctor.package() == doctor.Finding("kvlearn", str(ours))
    lesson_imports(monkeypatch, tmp_path / "kvlearn" / "__init__.py")
    assert doctor.package().state == MISSING
    assert f"A lesson would import {tmp_path / 'kvlearn'} instead." in doctor.package().advice
    lesson_imports(monkeypatch, "")
    assert doctor.package().state == MISSING and "it is not installed" in doctor.package().advice


def test_package_asks_a_python_in_another_folder(monkeypatch, tmp_path):
    """Would catch a question that the folder of the course answers itself, because it is the current one."""
    (tmp_path / "kvlearn").mkdir()
    (tmp_path / "kvlearn" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert doctor.package().state == GOOD
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert f"{tmp_path / 'kvlearn'} instead" in doctor.package().advice


def test_variables(monkeypatch):
    """Would catch a traceback about socksio, or about a docstring that is None, behind a good report."""
    for name in ("ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor.sys, "flags", SimpleNamespace(optimize=0))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:8080")
    assert list(doctor.variables()) == []
    monkeypatch.setenv("all_proxy", "socks://127.0.0.1:1080/")
    monkeypatch.setattr(doctor.sys, "flags", SimpleNamespace(optimize=2))
    optimised, proxy = doctor.variables()
    assert (optimised.subject, optimised.state) == (
        "Python",
        MISSING,
    ) and "PYTHONOPTIMIZE" in optimised.advice
    assert (proxy.subject, proxy.state) == ("Proxy", MISSING) and "env -u all_proxy" in proxy.advice


@pytest.mark.parametrize(
    "version, cuda, state, build",
    [
        ("2.8.1+cu128", "12.8", MISSING, "CUDA 12.8 build"),
        ("2.9.0", None, GOOD, "CPU build"),
        ("2.10.0a0+git1", None, GOOD, "CPU build"),
        ("3.0.0", "13.0", GOOD, "CUDA 13.0 build"),
    ],
)
def test_torch(monkeypatch, version, cuda, state, build):
    """Would catch 2.10 taken as older than 2.9, and a CUDA build called CPU."""
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    finding = doctor.pytorch()
    assert finding.state == state and finding.found == f"{version} ({build})"
    assert ("torch>=2.9" in finding.advice) == (state == MISSING)


def test_device(monkeypatch):
    """Would catch a GPU that stands idle without a word."""
    monkeypatch.setattr(measure, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert doctor.device() == doctor.Finding("Device", "cpu")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/" + name)
    assert doctor.device().state == NOTE and "CUDA build of torch" in doctor.device().advice
    monkeypatch.setattr(measure, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    assert doctor.device() == doctor.Finding("Device", "cuda (Some GPU)")


def test_grading(monkeypatch):
    """Would catch a learner who is told that something is missing, and an instructor who is told nothing."""
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "bwrap" else None)
    assert doctor.grading() == doctor.Finding("Grading", "bubblewrap is installed")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    absent = doctor.grading()
    assert absent.state == NOTE and absent.advice.startswith("Only instructors need it")
    assert absent.advice.endswith("apt install bubblewrap")
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    assert doctor.grading().state == NOTE and "needs Linux" in doctor.grading().found


def test_threads(monkeypatch):
    """Would catch the number of cores printed as the number of threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert doctor.threads().found == "3 of 8 cores (OMP_NUM_THREADS=3)"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert doctor.threads().found == "3 of 8 cores"


def test_processor(monkeypatch):
    """Would catch a report that leaves out the processor, or names the way of another shape or dtype."""

    def fastest(rows, columns, dtype, threads):
        return (by_inputs if rows > 900 and dtype == torch.float32 else whole), False

    monkeypatch.setattr(linear, "fastest", fastest)
    many = {torch.float32: whole, torch.bfloat16: widened}
    monkeypatch.setattr(linear, "fastest_for_many", lambda dtype, threads: many[dtype])
    assert doctor.processor().found == (
        f"{measure.machine()['cpu']}. The fastest ways to multiply, measured just now (kvlearn/linear.py), "
        "in float32: q k v, gate up, head by_inputs; "
        "o, down whole; prompts whole. In bfloat16: q k v, o, gate up, down, head whole; prompts widened"
    )


@pytest.mark.parametrize("available, state", [(1_900_000_000, NOTE), (2_100_000_000, GOOD)])
def test_memory(monkeypatch, available, state):
    """Would catch total memory taken for free memory."""
    now = SimpleNamespace(available=available, total=16_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: now)
    finding = doctor.memory()
    assert finding.state == state and finding.found == f"{available / 1e9:.1f} GB free of 16.0 GB"


def test_memory_without_psutil(monkeypatch):
    """It is not one of the library's own dependencies: would catch a doctor that dies of it."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert doctor.memory().state == NOTE


@pytest.mark.parametrize("required, absent", [(None, NOTE), ("1", MISSING)])
def test_no_model_and_no_room(nowhere, monkeypatch, required, absent):
    """Would catch the size of a folder that is not made yet asked for, and CI that is told all is well."""
    usage = namedtuple("usage", "total used free")
    asked = []

    def disk_usage(path):
        asked.append(path)
        return usage(0, 0, ROOM - 1)

    if required:
        monkeypatch.setenv("KVLEARN_REQUIRE_MODEL", required)
    monkeypatch.setattr(doctor.shutil, "disk_usage", disk_usage)
    finding = doctor.disk()
    assert asked == [nowhere.parent.parent]
    assert (
        finding.state == absent and "needs 0.75 GB" in finding.advice and "KVLEARN_MODELS" in finding.advice
    )
    finding = doctor.model()
    assert finding.state == absent and "93 MB" in finding.advice
    assert "kvlearn.load('smollm2-135m')" in finding.advice


def test_a_model_in_a_folder_of_ones_own(nowhere, monkeypatch, tmp_path):
    """Would catch a doctor that looks elsewhere than `load` does, or asks for room that is not needed."""
    own = tmp_path / "smollm2-135m"
    llama(SIZES, dtype=torch.float32).save_pretrained(own)
    monkeypatch.setenv("KVLEARN_MODELS", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    assert doctor.model() == doctor.Finding("Model", f"smollm2-135m in {own}")
    assert doctor.disk().state == GOOD


def test_a_damaged_model(nowhere, monkeypatch):
    """Would catch a copy that is only looked at by its size."""
    monkeypatch.setattr(model_store, "find", lambda name: nowhere)
    monkeypatch.setattr(
        model_store, "verify", lambda folder: f"{folder}/model.safetensors has the SHA-256 ab"
    )
    finding = doctor.model()
    assert finding.state == MISSING and "is damaged" in finding.found and "SHA-256 ab" in finding.advice


def test_a_variable_that_names_no_folder(nowhere, monkeypatch):
    """`load` would raise: would catch a doctor that raises too, or finds nothing wrong."""
    monkeypatch.setenv("KVLEARN_MODELS", str(nowhere / "slip"))
    for finding in (doctor.disk(), doctor.model()):
        assert finding.state == MISSING and "which is not a folder" in finding.advice


def test_packages(monkeypatch):
    """Would catch one missing package behind others that are there."""
    versions = {"jupyterlab": "4.6.6", "matplotlib": "3.11.2"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    finding = doctor.packages("Jupyter", ("jupyterlab", "ipywidgets", "matplotlib"), MISSING, "notebooks")
    assert finding.found == "jupyterlab 4.6.6, matplotlib 3.11.2" and finding.state == MISSING
    assert finding.advice.startswith("Not installed: ipywidgets. ")
    assert finding.advice.endswith('-m pip install -e ".[notebooks]"')
    assert doctor.packages("One", ("matplotlib",), MISSING, "x") == doctor.Finding("One", "matplotlib 3.11.2")
    assert doctor.packages("None", ("nbval",), NOTE, "test").found == "nothing"


def test_versions_are_read_from_what_is_installed():
    """Would catch a package imported to be asked, or a missing one that raises."""
    assert doctor._version("pytest") == pytest.__version__
    assert doctor._version("kvlearn-no-such-package") is None
