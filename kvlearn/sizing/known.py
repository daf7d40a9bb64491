"""Models and cards by name, from `models.json` and `gpus.json`, which name their sources."""

import difflib
import functools
import json
import re
from pathlib import Path

from kvlearn.sizing.config import shape_from_config
from kvlearn.sizing.shape import ModelShape

HERE = Path(__file__).parent
MIB = 2**20
# What a checkpoint's name has besides the model's: its maker, and what it was trained for afterwards.
_AROUND = re.compile(r"^(meta|nvidia|geforce|tesla)-|-(instruct|chat|base|hf|it|pt)(?=-|$)")


@functools.cache
def models() -> dict[str, dict]:
    """Every known model by name: its row, with config, source and bytes_per_token."""
    return {row["name"]: row for row in json.loads((HERE / "models.json").read_text("utf-8"))["models"]}


@functools.cache
def gpus() -> dict[str, int]:
    """Every known card by name: the bytes that its driver reports."""
    return {
        row["name"]: row["mib"] * MIB for row in json.loads((HERE / "gpus.json").read_text("utf-8"))["gpus"]
    }


def model(name: str) -> ModelShape:
    """The shape of a known model: model("llama-3.1-70b"). Raises ValueError, which says what is near."""
    return _shape(_find(name, models(), "model"))


@functools.cache
def _shape(name: str) -> ModelShape:
    row = models()[name]
    shape = shape_from_config(row["config"])
    notes = (row["note"],) if "note" in row else ()
    return shape.but(name=row["name"], parameters=row.get("parameters") or shape.parameters, notes=notes)


def gpu(name: str) -> int:
    """Bytes of a card's memory: gpu("h100"). Raises ValueError, which says what is near."""
    return gpus()[_find(name, gpus(), "GPU")]


def _find(name: str, table: dict, what: str) -> str:
    if isinstance(name, str):
        plain = re.sub(r"[\s_]+", "-", name.strip().lower().rpartition("/")[2])
        bare = _AROUND.sub("", _AROUND.sub("", plain))
        for candidate in (plain, bare, f"rtx-{bare}"):
            if candidate in table:
                return candidate
        near = difflib.get_close_matches(bare, table, n=3, cutoff=0.55)
    else:
        near = []
    said = f"Do you mean {' or '.join(near)}?" if near else f"There are: {', '.join(table)}."
    raise ValueError(f"There is no {what} called {name!r:.60}. {said}")
