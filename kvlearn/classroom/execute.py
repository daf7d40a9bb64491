"""nbgrader's `Execute`, with the kernel inside the walls of `sandbox`, for notebooks that nobody trusts.

What nbgrader's own does not survive costs one cell here: a cell that takes too long, and one that ends the
kernel. The kernel is then started again, runs the cells before this one once more (checks aside), and goes on
behind it. The cell's output says what happened, and so does that of its check.
"""

import os
import re
import subprocess
import tempfile
import time
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbgrader.preprocessors import Execute
from nbgrader.utils import is_grade
from traitlets import Any, Bool, Dict, Integer, List, Unicode

from kvlearn.classroom import sandbox, watch
from kvlearn.classroom.outcomes import is_right
from kvlearn.classroom.reasons import NO_MEMORY, error_line
from kvlearn.classroom.results import MIME
from kvlearn.classroom.sandbox import SandboxError

MOST_OUTPUT = 200_000  # characters that are kept of the output of a cell
MOST_OUTPUTS = 5_000_000  # of all cells together
MOST_RESULT = 50_000  # characters of what a check found
BEFORE_ALL = "import kvlearn.classroom.inside; kvlearn.classroom.inside.SEEDS.extend({seeds})"
BEFORE_A_CHECK = "import kvlearn.classroom.inside; kvlearn = kvlearn.classroom.inside.afresh()\n"
# In the place of an answer, by exec: so no tool of Python's shows its source, on a page of feedback say.
IN_PLACE = """
for _line in {imports}:
    try:
        exec(_line)
    except Exception:
        pass
exec(compile({answer}, "<the course's answer>", "exec"))
"""


def leave_to_the_check(cell: NotebookNode) -> None:
    """Make the outputs of a check say to nbgrader what the check found, and nothing else.

    nbgrader gives no points where something was written to stderr, such as a warning, takes a number that a
    cell shows for points, and stops reading at any such result. So an answer that calls `sys.displayhook`
    could get the points of a check that fails, or lose those of one that passes. Graded cells of an
    instructor's own, without `kvlearn.check`, are left to nbgrader.
    """
    if "kvlearn.check(" not in cell.source:
        return
    for output in cell.outputs:
        if output.output_type == "execute_result":
            output.output_type = "display_data"
            output.pop("execution_count", None)
        elif output.output_type == "stream":
            output.name = "stdout"
    failed = any(output.output_type == "error" for output in cell.outputs)
    if not failed and not is_right(cell):
        cell.outputs.append(error_output("NotRight", "The check did not find the answer right."))


class ConfinedKernelManager(AsyncKernelManager):
    """Starts a kernel inside, and talks to it through sockets in a folder that both sides see."""

    def __init__(self, limits, worker, scratch, **kwargs):
        super().__init__(**kwargs)
        self.limits, self.worker = limits, worker
        self.folder = Path(tempfile.mkdtemp(prefix="kvlearn-", dir=scratch or None))
        self.transport = "ipc"
        self.connection_file = str(self.folder / "kernel.json")

    def format_kernel_cmd(self, extra_arguments=None):
        inner = super().format_kernel_cmd(extra_arguments)
        confined = sandbox.command(inner, self.folder, self.limits, self.worker)
        owner = self.folder.stat()
        os.chown(self.connection_file, owner.st_uid, owner.st_gid)  # the kernel's user reads it
        return confined

    def remove_folder(self):
        # Not shutil.rmtree: it fails on folders that are nested a thousand times.
        subprocess.run(["rm", "-rf", "--", str(self.folder)], stderr=subprocess.DEVNULL)


class OutOfTime(Exception):
    """The submission has had all its time."""


class OutOfMemory(Exception):
    """A cell ran out of memory and still holds most of it."""


