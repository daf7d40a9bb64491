"""Who may import whom: the order of the house, read from the imports themselves."""

import ast
import functools
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


@functools.cache
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
        if at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            module = ".".join(filter(None, [above if node.level else "", node.module]))
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
        todo += (n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr))  # these import nothing
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


# In a Python of its own, one for all: what is loaded after the import, after a model, its memory and a check,
# and after a figure; and what is said where ipywidgets is not there.
FRESH = f"""
import sys, torch, kvlearn, kvlearn.measure
print([name for name in {list(HEAVY)} if name in sys.modules])
devices = {{kvlearn.load(name)[0].embed_tokens.weight.device.type for name in ("tiny", "recall")}}
with kvlearn.measure.StorageMeter() as meter:
    made = torch.ones(5)
kvlearn.checks.judge(kvlearn.checks.find("causal_mask"), kvlearn.causal_mask)
print(devices, meter.peak, "torch._dynamo" in sys.modules)
sys.modules["ipywidgets"] = None
try:
    import kvlearn.widgets
except ImportError as error:
    print(error)
from kvlearn import figures
figures.mask_map(kvlearn.causal_mask(3)).png()
print("matplotlib.pyplot" in sys.modules)
"""


@pytest.fixture(scope="module")
def fresh():
    done = subprocess.run([sys.executable, "-c", FRESH], cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stdout + done.stderr
    return lines


@pytest.mark.slow
def test_importing_kvlearn_stays_light(fresh):
    """Would catch `import kvlearn` that pulls in a plotting, notebook or model library, seconds each; a core
    install has none of them."""
    assert fresh[0] == "[]"


@pytest.mark.slow
def test_a_model_a_meter_and_a_check_do_without_torchs_compiler(fresh):
    """Would catch weights drawn on the meta device, a mode that dynamo wraps, a check that sets determinism
    where it could compare: each makes torch import its compiler, and the first cell waits seconds for it."""
    assert fresh[1] == "{'cpu'} 20 False"


@pytest.mark.slow
def test_without_ipywidgets_the_error_says_what_to_do(fresh):
    """Would catch a bare ModuleNotFoundError where the core is installed alone."""
    assert 'pip install -e ".[notebooks]"' in fresh[2]


@pytest.mark.slow
def test_figures_touch_no_pyplot_state(fresh):
    """Would catch a figure left open in pyplot's list at every call, and a backend chosen on import."""
    assert fresh[3] == "False"


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
