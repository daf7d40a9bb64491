"""Recorded figures, one record per processor: a time holds only for the processor it was measured on.

A file holds {"records": [...]}. A new run replaces the record of its own processor and leaves the others.
Times of two processors are never compared: what is faster on an AMD processor may be slower on an Intel one.
"""

import json
from pathlib import Path

from benchmarks.recall_summary import as_json


def processor(figures: dict) -> str:
    """The processor of a record, with the number of its cores."""
    where = figures["machine"]
    return f"{where['cpu']}, {where['cores']} cores"


def read(path: Path) -> list[dict]:
    """The records of a file, the newest first; an empty list if there is no file."""
    if not path.exists():
        return []
    held = json.loads(path.read_text())
    return held.get("records", [held])  # recall.json, which takes an hour, is one record


def keep(path: Path, figures: dict) -> None:
    """Write the record, in place of the earlier one of the same processor."""
    others = [record for record in read(path) if processor(record) != processor(figures)]
    path.write_text(as_json({"records": [figures, *others]}))


def compared(before: list[dict], now: dict, seconds) -> str:
    """Compare the times with the last record of the same processor, in a sentence.

    Args:
        before: the earlier records.
        now: the new record.
        seconds: takes a record and gives {name: seconds}.
    """
    same = [record for record in before if processor(record) == processor(now)]
    if not same:
        known = ", ".join(processor(record) for record in before) or "no processor yet"
        return (
            f"This is {processor(now)}. There are records of {known}: times of different processors are not "
            "compared."
        )
    old, new = seconds(same[0]), seconds(now)
    if not (both := [name for name in new if name in old]):
        return f"The last record of this {processor(now)} has none of the times in this one."
    ratios = ", ".join(f"{name} {new[name] / old[name]:.2f}" for name in both)
    return f"Times on this {processor(now)}, divided by those in its record of {same[0]['date']}: {ratios}."
