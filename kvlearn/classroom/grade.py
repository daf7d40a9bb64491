"""Grade the submissions of an assignment: workers run them side by side, this process keeps the gradebook.

First, `blank` runs the assignment as released, with no answers written. Then:

    submitted/STUDENT/02_...   what was handed in
    executed/STUDENT/02_...    the same, mended and run inside the walls, by a worker (`work`)
    autograded/STUDENT/02_...  graded by nbgrader's Autograde, which finds the cells already run (`entering`)

A submission is graded again only if it, its assignment or the class's settings have changed, or the gradebook
does not have it: an executed notebook and a graded one say what they were made of. So a run that was broken
off goes on where it stopped.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from kvlearn.classroom import course, sandbox
from kvlearn.classroom.blank import try_blank
from kvlearn.classroom.entering import enter, entered, open_to_enter
from kvlearn.classroom.folders import Folders, made_of
from kvlearn.classroom.settings import Settings
from kvlearn.classroom.settings import read as read_settings
from kvlearn.classroom.workers import Workers


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
        tell: is given a line at the start and after each submission: how many, how long it will take.

    Raises:
        CourseError, SettingsError, SandboxError: no such assignment, nothing handed in, not released, no
            sandbox, or a blank submission that is not judged as it should be. Nothing was graded.
    """
    root = Path(root).resolve()
    settings, api = read_settings(root), open_to_enter(root)
    folders = Folders(root, course.find_assignment(root, assignment))
    known = entered(api, folders)
    result = Graded()
    left = {}
    for student in students or folders.students():
        if not folders.submitted(student).is_file():
            raise course.CourseError(f"{student} has handed in nothing for {folders.assignment}.")
        record = folders.record(student, settings)
        if student in known and made_of(folders.autograded(student)) == record:
            result.unchanged.append(student)
        else:
            left[student] = record
    if not left and not result.unchanged:
        raise course.CourseError(
            f"Nobody has handed in {folders.assignment}. `kvlearn classroom collect` comes first."
        )
    if left:
        warning = sandbox.missing()
        if warning:
            tell(warning)
        tell(f"{folders.assignment}: {len(left)} to grade, {settings.cores} at a time")
        _run(left, folders, settings, api, result, tell)
    return result


def _run(left: dict[str, str], folders: Folders, settings: Settings, api, result: Graded, tell) -> None:
    """Workers for all that is left; the gradebook is written here, one submission after the other."""
    with Workers(folders, settings) as workers, ThreadPoolExecutor(settings.cores) as pool:
        try:
            if any(made_of(folders.executed(student)) != record for student, record in left.items()):
                pool.submit(try_blank, workers, folders).result()
            start = time.monotonic()
            runs = {pool.submit(workers.execute, student, left[student]): student for student in left}
            for count, run in enumerate(as_completed(runs), 1):
                student = runs[run]
                problem = run.result() or enter(api, folders, student)
                if problem:
                    result.problems[student] = problem
                else:
                    result.graded.append(student)
                seconds = (time.monotonic() - start) / count * (len(left) - count)
                rest = f", about {_in_words(seconds)} to go" if count < len(left) else ""
                tell(f"{count} of {len(left)}: {student} {'NOT graded' if problem else 'graded'}{rest}")
        except BaseException:  # Ctrl-C too: nobody waits for workers whose work nobody takes
            pool.shutdown(wait=False, cancel_futures=True)
            workers.stop()
            raise


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes"
