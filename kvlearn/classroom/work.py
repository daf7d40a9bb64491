"""One worker, one submission: mend it, run it inside the walls, write it where `grade` takes it up.

A process of its own for each submission: one that is killed takes no other with it. What it writes appears
whole or not at all.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import is_grade

from kvlearn.classroom.copies import copied
from kvlearn.classroom.execute import ConfinedExecute, error_output
from kvlearn.classroom.files import write_whole
from kvlearn.classroom.repair import repair
from kvlearn.classroom.results import MIME
from kvlearn.classroom.sandbox import Limits, SandboxError


@dataclass(frozen=True)
class Job:
    """What a worker is told.

    submitted: the notebook as it was handed in.
    released: the notebook that students were given.
    source: the notebook with the answers; its checks are the ones that are run.
    executed: where the result goes.
    record: what the result is the result of; it stands in the notebook's metadata.
    """

    submitted: Path
    released: Path
    source: Path
    executed: Path
    record: str
    seeds: tuple[int, ...]
    limits: Limits
    worker: int


def work(job: Job, sender) -> None:
    """Do the job, in a group of processes of its own; send None, or a sentence about what went wrong."""
    os.setsid()
    try:
        run(job)
        sender.send(None)
    except SandboxError as error:
        sender.send(str(error))
    except OSError as error:
        sender.send(f"{error.filename or job.executed}: {error.strerror or error}.")
    except Exception as error:  # ours, not the submission's: the others are graded all the same
        sender.send(f"its worker failed: {type(error).__name__}: {error}")


def run(job: Job) -> None:
    """Do the job. Raises OSError where a file cannot be read or written."""
    released, source = (nbformat.read(path, as_version=4) for path in (job.released, job.source))
    mended = repair(job.submitted.read_bytes(), released)
    notebook = mended.notebook
    flagged = copied(notebook, source)
    take_checks(notebook, source)
    execute = ConfinedExecute(limits=job.limits, worker=job.worker, seeds=list(job.seeds))
    notebook, _ = execute.preprocess(notebook, {})
    for cell in notebook.cells:
        if is_grade(cell) and cell.cell_type == "code":
            require_result(cell)
            let_warnings_be(cell)
    notebook.metadata["kvlearn"] = {"record": job.record, "notes": mended.notes, "copied": flagged}
    write_whole(job.executed, nbformat.writes(notebook) + "\n")


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
    ours = "kvlearn.check(" in cell.source  # not an instructor's own cell of assertions
    if ours and not failed and not (found and all(result.get("passed") is True for result in found)):
        cell.outputs.append(error_output("NoResult", "The check did not come to its end."))


def let_warnings_be(cell: NotebookNode) -> None:
    """nbgrader takes anything on stderr for a failure, a warning of torch too."""
    for output in cell.outputs:
        if output.get("name") == "stderr":
            output.name = "stdout"
