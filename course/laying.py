"""Lay copies of the course's notebooks into work/, where a learner runs and changes them.

    notebooks/04_kv_cache.ipynb                ->  work/04_kv_cache/04_lesson.ipynb
    exercises/04_kv_cache/04_kv_cache.ipynb    ->  work/04_kv_cache/04_kv_cache.ipynb
    solutions/04_kv_cache/04_kv_cache.ipynb    ->  work/04_kv_cache/04_solution.ipynb

`dev.py lab` runs this file before it starts JupyterLab. JupyterLab autosaves open notebooks, so after running
a notebook that git tracks, a learner could not pull the next edition. Git ignores the copies.

When there is a new edition, it replaces a copy that the learner has not touched; any other copy is kept.
Running a cell already rewrites a notebook's outputs, counts and metadata, so "touched" is decided by the text
of its cells alone. work/.laid.json holds two hashes for each copy: of the edition laid, and of its cells.

The links of a copy are rewritten to where they lead from work/: to another copy where there is one. (Folders
that mirror the originals would need no rewriting, but the exercises have always been in work/NN_name/, where
learners have their answers.) The first cell, which says that the file is an original, is left out.

Uses only the standard library.
"""

import hashlib
import json
import os
import posixpath
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

ROOT = Path(__file__).resolve().parent.parent
RECORD = "work/.laid.json"
ORIGINAL = "original"  # the tag of the first cell, as in reading.py
LINK = re.compile(r'(\]\(<?|^ {0,3}\[[^\]]+\]: +<?|\b(?:href|src)=")([^\s()<>"]+)', re.MULTILINE)


def lay(root: Path = ROOT) -> list[str]:
    """Lay what is missing and renew what is untouched; return sentences that say what was done."""
    done, problems = {"new": [], "renewed": [], "kept": [], "odd": []}, []
    try:
        (root / "work").mkdir(exist_ok=True)
    except OSError as error:
        return [f"Your copies belong in a folder named work, which cannot be made: {error.strerror}."]
    places, record = copies(root), read_record(root)
    try:
        for original, copy in places.items():
            try:
                text = edition(root, original, places)
            except (OSError, ValueError, TypeError, AttributeError):
                problems.append(f"{original} cannot be read. To restore it: git checkout -- {original}")
                continue
            try:
                outcome = lay_one(root, copy, text, record)
            except OSError as error:
                problems.append(f"{copy} cannot be written or read: {error.strerror}.")
                continue
            if outcome:
                done[outcome].append(copy)
    finally:  # after Ctrl-C too: the record must know what was laid
        try:
            with part(root / RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n") as made:
                os.replace(made, root / RECORD)
        except OSError as error:
            problems.append(f"{RECORD} cannot be written: {error.strerror}.")
    return sentences(done) + problems


def sentences(done: dict[str, list[str]]) -> list[str]:
    lines = []
    if done["new"]:
        folders = sorted({posixpath.basename(posixpath.dirname(copy)) for copy in done["new"]})
        lines.append(f"New in work/: {', '.join(folders)}.")
    if done["renewed"]:
        lines.append(f"Updated (you had not changed it): {', '.join(done['renewed'])}.")
    if done["kept"]:
        lines.append(
            f"Kept as you have it, although the course has a newer edition: {', '.join(done['kept'])}. "
            "To get the new one, rename yours and start again."
        )
    if done["odd"]:
        lines.append(
            f"Cannot be read as a notebook, so left as it is: {', '.join(done['odd'])}. "
            "To get a new one, rename it and start again."
        )
    return lines


# --- One copy ---


def lay_one(root: Path, copy: str, text: str, record: dict) -> str | None:
    """Lay or renew one copy, and note that in `record`. Returns "new", "renewed", "kept", "odd" or None."""
    path, key = root / copy, copy.removeprefix("work/")
    now = {"edition": digest(text), "cells": cells_of(text)}
    if not os.path.lexists(path):
        path.parent.mkdir(exist_ok=True)
        if create(path, text):
            record[key] = now
            return "new"
    there = read(path)
    cells = cells_of(there)
    if cells is None:
        return "odd"
    laid = record[key] = laid_before(record, key, there, now)
    if laid["edition"] == now["edition"]:
        return None
    if cells == laid["cells"] and is_writable_file(path):
        with part(path, text) as made:
            if read(path) == there:  # not saved since it was read
                os.replace(made, path)
                record[key] = now
                return "renewed"
    if now["cells"] in (cells, laid["cells"]):  # the new edition differs in nothing that was written by hand
        record[key] = now
        return None
    return "kept"


def laid_before(record: dict, key: str, there: str, now: dict) -> dict:
    """The edition that a copy was made from; today's, where nothing is known about it.

    Before lessons were laid, the record held one hash for each exercise, of its whole text, under its name.
    If such an exercise has been saved since, its cells as laid are not known: None, which equals no cells.
    """
    if key in record:
        return record[key]
    name = posixpath.dirname(key)
    whole = record.pop(name, None) if key == f"{name}/{name}.ipynb" else None
    if whole is None:
        return now
    if whole == now["edition"]:
        return now
    return {"edition": whole, "cells": cells_of(there) if whole == digest(there) else None}


def read_record(root: Path) -> dict:
    """What was laid so far; nothing where that cannot be read, and then every copy is kept."""
    try:
        found = json.loads(read(root / RECORD) or "")
        return {key: entry for key, entry in found.items() if is_entry(key, entry)}
    except (OSError, ValueError, AttributeError):
        return {}


def is_entry(key: str, entry: object) -> bool:
    if "/" in key:
        return isinstance(entry, dict) and {"edition", "cells"} <= set(entry)
    return isinstance(entry, str)


# --- Files ---


def read(path: Path) -> str | None:
    """The text of a file, or None for anything else: a folder, a link to nothing, bytes that are not text."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def is_writable_file(path: Path) -> bool:
    """A file of the learner's own: neither a link nor protected against writing."""
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) and bool(mode & stat.S_IWUSR)


