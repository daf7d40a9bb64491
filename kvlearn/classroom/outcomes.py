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
from kvlearn.classroom import reasons
from kvlearn.classroom.reasons import DID_NOT_RUN, GIVEN_CELL, RAISED, STOPPED, error_line, plain
from kvlearn.classroom.results import MIME

STATES = ("right", "wrong", "stopped", "not written")
PROSE = "to be read"  # the state of an answer in words, which a person reads


@dataclass(frozen=True)
class Outcome:
    """One graded cell of a submission.

    grade_id: nbgrader's name of the cell, such as "split_heads-again-check".
    name, title: of the exercise; of a question in words the heading that the release gives it. What neither
        knows has its grade_id in words.
    state: one of STATES; PROSE where a person gives the points.
    reason: why it is not right, in sentences, as the checker or Python said it.
    stopped_by: "time", "memory", "files" or "crash" where the state is "stopped".
    misconception: the name of the mistake, where it is a known one.
    cause: one of reasons.CAUSES where the answer is wrong, and its mistake has no name.
    other_inputs: found with the class's own seeds only: the student's own check had passed.
    library: the function that was handed over is one of the library's.
    answer, printed: source of the answer's cell, and what that cell left behind when it was run.
    given: source of the cell of the release that the student has changed, and in which the error is.
    prose: a person gives the points, for an answer in words.
    """

    grade_id: str
    name: str
    title: str
    state: str
    reason: str = ""
    stopped_by: str | None = None
    misconception: str | None = None
    cause: str | None = None
    other_inputs: bool = False
    library: bool = False
    answer: str = ""
    printed: str = ""
    given: str = ""
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


def outcomes(notebook: NotebookNode, released: NotebookNode | None = None) -> list[Outcome]:
    """An Outcome for each graded cell, in the notebook's order; `released` is what students were given."""
    answers = {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells if is_solution(cell)}
    titles, changed = (_titles(released), _changed(notebook, released)) if released else ({}, [])
    found = []
    for cell in notebook.cells:
        if is_grade(cell) and not is_solution(cell):
            answer = answers.get(cell.metadata.nbgrader.grade_id.removesuffix("-check"))
            found.append(_checked(cell, answer, changed))
        elif is_grade(cell) or is_task(cell):
            found.append(_prose(cell, titles))
    return found


def _titles(released) -> dict[str, str]:
    """{grade_id: the heading of the cell before it} of the questions in words."""
    titles = {}
    for before, cell in zip(released.cells, released.cells[1:], strict=False):
        heading = re.match(r"#+ (.+)", before.source)
        if cell.cell_type == "markdown" and is_grade(cell) and heading:
            titles[cell.metadata.nbgrader.grade_id] = heading[1].strip()
    return titles


def _prose(cell, titles: dict[str, str]) -> Outcome:
    marks = cell.metadata.nbgrader
    untouched = is_solution(cell) and marks.get("checksum") == compute_checksum(cell)
    return Outcome(
        grade_id=marks.grade_id,
        name=marks.grade_id,
        title=titles.get(marks.grade_id) or in_words(marks.grade_id),
        state="not written" if untouched else PROSE,
        reason="Nothing was written here." if untouched else "",
        answer="" if untouched else plain(cell.source),
        printed=_printed(cell),
        prose=True,
    )


def _checked(cell, answer, changed: list[tuple]) -> Outcome:
    grade_id = cell.metadata.nbgrader.grade_id
    name = grade_id.removesuffix("-check").removesuffix("-again")
    exercise = REGISTRY.get(name)
    facts = _of_results(name, cell) or _of_errors(name, cell, answer)
    if facts.get("cause") in (DID_NOT_RUN, RAISED):
        facts |= _of_given(facts["reason"], answer, changed)
    return Outcome(
        grade_id=grade_id,
        name=name,
        title=exercise.title if exercise else in_words(name),
        answer=plain(answer.source) if answer is not None else "",
        printed=_printed(answer) if answer is not None else "",
        **facts,
    )


def is_right(cell) -> bool:
    """Whether a `kvlearn.check` that has run found its answer right."""
    name = cell.metadata.nbgrader.grade_id.removesuffix("-check").removesuffix("-again")
    found = _of_results(name, cell)
    return found is not None and found["state"] == "right"


