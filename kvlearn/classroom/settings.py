"""What an instructor may set: `classroom/settings.toml`, written with comments by `kvlearn classroom start`.

`read(root)` gives what is set, checked; a SettingsError names the file, the key and the value.
`create(root)` writes the file with this class's hidden seeds, never over one that is there.
"""

import difflib
import os
import re
import secrets
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

# The order counts: the first pattern that fits a path is the one that reads it.
PATTERNS = (
    "anon_{student}_{id}_{notebook}.ipynb",
    "{student}/Submission attachment(s)/{notebook}.ipynb",
    "{student}_LATE_{id}_{anything}_{notebook}.ipynb",
    "{student}_{id}_assignsubmission_file{anything}/{notebook}.ipynb",
    "{student}_{id}_assignsubmission_file_{notebook}.ipynb",
    "{anything}_{student}_attempt_{timestamp}_{notebook}.ipynb",
    "{student}_{id}_{anything}_{notebook}.ipynb",
    "{student}_{anything}_{notebook}.ipynb",
    "{student}_{notebook}.ipynb",
    "{student}/{notebook}/{notebook}.ipynb",
    "{student}/{notebook}.ipynb",
)
PIECES = ("student", "notebook", "anything", "timestamp", "id")
LIBRARY = ("flag", "allow")
LEAST_MEMORY = 3 * 2**29  # bytes: Jupyter and torch, and as much again for a model and what is computed
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

TEXT = """\
# The settings of this class. Read by every `kvlearn classroom` command; nothing here enters a commit.

# How the files are called that your learning platform lets you download. A pattern is a path:
#   {{student}}    who; becomes the name of the student's folder and of the student in the gradebook
#   {{notebook}}   the assignment, such as 02_causal_masking; what browsers add, " (1)" or "-1", is known
#   {{id}}         the platform's number of the student, if it writes one: exports can then name it
#   {{timestamp}}  when it was handed in: 2026-01-30-15-00-00; without it the file's own date counts
#   {{anything}}   whatever else stands there
# A pattern without / reads file names; one with / reads the folders above too. The first that fits counts.
patterns = [
{patterns}
]
# Canvas      doejane_12345_67890_02_causal_masking.ipynb, doejane_LATE_12345_67890_02_causal_masking-1.ipynb
#             anonymous: anon_ABCDE_900001_02_causal_masking.ipynb
# Moodle      Jane Doe_123456_assignsubmission_file_/02_causal_masking.ipynb
# Sakai       Doe, Jane(jdoe)/Submission attachment(s)/02_causal_masking.ipynb
# Blackboard  Assignment 2_jdoe_attempt_2026-01-30-15-00-00_02_causal_masking.ipynb
# by hand     jane_02_causal_masking.ipynb, jane/02_causal_masking.ipynb

# The checks are also run with these seeds, which students do not see. Drawn once for this class: keep
# them to yourself, and do not change them while an assignment is being graded.
hidden_seeds = {seeds}

# The longest that one cell, and one whole submission, may run.
cell_seconds = 60
submission_seconds = 600

# The most memory that one submission may use.
memory = "6GiB"

# A student whose answer is the library's own function, or a copy of it: "flag" it, or "allow" it.
library = "flag"

# How many submissions run side by side; 0: as many as this computer has cores.
cores = 0
"""


class SettingsError(ValueError):
    """What is wrong with the settings, in a sentence that names the file, the key and the value."""


@dataclass(frozen=True)
class Settings:
    """The settings, checked. `memory` is in bytes; `cores` is a number of 1 or more."""

    hidden_seeds: tuple[int, ...]
    patterns: tuple[str, ...] = PATTERNS
    cell_seconds: float = 60
    submission_seconds: float = 600
    memory: int = 6 * 2**30
    library: str = "flag"
    cores: int = 1


def file_of(root: Path) -> Path:
    return Path(root) / "classroom" / "settings.toml"


