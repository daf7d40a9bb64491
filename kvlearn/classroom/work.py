"""One worker, one submission: mend it, run it inside the walls, write it where `grade` takes it up.

    python -m kvlearn.classroom.work < JOB.json

A process of its own for each submission: one that is killed takes no other with it. What it writes appears
whole or not at all.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import is_grade

from kvlearn.classroom.copies import copied
from kvlearn.classroom.execute import ConfinedExecute, error_output
from kvlearn.classroom.repair import repair
from kvlearn.classroom.results import MIME
from kvlearn.classroom.sandbox import Limits


@dataclass(frozen=True)
class Job:
    """What a worker is told. Paths are texts, so that it is JSON.

    submitted: the notebook as it was handed in.
    released: the notebook that students were given.
    source: the notebook with the answers; its checks are the ones that are run.
    executed: where the result goes.
    record: what the result is the result of; it stands in the notebook's metadata.
    """

    submitted: str
    released: str
    source: str
    executed: str
    record: str
    seeds: tuple[int, ...]
    limits: dict
    worker: int

    def write(self) -> str:
        return json.dumps(asdict(self))


def run(job: Job) -> None:
    """Do the job. Raises OSError where a file cannot be read or written."""
    released, source = (nbformat.read(path, as_version=4) for path in (job.released, job.source))
    mended = repair(Path(job.submitted).read_bytes(), released)
    notebook = mended.notebook
    flagged = copied(notebook, source)
    take_checks(notebook, source)
    execute = ConfinedExecute(limits=Limits(**job.limits), worker=job.worker, seeds=list(job.seeds))
    notebook, _ = execute.preprocess(notebook, {})
    for cell in notebook.cells:
        if is_grade(cell) and cell.cell_type == "code":
            require_result(cell)
    notebook.metadata["kvlearn"] = {"record": job.record, "notes": mended.notes, "copied": flagged}
    path = Path(job.executed)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    os.replace(part, path)


def take_checks(notebook: NotebookNode, source: NotebookNode) -> None:
    """The text of each check comes from the source: nbgrader would put it there after the run."""
    texts = {cell.metadata.nbgrader.grade_id: cell.source for cell in source.cells if is_grade(cell)}
    for cell in notebook.cells:
        if is_grade(cell) and cell.cell_type == "code":
            cell.source = texts[cell.metadata.nbgrader.grade_id]


def require_result(cell: NotebookNode) -> None:
    """No points where no check said that all is right: nbgrader gives them where nothing went wrong."""
    found = [output.data[MIME] for output in cell.outputs if MIME in output.get("data", {})]
    failed = any(output.output_type == "error" for output in cell.outputs)
    if not failed and not (found and all(result.get("passed") is True for result in found)):
        cell.outputs.append(error_output("NoResult", "The check did not come to its end."))


def main() -> int:
    job = json.load(sys.stdin)
    job["seeds"] = tuple(job["seeds"])
    run(Job(**job))
    return 0


if __name__ == "__main__":
    sys.exit(main())
