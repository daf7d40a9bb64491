"""README.md of this folder: every recorded figure as a table, from the JSON files beside it."""

from pathlib import Path

from benchmarks import decode, kinds, memory, peers, recall_summary, records

HERE = Path(__file__).parent
TABLES = {
    "decode": decode.table,
    "memory": memory.table,
    "kinds": kinds.table,
    "peers": peers.table,
    "recall": recall_summary.table,
}


def write() -> None:
    """Make README.md again from the JSON files that are there."""
    page = [
        "# Measured",
        "",
        "Made by `python3 dev.py bench`, and recall by `python3 dev.py python -m benchmarks.recall`; the "
        "same figures are in the JSON files beside it.",
    ]
    for name, table in TABLES.items():
        for figures in records.read(HERE / f"{name}.json"):
            page += ["", table(figures), "", taken(figures)]
    (HERE / "README.md").write_text("\n".join(page) + "\n")


def taken(figures: dict) -> str:
    """When and where the figures were taken."""
    where = figures["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in where["versions"].items())
    return (
        f"Taken {figures['date']} on {where['cpu']}, {where['cores']} cores, {where['threads']} threads, "
        f"Python {where['python']}, {versions}."
    )
