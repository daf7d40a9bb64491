"""A folder or a zip of downloads -> classroom/submitted/STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb, timestamp.txt.

nbgrader's own `zip_collect` reads one regular expression for one assignment, unpacks whatever an archive
holds, and leaves out what does not match with a line in its log. Here the patterns of classroom/settings.toml
read the names that learning platforms write, every file is accounted for in the result, and nothing is
half-written. The folders are nbgrader's, so its own commands go on from there.
"""

import functools
import re
import unicodedata
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from nbgrader.utils import parse_utc

from kvlearn.classroom import downloads
from kvlearn.classroom.downloads import Download
from kvlearn.classroom.files import write_whole

# Folders of the course: in a student's clone the path of a notebook does not say who the student is. (Nor
# does a folder that is called after an assignment.)
NOBODY = ("course", "exercises", "notebooks", "solutions", "work")
# What browsers and platforms put behind a name that is taken: " (1)", "-1", " - Copy", " copy 2".
SUFFIX = r"(?P<copy{n}>(?:\s*\(\d+\)|-\d+| - Copy| copy(?: \d+)?)*)"
TIMESTAMP = r"\d{4}-?\d\d-?\d\d[ T_-]?\d\d[-:.h]?\d\d(?:[-:.]?\d\d)?"
# Not possible in the name of a folder somewhere, with a meaning in nbgrader's patterns, or not to be seen.
FORBIDDEN = set('<>:"/\\|?*[]\u200b\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\ufffd')


@dataclass(frozen=True)
class Submission:
    """One file of a download that a pattern could read."""

    student: str
    assignment: str
    file: Download
    time: datetime  # when it was handed in, in UTC: from the name, or else the file's own date
    copy: int  # the number that a browser or platform put behind the name
    id: str  # the platform's number of the student, "" where the name has none

    @property
    def order(self):
        return self.time, self.copy, self.file.path


@dataclass
class Collected:
    """What became of each file of a download. Texts are paths in the download, or sentences."""

    collected: list[Submission] = field(default_factory=list)
    replaced: list[Submission] = field(default_factory=list)
    unchanged: list[Submission] = field(default_factory=list)
    older: list[Submission] = field(default_factory=list)  # not taken: a newer one of this student is there
    unmatched: list[str] = field(default_factory=list)  # no pattern fits
    problems: list[str] = field(default_factory=list)


class CollectError(ValueError):
    """Why nothing could be collected, in a sentence."""


def collect(root: Path, source: Path, patterns, assignments, assignment: str | None = None) -> Collected:
    """Collect the submissions in `source`, a folder or a .zip, into `root`/classroom/submitted.

    `patterns` are those of the settings, `assignments` the names that the course has. With `assignment` the
    download is of that one: a notebook of any other name counts as it, too, and one that is named after
    another assignment is a problem. The newest of several of one student counts; a second run changes
    nothing. Raises CollectError where `source` cannot be read at all.
    """
    source, result = Path(source), Collected()
    try:
        files, result.problems = downloads.find(source)
    except (OSError, ValueError) as error:
        raise CollectError(str(getattr(error, "strerror", None) or error)) from None
    if not files and not result.problems:
        raise CollectError(
            f"{source} holds no file. Give the folder, or the .zip, that your platform gave you."
        )
    found = []
    for file in files:
        try:
            submission = read_name(file, patterns, assignments, assignment)
        except ValueError as error:
            result.problems.append(f"{file.path}: {error}")
            continue
        if submission is None:
            result.unmatched.append(file.path)
        else:
            found.append(submission)
    submitted = Path(root) / "classroom" / "submitted"
    try:
        chosen = choose(found, submitted, result)
        for number, submission in enumerate(chosen):
            if not store(submission, submitted, result):
                left = len(chosen) - number - 1
                if left:
                    result.problems.append(
                        f"{left} more files were not collected. Run it again when there is room."
                    )
                break
    finally:
        downloads.close(files)
    return result


