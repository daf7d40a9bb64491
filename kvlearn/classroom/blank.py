"""Run a blank submission, the assignment as released, before grading the students' submissions.

It needs everything that a real one needs: bubblewrap, the limits, Python and torch, the given cells, the
checks. If one of these is broken, every student in the class would lose points, and it would look like their
mistake.
"""

from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_solution

from kvlearn.classroom.folders import Folders
from kvlearn.classroom.outcomes import outcomes
from kvlearn.classroom.reasons import error_line
from kvlearn.classroom.sandbox import SandboxError
from kvlearn.classroom.workers import Workers

ADVICE = (
    "Nothing was graded, because every student would have lost points. "
    'See "Before the first class" in docs/instructors.md.'
)


def try_blank(workers: Workers, folders: Folders) -> None:
    """Run the blank assignment as a submission. Raises SandboxError if it is not judged as a blank."""
    executed = Path(workers.scratch, "blank", f"{folders.assignment}.ipynb")
    problem = workers.run(folders.released, executed, record="")
    if problem is None:
        released, found = (nbformat.read(path, as_version=4) for path in (folders.released, executed))
        problem = unlike_blank(found, released)
    if problem:
        problem = problem.rstrip(". ")
        raise SandboxError(f"A blank {folders.assignment} was run first and failed: {problem}. {ADVICE}")


def unlike_blank(executed: NotebookNode, released: NotebookNode) -> str | None:
    """The first problem in an executed blank notebook, as a sentence: one that no student can have caused."""
    for cell in executed.cells:
        if not is_grade(cell) and not is_solution(cell) and "raises-exception" not in _tags(cell):
            for output in cell.get("outputs", []):
                if output.output_type == "error":
                    line = cell.source.strip().partition("\n")[0]
                    return f"the given cell that begins with `{line}` failed. {error_line(output)}."
    for one in outcomes(executed, released):
        if one.state == "stopped":
            return f"the check of {one.name} did not finish. {one.reason.partition(chr(10))[0]}"
        if one.state == "right":
            return f"the check of {one.name} accepts a blank answer."
    return None


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])
