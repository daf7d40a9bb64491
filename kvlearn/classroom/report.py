"""A report for the instructor: how each exercise went, and what was misunderstood, most frequent first.

`write` makes a page with figures, `table` the same as text for a terminal. Neither names a student, nor
holds any text of one, so that both can be shown in the room; `names=True` adds a list of whom to talk to,
and its page is a file of its own.
"""

from pathlib import Path

from markupsafe import Markup

from kvlearn.classroom import graded, settings
from kvlearn.classroom.files import write_whole
from kvlearn.classroom.outcomes import STATES
from kvlearn.classroom.pages import number, render
from kvlearn.classroom.summary import Report, Row, summarise


def read(root: Path, assignment: str | None = None, names: bool = False) -> list[Report]:
    """A Report for an assignment (its name, or the beginning of it), or for each that is graded.

    Raises CourseError (nothing graded, no such assignment, no gradebook) and SettingsError.
    """
    flag = settings.read(root).library == "flag"
    reports = []
    for name, students in graded.graded(root, assignment).items():
        submissions, problems = graded.read_graded(root, name, students)
        unread = list(problems.values()) if names else _without_names(len(problems))
        reports.append(summarise(name, submissions, flag=flag, names=names, unread=unread))
    return reports


def _without_names(count: int) -> list[str]:
    plural = "submission" if count == 1 else "submissions"
    return [f"{count} more {plural} could not be read; `--names` says which."] if count else []


def write(root: Path, reports: list[Report], names: bool = False) -> Path:
    """Write classroom/reports/ASSIGNMENT.html, with names ASSIGNMENT.names.html; of several all....html.

    Raises OSError.
    """
    name = reports[0].assignment if len(reports) == 1 else "all"
    path = Path(root) / "classroom" / "reports" / f"{name}{'.names' if names else ''}.html"
    return write_whole(path, page(reports, names=names))


def page(reports: list[Report], *, names: bool = False) -> str:
    """The reports as HTML in one piece, the figures inside it."""
    from kvlearn.figures.classroom import exercise_outcomes, frequent_mistakes  # matplotlib: for who draws

    facts = []
    for report in reports:
        counts = {row.label: row.counts for row in report.rows}
        mistakes = [(each.name, each.exercise, each.students) for each in report.frequent]
        facts.append({
            "report": report,
            "counts": Markup(exercise_outcomes(counts).html()) if counts else "",
            "mistakes": Markup(frequent_mistakes(mistakes, report.submissions).html()) if mistakes else "",
        })  # fmt: skip
    return render("report.html.jinja", reports=facts, names=names)


def table(report: Report) -> str:
    """A report as text for a terminal; without names at most 100 columns wide."""
    width = max([len("exercise"), *(len(row.label) for row in report.rows)])
    plural = "submission" if report.submissions == 1 else "submissions"
    lines = [
        f"{report.assignment}: {report.submissions} {plural}, "
        f"{number(report.mean)} of {number(report.most)} points on average by the checks",
        *report.unread,
        "",
        f"{'exercise':{width}}  right  wrong  stopped  not written",
    ]
    for row in report.rows:
        right, wrong, stopped, unwritten = (row.counts[state] for state in STATES)
        why = ", ".join(f"{by} {count}" for by, count in row.stopped_by.items())
        line = f"{row.label:{width}}  {right:5}  {wrong:5}  {stopped:7}  {unwritten:11}"
        lines.append(line + (f"  stopped by: {why}" if why else ""))
    lines += [str(prose) for prose in report.prose]
    lines += ["", "What was misunderstood (students, mistake, exercise)"]
    lines += [f"{m.students:5}  {m.name} ({m.exercise})" for m in report.misconceptions]
    if not report.misconceptions:
        lines.append("       no mistake that the checks know by name")
    lines += _without_a_name(report.rows)
    if report.copies:
        lines += ["", "Answers that use or equal a function of the library"]
        lines += [f"{count:5}  {exercise}" for exercise, count in report.copies.items()]
    if report.talk:
        lines += ["", "Who to talk to"]
    for student, reasons in report.talk.items():
        lines += [f"       {student}: {reasons[0]}", *(f"           {reason}" for reason in reasons[1:])]
    return "\n".join(lines)


def _without_a_name(rows: tuple[Row, ...]) -> list[str]:
    lines = []
    for row in rows:
        if row.causes:
            why = ", ".join(f"{cause} {count}" for cause, count in row.causes.items())
            lines.append(f"{sum(row.causes.values()):5}  {row.label}: {why}")
    return ["", "Wrong, without a mistake that has a name", *lines] if lines else []
