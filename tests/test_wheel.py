"""The package as it would be published: built, installed elsewhere, and used without the clone."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

USE_IT = """
import pathlib, pkgutil, importlib.metadata, torch, kvlearn
home = pathlib.Path(kvlearn.__file__).parent
print(home)
config = kvlearn.DecoderConfig(vocab_size=13, hidden_size=24, num_layers=2, num_heads=4, num_kv_heads=2,
                               head_dim=6, intermediate_size=32)
model = kvlearn.Decoder(config)
cached = kvlearn.generate(model, [[1, 2, 3]], 4, cache=kvlearn.GrowingCache(config))
assert cached.tokens == kvlearn.generate(model, [[1, 2, 3]], 4).tokens
for module in pkgutil.walk_packages([str(home)], "kvlearn."):
    importlib.import_module(module.name)
kvlearn.hint("split_heads")
recall, _ = kvlearn.load("recall")
assert recall(torch.tensor([[0, 1, 513, 2, 514, 3, 515, 4, 516, 3]]))[0, -1].argmax() == 515
print("works")
(info,) = home.parent.glob("*.dist-info")
(command,) = importlib.metadata.Distribution.at(info).entry_points
assert command.group == "console_scripts" and command.name == "kvlearn"
command.load()(["doctor"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of the package alone, built from a copy so that no earlier build can add to it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "kvlearn", source / "kvlearn", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*pip, "-w", str(folder), str(source)], check=True, cwd=folder)
    (path,) = folder.glob("kvlearn-*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel):
    """Would catch data (templates, tables) that works in the clone and is missing once installed."""
    there = set(zipfile.ZipFile(wheel).namelist())
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kvlearn").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files - there == set()
    assert {name.split("/")[0] for name in there - files} == {
        wheel.name[: -len("-py3-none-any.whl")] + ".dist-info"
    }


@pytest.mark.slow
def test_the_wheel_works_outside_the_clone(wheel, tmp_path):
    """Would catch a path into the repository, a module that only an editable install finds, or a command that
    is not installed."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)  # what pip does with a wheel that needs nothing else
    environment = dict(os.environ, PYTHONPATH=str(site))
    done = subprocess.run(
        [sys.executable, "-c", USE_IT], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr  # the doctor's own: 1 where this machine lacks something
    lines = done.stdout.splitlines()
    assert Path(lines[0]) == site / "kvlearn" and "works" in lines, done.stderr
    assert any("torch" in line for line in lines[lines.index("works") :]), done.stdout + done.stderr