@functools.cache
def compile_pattern(pattern: str, assignments: tuple, any_name: bool = False) -> re.Pattern:
    """The regular expression of a pattern, for the end of a path. `any_name`: {notebook} is any name."""
    names = "|".join(re.escape(name) for name in sorted(assignments, key=len, reverse=True))
    pieces = {
        "student": "[^/]+?",
        "anything": "[^/]*?",
        "id": r"\d+",
        "timestamp": TIMESTAMP,
        "notebook": "[^/]+?" if any_name else f"(?:{names})",
    }
    seen, parts, copies = set(), [], 0
    for part in re.split(r"(\{\w+\})", pattern):
        name = part[1:-1]
        if not part.startswith("{"):
            parts.append(re.escape(part))
        elif name == "anything":
            parts.append(pieces[name])
        elif name in seen:
            parts.append(f"(?P={name})")
        else:
            seen.add(name)
            parts.append(f"(?P<{name}>{pieces[name]})")
        if name == "notebook":
            parts.append(SUFFIX.format(n=copies))
            copies += 1
    return re.compile(r"(?:.*/)?" + "".join(parts), re.IGNORECASE | re.DOTALL)


def read_name(file: Download, patterns, assignments, assignment: str | None = None) -> Submission | None:
    """What the path of a file says; None where no pattern fits. ValueError: it fits, and cannot be used."""
    path, assignments = unicodedata.normalize("NFC", file.path), tuple(assignments)
    if any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(path).parts):
        return None  # what systems and editors leave beside a file
    for pattern in patterns:
        match = compile_pattern(pattern, assignments).fullmatch(path)
        known = {name.casefold(): name for name in assignments}
        if match and match["student"].casefold() not in {*known, *NOBODY}:
            named = known[match["notebook"].casefold()]
            if assignment and named != assignment:
                raise ValueError(f"it is named after {named}, and this is a download of {assignment}.")
            return _submission(file, match, named)
    bare = PurePosixPath(path).name.casefold()
    if assignment and not any(bare.startswith(name.casefold()) for name in assignments):
        for pattern in patterns:
            match = compile_pattern(pattern, assignments, any_name=True).fullmatch(path)
            if match and match["student"].casefold() not in NOBODY:
                return _submission(file, match, assignment)
    return None


def _submission(file: Download, match: re.Match, assignment: str) -> Submission:
    groups = match.groupdict()
    time, digits = file.time, re.sub(r"\D", "", groups.get("timestamp") or "")
    if digits:
        try:
            time = datetime.strptime(digits.ljust(14, "0"), "%Y%m%d%H%M%S").astimezone(UTC)
        except (ValueError, OverflowError, OSError):
            raise ValueError(f"{groups['timestamp']!r} is no date and time.") from None
    numbers = re.findall(r"\d+", "".join(groups[g] or "" for g in groups if g.startswith("copy")))
    copy = int(numbers[-1][:9]) if numbers else 0
    student = check_student(groups["student"].strip())
    return Submission(student, assignment, file, time, copy, groups.get("id") or "")


def check_student(student: str) -> str:
    """A student's id, if it can name a folder on every system and in nbgrader. ValueError otherwise."""
    strange = [c for c in student if c in FORBIDDEN or unicodedata.category(c) in ("Cc", "Cs")]
    if strange:
        what = repr(strange[0]) if strange[0].isascii() else f"the character U+{ord(strange[0]):04X}"
        raise ValueError(f"the student's name {student!r} holds {what}. Rename the file, and collect again.")
    if not student or student.startswith(".") or student.endswith("."):
        raise ValueError(
            f"{student!r} cannot be a student's name: it is empty, or begins or ends with a dot."
        )
    if len(student.encode()) > 120:
        raise ValueError(f"the student's name {student[:30]!r}... is longer than 120 bytes.")
    return student