# What the check said, or what stopped it -----------------------------------------------------------------


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
    return reasons.said(name, message, result.get("misconception")) | {
        "library": library,
        "other_inputs": isinstance(seed, int) and seed != 0,
    }


def _results(name: str, cell) -> Iterator[dict]:
    for output in cell.get("outputs", []):
        result = output.get("data", {}).get(MIME)
        if isinstance(result, dict) and result.get("exercise") == name:
            yield result


def _of_errors(name: str, cell, answer) -> dict:
    """What can be said where the check left no result: its error, or better that of the answer's own cell."""
    mine = _errors(cell)
    theirs = _errors(answer) if answer is not None else []
    for where, errors in (("Your answer's cell", theirs), ("The check, which calls your answer,", mine)):
        for error in errors:
            if error.ename in STOPPED:
                return reasons.stopped(where, error)
    if answer is not None and not _has_code(answer.source):
        return {"state": "not written", "reason": "The answer's cell is empty."}
    failed = next((error for error in mine if error.ename == "CheckFailed"), None)
    if failed:
        return reasons.said(name, plain(failed.evalue))
    if theirs:
        return reasons.of_answer(theirs[0])
    if mine:
        return reasons.of_check(mine[0])
    ran = cell.get("execution_count") is not None or cell.get("outputs")
    return {"state": "right"} if ran else reasons.stopped("The check")


def _errors(cell) -> list[NotebookNode]:
    return [output for output in cell.get("outputs", []) if output.output_type == "error"]


def _has_code(source: str) -> bool:
    return any(line.strip() and not line.strip().startswith("#") for line in source.splitlines())


def _printed(cell) -> str:
    """What a cell left behind: printed text, and of its error the lines in the student's own cells."""
    texts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            texts.append(plain(output.text, lines=40))
        elif output.output_type == "error" and output.ename not in STOPPED:  # (its text is the reason)
            trace = [plain(part, lines=40) for part in output.traceback]
            own = [part for part in trace if not part.startswith("File ")]
            texts.append(plain("\n".join(own) or error_line(output), lines=40))
    return plain("\n".join(text for text in texts if text), lines=80)


# Cells that were given to the student --------------------------------------------------------------------


def _changed(notebook, released) -> list[tuple]:
    """(as it is, as it was given) of the cells of the release that are no answer and were changed."""
    there = {cell.get("id"): cell for cell in notebook.cells}
    pairs = [(there.get(cell.get("id")), cell) for cell in released.cells if cell.cell_type == "code"]
    return [
        (cell, given)
        for cell, given in pairs
        if cell is not None and not is_solution(given) and not is_grade(given)
        and _lines(cell.source) != _lines(given.source)
    ]  # fmt: skip


def _lines(source: str) -> list[str]:
    return [line.rstrip() for line in source.strip().split("\n")]


def _of_given(reason: str, answer, changed: list[tuple]) -> dict:
    """Facts of an error that comes from a changed cell: raised in it, or of a name that it had defined."""
    raised, missing = re.search(r"^  in (\w+), line", reason, re.M), re.search(r"name '(\w+)' is not", reason)
    for cell, given in changed:
        inside = raised and _defines(cell, raised[1]) and not (answer and _defines(answer, raised[1]))
        without = missing and _defines(given, missing[1])
        if inside or without:
            name = raised[1] if inside else missing[1]
            sentence = (
                f"The error comes not from your answer's cell but from the one with `{name}`, which you have "
                "changed. Take that cell again from the notebook that you were given."
            )
            return {"reason": f"{sentence}\n{reason}", "cause": GIVEN_CELL, "given": plain(cell.source)}
    return {}


def _defines(cell, name: str) -> bool:
    return re.search(rf"^\s*(?:def|class) {name}\b|^{name}\s*=[^=]", cell.source, re.M) is not None


def in_words(grade_id: str) -> str:
    """`keys_stay-why` as a title: Why? Keys stay."""
    words = plain(grade_id).removesuffix("-why").replace("_", " ").replace("-", " ").strip()
    return ("Why? " if grade_id.endswith("-why") else "") + words[:1].upper() + words[1:]
