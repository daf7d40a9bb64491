"""A report for the instructor: how each exercise went, and what was misunderstood, most frequent first.

`write` makes a page with a figure, `table` the same as text for a terminal. Neither names a student, nor
holds any text of one, so that both can be shown in the room; `names=True` adds a list of whom to talk to.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from kvlearn.checks import REGISTRY
from kvlearn.classroom import graded, settings
from kvlearn.classroom.files import write_whole
from kvlearn.classroom.graded import Submission
from kvlearn.classroom.outcomes import STATES, Outcome, plain
from kvlearn.classroom.pages import number, render
from kvlearn.classroom.sections import where_to_read


@dataclass(frozen=True)
class Row:
    """One exercise. counts: state -> submissions; known: of the wrong ones, those with a named mistake."""

    name: str
    title: str
    again: bool
    counts: dict[str, int]
    known: int
    stopped_by: dict[str, int]

    @property
    def label(self) -> str:
        return f"{self.name} (again)" if self.again else self.name


@dataclass(frozen=True)
class Misunderstood:
    """A misconception: how many students have it, on which exercise, what is wrong, where it is taught."""

    students: int
    exercise: str
    name: str
    says: str
    read: str | None


@dataclass(frozen=True)
class Prose:
    """A cell that a person reads: how many of those asked have points, and their mean."""

    title: str
    asked: int
    given: int
    mean: float
    most: float


@dataclass(frozen=True)
class Report:
    """An assignment of a class.

    mean, most: points of a submission by the checks, on average and at most; `prose` has the rest.
    unread: sentences about submissions that could not be read. copies: exercise -> answers that are the
    library's. talk: student -> reasons; empty unless names were asked for.
    """

    assignment: str
    submissions: int
    mean: float
    most: float
    rows: tuple[Row, ...]
    misconceptions: tuple[Misunderstood, ...]
    prose: tuple[Prose, ...]
    copies: dict[str, int]
    talk: dict[str, list[str]]
    unread: tuple[str, ...] = ()


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


def write(root: Path, reports: list[Report], names: bool = False) -> Path:
    """Write classroom/reports/ASSIGNMENT.html; of several assignments all.html. Raises OSError."""
    name = reports[0].assignment if len(reports) == 1 else "all"
    path = Path(root) / "classroom" / "reports" / f"{name}.html"
    return write_whole(path, page(reports, names=names))


def summarise(
    assignment: str,
    submissions: list[Submission],
    *,
    flag: bool = True,
    names: bool = False,
    unread: Iterable[str] = (),
) -> Report:
    """Count. `flag`: look for answers that are the library's; `names`: list whom to talk to."""
    checks: dict[str, list[Outcome]] = {}
    prose: dict[str, list[tuple]] = {}
    for submission in submissions:
        for outcome in submission.outcomes:
            if outcome.prose:
                found = (outcome, submission.points.get(outcome.grade_id))
                prose.setdefault(outcome.grade_id, []).append(found)
            else:
                checks.setdefault(outcome.grade_id, []).append(outcome)
    count = len(submissions)
    checked = [[p for name, p in s.points.items() if name not in prose] for s in submissions]
    return Report(
        assignment=assignment,
        submissions=count,
        mean=sum(point.score for points in checked for point in points) / max(1, count),
        most=max((sum(point.most for point in points) for points in checked), default=0.0),
        rows=tuple(_row(found) for found in checks.values()),
        misconceptions=_misconceptions(submissions),
        prose=tuple(_prose(found) for found in prose.values()),
        copies=dict(Counter(name for s in submissions for name in _copied(s))) if flag else {},
        talk=_talk(submissions, flag) if names else {},
        unread=tuple(unread),
    )


def _row(outcomes: list[Outcome]) -> Row:
    states = Counter(outcome.state for outcome in outcomes)
    return Row(
        name=outcomes[0].name,
        title=outcomes[0].title,
        again=outcomes[0].again,
        counts={state: states[state] for state in STATES},
        known=sum(outcome.misconception is not None for outcome in outcomes),
        stopped_by=dict(Counter(outcome.stopped_by for outcome in outcomes if outcome.stopped_by)),
    )


