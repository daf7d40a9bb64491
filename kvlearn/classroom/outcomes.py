"""What an executed notebook says of each exercise: right, wrong, not written or stopped, and why.

It reads the cells that are graded, what their checks left (`results`) and what the answer's own cell printed.
A submission is what its writer made it, outputs included: every text here is a stranger's, and whoever shows
it escapes it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode
from nbgrader.utils import compute_checksum, is_grade, is_solution, is_task

from kvlearn.checks import REGISTRY, Exercise
from kvlearn.classroom.results import MIME

STATES = ("right", "wrong", "stopped", "not written")
PROSE = "in words"  # the state of an answer that a person reads

# Errors by which `execute` says that a cell did not come to its end, and what was used up.
STOPPED = {
    "CellTimeoutError": "time",
    "NotRun": "time",
    "OutOfMemory": "memory",
    "DeadKernelError": "crash",
    "NotRunAgain": "crash",
    "NoResult": "crash",
}
ADVICE = {
    "time": "Is there a loop that never ends, or an input() that waits for somebody?",
    "memory": "Is there a tensor or a list that grows in a loop, or one of far too large a shape?",
    "crash": "Take out exit(), quit() and os._exit(); restart your kernel, and run all cells from the top.",
}
# What to do about an error of Python's in the cell of an answer, where its own words do not say it.
ABOUT = {
    "StdinNotImplementedError": "It calls input(), and nobody is there to type when it is graded. Write the "
    "value into the code instead.",
    "MemoryError": ADVICE["memory"],
    "ModuleNotFoundError": "It is graded with the packages that the course installs, and no others.",
    "NotImplementedError": "Take the line `raise NotImplementedError` out once your answer is there.",
}
MOST_CHARACTERS, MOST_LINES = 20_000, 400
NO_TEXT = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # colours, control characters


@dataclass(frozen=True)
class Outcome:
    """One graded cell of a submission.

    grade_id: nbgrader's name of the cell, such as "split_heads-again-check".
    name, title: of the exercise; a cell that asks for no exercise of the course has its grade_id in words.
    state: one of STATES; PROSE where a person gives the points.
    reason: why it is not right, in sentences, as the checker or Python said it.
    stopped_by: "time", "memory" or "crash" where the state is "stopped".
    misconception: the name of the mistake, where it is a known one.
    other_inputs: found with the class's own seeds only: the student's own check had passed.
    library: the function that was handed over is one of the library's.
    answer, printed: source of the answer's cell, and what that cell left behind when it was run.
    prose: a person gives the points, for an answer in words.
    """

    grade_id: str
    name: str
    title: str
    state: str
    reason: str = ""
    stopped_by: str | None = None
    misconception: str | None = None
    other_inputs: bool = False
    library: bool = False
    answer: str = ""
    printed: str = ""
    prose: bool = False

    @property
    def exercise(self) -> Exercise | None:
        return REGISTRY.get(self.name)

    @property
    def answer_id(self) -> str:
        """nbgrader's name of the cell with the answer: a comment belongs to it."""
        return self.grade_id.removesuffix("-check")

    @property
    def again(self) -> bool:
        """Whether it is the answer of an earlier assignment, pasted."""
        return self.grade_id.endswith("-again-check")


def outcomes(notebook: NotebookNode) -> list[Outcome]:
    """An Outcome for each graded cell, in the notebook's order."""
    answers = {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells if is_solution(cell)}
    found = []
    for cell in notebook.cells:
        if is_grade(cell) and not is_solution(cell):
            answer = answers.get(cell.metadata.nbgrader.grade_id.removesuffix("-check"))
            found.append(_checked(cell, answer))
        elif is_grade(cell) or is_task(cell):
            found.append(_prose(cell))
    return found


def plain(text, lines: int = MOST_LINES) -> str:
    """Text without colours and control characters, cut where it is endless."""
    text = NO_TEXT.sub("", "".join(text) if isinstance(text, list) else str(text))
    rows = text[:MOST_CHARACTERS].split("\n")
    cut = len(text) > MOST_CHARACTERS or len(rows) > lines
    return "\n".join(rows[:lines]).rstrip() + ("\n[... and more, left out here]" if cut else "")


def _prose(cell) -> Outcome:
    marks = cell.metadata.nbgrader
    untouched = is_solution(cell) and marks.get("checksum") == compute_checksum(cell)
    return Outcome(
        grade_id=marks.grade_id,
        name=marks.grade_id,
        title=in_words(marks.grade_id),
        state="not written" if untouched else PROSE,
        reason="Nothing was written here." if untouched else "",
        answer=plain(cell.source),
        printed=_printed(cell),
        prose=True,
    )


