"""Run every benchmark, keep the figures as JSON and as tables, print the tables.

Each JSON says which machine, versions and threads it was taken with. Run it on an otherwise idle machine:
the runs are interleaved, so that a disturbance hits all of them alike, but a busy machine has no bandwidth
left to be measured against.
"""

import json
from datetime import date
from pathlib import Path

from benchmarks import decode, memory
from kvlearn.measure import machine

HERE = Path(__file__).parent


def main():
    page = [
        "# Measured",
        "",
        "Made by `python3 dev.py bench`; the same figures are in the JSON files beside it.",
    ]
    for benchmark in (decode, memory):
        name = benchmark.__name__.split(".")[-1]
        figures = {"date": date.today().isoformat(), "machine": machine(), **benchmark.measure()}
        (HERE / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
        table = benchmark.table(figures)
        print(f"\n{table}\n")
        page += ["", table]
    where = figures["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in where["versions"].items())
    page += [
        "",
        f"Taken {figures['date']} on {where['cpu']}, {where['cores']} cores, {where['threads']} threads, "
        f"Python {where['python']}, {versions}.",
    ]
    (HERE / "README.md").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
