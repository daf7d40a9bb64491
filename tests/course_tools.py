"""What several tests about the course's notebooks share."""

import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "course"))

import build  # noqa: E402
import laying  # noqa: E402
import marks  # noqa: E402
import reading  # noqa: E402
import running  # noqa: E402

__all__ = ["ROOT", "assignments", "build", "code_cells", "laying", "marks", "reading", "run_all", "running"]


def assignments():
    """Names of the assignments, such as "01_attention"."""
    return [target.name for target in reading.targets(ROOT) if target.released]


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def run_all(path, folder):
    """Run a notebook in `folder` to its end, as "Run All" does; return {source of a cell: its error's name}.

    Raises CellExecutionError where a cell stops it.
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return {
        cell.source: output.ename
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    }
