"""The files that say what is installed agree: pyproject.toml, constraints.txt, environment.yml, this venv."""

import importlib.metadata
import platform
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import kvlearn

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(r) for r in sum(EXTRAS.values(), PROJECT["dependencies"])]


def pins():
    """{canonical name: version} of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_nothing_builds_a_grammar_when_it_is_imported():
    """Would catch three seconds at each start of JupyterLab, nbval, nbgrader and `kvlearn classroom`: what
    reads a notebook imports jsonschema, and since 4.25 that imports rfc3987-syntax where it is installed."""
    assert "rfc3987-syntax" not in pins() and pins()["jsonschema"] == "4.24.0"


def test_environment_yml_is_the_same_environment():
    """Would catch a conda road that leads elsewhere: another Python, package, extras or pins."""
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    environment = yaml.safe_load(text)
    assert set(environment) == {"name", "channels", "dependencies"}
    assert environment["name"] == PROJECT["name"]
    python, pip, from_pip = environment["dependencies"]
    version = re.fullmatch(r"python=(3\.\d+)", python)[1]
    assert PROJECT["requires-python"].startswith(f">={version},")  # the oldest, which CI runs too
    assert pip == "pip" and list(from_pip) == ["pip"]
    constraint, package = from_pip["pip"]
    assert constraint == "-c constraints.txt" and (ROOT / "constraints.txt").exists()
    extras = re.fullmatch(r"-e \.\[([a-z,]+)\]", package)[1].split(",")
    assert set(extras) == {"notebooks", "test"} <= set(EXTRAS)
    assert f"-e.[{','.join(extras)}]" == package.replace(" ", "")
    assert f"[{','.join(extras)}]" in (ROOT / "dev.py").read_text(encoding="utf-8")


def test_the_python_versions_are_the_same_everywhere():
    """Would catch dev.py letting in a Python that pip then refuses, or the other way round."""
    import runpy

    versions = runpy.run_path(str(ROOT / "dev.py"))["VERSIONS"]
    admitted = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{n}" for n in range(8, 20) if admitted.contains(f"3.{n}")] == [
        f"{major}.{minor}" for major, minor in versions
    ]
    said = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert said == [f"{major}.{minor}" for major, minor in versions]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_what_is_pinned_is_in_its_range_and_installed(requirement):
    """Would catch a pin outside the range, a dependency without a pin, tests that ran on another release."""
    name = canonicalize_name(requirement.name)
    pinned = pins()[name]
    assert requirement.specifier.contains(pinned)
    installed = importlib.metadata.version(name).partition("+")[0]
    assert installed == pinned


def test_pins_can_be_installed_on_every_python_that_is_admitted():
    """Would catch a pin that needs Python 3.11.5: distributions still ship 3.11.2, and pip only says
    that there is a conflict somewhere."""
    versions = [c.rpartition(" ")[2] + ".0" for c in PROJECT["classifiers"] if "Python :: 3." in c]
    for name in pins():
        try:
            needs = importlib.metadata.metadata(name)["Requires-Python"]
        except importlib.metadata.PackageNotFoundError:
            continue  # a pin for another system
        assert all(SpecifierSet(needs or "").contains(version) for version in versions), (name, needs)


def test_pins_are_whole_and_plain():
    """Would catch a pin that only one machine can install: a local version, a path, an address."""
    for name, version in pins().items():
        assert re.fullmatch(r"[a-z0-9-]+", name) and re.fullmatch(r"[0-9a-z.]+", version), name
    assert "kvlearn" not in pins()


def test_ranges_admit_torch_from_2_9_on():
    """Would catch a cap that keeps a learner from the newest torch, or a floor that was never meant."""
    torch = next(r for r in REQUIREMENTS if r.name == "torch").specifier
    assert torch.contains("2.9.0") and torch.contains("2.99.0") and not torch.contains("2.8.0")


def test_the_version_is_one():
    """Would catch a release that calls itself by two numbers."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert kvlearn.__version__ == PROJECT["version"] == str(citation["version"])
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["license"] == "Apache-2.0" and PROJECT["license"] == "Apache-2.0 AND PSF-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_this_is_a_python_that_the_course_runs_on():
    """Would catch a test run on a Python that no reader is told to use."""
    assert SpecifierSet(PROJECT["requires-python"]).contains(platform.python_version())
