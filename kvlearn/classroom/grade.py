"""Grade the submissions of an assignment: workers run them side by side, this process keeps the gradebook.

    submitted/STUDENT/02_...   what was handed in
    executed/STUDENT/02_...    the same, mended and run inside the walls, by a worker (`work`)
    autograded/STUDENT/02_...  graded by nbgrader's Autograde, which finds the cells already run

A submission is graded again only if it, its assignment or the class's settings have changed: an executed
notebook and a graded one say what they were made of. So a run that was broken off goes on where it stopped.
"""

import hashlib
import multiprocessing
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import nbformat
from nbgrader.api import MissingEntry
from nbgrader.apps.api import NbGraderAPI
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    DeduplicateIds,
    LimitOutput,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)

from kvlearn.classroom import course, sandbox
from kvlearn.classroom.settings import Settings
from kvlearn.classroom.settings import read as read_settings
from kvlearn.classroom.work import Job, work

# A worker is a process of its own, forked from one that has imported all that it needs and has no threads.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["kvlearn.classroom.work"])
WORK = work
ALLOWANCE = 300  # seconds
ATTEMPTS = 2  # of a worker that is killed, before its submission is left for the next run


@dataclass
class Graded:
    """What a run did, each a list of students (`problems`: student -> sentence)."""

    graded: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def grade(
    root: Path,
    assignment: str,
    students: list[str] | None = None,
    tell: Callable[[str], None] = print,
) -> Graded:
    """Grade what is new of an assignment.

    Args:
        root: of the repository.
        assignment: its name, or the beginning of it.
        students: these alone; all who have handed it in when left out.
        tell: is given a line after each submission: how many, how long it will take.

    Raises:
        CourseError, SettingsError: no such assignment, nothing handed in, not released.
    """
    root = Path(root).resolve()
    settings, api = read_settings(root), grading_api(root)
    assignment = course.find_assignment(root, assignment)
    _check_released(api, assignment)
    folders = _Folders(root, assignment)
    result = Graded()
    left = {}
    for student in students or folders.students():
        if not folders.submitted(student).is_file():
            raise course.CourseError(f"{student} has handed in nothing for {assignment}.")
        record = folders.record(student, settings)
        if _made_of(folders.autograded(student)) == record:
            result.unchanged.append(student)
        else:
            left[student] = record
    if not left and not result.unchanged:
        raise course.CourseError(
            f"Nobody has handed in {assignment}. `kvlearn classroom collect` comes first."
        )
    warning = sandbox.missing()
    if warning and left:
        tell(warning)
    _run(left, folders, settings, api, result, tell)
    return result


def _run(left: dict[str, str], folders, settings: Settings, api, result: Graded, tell) -> None:
    """Workers for all that is left; the gradebook is written here, one submission after the other."""
    workers = _Workers(folders, settings)
    start = time.monotonic()
    with ThreadPoolExecutor(settings.cores) as pool:
        runs = {pool.submit(workers.execute, student, record): student for student, record in left.items()}
        try:
            for count, run in enumerate(as_completed(runs), 1):
                student = runs[run]
                problem = run.result() or _enter(api, folders.assignment, student)
                if problem:
                    result.problems[student] = problem
                else:
                    result.graded.append(student)
                seconds = (time.monotonic() - start) / count * (len(left) - count)
                rest = f", about {_in_words(seconds)} to go" if count < len(left) else ""
                said = f"NOT graded: {problem}" if problem else "graded"
                tell(f"{count} of {len(left)}: {student} {said}{rest}")
        except BaseException:  # Ctrl-C too: nobody waits for workers whose work nobody takes
            pool.shutdown(wait=False, cancel_futures=True)
            workers.stop()
            raise