def choose(found: list[Submission], submitted: Path, result: Collected) -> list[Submission]:
    """The newest of each student and assignment. Who cannot be told apart is a problem, and not taken."""
    there = [p.name for p in submitted.iterdir() if p.is_dir()] if submitted.is_dir() else []
    spellings = {}
    for name in [*(unicodedata.normalize("NFC", name) for name in there), *(s.student for s in found)]:
        spellings.setdefault(name.casefold(), set()).add(name)
    doubtful = set()
    for names in spellings.values():
        if len(names) > 1:
            listed = " and ".join(sorted(names))
            result.problems.append(
                f"{listed} differ only by capital letters: on some systems they are one folder. Nothing of "
                "them was collected. Rename the files: one name for one student."
            )
            doubtful |= names
    groups = {}
    for submission in found:
        if submission.student not in doubtful:
            groups.setdefault((submission.student, submission.assignment), []).append(submission)
    chosen = []
    for (student, assignment), several in sorted(groups.items()):
        people = sorted({s.id for s in several if s.id})
        if len(people) > 1:
            result.problems.append(
                f"{assignment}: {student} stands for {len(people)} people, numbers {', '.join(people)}. "
                "Nothing of them was collected. Rename the files so that the names differ."
            )
            continue
        if len({origin(s) for s in several}) > 1:
            listed = ", ".join(sorted(s.file.path for s in several))
            result.problems.append(
                f"{assignment}: {len(several)} files from different places count as {student}: {listed}. "
                "Nothing of them was collected. If these are different people, say where the name stands, "
                "with a pattern of your own as the first in classroom/settings.toml: "
                f'"{suggested(several)}". If they are one person, keep one of the files.'
            )
            continue
        several.sort(key=lambda s: s.order)
        result.older += several[:-1]
        chosen.append(several[-1])
    return chosen


def origin(submission: Submission) -> str:
    """What the path says before the assignment's name, letters alone.

    Versions of one person's file differ in numbers, dates and a LATE; two people's files differ in more.
    """
    path = PurePosixPath(unicodedata.normalize("NFC", submission.file.path))
    before = path.name.casefold().rpartition(submission.assignment.casefold())[0]
    words = re.findall(r"[^\W\d_]+", f"{path.parent}/{before}".casefold())
    return " ".join(word for word in words if word != "late")


def suggested(several: list[Submission]) -> str:
    """A pattern that tells these files apart: the first folder, or else the name, in which they differ."""
    paths = [PurePosixPath(s.file.path).parts for s in several]
    folders = [set(parts) for parts in zip(*(path[:-1] for path in paths), strict=False)]
    if len({len(path) for path in paths}) > 1 or all(len(names) == 1 for names in folders):
        return "{student}_{notebook}.ipynb"
    place = next(i for i, names in enumerate(folders) if len(names) > 1)
    after = ["{anything}" if len(names) > 1 else min(names) for names in folders[place + 1 :]]
    return "/".join(["{student}", *after, "{notebook}.ipynb"])


def store(submission: Submission, submitted: Path, result: Collected) -> bool:
    """Put one submission in its place, whole or not at all. False: the disk is full, more would fail too."""
    folder = submitted / submission.student / submission.assignment
    target = folder / f"{submission.assignment}.ipynb"
    try:
        data = submission.file.read()
    except (OSError, ValueError) as error:
        result.problems.append(f"{submission.file.path}: {getattr(error, 'strerror', None) or error}")
        return True
    try:
        existing = target.read_bytes() if target.exists() else None
        if existing == data:
            result.unchanged.append(submission)
            return True
        if existing is not None and submission.time <= _time_of(folder):
            result.older.append(submission)
            return True
        # The notebook goes first: cut off between the two, the next run sees a newer one and goes on.
        write_whole(target, data)
        if submission.id:
            write_whole(folder / "platform_id.txt", submission.id.encode())
        write_whole(folder / "timestamp.txt", f"{submission.time:%Y-%m-%d %H:%M:%S.%f} UTC".encode())
    except OSError as error:
        reason = error.strerror or error
        result.problems.append(f"{submission.file.path} could not be written to {folder}: {reason}.")
        return error.errno not in downloads.FULL
    (result.collected if existing is None else result.replaced).append(submission)
    return True


def _time_of(folder: Path) -> datetime:
    """When what lies there was handed in; long ago where nothing readable says so."""
    try:
        return parse_utc((folder / "timestamp.txt").read_text(encoding="utf-8").strip()).replace(tzinfo=UTC)
    except (OSError, ValueError, OverflowError):
        return datetime.min.replace(tzinfo=UTC)
