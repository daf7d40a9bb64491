"""The files of a folder or a zip of downloads, read with suspicion.

What students upload is not trusted: a link may lead out of the folder, a pipe never ends, an archive may hold
paths that climb out of it or unpack to more than the disk holds. Nothing here writes a file.
"""

import errno
import os
import stat
import zipfile
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath, PureWindowsPath

MOST_BYTES = 100 * 10**6  # of one notebook: as much as nbgrader itself copies (CourseDirectory.max_file_size)
MOST_FILES = 20_000
MOST_LETTERS = 1000  # of a path
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Download:
    """One file: its path in the download, with /, its date (UTC) and where it lies."""

    path: str
    time: datetime
    at: Path | zipfile.ZipInfo
    archive: zipfile.ZipFile | None = None

    def read(self) -> bytes:
        """The content. ValueError or OSError: a sentence says why not."""
        try:
            with self.archive.open(self.at) if self.archive else open(self.at, "rb", opener=_plain) as file:
                data = file.read(MOST_BYTES + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"it cannot be unpacked: {error}.") from None
        except OSError as error:
            raise ValueError(f"it cannot be read: {error.strerror or error}.") from None
        if len(data) > MOST_BYTES:
            raise ValueError(_too_large(len(data)))
        return data


def _plain(path, flags):
    """Open without waiting, should a pipe have been put there since."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _too_large(size: int) -> str:
    return f"it is larger than {MOST_BYTES // 10**6} MB ({size / 10**6:.0f} MB or more)."


def find(source: Path) -> tuple[list[Download], list[str]]:
    """The files of a folder or a .zip, in order, and a sentence for each that must not be read.

    ValueError or OSError where the source itself cannot be read.
    """
    source = Path(source)
    if source.is_dir():
        return _in_folder(source)
    if not source.exists():
        raise ValueError(f"{source} is not there.")
    if not source.is_file() or not zipfile.is_zipfile(source):
        raise ValueError(f"{source} is neither a folder nor a .zip.")
    return _in_zip(source)


def close(files: list[Download]) -> None:
    for archive in {id(f.archive): f.archive for f in files if f.archive}.values():
        archive.close()


def _shown(path: Path, source: Path) -> str:
    """A path in the download, with / and without what cannot be printed."""
    return path.relative_to(source).as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _in_folder(source: Path) -> tuple[list[Download], list[str]]:
    files, problems = [], []

    def unreadable(error: OSError) -> None:
        problems.append(f"{_shown(Path(error.filename), source)}: it cannot be read: {error.strerror}.")

    inside = source.resolve()
    for here, folders, names in os.walk(source, onerror=unreadable):
        folders.sort()
        for name in sorted(folders):
            path = Path(here, name)
            shown = _shown(path, source)
            if path.is_symlink():
                problems.append(f"{shown}: it is a link to a folder, and is not followed.")
            elif name.casefold().endswith(".ipynb"):
                problems.append(f"{shown}: it is a folder, not a notebook.")
        for name in sorted(names):
            path = Path(here, name)
            shown = _shown(path, source)
            try:
                about = path.stat()
                if path.is_symlink() and not path.resolve().is_relative_to(inside):
                    problems.append(f"{shown}: it is a link out of the folder, and is not followed.")
                elif not stat.S_ISREG(about.st_mode):
                    problems.append(f"{shown}: it is not a plain file.")
                elif about.st_size > MOST_BYTES:
                    problems.append(f"{shown}: {_too_large(about.st_size)}")
                else:
                    files.append(Download(shown, datetime.fromtimestamp(about.st_mtime, UTC), path))
            except OSError as error:
                problems.append(f"{shown}: it cannot be read: {error.strerror or error}.")
        if len(files) > MOST_FILES:
            raise ValueError(f"{source} holds more than {MOST_FILES} files. Give the folder of one download.")
    return files, problems


def _in_zip(source: Path) -> tuple[list[Download], list[str]]:
    files, problems = [], []
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"{source} is a .zip that cannot be read: {error}.") from None
    members = archive.infolist()
    if len(members) > MOST_FILES:
        archive.close()
        raise ValueError(f"{source} holds {len(members)} files; the most is {MOST_FILES}.")
    for member in members:
        path = member.filename.replace("\\", "/")  # as some programs for Windows write it
        if path.endswith("/"):
            if path.casefold().endswith(".ipynb/"):
                problems.append(f"{path}: it is a folder, not a notebook.")
            continue
        reason = _refusal(member, path)
        if reason:
            problems.append(f"{path[:MOST_LETTERS]}: {reason}")
            continue
        try:
            time = datetime(*member.date_time).astimezone(UTC)  # a zip keeps local time
        except (ValueError, OverflowError):
            time = datetime(1980, 1, 1, tzinfo=UTC)
        files.append(Download(path, time, member, archive))
    if not files:
        archive.close()
    return files, problems


def _refusal(member: zipfile.ZipInfo, path: str) -> str | None:
    """Why a member of a zip must not be read, or None."""
    if len(path) > MOST_LETTERS:
        return f"its path is longer than {MOST_LETTERS} letters."
    if path.startswith("/") or PureWindowsPath(path).drive:
        return "its path starts at the root of a disk."
    if ".." in PurePosixPath(path).parts:
        return "its path leads out of the folder, with `..`."
    if stat.S_ISLNK(member.external_attr >> 16):
        return "it is a link, and is not followed."
    if member.flag_bits & 1:
        return "it is encrypted."
    if member.file_size > MOST_BYTES:
        return _too_large(member.file_size)
    return None
