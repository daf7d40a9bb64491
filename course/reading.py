"""From the text of a lesson or an assignment to a notebook that has not run.

`build.py` says how the text is written and what becomes of it.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat
from marks import BuildError, mark_exercises
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
# The first cell of every built notebook says what the file is. A copy in work/ is made without it: laying.py
# finds it by its tag. ("remove-cell" is for Sphinx, whose pages must begin with their title.)
ORIGINAL = "original"
WHAT_IT_IS = """\
This notebook is part of the course, and an update may replace it. In a clone of the course, work in the copy
that `python3 dev.py lab` puts into `work/`."""
GIVEN = "If an instructor gave you this file, it is yours: work here."
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


@dataclass(frozen=True)
class Target:
    """One hand-written file and what is built from it (paths from the root)."""

    source: str
    built: str
    released: str | None  # None for a lesson

    @property
    def name(self) -> str:
        return Path(self.source).stem


def targets(root: Path, names=()) -> list[Target]:
    """All lessons and assignments under `root`, or those whose name starts with one of `names`."""
    found = []
    for source in sorted(root.glob("course/lessons/[0-9]*.py")):
        found.append(Target(f"course/lessons/{source.name}", f"notebooks/{source.stem}.ipynb", None))
    for source in sorted(root.glob("course/assignments/[0-9]*.py")):
        file = f"{source.stem}/{source.stem}.ipynb"
        source = f"course/assignments/{source.name}"
        found.append(Target(source, f"solutions/{file}", f"exercises/{file}"))
    unknown = [n for n in names if not any(t.name.startswith(n) for t in found)]
    if unknown:
        have = ", ".join(sorted({t.name for t in found}))
        raise BuildError(f"Nothing in course/ starts with {unknown[0]!r}. There is: {have}.")
    return [t for t in found if not names or any(t.name.startswith(n) for n in names)]


def registered_points(name: str) -> int:
    """The points of an exercise: its difficulty, as kvlearn.checks has it."""
    from kvlearn.checks import REGISTRY

    if name not in REGISTRY:
        raise BuildError(f"kvlearn/checks/ has no exercise named {name!r}.")
    return REGISTRY[name].difficulty


def unexecuted(root: Path, target: Target, points=registered_points) -> NotebookNode:
    """The notebook of a text: sources, ids and metadata as they will be, no outputs."""
    text = (root / target.source).read_text(encoding="utf-8")
    cells = jupytext.reads(text, fmt="py:percent").cells
    if not cells or cells[0].cell_type != "markdown" or not cells[0].source.startswith("# "):
        raise BuildError(f"{target.source}: the first cell must be markdown that opens with a title.")
    give_ids(cells)
    if target.released:
        mark_exercises(cells, target.source, points)
    for cell in cells:
        keep_known(cell, target.source)
    cells.insert(0, what_it_is(target))
    if target.released:
        cells.append(ways_on(root, target))
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.nbformat_minor = 5
    # What reading.py and marks.py do shows in the cells. What running.py does, and what draws the pictures of
    # a notebook that has any, must be remembered.
    runs = (HERE / "running.py").read_text(encoding="utf-8")
    if re.search(r"\bfigures\b", "\n".join(c.source for c in cells if c.cell_type == "code")):
        drawing = sorted((HERE.parent / "kvlearn" / "figures").glob("*.py"))
        runs += "\n".join(path.read_text(encoding="utf-8") for path in drawing)
    made_from = hashlib.sha256(f"{text}\n{runs}".encode()).hexdigest()
    ran_by = hashlib.sha256(runs.encode()).hexdigest()
    notebook.metadata = NotebookNode(
        kernelspec=NotebookNode(KERNEL),
        language_info=NotebookNode(name="python"),
        kvlearn=NotebookNode(source=target.source, made_from=made_from, ran_by=ran_by),
    )
    nbformat.validate(notebook)
    return notebook


def what_it_is(target: Target) -> NotebookNode:
    """The first cell of a built notebook. Instructors hand out assignments, and students write in those."""
    text = f"*{WHAT_IT_IS}\n{GIVEN}*" if target.released else f"*{WHAT_IT_IS}*"
    return nbformat.v4.new_markdown_cell(text, id=ORIGINAL, metadata={"tags": [ORIGINAL, "remove-cell"]})


def ways_on(root: Path, target: Target) -> NotebookNode:
    """The last cell of an assignment: links back to its lesson and on to the next."""
    lessons = [t for t in targets(root) if not t.released]
    links = [f"Back to the lesson: {link_to(root, t)}" for t in lessons if t.name == target.name]
    links += [f"Next: {link_to(root, t)}" for t in lessons if t.name > target.name][:1]
    return nbformat.v4.new_markdown_cell(" · ".join(links), id="ways-on")


def link_to(root: Path, lesson: Target) -> str:
    """A link from an assignment (solutions/NAME/ and exercises/NAME/ lie equally deep) to a lesson."""
    title = (root / lesson.source).read_text(encoding="utf-8").splitlines()[1]
    return f"[{title.removeprefix('# # ')}](../../{lesson.built})"


def keep_known(cell, source: str) -> None:
    """Keep tags and nbgrader's metadata; refuse what nobody reads, such as a mark misspelt."""
    known = {"tags", "nbgrader", "answer", "check", "paste", "why", "claim", "lines_to_next_cell"}
    strange = sorted(set(cell.metadata) - known)
    if strange:
        raise BuildError(
            f"{source}: a cell is marked {strange[0]!r}; there is answer, check, paste, why, claim."
        )
    cell.metadata = {k: v for k, v in cell.metadata.items() if k in ("tags", "nbgrader")}


def give_ids(cells) -> None:
    """Ids that depend on a cell's own text alone, so that an inserted cell changes no other."""
    seen = {}
    for cell in cells:
        text = cell.cell_type + "\n" + cell.source
        seen[text] = seen.get(text, 0) + 1
        cell.id = hashlib.sha256(f"{text}\n{seen[text]}".encode()).hexdigest()[:12]