def _misconceptions(submissions: list[Submission]) -> tuple[Misunderstood, ...]:
    """Each counts once a student, also where the same answer stands in a notebook twice."""
    counts = Counter(
        found
        for submission in submissions
        for found in {(o.name, o.misconception) for o in submission.outcomes if o.misconception}
    )
    says = {(e.name, m.name): m.says for e in REGISTRY.values() for m in e.misconceptions}
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Misunderstood(students, exercise, name, says[exercise, name], where_to_read(exercise))
        for (exercise, name), students in ordered
    )


def _prose(found: list[tuple]) -> Prose:
    outcome = found[0][0]
    points = [each for _, each in found if each is not None]
    given = [each.score for each in points if not each.waiting]
    most = max((each.most for each in points), default=0.0)
    return Prose(outcome.title, len(found), len(given), sum(given) / max(1, len(given)), most)


def _copied(submission: Submission) -> set[str]:
    """Names of a submission's exercises of which the answer is the library's."""
    known = {outcome.answer_id: outcome.name for outcome in submission.outcomes}
    by_text = {known[name] for each in submission.copied if (name := each.partition(": ")[0]) in known}
    return by_text | {outcome.name for outcome in submission.outcomes if outcome.library}


def _talk(submissions: list[Submission], flag: bool) -> dict[str, list[str]]:
    """Who has half of the exercises or more not right, or answers that are the library's, and why."""
    talk = {}
    for submission in sorted(submissions, key=lambda each: each.student):
        asked = [o for o in submission.outcomes if not o.prose and not o.again]
        states = Counter(outcome.state for outcome in asked)
        reasons = []
        if asked and 2 * states["right"] <= len(asked):
            rest = ", ".join(f"{states[state]} {state}" for state in STATES[1:] if states[state])
            reasons.append(f"{states['right']} of {len(asked)} right ({rest})")
        taken = [f"{o.name}: what was handed over is the library's" for o in submission.outcomes if o.library]
        if flag and (submission.copied or taken):
            reasons.append("; ".join([*submission.copied, *taken]))
        if reasons:
            who = plain(submission.name or submission.student)
            talk[who if who == submission.student else f"{who} ({submission.student})"] = reasons
    return talk


def _without_names(count: int) -> list[str]:
    plural = "submission" if count == 1 else "submissions"
    return [f"{count} more {plural} could not be read; `--names` says which."] if count else []


def page(reports: list[Report], *, names: bool = False) -> str:
    """The reports as HTML in one piece, the figures inside it."""
    from kvlearn.figures.classroom import exercise_outcomes  # matplotlib: for who draws

    facts = []
    for report in reports:
        counts = {row.label: row.counts for row in report.rows}
        facts.append({
            "report": report,
            "figure": Markup(exercise_outcomes(counts).html()) if counts else "",
        })  # fmt: skip
    return render("report.html.jinja", reports=facts, names=names)


def table(report: Report) -> str:
    """A report as text for a terminal, at most 100 columns wide."""
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
    for prose in report.prose:
        lines.append(f"{prose.title}: {prose.given} of {prose.asked} have points")
    lines += ["", "What was misunderstood (students, mistake, exercise)"]
    lines += [f"{m.students:5}  {m.name} ({m.exercise})" for m in report.misconceptions]
    if not report.misconceptions:
        lines.append("       no mistake that the checks know by name")
    if report.copies:
        lines += ["", "Answers that use or equal a function of the library"]
        lines += [f"{count:5}  {exercise}" for exercise, count in report.copies.items()]
    if report.talk:
        lines += ["", "Who to talk to"]
        lines += [f"       {student}: {'; '.join(reasons)}" for student, reasons in report.talk.items()]
    return "\n".join(lines)
