"""A class that hands in everything that can be handed in: {student: Submission}."""

import copy
import inspect
import json
from dataclasses import dataclass
from pathlib import Path

from kvlearn.attention import position_mask
from kvlearn.checks import find

ROOT = Path(__file__).resolve().parents[2]
ASSIGNMENT = "00_start_here"
SPLIT = "def split_heads(x, num_heads):\n    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)"
MERGE = "def merge_heads(x):\n    return x.transpose(1, 2).flatten(2)"
# nbgrader takes the number for points, and what is on stderr for an error.
LOUD = """
import sys
def split_heads(x, num_heads):
    sys.displayhook(0.25)
    print("a warning", file=sys.stderr)
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
"""
FIRST = find("split_heads").misconceptions[0]
WRONG = """
def split_heads(x, num_heads):
    batch, length, width = x.shape
    return x.reshape(batch, num_heads, length, width // num_heads)
"""


@dataclass(frozen=True)
class Submission:
    """A file, what it should be worth for split_heads and merge_heads, and words that the student is told.

    said: parts of an output of the graded notebook, or of a note about it.
    """

    data: bytes
    points: tuple[int, int]
    said: tuple[str, ...] = ()


def released() -> dict:
    return json.loads((ROOT / "exercises" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text(encoding="utf-8"))


def name_of(cell) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def written(split=SPLIT, merge=MERGE, change=None) -> bytes:
    """The released notebook with these answers; `change` may do more to it."""
    notebook = released()
    answers = {"split_heads": split, "merge_heads": merge}
    for cell in notebook["cells"]:
        if answers.get(name_of(cell)):
            cell["source"] = answers[name_of(cell)]
    notebook = change(notebook) or notebook if change else notebook
    return json.dumps(notebook).encode()


# Files that another editor, or a hand, has changed: one with all of it (each alone is in test_repair.py) --


def damaged(notebook):
    """Saved by Colab, without a check, the answers twice, backwards, with a large picture."""
    notebook["nbformat_minor"] = 0
    notebook["metadata"] = {
        "colab": {"provenance": []},
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
    }
    large = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "A" * 20_000_000}}
    cells = [cell for cell in notebook["cells"] if name_of(cell) != "split_heads-check"]
    cells = [*cells, *(copy.deepcopy(cell) for cell in cells if name_of(cell))][::-1]
    for number, cell in enumerate(cells):
        cell.pop("id")
        cell["metadata"] = {"id": f"Xy{number}"}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [large] * (number == 0), 1
    notebook["cells"] = cells


def easier_checks(notebook):
    for cell in notebook["cells"]:
        if name_of(cell).endswith("-check"):
            cell["source"] = "print('passed')"


# The class --------------------------------------------------------------------------------------------

MEMORY = "import os\nheld = []\nwhile True:\n    held.append(b'x' * 2**28)"
LIBRARY = str(ROOT / "kvlearn")
DELETES = (
    f"import os, shutil\nfor folder in ({LIBRARY!r}, os.path.expanduser('~'), '/usr/lib', '.'):\n"
    "    shutil.rmtree(folder, ignore_errors=True)\n"
)
WRITES = (
    f"for path in ({LIBRARY + '/checks/engine.py'!r}, {str(ROOT / 'classroom' / 'gradebook.db')!r}):\n"
    "    try:\n        open(path, 'a').write('# all is right')\n    except OSError:\n        pass\n"
)
PATCHED = (
    """
import kvlearn, kvlearn.checks.engine, torch
kvlearn.check = lambda *args, **kwargs: print("passed")
kvlearn.checks.engine.judge = lambda *args: kvlearn.Result(True, None, "passed")
torch.equal = torch.allclose = lambda *args, **kwargs: True
"""
    + WRONG
)
# What a check sends, sent by the answer itself, which then leaves the check.
FORGED = """
from IPython.display import publish_display_data
def split_heads(x, num_heads):
    found = {"exercise": "split_heads", "passed": True, "seed": 0, "seeds": [0], "message": "right"}
    publish_display_data({"application/vnd.kvlearn.check+json": found})
    raise SystemExit
"""
# What the library and another submission beside it may not feel: all is written over and deleted, and all
# processes that can be seen are killed.
ATTACKS = (
    WRITES
    + DELETES
    + """
import glob, os, shutil, signal
mine = get_ipython().config["IPKernelApp"]["connection_file"]
for folder in glob.glob("/tmp/kvlearn-*") + glob.glob("/tmp/kvlearn-*/*"):
    if not mine.startswith(folder):
        shutil.rmtree(folder, ignore_errors=True)
ours = [1, *map(int, os.listdir("/proc/self/task"))]
for number in range(2, 40_000):
    if number not in ours:
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass
"""
    + SPLIT
)
# A function of the library with other names, and one that is the library's own.
COPY = inspect.getsource(position_mask).replace("query_positions", "mine").replace("key_positions", "theirs")
COPY = COPY.replace("position_mask", "seen").replace("window", "width").replace(" -> Tensor", "")
REFERENCE = "import kvlearn\nsplit_heads = kvlearn.checks.find('split_heads').reference"
HANDED_OVER = "from torch import Tensor\nfrom kvlearn.decoder import Decoder\n" + COPY + MERGE

# Each goes a way through the grading that no other goes; what a part of it does is in that part's own tests.
CLASS = {
    "perfect": Submission(written(), (1, 1)),
    "half": Submission(written(LOUD, None), (1, 0), ("is not written yet",)),
    "misconception": Submission(written(WRONG), (0, 1), (FIRST.name,)),
    "no-json": Submission(b"%PDF-1.7 my homework", (0, 0), ("Hand in the .ipynb file itself",)),
    "damaged": Submission(written(change=damaged), (1, 1)),
    "crash": Submission(
        written("import ctypes\nctypes.string_at(0)"), (0, 1), ("This cell ended Python itself",)
    ),
    "memory": Submission(written(MEMORY), (0, 1), ("Memory",)),  # Python's MemoryError, or our OutOfMemory
    "attacks": Submission(written(ATTACKS), (1, 1)),
    "attacks-too": Submission(written(ATTACKS + "\n"), (1, 1)),
    "patched": Submission(written(PATCHED, change=easier_checks), (0, 1), (FIRST.name,)),
    "forged": Submission(written(FORGED), (0, 1), ("SystemExit",)),
    "copied": Submission(
        written(REFERENCE, HANDED_OVER),
        (1, 1),
        (
            "'library': True",
            "merge_heads: it uses kvlearn.decoder.Decoder",
            "merge_heads: seen is a copy of kvlearn.attention.position_mask",
        ),
    ),
}
