"""Every command of the classroom on a disk that is full, and again once there is room.

    python full_disk.py ROOT      in ROOT a course, ROOT/classroom on a small disk of its own

Prints a list of [words of the command, "full" or "room", exit code, what it said, the files of classroom/].
A script, because a small disk is made by bubblewrap around a process.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from typer.testing import CliRunner

from kvlearn.classroom import command

COMMANDS = (
    ("start",),
    ("release", "00"),
    ("collect", "downloads"),
    ("grade", "00"),
    ("feedback", "00"),
    ("report", "00"),
    ("export", "classroom/grades.csv"),
)


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def main(root: Path) -> None:
    os.chdir(root)
    filler, told = root / "classroom" / "filler", []
    for words in COMMANDS:
        for disk in ("full", "room"):
            if disk == "full":
                fill(filler)
            with contextlib.redirect_stderr(io.StringIO()) as stderr:  # a library's own words, if any
                done = CliRunner().invoke(command.app, words)
            filler.unlink(missing_ok=True)
            files = sorted(str(p.relative_to(root)) for p in (root / "classroom").rglob("*") if p.is_file())
            said = (
                done.output
                + stderr.getvalue()
                + (repr(done.exception) if done.exit_code not in (0, 1, 2) else "")
            )
            told.append([words[0], disk, done.exit_code, said, files])
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
