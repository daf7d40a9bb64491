"""A submission as it came -> a notebook that nbgrader's Autograde accepts, and notes to the student.

nbgrader itself puts back the text, points and lock of a test cell that was edited (OverwriteCells), and
takes the mark off all but the last of several cells with one grade_id (DeduplicateIds). What it refuses, or
grades wrongly, is mended here before it sees the notebook: cells that were deleted, whose marks or ids
another editor dropped or changed, that stand in another order or in a copy that still holds the stub; an
older release; a file that is no notebook.

The result has every cell of the release once, in the release's order, with the release's metadata; the
checks are the release's own. An answer is found by its grade_id, else by its cell id, else by what it
defines. The student's own cells stay where they were: behind the cell of the release that they followed.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import nbformat
from nbformat import NotebookNode

from kvlearn.classroom.submitted import MOST_CELLS, Cell, Unreadable, parse, read_cells

STUB = re.compile(r"# YOUR CODE HERE\s+raise NotImplementedError")
HAND_IN = "Hand in the .ipynb file itself (in Jupyter: File > Download), not a PDF, a web page or a .py file."


@dataclass(frozen=True)
class Repaired:
    """A notebook to grade, and sentences to the student about what was done to it."""

    notebook: NotebookNode
    notes: tuple[str, ...] = ()


def repair(text: bytes | str, released: NotebookNode) -> Repaired:
    """Fit a submission's file to the released notebook of its assignment (nbformat 4).

    Never raises for what a student can hand in: what cannot be read gives the released notebook as it is,
    and a note that says what to hand in.
    """
    try:
        data = parse(text)
        cells = read_cells(data, {_marks(of).get("grade_id") for of in released.cells})
    except Unreadable as reason:
        return Repaired(_assemble(released, {}, {}), (f"{reason} No answer could be graded. {HAND_IN}",))
    answers, found = _find_answers(cells, released)
    placed = _place(cells, released, answers)
    notes = [*_of_another(data, released), *found]
    if len(data["cells"]) > MOST_CELLS:
        notes.insert(0, f"Your notebook has {len(data['cells'])} cells; the first {MOST_CELLS} were read.")
    return Repaired(_assemble(released, answers, placed), tuple(notes))


def _marks(cell: NotebookNode) -> dict:
    return cell.metadata.get("nbgrader") or {}


def _is_answer(cell: NotebookNode) -> bool:
    return bool(_marks(cell).get("solution"))


def _name(cell: NotebookNode) -> str:
    """The function or class that an answer cell of the release asks for: causal_mask, MyGrowingCache."""
    exercise = _marks(cell)["grade_id"].removesuffix("-again")
    defined = re.findall(r"^(?:def|class)\s+(\w+)", cell.source, re.M)
    return exercise if exercise in defined or not defined else defined[-1]


def _same(a: str, b: str) -> bool:
    """The same lines, spaces at their ends aside."""
    return [line.rstrip() for line in a.strip().split("\n")] == [
        line.rstrip() for line in b.strip().split("\n")
    ]


def _defines(source: str, name: str) -> bool:
    """Whether a cell defines the name at its top level. Also true where the rest is a syntax error."""
    name = re.escape(name)
    return bool(
        re.search(rf"^(?:(?:async\s+)?def|class)\s+{name}\b|^{name}\s*(?::[^=\n]+)?=(?!=)", source, re.M)
    )


def _how(cell: Cell, of: NotebookNode) -> int:
    """How a cell shows that it is this one of the release: 3 grade_id, 2 cell id, 1 content, 0 not at all."""
    if cell.grade_id is not None and cell.grade_id == _marks(of).get("grade_id"):
        return 3
    if cell.kind != of.cell_type:
        return 0
    if cell.grade_id is None and of.get("id") in cell.ids:
        return 2  # (a copy of a marked cell keeps its mark: it is never another one)
    if _is_answer(of):
        # Also a cell that is marked as another answer: two that were merged hold both.
        return int(of.cell_type == "code" and _defines(cell.source, _name(of)))
    return int(cell.grade_id is None and _same(cell.source, of.source))


def _is_prose(cells: list[Cell], number: int, released: NotebookNode, place: int) -> int:
    """1 for a text of the student's own right behind the question or the empty cell for its answer."""
    of, cell = released.cells[place], cells[number]
    if not (of.cell_type == cell.kind == "markdown" and number and place) or cell.grade_id is not None:
        return 0
    before = [released.cells[place - 1], of]
    asked = any(_how(cells[number - 1], b) or _same(cells[number - 1].source, b.source) for b in before)
    return int(asked and not any(_how(cell, other) for other in released.cells))


