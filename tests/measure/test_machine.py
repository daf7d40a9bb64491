"""Facts about the machine: complete, fit for JSON, and nothing private in them."""

import getpass
import json
import platform
from importlib import metadata

import torch

from kvlearn import measure


def test_device_is_the_best_there_is(monkeypatch):
    """Would catch a GPU that is there and not used, and "cuda" on a machine without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert measure.device() == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert measure.device() == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert measure.device() == torch.device("cpu")


def test_synchronize_waits_for_what_is_there(monkeypatch):
    """Would catch a call into a GPU that is not there, and a GPU that is not waited for."""
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    measure.synchronize()
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    measure.synchronize()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    measure.synchronize()
    assert waited == ["mps", "cuda"]


def test_machine_says_what_a_measurement_needs():
    """Would catch a recorded run that nobody can compare: without versions, threads or the processor."""
    facts = measure.machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["python"] == platform.python_version()
    assert facts["threads"] == torch.get_num_threads()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["cores"] >= 1 and facts["memory_bytes"] > 2**28 and facts["cpu"]
    assert facts["device"] == measure.device().type


def test_machine_says_which_build_of_torch_it_is(monkeypatch):
    """Would catch a CPU build and a CUDA build recorded as one: the package's version is 2.13.0 for both."""
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0")
    assert measure.machine()["versions"]["torch"] == "2.13.0+cu130"


def test_machine_names_no_host_and_no_user():
    """Would catch a hostname or a user's name in a file that is committed."""
    said = json.dumps(measure.machine())
    assert platform.node() not in said or len(platform.node()) < 4
    assert f'"{getpass.getuser()}"' not in said
