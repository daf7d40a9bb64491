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
FIRST = find("split_heads").misconceptions[0]
WRONG = """
def split_heads(x, num_heads):
    batch, length, width = x.shape
    return x.reshape(batch, num_heads, length, width // num_heads)
"""


@dataclass(frozen=True)
class Submission:
    """A file, what it should be worth for split_heads and merge_heads, and words that the student is told.

    said: a part of an output of the graded notebook, or of a note about it.
    """

    data: bytes
    points: tuple[int, int]
    said: str = ""


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


# Files that another editor, or a hand, has changed -----------------------------------------------------


def without_checks(notebook):
    notebook["cells"] = [cell for cell in notebook["cells"] if not name_of(cell).endswith("-check")]


def twice(notebook):
    again = [copy.deepcopy(cell) for cell in notebook["cells"] if name_of(cell)]
    for number, cell in enumerate(again):
        cell["id"] = f"again{number}"
    notebook["cells"] += again


def backwards(notebook):
    notebook["cells"].reverse()


def easier_checks(notebook):
    for cell in notebook["cells"]:
        if name_of(cell).endswith("-check"):
            cell["source"] = "print('passed')"


def other_ids(notebook):
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number}"
        cell["metadata"].pop("nbgrader", None)


def older(notebook):
    """Before cells had ids, and before there was the second exercise."""
    notebook["nbformat_minor"] = 4
    for cell in notebook["cells"]:
        cell.pop("id")
    notebook["cells"] = [cell for cell in notebook["cells"] if not name_of(cell).startswith("merge_heads")]


def pictures(notebook):
    large = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "A" * 20_000_000}}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [large], 1
            break


def by_colab(notebook):
    notebook["nbformat_minor"] = 0
    notebook["metadata"] = {
        "colab": {"provenance": []},
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
    }
    for number, cell in enumerate(notebook["cells"]):
        cell.pop("id")
        cell["metadata"] = {"id": f"Xy{number}"}
        if cell["cell_type"] == "code":
            cell["metadata"]["colab"] = {"base_uri": "https://localhost:8080/"}


def by_vscode(notebook):
    notebook["metadata"]["kernelspec"] = {"name": "python3", "display_name": ".venv", "language": "python"}
    for cell in notebook["cells"]:
        cell["metadata"]["vscode"] = {"languageId": "python"}
        cell["source"] = "".join(cell["source"]).splitlines(keepends=True)


# The class --------------------------------------------------------------------------------------------

NEVER = """
while True:
    try:
        while True:
            pass
    except KeyboardInterrupt:
        pass
"""
LOOP_IN_CHECK = "def split_heads(x, num_heads):" + NEVER.replace("\n", "\n    ")
MEMORY = "import os\nheld = []\nwhile True:\n    held.append(b'x' * 2**28)"
FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
    except OSError:
        break
"""
LIBRARY = str(ROOT / "kvlearn")
DELETES = (
    f"import os, shutil\nfor folder in ({LIBRARY!r}, os.path.expanduser('~'), '/usr/lib', '.'):\n"
    f"    shutil.rmtree(folder, ignore_errors=True)\n{SPLIT}"
)
WRITES = (
    f"for path in ({LIBRARY + '/checks/engine.py'!r}, {str(ROOT / 'classroom' / 'gradebook.db')!r}):\n"
    "    try:\n        open(path, 'a').write('# all is right')\n    except OSError:\n        pass\n"
    f"{SPLIT}"
)
SOCKET = SPLIT + "\nimport socket\nsocket.create_connection(('192.0.2.1', 80), timeout=3)"
PATCHED = (
    """
import kvlearn, kvlearn.checks.engine, torch
kvlearn.check = lambda *args, **kwargs: print("passed")
kvlearn.checks.engine.judge = lambda *args: kvlearn.Result(True, None, "passed")
torch.equal = torch.allclose = lambda *args, **kwargs: True
"""
    + WRONG
)
EQUAL = """
class Right:
    def __eq__(self, other):
        return True
    def __getattr__(self, name):
        return self
    def __call__(self, *args):
        return self