class ConfinedExecute(Execute):
    """Run a submission inside. What is wrong with it stands in its cells' outputs; nothing is raised."""

    limits = Any(sandbox.Limits())
    worker = Integer(0, help="Which worker this is; each has a user of its own.")
    scratch = Unicode(help="The folder for what is needed while it runs; the system's when left out.")
    startup_timeout = Integer(sandbox.STARTING, help="Seconds that a kernel may take to start.")
    iopub_timeout = Integer(60, help="Seconds to wait for the output of a cell that has ended.")
    seeds = List(help="Seeds of the checks beside the one that students see.")
    answers = Dict(help="By grade_id, what takes the place of an answer that is not right.")
    interrupt_on_timeout = Bool(False, help="Never: code can catch an interrupt, and go on.")

    def preprocess(self, nb: NotebookNode, resources):
        """Run all cells. Returns (nb, resources); nb's cells have their outputs."""
        self._deadline = time.monotonic() + self.limits.submission_seconds
        self.timeout_func = self._seconds_left
        self._lost: dict[str, str] = {}  # ids of cells that cost a kernel, and what happened
        self._replaced: set[str] = set()  # checks behind which a right answer stands
        self._size_of_all = done = 0
        while done < len(nb.cells):
            running = None
            try:
                with self._kernel(nb, resources):
                    for index in range(done):
                        self._run_again(index)
                    for running in range(done, len(nb.cells)):
                        self._run(running)
                        done = running + 1
            except Exception as error:  # of a cell, whatever it did to Python, or sent to Jupyter
                ours = running is None and not self._lost
                if ours or isinstance(error, OSError) and not isinstance(error, TimeoutError):
                    raise
                if running is None or time.monotonic() >= self._deadline:
                    self._give_up(nb.cells[done:])
                    break
                self._lose(nb.cells[running], error)
                done = running + 1
        return nb, resources

    # Kernels -----------------------------------------------------------------------------------------

    @contextmanager
    def _kernel(self, nb, resources):
        NotebookClient.__init__(
            self,
            nb,
            ConfinedKernelManager(self.limits, self.worker, self.scratch, kernel_name="python3"),
        )
        self.reset_execution_trackers()
        self._check_assign_resources(resources)
        manager, start, ready = self.km, time.monotonic(), False
        # A file, not the terminal: what student code writes there itself is no message of a cell.
        said = tempfile.TemporaryFile()
        streams = {"stdout": said, "stderr": said}
        try:
            with self.setup_kernel(
                cwd=str(manager.folder), env=sandbox.environment(str(manager.folder)), **streams
            ):
                pid, limits = manager.provisioner.process.pid, self.limits
                self._watch = watch.Watch(pid, limits.memory_bytes, limits.file_bytes, manager.folder)
                self._watch.start()
                try:
                    self._prepare()
                    ready = True
                    if not self._lost:  # the first start is not the student's time; who ends Python pays
                        self._deadline += time.monotonic() - start
                    yield
                finally:
                    self._watch.stop()
                    watch.kill(pid)
        except (RuntimeError, TimeoutError) as error:
            if ready or isinstance(error, SandboxError):
                raise
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
            raise SandboxError(f"Python did not start in the sandbox: {last[0]}") from None
        finally:
            said.close()
            manager.remove_folder()

    def _prepare(self) -> None:
        """Import the checks, before any line of the student's."""
        cell = new_code_cell(BEFORE_ALL.format(seeds=tuple(self.seeds)), metadata={"ours": True})
        self._apart(cell)
        for output in cell.outputs:
            if output.output_type == "error":
                raise SandboxError(
                    f"The checks did not start in the sandbox: {output.ename}: {output.evalue}"
                )

    # Cells -------------------------------------------------------------------------------------------

    def _run(self, index: int) -> None:
        cell = self.nb.cells[index]
        if cell.cell_type != "code":
            return
        answer = self._lost.get(_answered(cell))
        if answer is not None:
            cell.outputs = [error_output("NotChecked", f"There is nothing to check. {answer}")]
            self._replace(cell)
            return
        self._size = 0
        source = cell.source
        if is_grade(cell):
            cell.source = BEFORE_A_CHECK + source
        try:
            self.execute_cell(cell, index, store_history=not is_grade(cell))
        finally:
            cell.source = source
        if _ran_out_of_memory(cell) and self._watch.holds_more_than(self.limits.memory_bytes // 2):
            raise OutOfMemory  # a global list, for example, may hold memory that the next cells need
        if is_grade(cell):
            leave_to_the_check(cell)
            if any(output.output_type == "error" for output in cell.outputs):
                self._replace(cell)

    def _replace(self, check: NotebookNode) -> None:
        """Put a right answer in the place of one that is not: it costs its own points, and no others."""
        self._replaced.add(_name(check))
        name = _answered(check)
        if name in self.answers:
            given = next((cell.source for cell in self.nb.cells if _name(cell) == name), "")
            imports = re.findall(r"^(?:import|from)\s.+$", given, re.M)  # others may need them
            self._apart(new_code_cell(IN_PLACE.format(imports=imports, answer=repr(self.answers[name]))))

    def _run_again(self, index: int) -> None:
        """For what the cells behind it need: a check leaves nothing, and a lost cell would be lost again."""
        cell = self.nb.cells[index]
        if _name(cell) in self._replaced:
            self._replace(cell)
        elif cell.cell_type == "code" and not is_grade(cell) and _name(cell) not in self._lost:
            self._apart(deepcopy(cell))

    def _apart(self, cell: NotebookNode) -> None:
        """Run a cell that is not to be seen in the notebook."""
        first, self._size = self.nb.cells[0], 0
        self.execute_cell(cell, 0, store_history=False)
        self.nb.cells[0] = first

    def on_cell_executed(self, **given):
        super().on_cell_executed(**given)
        payload = given["execute_reply"]["content"].get("payload", [])
        if any(part.get("source") == "ask_exit" for part in payload):
            raise DeadKernelError("the cell has asked the kernel to end")  # which it does in a moment

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] in ("status", "execute_input"):
            return super().process_message(msg, cell, cell_index)
        if msg["msg_type"] == "clear_output" and is_grade(cell):
            return None  # it would take what the check has found
        size = len(str(msg["content"]))
        if is_grade(cell) and MIME in msg["content"].get("data", {}) and size < MOST_RESULT:
            return super().process_message(msg, cell, cell_index)
        before, self._size = self._size, self._size + size
        self._size_of_all += size
        if before > MOST_OUTPUT:
            return None
        if self._size > MOST_OUTPUT or self._size_of_all > MOST_OUTPUTS:
            self._size = MOST_OUTPUT + 1
            text = f"[More than {MOST_OUTPUT:,} characters: the rest of this output was dropped.]\n"
            cell.outputs.append(new_output("stream", name="stderr", text=text))
            return None
        return super().process_message(msg, cell, cell_index)

    # What went wrong ---------------------------------------------------------------------------------

    def _seconds_left(self, cell) -> int:
        if cell.metadata.get("ours"):
            return self.startup_timeout
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return max(1, round(min(self.limits.cell_seconds, left)))

    def _lose(self, cell, error) -> None:
        name = "CellTimeoutError" if isinstance(error, CellTimeoutError) else "DeadKernelError"
        if self._watch.exceeded == "files":
            name, mebibytes = "TooMuchWritten", self.limits.file_bytes / 2**20
            why = f"This cell wrote more than {mebibytes:g} MiB or {watch.MOST_FILES} files, and was stopped."
        elif self._short_of_memory(cell, error):
            name, gibibytes = "OutOfMemory", self.limits.memory_bytes / 2**30
            why = f"This cell took more than {gibibytes:g} GiB of memory, and was stopped."
        elif isinstance(error, DeadKernelError) and self._watch.machine_ran_out():
            name, why = "OutOfMemory", "The computer ran out of memory while this cell ran, and stopped it."
        elif isinstance(error, CellTimeoutError):
            why = f"This cell had not ended after {self.limits.cell_seconds} seconds, and was stopped."
        elif isinstance(error, DeadKernelError):
            why = "This cell ended Python itself, by os._exit or quit, or by a crash."
        else:
            why = "This cell sent Jupyter a message that cannot be read, and was stopped."
        self._lost[_name(cell)] = why
        if is_grade(cell):
            self._replaced.add(_name(cell))
        cell.outputs = [*cell.get("outputs", []), error_output(name, why)]

    def _short_of_memory(self, cell, error) -> bool:
        if self._watch.exceeded or isinstance(error, OutOfMemory) or _ran_out_of_memory(cell):
            return True
        return isinstance(error, DeadKernelError) and self._watch.was_near_the_limit()

    def _give_up(self, cells) -> None:
        limit = self.limits.submission_seconds
        name = "NotRun"
        why = f"The notebook had not ended after {limit} seconds in all; this cell was not run to its end."
        if time.monotonic() < self._deadline:
            name = "NotRunAgain"
            why = "The cells before this one could not be run a second time; this cell was not run."
        for cell in cells:
            if cell.cell_type == "code":
                cell.outputs = [error_output(name, why)]


def error_output(name: str, text: str) -> NotebookNode:
    return new_output("error", ename=name, evalue=text, traceback=[text])


def _ran_out_of_memory(cell) -> bool:
    errors = [output for output in cell.get("outputs", []) if output.output_type == "error"]
    return any(NO_MEMORY.search(error_line(error)) for error in errors)


def _name(cell) -> str:
    """The exercise that a cell answers, or else the cell's own id."""
    return cell.metadata.get("nbgrader", {}).get("grade_id") or cell.get("id", "")


def _answered(cell) -> str | None:
    """Of a check's cell, the name of the cell that holds the answer."""
    return _name(cell).removesuffix("-again").removesuffix("-check") if is_grade(cell) else None