def _checked(cell, answer) -> Outcome:
    grade_id = cell.metadata.nbgrader.grade_id
    name = grade_id.removesuffix("-check").removesuffix("-again")
    exercise = REGISTRY.get(name)
    facts = _of_results(name, cell) or _of_errors(name, cell, answer)
    return Outcome(
        grade_id=grade_id,
        name=name,
        title=exercise.title if exercise else in_words(name),
        answer=plain(answer.source) if answer is not None else "",
        printed=_printed(answer) if answer is not None else "",
        **facts,
    )


def _of_results(name: str, cell) -> dict | None:
    """What the check itself said; None where it said nothing, or went no further than that.

    Of several results the worst counts: code of the student may have sent one of its own beside the check's.
    """
    results = list(_results(name, cell))
    if not results:
        return None
    result = next((r for r in results if r.get("passed") is not True), results[-1])
    passed, library = result.get("passed") is True, any(r.get("library") is True for r in results)
    if passed and _errors(cell):
        return None  # it did not come to its end behind the result
    message = plain(result.get("message") or "")
    if passed:
        return {"state": "right", "library": library}
    seed = result.get("seed")
    return _said(name, message, result.get("misconception")) | {
        "library": library,
        "other_inputs": isinstance(seed, int) and seed != 0,
    }


def _results(name: str, cell) -> Iterator[dict]:
    for output in cell.get("outputs", []):
        result = output.get("data", {}).get(MIME)
        if isinstance(result, dict) and result.get("exercise") == name:
            yield result


def _said(name: str, message: str, misconception=None) -> dict:
    """State, reason and misconception from the checker's message."""
    if message.startswith(f"{name} is not written yet"):
        return {"state": "not written", "reason": message.partition(" Fill in the answer cell")[0]}
    lines = [
        line for line in message.split("\n")
        if not line.startswith("Stuck? ") and line != f"{name}: not right yet."
    ]  # fmt: skip
    # By its name in the registry alone: what stands in a notebook could be any text.
    exercise = REGISTRY.get(name)
    known = [m.name for m in exercise.misconceptions] if exercise else []
    named = [m for m in known if m == misconception or lines[:1] == [f"Looks like: {m}."]]
    if named and lines[:1] == [f"Looks like: {named[0]}."]:
        lines = lines[1:]
    return {"state": "wrong", "reason": "\n".join(lines), "misconception": named[0] if named else None}


def _of_errors(name: str, cell, answer) -> dict:
    """What can be said where the check left no result: its error, or better that of the answer's own cell."""
    mine = _errors(cell)
    theirs = _errors(answer) if answer is not None else []
    for where, errors in (("Your answer's cell", theirs), ("The check, which calls your answer,", mine)):
        for error in errors:
            if error.ename in STOPPED:
                return _stopped(where, error)
    if answer is not None and not _has_code(answer.source):
        return {"state": "not written", "reason": "The answer's cell is empty."}
    failed = next((error for error in mine if error.ename == "CheckFailed"), None)
    if failed:
        return _said(name, plain(failed.evalue))
    if theirs:
        about = ABOUT.get(theirs[0].ename)
        advice = f"\n{about}" if about else ""
        return {
            "state": "wrong",
            "reason": f"Your answer's cell ended in an error. {_line(theirs[0])}{advice}",
        }
    if not mine:
        ran = cell.get("execution_count") is not None or cell.get("outputs")
        return {"state": "right"} if ran else _stopped("The check", None)
    if mine[0].ename == "NameError":
        return {
            "state": "wrong",
            "reason": f"The check did not find what it was to check. {_line(mine[0])}\n"
            "It needs the name that the exercise gives it, in a cell that runs without an error.",
        }
    return {"state": "wrong", "reason": f"The check ended in an error. {_line(mine[0])}"}


def _stopped(where: str, error) -> dict:
    said = plain(error.evalue) if error else "It was not run."
    by = STOPPED[error.ename] if error else "crash"
    return {"state": "stopped", "stopped_by": by, "reason": f"{where} was stopped. {said}\n{ADVICE[by]}"}


def _errors(cell) -> list[NotebookNode]:
    return [output for output in cell.get("outputs", []) if output.output_type == "error"]


def _line(error) -> str:
    said = plain(error.evalue, lines=12)
    return f"{plain(error.ename)}: {said}" if said else plain(error.ename)


def _printed(cell) -> str:
    """What a cell left behind: printed text, and the trace of its error."""
    texts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            texts.append(plain(output.text, lines=40))
        elif output.output_type == "error":
            texts.append(plain("\n".join(output.traceback) or _line(output), lines=40))
    return plain("\n".join(text for text in texts if text), lines=80)


def _has_code(source: str) -> bool:
    return any(line.strip() and not line.strip().startswith("#") for line in source.splitlines())


def in_words(grade_id: str) -> str:
    """`keys_stay-why` as a title: Why? Keys stay."""
    words = plain(grade_id).removesuffix("-why").replace("_", " ").replace("-", " ").strip()
    return ("Why? " if grade_id.endswith("-why") else "") + words[:1].upper() + words[1:]