class _Workers:
    """Processes that execute submissions, one for each."""

    def __init__(self, folders, settings: Settings):
        self.folders, self.settings = folders, settings
        self.numbers = SimpleQueue()  # each has a user of its own: a number is taken, and given back
        for number in range(settings.cores):
            self.numbers.put(number)
        self.processes, self.stopped = set(), False
        # Of a worker: its submission's time, and ours to start Python and to read and write notebooks.
        self.seconds = settings.submission_seconds + ALLOWANCE

    def stop(self) -> None:
        self.stopped = True
        for process in tuple(self.processes):
            sandbox.kill(process.pid)

    def execute(self, student: str, record: str) -> str | None:
        """Have a worker run a submission; a sentence if it could not be."""
        folders, executed = self.folders, self.folders.executed(student)
        if _made_of(executed) == record:
            return None
        number = self.numbers.get()
        try:
            job = Job(
                submitted=folders.submitted(student),
                released=folders.released,
                source=folders.source,
                executed=executed,
                record=record,
                seeds=self.settings.hidden_seeds,
                limits=_limits(self.settings),
                worker=number,
            )
            told, problem = False, None
            for _ in range(ATTEMPTS):
                if not told and not self.stopped:
                    told, problem = self._try(job)
        finally:
            self.numbers.put(number)
        if not told:  # killed, and not by its submission
            return "its worker was killed, twice"
        if problem is None and folders.timestamp(student).exists():
            shutil.copyfile(folders.timestamp(student), executed.with_name("timestamp.txt"))
        return problem

    def _try(self, job: Job) -> tuple[bool, str | None]:
        """Whether the worker lived to say how it went, and what went wrong."""
        receiver, sender = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=WORK, args=(job, sender))
        process.start()
        self.processes.add(process)
        sender.close()
        if self.stopped:  # meanwhile
            sandbox.kill(process.pid)
        try:
            if receiver.poll(self.seconds):
                return True, receiver.recv()
            sandbox.kill(process.pid)
            return True, f"its worker had not ended after {self.seconds:g} seconds. Grade it by hand."
        except EOFError:
            return False, None
        finally:
            process.join()
            self.processes.discard(process)


def _enter(api: NbGraderAPI, assignment: str, student: str) -> str | None:
    """Put an executed submission into the gradebook; a sentence if nbgrader could not."""
    outcome = api.autograde(assignment, student, force=True, create=True)
    if not outcome["success"]:
        return f"nbgrader could not grade it: {course.reason(outcome)}"
    return None


def grading_api(root: Path) -> NbGraderAPI:
    """nbgrader's API, set up to find submissions in executed/ and not to run them again."""
    api = course.open_course(root)
    api.coursedir.submitted_directory = "classroom/executed"
    api.config.Autograde.sanitize_preprocessors = [
        DeduplicateIds,
        OverwriteKernelspec,
        OverwriteCells,
        CheckCellMetadata,
    ]
    api.config.Autograde.autograde_preprocessors = [
        LimitOutput,
        SaveAutoGrades,
        AssignLatePenalties,
        CheckCellMetadata,
    ]
    return api


def _check_released(api: NbGraderAPI, assignment: str) -> None:
    with api.gradebook as gradebook:
        try:
            gradebook.find_assignment(assignment)
        except MissingEntry:
            raise course.CourseError(
                f"{assignment} is not in the gradebook. `kvlearn classroom release {assignment}` comes first."
            ) from None


def _limits(settings: Settings) -> sandbox.Limits:
    return sandbox.Limits(
        cell_seconds=settings.cell_seconds,
        submission_seconds=settings.submission_seconds,
        memory_bytes=settings.memory,
    )


def _made_of(path: Path) -> str | None:
    """The record in a notebook that a worker has written, or None."""
    try:
        return nbformat.read(path, as_version=4).metadata.get("kvlearn", {}).get("record")
    except Exception:  # not there, or broken off in the middle by somebody else
        return None


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes"


class _Folders:
    """Where the files of one assignment are."""

    def __init__(self, root: Path, assignment: str):
        self.root, self.assignment = root, assignment
        self.released = root / "exercises" / assignment / f"{assignment}.ipynb"
        self.source = root / "solutions" / assignment / f"{assignment}.ipynb"

    def _of(self, step: str, student: str) -> Path:
        return self.root / "classroom" / step / student / self.assignment / f"{self.assignment}.ipynb"

    def submitted(self, student: str) -> Path:
        return self._of("submitted", student)

    def timestamp(self, student: str) -> Path:
        return self.submitted(student).with_name("timestamp.txt")

    def executed(self, student: str) -> Path:
        return self._of("executed", student)

    def autograded(self, student: str) -> Path:
        return self._of("autograded", student)

    def students(self) -> list[str]:
        found = (self.root / "classroom" / "submitted").glob(f"*/{self.assignment}/{self.assignment}.ipynb")
        return sorted(path.parent.parent.name for path in found)

    def record(self, student: str, settings: Settings) -> str:
        """A hash of all that a grade depends on."""
        parts = [path.read_bytes() for path in (self.submitted(student), self.released, self.source)]
        parts.append(repr((settings.hidden_seeds, _limits(settings))).encode())
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
