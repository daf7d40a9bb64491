"""Run a student's notebooks, and say which exercises are right: for a workflow that runs on each push.

    python -m kvlearn.classroom.validate exercises/01_attention/01_attention.ipynb

nbgrader's Validator runs them and finds checks that were edited; its own command, `nbgrader validate`, has
exit code 0 whatever it finds, and so cannot tell a workflow that something is wrong. The code runs as it is,
without a sandbox: this is for the student's own machine, or one that is thrown away.

Exit code 0: all is right. 1: something is not. 2: a file cannot be read as a notebook.
"""

import sys
from pathlib import Path

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbgrader.validator import Validator
from traitlets.config import Config

from kvlearn.classroom.outcomes import PROSE, Outcome, outcomes

SECONDS = 120  # that a cell may run


class Runs(Validator):
    """nbgrader's Validator, which keeps the notebook that it ran."""

    def _preprocess(self, nb):
        self.notebook = nb
        try:
            super()._preprocess(nb)
        except (DeadKernelError, CellTimeoutError):
            pass  # the cells behind have no outputs, and are told as checks that did not run
        return nb


def validate(path: Path) -> tuple[list[Outcome], int]:
    """What is said of each exercise of a notebook, and how many of its checks were edited.

    Raises OSError, or what nbformat and nbgrader raise, for a file that is no notebook of an assignment.
    """
    # Whatever kernel the student's editor has noted, this Python runs it.
    execute = {"timeout": SECONDS, "kernel_name": "python3"}
    execute["extra_arguments"] = ["--IPKernelApp.log_level=40"]  # errors: what it warns of is no student's
    config = Config(Execute=execute)
    runs = Runs(config=config)
    found = runs.validate(str(path.resolve()))
    if "type_changed" in found:
        return [], len(found["type_changed"])
    return outcomes(runs.notebook), len(found.get("changed", ()))


def lines(path: Path) -> tuple[list[str], bool]:
    """What is printed about a notebook, and whether all is right."""
    found, edited = validate(path)
    said = [str(path)]
    for outcome in found:
        state = "written" if outcome.state == PROSE else outcome.state
        said.append(f"  {state:11}  {outcome.grade_id.removesuffix('-check')}")
        if outcome.state not in ("right", PROSE):
            named = [f"Looks like: {outcome.misconception}."] if outcome.misconception else []
            reason = "\n".join([*named, outcome.reason])
            said += [f"               {line}" for line in reason.splitlines()]
    if edited:
        said.append(f"  {edited} cells that are not yours to edit were changed: take them from the original.")
    if not found and not edited:
        said.append("  There is no exercise in it.")
    return said, bool(found) and not edited and all(o.state in ("right", PROSE) for o in found)


def main(paths: list[str]) -> int:
    code = 0
    for path in map(Path, paths):
        try:
            said, right = lines(path)
        except Exception as error:  # of nbformat, of nbgrader, of the disk: whatever a file can be
            print(f"{path} cannot be read as a notebook: {getattr(error, 'strerror', None) or error}")
            code = 2
            continue
        print("\n".join(said), flush=True)
        code = max(code, int(not right))
    if not paths:
        print("Name the notebooks: python -m kvlearn.classroom.validate exercises/01_attention/*.ipynb")
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
