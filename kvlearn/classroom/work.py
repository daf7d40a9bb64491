"""One worker, one submission: mend it, run it inside the walls, write it where `grade` takes it up.

A process of its own for each submission: one that is killed takes no other with it. What it writes appears
whole or not at all.
"""

import ast
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

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
    scratch: a folder for what is needed while it runs.
    """

    submitted: Path
    released: Path
    source: Path
    executed: Path
    record: str
    seeds: tuple[int, ...]
    limits: Limits
    worker: int
    scratch: Path


def work(job: Job, sender) -> None:
    """Do the job, in a group of processes of its own; send None, or a sentence about what went wrong."""
    os.setsid()
    said = None
    try:
        run(job)
    except SandboxError as error:
        said = str(error)
    except OSError as error:
        said = f"{error.filename or job.executed}: {error.strerror or error}."
    except Exception as error:  # ours, not the submission's: the others are graded all the same
        said = f"its worker failed: {type(error).__name__}: {error}"
    with suppress(BrokenPipeError):  # nobody waits for it any more
        sender.send(said)


def run(job: Job) -> None:
    """Do the job. Raises OSError where a file cannot be read or written."""
    released, source = (nbformat.read(path, as_version=4) for path in (job.released, job.source))
    mended = repair(job.submitted.read_bytes(), released)
    notebook = mended.notebook
    flagged = copied(notebook, source)
    take_checks(notebook, source)
    execute = ConfinedExecute(
        limits=job.limits,
        worker=job.worker,
        scratch=str(job.scratch),
        seeds=list(job.seeds),
        answers=answers_of(source),
    )
    notebook, _ = execute.preprocess(notebook, {})
    for cell in notebook.cells:
        if is_grade(cell) and cell.cell_type == "code":
            require_result(cell, job.seeds)
            let_warnings_be(cell)
    notebook.metadata["kvlearn"] = {"record": job.record, "notes": mended.notes, "copied": flagged}
    write_whole(job.executed, nbformat.writes(notebook) + "\n")


def answers_of(source: NotebookNode) -> dict[str, str]:
    """The course's answer to each exercise, by grade_id."""
    cells = [cell for cell in source.cells if cell.cell_type == "code" and is_solution(cell)]
    return {cell.metadata.nbgrader.grade_id: cell.source for cell in cells}


def take_checks(notebook: NotebookNode, source: NotebookNode) -> None:
    """The text of each check comes from the source: nbgrader would put it there after the run."""
    texts = {cell.metadata.nbgrader.grade_id: cell.source for cell in source.cells if is_grade(cell)}
    for cell in notebook.cells:
        if is_grade(cell) and cell.cell_type == "code":
            cell.source = texts[cell.metadata.nbgrader.grade_id]


def require_result(cell: NotebookNode, seeds: tuple[int, ...]) -> None:
    """No points where no check said that all is right: nbgrader gives them where nothing went wrong.

    What a check says names its seeds, those of the class among them: a student who sends a result of one's
    own does not know them.
    """
    asked = asked_for(cell.source)
    expected = {
        (name, number) for name, seed in asked for number in ((seed, *seeds) if seed == 0 else (seed,))
    }
    passed = set()
    for output in cell.outputs:
        match output.get("data", {}).get(MIME):
            case {"exercise": str(name), "passed": True, "seeds": [*numbers]}:
                passed |= {(name, number) for number in numbers if type(number) is int}
    failed = any(output.output_type == "error" for output in cell.outputs)
    if not failed and not expected <= passed:
        cell.outputs.append(error_output("NoResult", "The check did not come to its end."))


def asked_for(source: str) -> list[tuple[str, int]]:
    """The exercise and seed of each `kvlearn.check("name", answer, seed=1)` in the text of a check's cell.

    An instructor's own cell may be written in another way: what it leaves open, such as a name in a variable,
    is left out.
    """
    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return []
    asked = []
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "kvlearn.check":
            given = dict(zip(("name", "answer", "seed"), call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords}
            name, seed = given.get("name"), given.get("seed", ast.Constant(0))
            if isinstance(name, ast.Constant) and isinstance(seed, ast.Constant):
                asked.append((name.value, seed.value))
    return asked


def let_warnings_be(cell: NotebookNode) -> None:
    """nbgrader takes anything on stderr for a failure, a warning of torch too."""
    for output in cell.outputs:
        if output.get("name") == "stderr":
            output.name = "stdout"