def create(root: Path) -> tuple[Path, bool]:
    """Write the settings of a new class, unless there are some: the file, and whether it was written."""
    path = file_of(root)
    seeds = sorted(secrets.SystemRandom().sample(range(1, 2**31), 2))
    patterns = "\n".join(f'    "{pattern}",' for pattern in PATTERNS)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        # "x": of two that start at once, one writes; 0o600: the seeds are for the instructor alone.
        with open(path, "x", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            try:
                file.write(TEXT.format(patterns=patterns, seeds=seeds))
                file.flush()
            except OSError:
                path.unlink()
                raise
    except FileExistsError:
        return path, False
    except OSError as error:
        raise SettingsError(f"{path} could not be written: {error.strerror or error}.") from None
    return path, True


def read(root: Path) -> Settings:
    """The settings of the class in `root`/classroom. Raises SettingsError."""
    path = file_of(root)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path} is not there. `kvlearn classroom start` writes it.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read as TOML: {error}.") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}.") from None
    known = [field.name for field in fields(Settings)]
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            advice = f"Did you mean {close[0]}?" if close else f"There is: {', '.join(known)}."
            raise SettingsError(f"{path}: there is no setting {key!r}. {advice}")
    if "hidden_seeds" not in given:
        raise SettingsError(f"{path}: hidden_seeds is missing. Give two numbers: hidden_seeds = [11, 12].")
    values = {}
    for key, value in {"cores": 0, **given}.items():
        try:
            values[key] = READERS[key](value)
        except ValueError as error:
            raise SettingsError(f"{path}: {key} = {value!r}: {error}") from None
    return Settings(**values)


def check_pattern(pattern) -> str:
    """The pattern, if it can name a student and an assignment. ValueError otherwise."""
    if not isinstance(pattern, str):
        raise ValueError(f"a pattern is a text, not {pattern!r}.")
    pieces = re.findall(r"\{([^{}]*)\}", pattern)
    if set("{}") & set(re.sub(r"\{[^{}]*\}", "", pattern)):
        raise ValueError(f"in {pattern!r} a brace has no partner.")
    for piece in pieces:
        if piece not in PIECES:
            known = ", ".join(f"{{{p}}}" for p in PIECES)
            raise ValueError(f"{pattern!r} has {{{piece}}}; there is {known}.")
    for piece in ("student", "notebook"):
        if piece not in pieces:
            raise ValueError(f"{pattern!r} needs {{{piece}}}.")
    return pattern


def _patterns(value) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError('it must be a list of patterns such as "{student}_{notebook}.ipynb".')
    return tuple(check_pattern(pattern) for pattern in value)


def _seeds(value) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(v) is int and 0 < v < 2**63 for v in value)
    if not whole or not value or len(set(value)) != len(value):
        raise ValueError("it must be a list of different whole numbers above 0, such as [11, 12].")
    return tuple(value)


def _seconds(value) -> float:
    if type(value) not in (int, float) or not 1 <= value <= 86400:
        raise ValueError("it must be a number of seconds from 1 to 86400.")
    return value


def _memory(value) -> int:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", value) if isinstance(value, str) else None
    if not found:
        raise ValueError('it must be a text such as "6GiB" or "3500MiB".')
    size = int(float(found[1]) * UNITS[found[2]])
    if size < LEAST_MEMORY:
        raise ValueError("it must be 1.5GiB or more: a CUDA build of torch alone reserves up to 0.8 GiB.")
    return size


def _library(value) -> str:
    if value not in LIBRARY:
        raise ValueError('it must be "flag" or "allow".')
    return value


def _cores(value) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("it must be a whole number, 0 for all cores of this computer.")
    return value or os.cpu_count() or 1


READERS = {
    "patterns": _patterns,
    "hidden_seeds": _seeds,
    "cell_seconds": _seconds,
    "submission_seconds": _seconds,
    "memory": _memory,
    "library": _library,
    "cores": _cores,
}
