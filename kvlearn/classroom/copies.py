"""Answers that are the library's: a function handed over as it is, called, or copied with other names.

What is looked for: an answer that names something of kvlearn that the course's own answer does without, and
a function or class that equals one of the library's once names, docstrings and annotations are taken away.
It is a flag for a person to look at, not a verdict: short functions can be written in few ways.
"""

import ast
from contextlib import suppress
from functools import cache
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.utils import is_solution

import kvlearn

PACKAGE = Path(kvlearn.__file__).parent
NOT_ANSWERS = ("checks", "classroom", "figures")  # parts of the package that answer no exercise
MOST_LETTERS = 20_000  # of an answer; the course's own have a thousand or two
FEWEST_NODES = 40  # of a syntax tree: below, two people write the same


def copied(notebook: NotebookNode, source: NotebookNode) -> list[str]:
    """A sentence for each answer of a submission that is the library's."""
    ours = {cell.metadata.nbgrader.grade_id: cell.source for cell in source.cells if is_solution(cell)}
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    imported = {}
    for cell in code:  # an import may stand in any of them
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            imported |= imports(ast.parse(cell.source[:MOST_LETTERS]))
    found = []
    for cell in code:
        if is_solution(cell):
            name = cell.metadata.nbgrader.grade_id
            found += [f"{name}: {what}" for what in of_the_library(cell.source, ours.get(name, ""), imported)]
    return found


def of_the_library(answer: str, ours: str = "", imported: dict[str, str] | None = None) -> list[str]:
    """What of an answer is the library's, in words.

    `ours` is the course's own answer; `imported` is what other cells have imported (`imports`).
    """
    if len(answer) > MOST_LETTERS:
        return [f"it is longer than {MOST_LETTERS:,} letters, and was not compared"]
    try:
        tree, own = ast.parse(answer), ast.parse(ours)
        names = {"kvlearn": "kvlearn"} | (imported or {}) | imports(tree)
        found = [f"it uses {name}" for name in sorted(used(tree, names) - used(own, names | imports(own)))]
        known = {shape(node) for node in ast.walk(own) if _defines(node)}
        for node in ast.walk(tree):
            if _defines(node) and (form := shape(node)) not in known and form in library():
                found.append(f"{node.name} is a copy of {library()[form]}")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # no Python, or none that a person writes
        return []
    return found


def imports(tree: ast.AST) -> dict[str, str]:
    """What imports of kvlearn bind: {"kv": "kvlearn", "attend": "kvlearn.attention.attention"}."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kvlearn":
            found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            ours = [name for name in node.names if name.name.partition(".")[0] == "kvlearn"]
            found |= {name.asname or "kvlearn": name.name if name.asname else "kvlearn" for name in ours}
    return found


def used(tree: ast.AST, names: dict[str, str]) -> set[str]:
    """Names of kvlearn that code uses, such as "kvlearn.attention"; `names` is what is imported."""
    found = {whole for whole in imports(tree).values() if whole != "kvlearn"}
    owners = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            owners.add(node.value)
            found.add(f"{names[node.value.id]}.{node.attr}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and node not in owners:
            whole = names[node.id]
            found.add("kvlearn by another name" if whole == "kvlearn" else whole)
    return found


@cache
def library() -> dict[str, str]:
    """shape -> what it is the shape of, for every function and class of the library that is long enough."""
    shapes = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in NOT_ANSWERS:
            continue
        module = ".".join(("kvlearn", *parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if _defines(node) and sum(1 for _ in ast.walk(node)) >= FEWEST_NODES:
                shapes.setdefault(shape(node), f"{module}.{node.name}")
    return shapes


def _defines(node) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


def shape(node: ast.AST) -> str:
    """The syntax tree as text, without texts and annotations; names numbered in the order they came."""
    return ast.dump(_Nameless().visit(ast.parse(ast.unparse(node))))


class _Nameless(ast.NodeTransformer):
    def __init__(self):
        self._numbers: dict[str, str] = {}

    def _number(self, name: str) -> str:
        return self._numbers.setdefault(name, f"n{len(self._numbers)}")

    def visit_Name(self, node):
        node.id = self._number(node.id)
        return node

    def visit_arg(self, node):
        node.arg, node.annotation = self._number(node.arg), None
        return node

    def visit_AnnAssign(self, node):
        if node.value is None:
            return None
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Constant(self, node):
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node):
        return ast.Constant("")

    def visit_FunctionDef(self, node):
        return self._without_words(node)

    def visit_ClassDef(self, node):
        return self._without_words(node)

    def _without_words(self, node):
        if node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        node.name = self._number(node.name)
        return self.generic_visit(node)
