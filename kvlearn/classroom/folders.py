"""Where the files of one assignment of a class are, and what an executed notebook was made of."""

import hashlib
from pathlib import Path

import nbformat

from kvlearn.classroom.sandbox import PACKAGE, Limits
from kvlearn.classroom.settings import Settings


class Folders:
    """Of one assignment: what students were given, what they handed in, and what became of it."""

    def __init__(self, root: Path, assignment: str):
        self.root, self.assignment = root, assignment
        self.released = root / "exercises" / assignment / f"{assignment}.ipynb"
        self.source = root / "solutions" / assignment / f"{assignment}.ipynb"

    def _of(self, step: str, student: str) -> Path:
        return self.root / "classroom" / step / student / self.assignment / f"{self.assignment}.ipynb"

    def submitted(self, student: str) -> Path:
        return self._of("submitted", student)

    def timestamp(self, student: str) -> Path:
        return self.submitted(student).with_name("timestamp.txt")

    def executed(self, student: str) -> Path:
        return self._of("executed", student)

    def autograded(self, student: str) -> Path:
        return self._of("autograded", student)

    def students(self) -> list[str]:
        found = (self.root / "classroom" / "submitted").glob(f"*/{self.assignment}/{self.assignment}.ipynb")
        return sorted(path.parent.parent.name for path in found)

    def record(self, student: str, settings: Settings) -> str:
        """A hash of all that a grade depends on."""
        parts = [path.read_bytes() for path in (self.submitted(student), self.released, self.source)]
        parts += [path.read_bytes() for path in sorted((PACKAGE / "checks").rglob("*.py"))]
        parts.append(repr((settings.hidden_seeds, limits(settings))).encode())
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def limits(settings: Settings) -> Limits:
    return Limits(
        cell_seconds=settings.cell_seconds,
        submission_seconds=settings.submission_seconds,
        memory_bytes=settings.memory,
    )


def made_of(path: Path) -> str | None:
    """The record in a notebook that a worker has written, or None."""
    try:
        return nbformat.read(path, as_version=4).metadata.get("kvlearn", {}).get("record")
    except Exception:  # not there, or broken off in the middle by somebody else
        return None
