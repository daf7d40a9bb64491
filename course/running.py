"""Run a notebook and leave only what is the same in every run; make nbgrader's release of it."""

import os
import re
import tempfile
from pathlib import Path

import jupytext
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from reading import KERNEL, BuildError, Target

HERE = Path(__file__).resolve().parent
CELL_SECONDS = 120
IGNORE_OUTPUT = "nbval-ignore-output"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(root: Path, target: Target, notebook: NotebookNode) -> None:
    """Run the notebook in place, and leave only what is the same in every run."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    folder = (root / target.built).parent
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not one of the user's
    client = NotebookClient(
        notebook,
        kernel_name=KERNEL["name"],
        timeout=CELL_SECONDS,
        startup_timeout=CELL_SECONDS,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
    )
    claims = [new_code_cell(f"assert {claim}") for claim in claims_of(root, target)]
    notebook.cells += claims
    with tempfile.TemporaryFile("w+", encoding="utf-8") as kernel_says:
        try:
            client.execute(stderr=kernel_says)
        except (CellExecutionError, CellTimeoutError) as error:
            reason = COLOURS.sub("", str(error)).strip()
            raise BuildError(f"{target.source}: {where_it_stopped(notebook)}\n{reason}") from None
        except DeadKernelError as error:
            kernel_says.seek(0)
            reason = f"{error}\n{kernel_says.read()}"
            raise BuildError(f"{target.source}: {where_it_stopped(notebook)}\n{reason}") from None
        finally:
            del notebook.cells[len(notebook.cells) - len(claims) :]
    tidy(target, notebook)


def claims_of(root: Path, target: Target) -> list[str]:
    """What must be true of the measurements of this run, or they contradict the sentences beside them.

    A cell is marked claim="...", an expression over its names. It is evaluated at the end of the build's run,
    and never in a reader's, whose machine may be busy. Build again when this one is quiet.
    """
    cells = jupytext.reads((root / target.source).read_text(encoding="utf-8"), fmt="py:percent").cells
    return [cell.metadata["claim"] for cell in cells if "claim" in cell.metadata]


def where_it_stopped(notebook: NotebookNode) -> str:
    """Name the cell that the run did not get past: the last one that was begun."""
    begun = [c for c in notebook.cells if c.cell_type == "code" and c.execution_count]
    failed = [c for c in begun if any(o.output_type == "error" for o in c.outputs)]
    cell = (failed or begun or notebook.cells)[-1]
    first_line = cell.source.strip().splitlines()[0] if cell.source.strip() else "(empty)"
    return f"cell {notebook.cells.index(cell) + 1}, which begins with `{first_line}`, did not run."


def tidy(target: Target, notebook: NotebookNode) -> None:
    """Take out what differs from run to run: stderr, the ids of widgets, the paths in tracebacks."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = NotebookNode(name="python")
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        is_check = cell.metadata.get("nbgrader", {}).get("grade_id", "").endswith("-check")
        if is_check and any(output.output_type == "error" for output in cell.outputs):
            raise BuildError(f"{target.source}: the check in cell {number} fails on the course's own answer.")
        kept = []
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                if IGNORE_OUTPUT not in cell.metadata.get("tags", []):
                    raise BuildError(
                        f"{target.source}: cell {number} writes to stderr, which a reader sees in red: "
                        f"{output.text.strip()!r}. Prevent it, or tag the cell {IGNORE_OUTPUT!r}."
                    )
                continue
            if WIDGET in output.get("data", {}):
                output.data = {"text/plain": "(interactive: run this cell to play with it)"}
            if output.output_type == "error" and "Traceback (most" in "\n".join(output.traceback):
                output.traceback = [f"{output.ename}: {output.evalue}"]
            kept.append(output)
        cell.outputs = kept


def release(notebooks: dict[str, str]) -> dict[str, str]:
    """The text of each released notebook, from {assignment: text of its solution}. No database."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.preprocessors import SaveCells
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(HERE.parent)).load_config()
    released = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in notebooks.items():
            path = Path(folder, config.CourseDirectory.source_directory, name, f"{name}.ipynb")
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
            course = CourseDirectory(root=folder, assignment_id=name, config=config)
            step = GenerateAssignment(coursedir=course, no_database=True, config=config)
            step.preprocessors = [p for p in step.preprocessors if p is not SaveCells]
            step.start()
            path = Path(folder, config.CourseDirectory.release_directory, name, f"{name}.ipynb")
            if not path.exists():
                raise BuildError(f"{name}: nbgrader did not release it; its message is above.")
            released[name] = path.read_text(encoding="utf-8").rstrip("\n") + "\n"
    return released
