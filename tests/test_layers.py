"""Who may import whom: the order of the house, read from the imports themselves."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kvlearn"

FOUNDATION = {
    "kvlearn.attention",
    "kvlearn.rope",
    "kvlearn.linear",
    "kvlearn.packing",
    "kvlearn.quant_spec",
    "kvlearn.quantization",
    "kvlearn.sizing",
    "kvlearn.values",
}
CONTRACT = {"kvlearn.cache", "kvlearn.cache.base", "kvlearn.cache.arguments"}
ON_TOP = {"checks", "drills", "figures", "widgets", "cli", "__main__", "doctor", "classroom"}
# Heavy or optional, and where alone they may be imported when the file is (inside a function they may be
# anywhere: they are then paid for by whoever calls it).
HEAVY = {
    "matplotlib": {"figures"},
    "ipywidgets": {"widgets"},
    "IPython": {"widgets", "classroom"},
    "transformers": {"hf"},
    "triton": {"kernels"},
}

FILES = {path: path.relative_to(ROOT).with_suffix("").as_posix() for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = {path: name.replace("/", ".").removesuffix(".__init__") for path, name in FILES.items()}


def part_of(module):
    """The first name below kvlearn: "cache" for kvlearn.cache.static."""
    return module.split(".")[1] if "." in module else "__init__"


def imported(path, at_import_time=False):
    """Full names of the modules that a file imports, those for type checkers alone left out.

    `from kvlearn.cache import StaticCache` counts as kvlearn.cache and, for the rule about kinds of
    cache, as kvlearn.cache.StaticCache.
    """
    names, package = set(), FILES[path].replace("/", ".").rpartition(".")[0]
    todo = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        if at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            module = ".".join(filter(None, [above if node.level else "", node.module]))
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
        todo += ast.iter_child_nodes(node)
    return names


def ours(names):
    """The modules of kvlearn among `names` (of `from kvlearn.x import f` not f itself)."""
    known = set(MODULES.values())
    return {name for name in names if name in known and name != "kvlearn"}


def outside(names):
    """The packages among `names` that are neither kvlearn's nor the standard library's."""
    tops = {name.split(".")[0] for name in names}
    return tops - {"kvlearn"} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", FILES, ids=FILES.values())
def test_a_file_imports_only_what_its_layer_may(path):
    """Would catch a decoder that needs a kind of cache, a cache that needs the decoder, a foundation that
    grows dependencies, and anything that needs the exercises, figures or the command line."""
    module, names = MODULES[path], imported(path)
    part, uses = part_of(module), ours(names)
    if module in FOUNDATION or part == "sizing":
        others = {name for name in uses if part_of(name) != "sizing"}
        assert others <= FOUNDATION and outside(names) <= {"torch", "einops"}
    if part == "cache":
        below = {name for name in uses if not name.startswith("kvlearn.cache")}
        assert below <= FOUNDATION and outside(names) <= {"torch", "einops"}
    if part in ("decoder", "generation", "speculative", "serving"):
        kinds = {n for n in names if n.startswith("kvlearn.cache.")} - {"kvlearn.cache.KVCache"}
        assert {n for n in kinds if ".".join(n.split(".")[:3]) not in CONTRACT} == set()
    if part in ("decoder", "decoder_config"):
        assert uses <= FOUNDATION | CONTRACT | {"kvlearn.decoder_config"}
        assert outside(names) <= {"torch", "einops"}
    if part not in ON_TOP | {"__init__"}:
        assert {part_of(name) for name in uses} & ON_TOP == set()
    for package, homes in HEAVY.items():
        if part not in homes:
            assert package not in {name.split(".")[0] for name in imported(path, at_import_time=True)}


@pytest.mark.slow  # starts a Python of its own
def test_importing_kvlearn_stays_light():
    """Would catch `import kvlearn` that pulls in a plotting, notebook or model library, seconds each."""
    heavy = ", ".join(repr(name) for name in HEAVY)
    code = f"import sys, kvlearn; print([m for m in ({heavy}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.slow  # starts a Python of its own
def test_a_model_and_the_meter_of_memory_do_without_torchs_compiler():
    """Would catch weights drawn on the meta device, or a mode that dynamo wraps: each makes torch import its
    compiler, and the first cell of every lesson waits seconds for it."""
    code = (
        "import sys, torch, kvlearn; from kvlearn.measure import StorageMeter\n"
        "for name in ('tiny', 'recall'): print(kvlearn.load(name)[0].embed_tokens.weight.device)\n"
        "with StorageMeter() as meter: made = torch.ones(5)\n"
        "print(meter.peak, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["cpu", "cpu", "20", "False"], done.stdout + done.stderr


def test_the_reading_of_imports_sees_each_form(tmp_path, monkeypatch):
    """Would catch rules that hold because nothing was read: relative, nested and type-only imports."""
    path = PACKAGE / "cache" / "example.py"
    monkeypatch.setitem(FILES, tmp_path / "example.py", path.relative_to(ROOT).with_suffix("").as_posix())
    (tmp_path / "example.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from . import base\nfrom .static import StaticCache\nfrom ..rope import apply_rope\n"
        "if TYPE_CHECKING:\n    from kvlearn.decoder import Decoder\n"
        "def f():\n    import transformers.cache_utils\n"
    )
    found = imported(tmp_path / "example.py")
    assert {"kvlearn.cache.base", "kvlearn.cache.static", "kvlearn.cache.static.StaticCache"} <= found
    assert "kvlearn.rope.apply_rope" in found and "transformers.cache_utils" in found
    assert not any(name.startswith("kvlearn.decoder") for name in found)
    early = imported(tmp_path / "example.py", at_import_time=True)
    assert found - early == {"transformers.cache_utils"}
