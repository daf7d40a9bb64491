"""Build the notebooks of the course from the text that is written by hand.

    course/lessons/NN_name.py      ->  notebooks/NN_name.ipynb            executed
    course/assignments/NN_name.py  ->  solutions/NN_name/NN_name.ipynb    executed, nbgrader's source
                                   ->  exercises/NN_name/NN_name.ipynb    nbgrader's own release of it

    python3 dev.py build            make what is missing or out of date
    python3 dev.py build --force 01 make again all that starts with 01
    python3 dev.py build --check    compare what is there with a fresh build; run nothing, write nothing

The text is py:percent, as jupytext reads it. In an assignment four marks on a cell say what it is:

    # %% answer="causal_mask"   the answer, with ### BEGIN SOLUTION ... ### END SOLUTION around it
    # %% check="causal_mask"    its check: kvlearn.check("causal_mask", causal_mask)
    # %% paste="causal_mask"    an answer of an earlier assignment that this one needs, with its own check
    # %% [markdown] why="only_layer_0"
                               prose, as an answer to the question in the cell before

A cell that measures may carry claim="took[0] < took[1]": what it must show, or it contradicts the
sentences beside them. The build evaluates it at the end of its run, and publishes nothing where it is false.

Between <!-- ### BEGIN SOLUTION --> and <!-- ### END SOLUTION -->, which no page shows, a why cell holds a
model answer and a rubric: lines such as "- says that ... (1 point)", of marks.WHY_POINTS points in all.

A check that gives points is written into the solution with two more seeds, as nbgrader's hidden tests: they
are not in the exercise, and nbgrader puts them back when it grades.

The build is deterministic: a cell's id comes from its text, and all that a run leaves behind by chance
is taken out. A notebook says in its metadata from which text, by which running.py and figures it was made (a
SHA-256); while that is still true, its cells are those of a fresh build, and every one has been executed,
it is not made again. Where the prose has changed and the code has not, it is written again with the outputs
that it has (--force runs it). A notebook runs in the folder in which it will lie, as Jupyter and nbval run
it, and a learner's copy runs in work/, so no lesson may lean on the working directory.
"""

import argparse
import sys
from pathlib import Path

import nbformat
from marks import BuildError
from nbformat import NotebookNode
from reading import registered_points, targets, unexecuted
from running import execute, release

ROOT = Path(__file__).resolve().parent.parent


def dump(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def write(path: Path, text: str) -> bool:
    """Write the file whole or not at all; say whether it changed."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8", newline="\n")
    part.replace(path)
    return True


def differences(fresh: NotebookNode, path: Path, executed: bool = True) -> list[str]:
    """In what the notebook at `path` differs from a fresh one, outputs aside."""
    if not path.exists():
        return ["it is not there"]
    there = nbformat.read(path, as_version=4)
    found = []
    if there.metadata != fresh.metadata:
        found.append("its metadata differ: the text, course/running.py or kvlearn/figures/ changed since")
    if len(there.cells) != len(fresh.cells):
        found.append(f"it has {len(there.cells)} cells, a fresh build has {len(fresh.cells)}")
    for number, (a, b) in enumerate(zip(there.cells, fresh.cells, strict=False), 1):
        for part in ("cell_type", "id", "source", "metadata"):
            if a.get(part) != b.get(part):
                found.append(f"cell {number} has another {part}")
    code = [cell for cell in there.cells if cell.cell_type == "code"]
    if executed and any(cell.execution_count is None for cell in code):
        found.append("not every cell was executed")
    return found


def keep_outputs(fresh: NotebookNode, path: Path) -> bool:
    """Take the outputs of the notebook at `path` if the same code ran there in the same way; say whether."""
    if not path.exists():
        return False
    there = nbformat.read(path, as_version=4)
    ran, code = ([cell for cell in n.cells if cell.cell_type == "code"] for n in (there, fresh))
    if there.metadata.get("kvlearn", {}).get("ran_by") != fresh.metadata.kvlearn.ran_by:
        return False
    if [(c.id, c.source, c.metadata) for c in ran] != [(c.id, c.source, c.metadata) for c in code]:
        return False
    if any(cell.execution_count is None for cell in ran):
        return False
    for cell, before in zip(code, ran, strict=True):
        cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return True


def build(root: Path = ROOT, names=(), force=False, points=registered_points) -> list[str]:
    """Make what is missing or out of date; return the paths that were written."""
    written, solutions, failed, chosen = [], {}, [], targets(root, names)
    for target in chosen:
        path = root / target.built
        try:
            fresh = unexecuted(root, target, points)
            if force or differences(fresh, path):
                if force or not keep_outputs(fresh, path):
                    print(f"{target.source}: running", flush=True)
                    execute(root, target, fresh)
                if write(path, dump(fresh)):
                    written.append(target.built)
        except BuildError as error:  # the others are still made
            failed.append(str(error))
            continue
        if target.released:
            solutions[target.name] = path.read_text(encoding="utf-8")
    for name, text in release(solutions).items():
        file = f"exercises/{name}/{name}.ipynb"
        if write(root / file, text):
            written.append(file)
    if failed:
        raise BuildError("\n\n".join(failed))
    return written


def check(root: Path = ROOT, names=(), points=registered_points) -> list[str]:
    """Compare all that is built with a fresh build, outputs aside; return the differences."""
    chosen, found, solutions = targets(root, names), [], {}
    for target in chosen:
        fresh = unexecuted(root, target, points)
        found += [f"{target.built}: {d}" for d in differences(fresh, root / target.built)]
        if target.released:
            solutions[target.name] = dump(fresh)
    for name, text in release(solutions).items():
        fresh = nbformat.reads(text, as_version=4)
        path = root / "exercises" / name / f"{name}.ipynb"
        found += [f"exercises/{name}/{name}.ipynb: {d}" for d in differences(fresh, path, executed=False)]
    if not names:
        ours = {t.built for t in chosen} | {t.released for t in chosen}
        for folder in ("notebooks", "solutions", "exercises"):
            for path in sorted(root.glob(f"{folder}/**/*.ipynb")):
                file = path.relative_to(root).as_posix()
                if file not in ours and ".ipynb_checkpoints" not in file:
                    found.append(f"{file}: nothing in course/ makes it")
    return found


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py build", description="Build the course's notebooks.")
    parser.add_argument("names", nargs="*", help="what to build: 01, 01_attention; all if left out")
    parser.add_argument("--force", action="store_true", help="make again what is up to date too")
    parser.add_argument("--check", action="store_true", help="compare with a fresh build only")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: this one)")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            lines = check(options.root.resolve(), options.names)
            print("\n".join(lines) or "What is built equals a fresh build.")
            return 1 if lines else 0
        written = build(options.root.resolve(), options.names, options.force)
        print("\n".join(f"wrote {path}" for path in written) or "Everything is up to date.")
        return 0
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
