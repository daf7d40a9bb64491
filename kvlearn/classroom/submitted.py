"""The file that a student handed in, as it came: its cells, whatever program wrote them.

Nothing that a file holds is believed: kinds, sizes and nesting are checked here, and what comes after
(`repair`) works on plain text.
"""

import json
from dataclasses import dataclass, field

import nbformat

TYPES = ("code", "markdown", "raw")
MOST_CELLS = 2000  # the longest exercise has about 50
MOST_SOURCE = 1_000_000  # characters of one cell


@dataclass(eq=False)
class Cell:
    """A cell of a submission, whatever wrote it."""

    kind: str
    source: str
    grade_id: str | None = None
    ids: tuple[str, ...] = ()
    attachments: dict = field(default_factory=dict)


class Unreadable(Exception):
    """Why a file is no notebook: a sentence."""


def parse(text: bytes | str) -> dict:
    """The JSON of a notebook, as nbformat 4."""
    if isinstance(text, bytes):
        encoding = "utf-16" if text[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        text = text.decode(encoding, errors="replace")
    if not text.strip("\ufeff\0 \t\r\n"):
        raise Unreadable("Your file was empty.")
    try:
        data = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        raise Unreadable("Your file could not be read as a notebook.") from None
    if isinstance(data, dict) and isinstance(data.get("worksheets"), list):
        try:
            data = nbformat.convert(nbformat.from_dict({"nbformat_minor": 0, **data, "nbformat": 3}), 4)
        except Exception:  # whatever an old notebook that is not whole makes the conversion do
            raise Unreadable("Your file is a notebook of an old kind that could not be read.") from None
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise Unreadable("Your file is not a notebook.")
    return data


def _text(value) -> str:
    """The source of a cell, a text or a list of lines, with Unix line ends."""
    if isinstance(value, list):
        value = "".join(part for part in value if isinstance(part, str))
    # A lone half of a surrogate pair can stand in JSON, and can not be written to a file.
    text = value[:MOST_SOURCE].encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_cells(data: dict, known: set) -> list[Cell]:
    """The cells of a notebook; `known` are the grade_ids of the release. Others mean nothing here."""
    found = []
    for cell in data["cells"][:MOST_CELLS]:
        if not isinstance(cell, dict) or cell.get("cell_type") not in TYPES:
            continue
        metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
        marks = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
        grade_id = marks.get("grade_id")
        ids = (cell.get("id"), metadata.get("id"))  # Colab keeps the id in the metadata
        attachments = cell.get("attachments")
        whole = isinstance(attachments, dict) and all(isinstance(a, dict) for a in attachments.values())
        found.append(
            Cell(
                cell["cell_type"],
                _text(cell.get("source")),
                grade_id if isinstance(grade_id, str) and grade_id in known else None,
                tuple(i for i in ids if isinstance(i, str)),
                attachments if whole else {},
            )
        )
    return found
