"""Processes that run submissions side by side, one for each, and are ended where they do not end."""

import multiprocessing
import shutil
import subprocess
import tempfile
from pathlib import Path
from queue import SimpleQueue

from kvlearn.classroom import watch
from kvlearn.classroom.folders import Folders, limits, made_of
from kvlearn.classroom.sandbox import STARTING
from kvlearn.classroom.settings import Settings
from kvlearn.classroom.work import Job, work

# A worker is a process of its own, forked from one that has imported all that it needs and has no threads.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["kvlearn.classroom.work"])
WORK = work
ALLOWANCE = 2 * STARTING + 300  # seconds: to start Jupyter, then the checks, and to read and write notebooks
ATTEMPTS = 2  # of a worker that is killed, before its submission is left for the next run


class Workers:
    """Processes that execute submissions, one for each."""

    def __init__(self, folders: Folders, settings: Settings):
        self.folders, self.settings = folders, settings
        self.numbers = SimpleQueue()  # each has a user of its own: a number is taken, and given back
        for number in range(settings.cores):
            self.numbers.put(number)
        self.processes, self.stopped = set(), False
        self.seconds = settings.submission_seconds + ALLOWANCE

    def __enter__(self) -> "Workers":
        self.scratch = Path(tempfile.mkdtemp(prefix="kvlearn-"))
        self.scratch.chmod(0o711)  # a worker's user goes through it, to a folder of its own
        return self

    def __exit__(self, *_) -> None:
        subprocess.run(["rm", "-rf", "--", str(self.scratch)], stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        self.stopped = True
        for process in tuple(self.processes):
            watch.kill(process.pid)

    def execute(self, student: str, record: str) -> str | None:
        """Have a worker run a submission; a sentence if it could not be."""
        folders, executed = self.folders, self.folders.executed(student)
        if made_of(executed) == record:
            return None
        problem = self.run(folders.submitted(student), executed, record)
        if problem is None and folders.timestamp(student).exists():
            shutil.copyfile(folders.timestamp(student), executed.with_name("timestamp.txt"))
        return problem

    def run(self, submitted: Path, executed: Path, record: str) -> str | None:
        """Have a worker run a notebook and write it to `executed`; return a sentence if that failed."""
        folders, number = self.folders, self.numbers.get()
        try:
            job = Job(
                submitted=submitted,
                released=folders.released,
                source=folders.source,
                executed=executed,
                record=record,
                seeds=self.settings.hidden_seeds,
                limits=limits(self.settings),
                scratch=self.scratch,
                worker=number,
            )
            told, problem = False, None
            for _ in range(ATTEMPTS):
                if not told and not self.stopped:
                    told, problem = self._try(job)
        finally:
            self.numbers.put(number)
        return problem if told else "its worker was killed, twice"  # and not by its submission

    def _try(self, job: Job) -> tuple[bool, str | None]:
        """Whether the worker lived to say how it went, and what went wrong."""
        receiver, sender = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=WORK, args=(job, sender))
        process.start()
        self.processes.add(process)
        sender.close()
        if self.stopped:  # meanwhile
            watch.kill(process.pid)
        try:
            if receiver.poll(self.seconds):
                return True, receiver.recv()
            watch.kill(process.pid)
            return True, f"its worker had not ended after {self.seconds:g} seconds. Grade it by hand."
        except EOFError:
            return False, None
        finally:
            process.join()
            self.processes.discard(process)
