"""The marks on an assignment's cells, and what nbgrader reads in their place.

`build.py` says what the marks mean.
"""

import ast
import hashlib
import re

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
HIDDEN_TESTS = """\
### BEGIN HIDDEN TESTS
# Not in the exercise: nbgrader puts these lines back when it grades.
{checks}
### END HIDDEN TESTS"""
WHY_POINTS = 3
WIDTH = 76


class BuildError(Exception):
    """What is wrong with the text of a notebook, or with its run, in a sentence for its author."""


def mark_exercises(cells, source: str, points) -> None:
    """Turn the marks answer, paste, check and why into nbgrader's metadata, and hide tests in the checks.

    points(name) gives the points of an exercise. Raises BuildError.
    """
    grade_ids = {}  # exercise or question -> the grade_id of its answer cell
    unchecked = None
    for before, cell in zip([None, *cells], cells, strict=False):
        kinds = [k for k in ("answer", "paste", "check", "why") if k in cell.metadata]
        if not kinds:
            continue
        kind, name = kinds[0], cell.metadata[kinds[0]]
        if kind == "check":
            if name != unchecked:
                raise BuildError(f"{source}: check={name!r} does not follow the answer that it checks.")
            mark_check(cell, grade_ids[name], name, source, points)
            unchecked = None
            continue
        if unchecked or name in grade_ids:
            reason = f"comes before the check of {unchecked!r}" if unchecked else "is there twice"
            raise BuildError(f"{source}: {kind}={name!r} {reason}.")
        if not (BEGIN in cell.source and END in cell.source):
            raise BuildError(f"{source}: {kind}={name!r} has no {BEGIN} ... {END}.")
        if kind == "why":
            check_question(before, cell, f"{source}: why={name!r}")
            grade_ids[name] = f"{name}-why"
            cell.metadata["nbgrader"] = nbgrader_cell(kind, grade_ids[name], WHY_POINTS)
            continue
        grade_ids[name] = name if kind == "answer" else f"{name}-again"
        cell.metadata["nbgrader"] = nbgrader_cell(kind, grade_ids[name])
        unchecked = name
    if unchecked:
        raise BuildError(f"{source}: the answer to {unchecked!r} has no check after it.")


def mark_check(cell, answer_id: str, name: str, source: str, points) -> None:
    """Make a cell the check of the answer `answer_id`. What was graded before is worth nothing again."""
    if f'kvlearn.check("{name}"' not in cell.source:
        raise BuildError(f'{source}: check={name!r} has no line kvlearn.check("{name}", ...).')
    again = answer_id != name
    # A check that fails does not stop "Run All": JupyterLab and nbclient go on behind a cell with this tag.
    cell.metadata["tags"] = ["raises-exception"]
    cell.metadata["nbgrader"] = nbgrader_cell("check", f"{answer_id}-check", 0 if again else points(name))
    if not again:
        checks = "\n".join(check_line(name, answer_of(cell.source), seed) for seed in hidden_seeds(name))
        cell.source += "\n" + HIDDEN_TESTS.format(checks=checks)


def hidden_seeds(name: str) -> tuple[int, int]:
    """Two seeds of an exercise, other than the 0 that a student sees. No secret: solutions/ shows them."""
    digest = hashlib.sha256(name.encode()).digest()
    return 1000 + int.from_bytes(digest[:4]) % 1000, 2000 + int.from_bytes(digest[4:8]) % 1000


def answer_of(source: str) -> str:
    """What a cell hands to kvlearn.check: the name of a function or class."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "kvlearn.check"
    ]
    return ast.unparse(call.args[1])


def check_line(name: str, answer: str, seed: int) -> str:
    line = f'kvlearn.check("{name}", {answer}, seed={seed})'
    return line if len(line) <= WIDTH else line.replace(", ", ",\n              ", 1)


def check_question(before, cell, where: str) -> None:
    """Refuse a prose cell that would publish its answer, has no question, or whose rubric adds up wrongly."""
    lines = cell.source.strip().splitlines()
    if cell.cell_type != "markdown" or before is None or before.cell_type != "markdown":
        raise BuildError(f"{where} must be a markdown cell, with the question in one before it.")
    if BEGIN not in lines[0] or END not in lines[-1]:
        raise BuildError(f"{where} must begin with {BEGIN} and end with {END}: the rest is published.")
    worth = sum(int(points) for points in re.findall(r"(?m)^- .*(?:\n  .*)*\((\d+) points?\)$", cell.source))
    if worth != WHY_POINTS:
        raise BuildError(f"{where} has a rubric of {worth} points, and the question gives {WHY_POINTS}.")


def nbgrader_cell(kind: str, grade_id: str, points: int | None = None) -> dict:
    """nbgrader's metadata. An answer is the student's, a check is locked and gives points, a why is both:
    the student's own, and points for it, which a person gives."""
    data = {"grade_id": grade_id, "schema_version": 3, "task": False}
    data |= {"cell_type": "markdown" if kind == "why" else "code", "locked": kind == "check"}
    data |= {"grade": kind in ("check", "why"), "solution": kind != "check"}
    return data if points is None else data | {"points": points}
