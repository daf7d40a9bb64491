"""Run the benchmarks of time and memory, keep the figures as JSON and as tables, print the tables.

Each JSON says which machine, versions and threads it was taken with. Run it on an otherwise idle machine:
the runs are interleaved, so that a disturbance hits all of them alike, but a busy machine has no bandwidth
left to be measured against. (What a quantised cache recalls takes up to an hour and is a command of its own:
benchmarks/recall.py.)
"""

import json
from datetime import date
from pathlib import Path

from benchmarks import decode, memory, page
from kvlearn.measure import machine

HERE = Path(__file__).parent


def main():
    for benchmark in (decode, memory):
        name = benchmark.__name__.split(".")[-1]
        figures = {"date": date.today().isoformat(), "machine": machine(), **benchmark.measure()}
        (HERE / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
        print(f"\n{benchmark.table(figures)}\n")
    page.write()


if __name__ == "__main__":
    main()