def _find_answers(cells: list[Cell], released: NotebookNode) -> tuple[dict[int, Cell], list[str]]:
    """The cell that is graded for each answer of the release ({place in the release: cell}), and notes."""
    answers, notes = {}, []
    for place, of in enumerate(released.cells):
        if not _is_answer(of):
            continue
        name = _name(of)
        candidates = []
        for number, cell in enumerate(cells):
            how = _how(cell, of) or _is_prose(cells, number, released, place)
            if how and cell.source.strip() and not _same(cell.source, of.source):
                # What still holds the stub is the last resort; then, what does not define the name.
                rank = (not STUB.search(cell.source), _defines(cell.source, name), how, number)
                candidates.append((rank, cell))
        if not candidates:
            continue
        best, answer = max(candidates, key=lambda pair: pair[0])
        answers[place] = answer
        # (A later cell of the student's own that defines the name is an experiment, not a second answer.)
        equal = [c for rank, c in candidates if rank[:2] == best[:2] and rank[2] >= best[2]]
        if any(not _same(cell.source, answer.source) for cell in equal):
            count = {2: "two", 3: "three"}.get(len(equal), len(equal))
            notes.append(f"Your notebook had {count} cells for {name}; the last one was graded.")
    return answers, notes


def _place(cells: list[Cell], released: NotebookNode, answers: dict[int, Cell]) -> dict[int, list[Cell]]:
    """Where the student's own cells go: {place in the release: the cells behind it}, -1 is the top.

    Cells of the release that have no mark (text, imports, given code) are kept as the student left them.
    """
    placed, waiting, here = {}, [], -1
    chosen = {}
    for place, cell in answers.items():
        chosen.setdefault(id(cell), place)  # a cell that answers two exercises stands at the first

    def put(after: int) -> None:
        placed.setdefault(after, []).extend(waiting)
        waiting.clear()

    for cell in cells:
        place = chosen.get(id(cell))
        if place is None:
            place = _belongs_to(cell, released, answers)
        if place is None:
            if cell.source.strip():
                waiting.append(cell)
            continue
        # An answer that moves up takes along what stands before it: it may need it.
        put(place - 1 if id(cell) in chosen and place <= here else here)
        here = place
        if not _marks(released.cells[place]) and place not in answers and cell.source.strip():
            answers[place] = cell
    put(here)
    return placed


def _belongs_to(cell: Cell, released: NotebookNode, answers: dict[int, Cell]) -> int | None:
    """The place in the release of a cell that is not a graded answer; None for the student's own."""
    ways = [(_how(cell, of), -place) for place, of in enumerate(released.cells)]
    how, place = max(ways, default=(0, 0))
    if not how:
        return None
    of = released.cells[place := -place]
    if _is_answer(of) and place in answers:
        # A copy that was passed over. Kept only where it is something else: half of a cell that was split.
        chosen, name = answers[place], _name(of)
        if how < 2 and _how(chosen, of) > how:
            return None  # a later experiment with the name, in a cell of the student's own
        if _defines(chosen.source, name) and not _defines(cell.source, name):
            return None if not _same(cell.source, of.source) else place
    return place


def _assemble(released: NotebookNode, answers: dict[int, Cell], placed: dict[int, list]) -> NotebookNode:
    """The release with the student's text in it. No outputs."""
    taken = {of.get("id") for of in released.cells}
    notebook = nbformat.v4.new_notebook(metadata=nbformat.from_dict(released.metadata))
    for place in range(-1, len(released.cells)):
        if place >= 0:
            of, answer = released.cells[place], answers.get(place)
            cell = _new(of.cell_type, answer.source if answer else of.source, answer)
            cell.metadata = nbformat.from_dict(of.metadata)
            cell.id = of.get("id") or _own_id(taken)
            notebook.cells.append(cell)
        for extra in placed.get(place, ()):
            cell = _new(extra.kind, extra.source, extra)
            cell.id = _own_id(taken)
            notebook.cells.append(cell)
    return notebook


def _own_id(taken: set) -> str:
    """An id that no cell has; the same submission gives the same ids."""
    number = len(taken)
    while f"own-{number}" in taken:
        number += 1
    taken.add(f"own-{number}")
    return f"own-{number}"


def _new(kind: str, source: str, origin: Cell | None) -> NotebookNode:
    make = {"code": nbformat.v4.new_code_cell, "raw": nbformat.v4.new_raw_cell}
    cell = make.get(kind, nbformat.v4.new_markdown_cell)(source)
    if kind == "markdown" and origin is not None and origin.attachments:
        cell.attachments = nbformat.from_dict(origin.attachments)
    return cell


def _of_another(data: dict, released: NotebookNode) -> list[str]:
    """A note where the file says that it is of another assignment or another release."""
    metadata = data.get("metadata") if isinstance(data.get("metadata"), dict) else {}
    theirs, ours = metadata.get("kvlearn"), released.metadata.get("kvlearn")
    if not isinstance(theirs, dict) or not ours:
        return []
    source = theirs.get("source")
    if isinstance(source, str) and source != ours.get("source"):
        names = [PurePosixPath(path[:200]).stem for path in (source, ours.get("source", ""))]
        return [f"Your file is the notebook of {names[0]}, not of {names[1]}. Hand in the one of {names[1]}."]
    if theirs.get("made_from") != ours.get("made_from"):
        return [
            "Your notebook is of another release of this assignment; your answers were moved into this one."
        ]
    return []