@contextmanager
def part(path: Path, text: str) -> Iterator[str]:
    """A whole file beside `path`, to be moved there in one step; gone afterwards, after Ctrl-C too."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".laying-") as folder:
        made = os.path.join(folder, path.name)
        with open(made, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        yield made


def create(path: Path, text: str) -> bool:
    """Write a new file; False where one came first."""
    with part(path, text) as made:
        try:
            os.link(made, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                return False
            os.rename(made, path)
    return True


# --- Notebooks ---


def copies(root: Path) -> dict[str, str]:
    """{original: copy}, as paths from the root, for every notebook that course/ makes."""
    places = {}
    for name in sorted({text.stem for text in root.glob("course/*/[0-9]*.py")}):
        number = name.partition("_")[0]
        places[f"notebooks/{name}.ipynb"] = f"work/{name}/{number}_lesson.ipynb"
        places[f"exercises/{name}/{name}.ipynb"] = f"work/{name}/{name}.ipynb"
        places[f"solutions/{name}/{name}.ipynb"] = f"work/{name}/{number}_solution.ipynb"
    return {original: copy for original, copy in places.items() if os.path.lexists(root / original)}


def edition(root: Path, original: str, places: dict[str, str]) -> str:
    """The text of a copy: the original without its first cell, with links that hold in work/. ValueError."""
    text = read(root / original) or ""
    if cells_of(text) is None:
        raise ValueError(f"{original} is not a notebook")
    notebook = json.loads(text)
    kept = [c for c in notebook["cells"] if ORIGINAL not in c.get("metadata", {}).get("tags", ())]
    for cell in kept:
        if cell["cell_type"] == "markdown":
            moved = move_links(root, "".join(cell["source"]), original, places)
            cell["source"] = moved.splitlines(keepends=True)
    notebook["cells"] = kept
    notebook.get("metadata", {}).get("kvlearn", {}).pop("ran_by", None)  # the build's own business
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def move_links(root: Path, text: str, original: str, places: dict[str, str]) -> str:
    """Rewrite the relative links of `original` so that from its copy they lead to copies and other files."""

    def move(match: re.Match) -> str:
        target, hash_sign, section = match[2].partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(original), unquote(target)))
        if not target or not (root / file).exists():
            return match[0]  # to a section of the same page, to the web, or not a link at all
        place = posixpath.relpath(places.get(file, file), posixpath.dirname(places[original]))
        return match[1] + quote(place) + hash_sign + section

    return LINK.sub(move, text)


def cells_of(text: str | None) -> str | None:
    """One hash of what is written in a notebook's cells, or None where `text` is not a notebook.

    Empty cells do not count: JupyterLab adds one when the last cell is run.
    """
    try:
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text or "")["cells"]]
    except (ValueError, TypeError, KeyError):
        return None
    return digest(json.dumps([cell for cell in cells if cell[1].strip()]))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    try:
        for line in lay():
            print(line)
    except KeyboardInterrupt:
        sys.exit(130)
