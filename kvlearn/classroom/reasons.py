"""Why an answer is not right: what the checker said, or Python, as sentences to a student.

Each function gives the facts of an `outcomes.Outcome`: its state, its reason, and what is known of the cause.
All texts come from a submission: whoever shows them escapes them.
"""

import re

from kvlearn.checks import REGISTRY

# Errors by which `execute` says that a cell did not come to its end, and what was used up.
STOPPED = {
    "CellTimeoutError": "time",
    "NotRun": "time",
    "OutOfMemory": "memory",
    "TooMuchWritten": "files",
    "DeadKernelError": "crash",
    "NotRunAgain": "crash",
    "NoResult": "crash",
}
ADVICE = {
    "time": "Is there a loop that never ends?",
    "memory": "Is there a tensor or a list that grows in a loop, or one of far too large a shape?",
    "files": "Is there a loop that writes files, or one file that grows?",
    "crash": "Take out exit(), quit() and os._exit(); restart your kernel, and run all cells from the top.",
}
# What to do about an error of Python's, where its own words do not say it.
ABOUT = {
    "StdinNotImplementedError": "It calls input(), and nobody is there to type when it is graded. Write the "
    "value into the code instead.",
    "ModuleNotFoundError": "It is graded with the packages that the course installs, and no others.",
    "NotImplementedError": "Take the line `raise NotImplementedError` out once your answer is there.",
}
# How an answer without a known mistake is wrong, as far as that is sure.
DID_NOT_RUN, RAISED, KIND, ELSE = "did not run", "an error when called", "shape or type", "something else"
GIVEN_CELL = "a given cell was changed"
CAUSES = (DID_NOT_RUN, RAISED, GIVEN_CELL, KIND, ELSE)

# Python's, numpy's and torch's words for memory that could not be had.
NO_MEMORY = re.compile(r"MemoryError|DefaultCPUAllocator|std::bad_alloc|CUDA out of memory")
# What an error says when a file was too large, or when there was no space left for it.
NO_SPACE = re.compile(r"No space left on device|File too large")
WHILE_CALLED = re.compile(r"(?:Your code raised|It failed outside your own lines.*?:) (\w+)")
OF_ANOTHER_KIND = re.compile(r"The result(?:'s [^.;]*)? (?:has (?:the )?(?:shape|dtype|keys|\d+ items)|is )")
UNREADABLE = ("SyntaxError", "IndentationError", "TabError")
MOST_CHARACTERS, MOST_LINES = 20_000, 400
NO_TEXT = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # colours, control characters


def plain(text, lines: int = MOST_LINES) -> str:
    """Text without colours and control characters, cut where it is endless."""
    text = NO_TEXT.sub("", "".join(text) if isinstance(text, list) else str(text))
    rows = text[:MOST_CHARACTERS].split("\n")
    cut = len(text) > MOST_CHARACTERS or len(rows) > lines
    return "\n".join(rows[:lines]).rstrip() + ("\n[... and more, left out here]" if cut else "")


def said(name: str, message: str, misconception=None) -> dict:
    """The facts in the checker's message about exercise `name`."""
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
    if named:
        lines = lines[1:] if lines[:1] == [f"Looks like: {named[0]}."] else lines
        return _wrong("\n".join(lines), None) | {"misconception": named[0]}
    return _not_named(lines)


def _not_named(lines: list[str]) -> dict:
    """The facts of a wrong answer that no misconception explains."""
    raised = WHILE_CALLED.match(lines[0]) if lines else None
    if raised:
        where = next((line.strip() for line in lines[1:] if line.startswith("  in ")), "")
        used_up = _used_up(lines[0], "Your function", f"\nIt was {where}" if where else "")
        if used_up:
            return used_up
    if raised:
        advice = ABOUT.get(raised[1]) if raised[1] != "NotImplementedError" else None  # torch has its own
        return _wrong("\n".join([*lines, *([advice] if advice else [])]), RAISED)
    kind = bool(lines) and OF_ANOTHER_KIND.match(lines[0])
    return _wrong("\n".join(lines), KIND if kind else ELSE)


def of_answer(error) -> dict:
    """The facts of an error in the answer's own cell, which is why the check found nothing."""
    used_up = _used_up(error_line(error), "Your answer's cell")
    if used_up:
        return used_up
    if error.ename in UNREADABLE:
        what = re.fullmatch(r"(.*) \([^()]*, line (\d+)\)", plain(error.evalue), re.DOTALL)
        where = f"Line {what[2]}: {what[1]}" if what else error_line(error)
        return _wrong(f"Python could not read your answer's cell. {where}", DID_NOT_RUN)
    about = ABOUT.get(error.ename)
    advice = f"\n{about}" if about else ""
    return _wrong(f"Your answer's cell ended in an error. {error_line(error)}{advice}", DID_NOT_RUN)


def of_check(error) -> dict:
    """The facts of an error in the check's cell that is not the checker's."""
    used_up = _used_up(error_line(error), "The check, which calls your answer,")
    if used_up:
        return used_up
    if error.ename == "NameError":
        return _wrong(
            f"The check did not find what it was to check. {error_line(error)}\n"
            "It needs the name that the exercise gives it, in a cell that runs without an error.",
            DID_NOT_RUN,
        )
    return _wrong(f"The check ended in an error. {error_line(error)}", ELSE)


def stopped(where: str, error=None) -> dict:
    """The facts of a cell that did not come to its end; without an error it was not run at all."""
    why = plain(error.evalue) if error else "It was not run."
    by = STOPPED[error.ename] if error else "crash"
    return _stopped(by, f"{where} was stopped. {why}")


def error_line(error) -> str:
    """An error as Python's last line says it."""
    text = plain(error.evalue, lines=12)
    return f"{plain(error.ename)}: {text}" if text else plain(error.ename)


def _wrong(reason: str, cause: str | None) -> dict:
    return {"state": "wrong", "reason": reason, "cause": cause}


def _stopped(by: str, why: str) -> dict:
    return {"state": "stopped", "stopped_by": by, "reason": f"{why}\n{ADVICE[by]}"}


def _used_up(text: str, who: str, where: str = "") -> dict | None:
    """The facts of an error that says that memory or disk space ran out; None for any other error."""
    if NO_MEMORY.search(text):
        return _stopped("memory", f"{who} asked for more memory than a submission may use.{where}")
    if NO_SPACE.search(text):
        return _stopped("files", f"{who} wrote more data, or a larger file, than a submission may.{where}")
    return None
