"""`kvlearn classroom ...`: one command for each thing that an instructor does, over the files beside it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kvlearn.classroom import collect as downloads
from kvlearn.classroom import course, export, feedback, grade, release, report, settings
from kvlearn.classroom.sandbox import SandboxError

app = typer.Typer(
    help="Release the exercises, collect, grade, and explain. Run it in the folder of the course.",
    no_args_is_help=True,
)
Assignment = Annotated[str, typer.Argument(help="An assignment, or its beginning: 02.")]
Assignments = Annotated[list[str] | None, typer.Argument(help="Assignments, or their beginnings; none: all.")]
Students = Annotated[list[str] | None, typer.Option("--student", help="Only this one; may be given again.")]


@contextmanager
def _course(begun: bool = True) -> Iterator[Path]:
    """The folder of the course, for this command alone; what is wrong is one sentence, and exit code 2.

    `begun`: there must be settings, and they must be right, for a command that does not read them as well.
    """
    try:
        root = _root()
        with course.alone(root):
            if begun:
                settings.read(root)
            yield root
    except (ValueError, OSError, SandboxError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename or 'A file'}: {error.strerror}."
        typer.echo(text, err=True)
        raise typer.Exit(2) from None


@app.command()
def start() -> None:
    """Make classroom/ with the settings of this class."""
    with _course(begun=False) as root:
        course.open_course(root)
        path, written = settings.create(root)
        settings.read(root)
    typer.echo(f"{path}: {'written; look through it once.' if written else 'is there, and can be read.'}")
    typer.echo("From now on, `python3 dev.py lab` in this folder shows nbgrader's menus and its formgrader.")


@app.command("release")
def release_command(assignments: Assignments = None) -> None:
    """Put assignments into the gradebook; what students get lies in exercises/."""
    with _course() as root:
        names = [course.find_assignment(root, name) for name in assignments or course.assignments(root)]
        for name in names:
            if release.release(root, name):
                typer.echo(f"exercises/{name} is new: it did not equal solutions/{name}.")
            typer.echo(f"{name}: in the gradebook. Students get exercises/{name}/{name}.ipynb.")


@app.command()
def collect(
    folder: Annotated[Path, typer.Argument(help="A folder, or a zip, of what students handed in.")],
    assignment: Annotated[
        str | None, typer.Option(help="The assignment, where the names of the files do not say it.")
    ] = None,
) -> None:
    """Sort downloads into classroom/submitted/. Exit code 1: some fit no pattern; they are listed."""
    with _course() as root:
        name = course.find_assignment(root, assignment) if assignment else None
        patterns = settings.read(root).patterns
        found = downloads.collect(root, folder, patterns, course.assignments(root), name)
    for verb, some in (
        ("new", found.collected),
        ("newer", found.replaced),
        ("older, not taken", found.older),
    ):
        for submission in some:
            typer.echo(
                f"{verb}: {submission.student}, {submission.assignment} ({_line(submission.file.path)})"
            )
    typer.echo(
        f"{len(found.collected)} new, {len(found.replaced)} newer, {len(found.unchanged)} as they were, "
        f"{len(found.older)} older; {len(found.unmatched)} fit no pattern; {len(found.problems)} problems."
    )
    for path in found.unmatched:
        typer.echo(f"no pattern fits: {_line(path)}", err=True)
    for problem in found.problems:
        typer.echo(_line(problem), err=True)
    if found.unmatched and not name:
        typer.echo("Notebooks that students have renamed: collect them again with --assignment.", err=True)
    raise typer.Exit(int(bool(found.unmatched or found.problems)))


@app.command("grade")
def grade_command(assignment: Assignment, student: Students = None) -> None:
    """Grade what is new, in a sandbox, in parallel. Exit code 1: some could not be graded."""
    for ending in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: workers are taken along
        if signal.getsignal(ending) is not signal.SIG_IGN:  # nohup's wish
            signal.signal(ending, signal.default_int_handler)
    with _course() as root:
        try:
            done = grade.grade(root, assignment, student, typer.echo)
        except KeyboardInterrupt:
            typer.echo("Broken off. The same command goes on where it stopped.", err=True)
            raise typer.Exit(130) from None
    typer.echo(
        f"{len(done.graded)} graded, {len(done.unchanged)} as they were, {len(done.problems)} not graded."
    )
    for name, problem in done.problems.items():
        typer.echo(f"{name}: {problem}", err=True)
    raise typer.Exit(int(bool(done.problems)))


@app.command("feedback")
def feedback_command(
    assignment: Annotated[str | None, typer.Argument(help="An assignment; none: all.")] = None,
    student: Students = None,
) -> None:
    """Write a page for each student: points, what was misunderstood, where to read."""
    with _course() as root:
        written = feedback.write(root, assignment, student, typer.echo)
    typer.echo(f"{len(written.paths)} pages in classroom/feedback/.")
    for name, problem in written.problems.items():
        typer.echo(f"{name}: {problem}", err=True)
    raise typer.Exit(int(bool(written.problems)))


@app.command("report")
def report_command(
    assignment: Annotated[str | None, typer.Argument(help="An assignment; none: all.")] = None,
    names: Annotated[bool, typer.Option("--names", help="List who to talk to.")] = False,
) -> None:
    """What the class has misunderstood: a table here, and a page with a figure."""
    with _course() as root:
        reports = report.read(root, assignment, names)
        for one in reports:
            typer.echo(report.table(one) + "\n")
        path = report.write(root, reports, names)
    typer.echo(f"As a page: {path}")


@app.command("export")
def export_command(
    to: Annotated[Path, typer.Argument(help="The CSV file to write.")],
    style: Annotated[str, typer.Option(help=f"{', '.join(export.STYLES)}.")] = "plain",
    assignment: Annotated[list[str] | None, typer.Option(help="Only this one; may be given again.")] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="With grades that still wait for grading by hand.")
    ] = False,
) -> None:
    """Write the grades for a learning platform."""
    with _course() as root:
        done = export.export(root, to, style, assignment or (), unfinished)
    typer.echo(f"{done.path}: {done.students} students.")
    if done.waiting:
        typer.echo(f"{len(done.waiting)} grades wait for grading by hand (nbgrader's formgrader).")


def _line(text: str) -> str:
    """Text of strangers, a file's name, on one line, and without what a terminal obeys."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _root() -> Path:
    """The folder of the course: here, or above."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / course.CONFIG).is_file():
            return folder
    raise course.CourseError(f"{here} is not in the folder of the course, which holds {course.CONFIG}.")
