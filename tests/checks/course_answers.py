"""The course's own answers, read from course/assignments as a learner's notebook would run them."""

import ast
import contextlib
import functools
import io
from dataclasses import dataclass
from pathlib import Path

import jupytext

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


@dataclass(frozen=True)
class CourseAnswer:
    """One answer cell: its source, the teaching text before it, and how to run it again."""

    name: str
    file: str
    text: str  # the markdown cells between the last check and the answer
    source: str
    expression: str  # what the check cell hands to kvlearn.check
    namespace: dict  # the names that the notebook has before this cell

    def run(self, source=None):
        """Execute the cell, or another source in its place, and give what the check would get."""
        names = dict(self.namespace)
        exec(compile(self.source if source is None else source, "<answer>", "exec"), names)
        return eval(self.expression, names)

    def stubbed(self):
        """The source as nbgrader releases it: a NotImplementedError for the solution."""
        lines, inside = [], False
        for line in self.source.splitlines():
            if BEGIN in line:
                indent = line[: len(line) - len(line.lstrip())]
                lines.append(indent + "raise NotImplementedError()")
                inside = True
            elif END in line:
                inside = False
            elif not inside:
                lines.append(line)
        return "\n".join(lines)

    def solution_lines(self):
        """The lines between the marks, without comments and blanks."""
        inside, found = False, []
        for line in self.source.splitlines():
            if BEGIN in line or END in line:
                inside = BEGIN in line
            elif inside:
                found.append(line.split("#")[0])
        return found


@functools.cache
def course_answers() -> dict[str, CourseAnswer]:
    """Every answer cell of every assignment, by the exercise's name."""
    found = {}
    for path in sorted((ROOT / "course/assignments").glob("[0-9]*.py")):
        for answer in read_assignment(path):
            found[answer.name] = answer
    return found


def read_assignment(path: Path):
    """The answers of one assignment. Cells run in order; checks are left out."""
    cells = jupytext.read(path, fmt="py:percent").cells
    namespace, text = {"__name__": "__main__"}, []
    last = max((i for i, cell in enumerate(cells) if "answer" in cell.metadata), default=-1)
    for i, cell in enumerate(cells[: last + 1]):  # what comes after the last answer only shows it off
        if cell.cell_type == "markdown":
            text.append(cell.source)
            continue
        if cell.cell_type != "code":
            continue
        if "check" in cell.metadata:
            text = []
            continue
        if "answer" in cell.metadata:
            name = cell.metadata["answer"]
            check = next(c for c in cells[i:] if c.metadata.get("check") == name)
            yield CourseAnswer(
                name, path.name, "\n\n".join(text), cell.source, checked(check.source, name), dict(namespace)
            )
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(cell.source, f"<cell {i} of {path.name}>", "exec"), namespace)


def checked(source: str, name: str) -> str:
    """The second argument of `kvlearn.check("name", ...)`, as source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "kvlearn.check":
            if ast.literal_eval(node.args[0]) == name:
                return ast.unparse(node.args[1])
    raise AssertionError(f"the check cell of {name} does not call kvlearn.check({name!r}, ...)")