def split_heads(x, num_heads):
    return Right()
"""
# What a check sends, sent by the answer itself, which then leaves the check.
FORGED = """
from IPython.display import publish_display_data
def split_heads(x, num_heads):
    found = {"exercise": "split_heads", "passed": True, "seed": 0, "seeds": [0], "message": "right"}
    publish_display_data({"application/vnd.kvlearn.check+json": found})
    raise SystemExit
"""
# What another submission beside it may not feel: all processes that it sees are killed, all folders deleted.
ATTACKS = (
    """
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
ENDED = "This cell ended Python itself"
LATE = "had not ended after"

CLASS = {
    "perfect": Submission(written(), (1, 1)),
    "blank": Submission(written(None, None), (0, 0), "is not written yet"),
    "misconception": Submission(written(WRONG), (0, 1), FIRST.name),
    "half": Submission(written(SPLIT, None), (1, 0), "is not written yet"),
    "syntax": Submission(written("def split_heads(x, num_heads)\n    return x"), (0, 1), "expected ':'"),
    "loop": Submission(written(NEVER), (0, 1), LATE),
    "loop-in-check": Submission(written(LOOP_IN_CHECK), (0, 1), LATE),
    "memory": Submission(written(MEMORY), (0, 1), "split_heads"),
    "forks": Submission(written(FORKS + SPLIT), (0, 1), "of memory"),
    "exit": Submission(written("import os\nos._exit(0)"), (0, 1), ENDED),
    "quit": Submission(written(SPLIT + "\nquit()"), (0, 1), ENDED),
    "crash": Submission(written("import ctypes\nctypes.string_at(0)"), (0, 1), ENDED),
    "input": Submission(written("name = input()\n" + SPLIT), (0, 1), "input"),
    "deletes": Submission(written(DELETES), (1, 1)),
    "writes": Submission(written(WRITES), (1, 1)),
    "socket": Submission(written(SOCKET), (1, 1), "unreachable"),
    "prints": Submission(written("print('x' * 50_000_000)\n" + SPLIT), (1, 1), "was dropped"),
    "no-checks": Submission(written(change=without_checks), (1, 1)),
    "twice": Submission(written(change=twice), (1, 1), "split_heads"),
    "backwards": Submission(written(change=backwards), (1, 1)),
    "easier-checks": Submission(written(WRONG, change=easier_checks), (0, 1), FIRST.name),
    "other-ids": Submission(written(change=other_ids), (1, 1)),
    "older": Submission(written(change=older), (1, 0), "is not written yet"),
    "no-json": Submission(b"%PDF-1.7 my homework", (0, 0), "Hand in the .ipynb file itself"),
    "empty": Submission(b"", (0, 0), "Hand in the .ipynb file itself"),
    "windows": Submission(written().replace(b"\\n", b"\\r\\n"), (1, 1)),
    "pictures": Submission(written(change=pictures), (1, 1)),
    "colab": Submission(written(change=by_colab), (1, 1)),
    "vscode": Submission(written(change=by_vscode), (1, 1)),
    "patched": Submission(written(PATCHED), (0, 1), FIRST.name),
    "equal": Submission(written(EQUAL), (0, 1), "expected a torch tensor"),
    "handed-over": Submission(
        written("from kvlearn.decoder import Decoder\n" + SPLIT), (1, 1), "it uses kvlearn"
    ),
    "copied": Submission(
        written("from torch import Tensor\n" + COPY + SPLIT),
        (1, 1),
        "seen is a copy of kvlearn.attention.position_mask",
    ),
    "reference": Submission(written(REFERENCE), (1, 1), "'library': True"),
    "forged": Submission(written(FORGED), (0, 1), "SystemExit"),
    "attacks": Submission(written(ATTACKS), (1, 1)),
    "attacks-too": Submission(written(ATTACKS + "\n"), (1, 1)),
    "renamed": Submission(written(), (1, 1)),
}
