"""Run benchmarks, all or those named, keep their figures as JSON and as tables, print the tables.

    python3 dev.py bench [decode] [memory] [kinds] [peers]

Each record says which processor, versions and threads it was taken with, and each processor has its own
record (`benchmarks.records`). Run it on an otherwise idle machine:
the runs are interleaved, so that a disturbance hits all of them alike, but a busy machine has no bandwidth
left to be measured against. Without names: all but peers, which needs packages of its own. (What a quantised
cache recalls takes up to an hour and is a command of its own, benchmarks/recall.py.)
"""

import json
import sys
from datetime import date
from pathlib import Path

from benchmarks import decode, kinds, memory, page, peers, records
from kvlearn.measure import machine

HERE = Path(__file__).parent
BENCHMARKS = {"decode": decode, "memory": memory, "kinds": kinds, "peers": peers}


def main():
    names = sys.argv[1:] or ["decode", "memory", "kinds"]
    if unknown := [name for name in names if name not in BENCHMARKS]:
        sys.exit(f"There is no benchmark {unknown[0]!r}. There are: {', '.join(BENCHMARKS)}.")
    for name in names:
        benchmark = BENCHMARKS[name]
        figures = {"date": date.today().isoformat(), "machine": machine(), **benchmark.measure()}
        figures = json.loads(json.dumps(figures))  # as a reader of the file has them
        path = HERE / f"{name}.json"
        print(f"\n{benchmark.table(figures)}\n")
        if hasattr(benchmark, "seconds"):
            print(records.compared(records.read(path), figures, benchmark.seconds) + "\n")
        records.keep(path, figures)
        page.write()


if __name__ == "__main__":
    main()
