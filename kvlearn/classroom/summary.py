"""What became of an assignment in a class, counted: how each exercise went, and what was misunderstood.

Students' names stand in `Report.talk` alone, and only where they were asked for; no text of a student does.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kvlearn.checks import REGISTRY
from kvlearn.classroom.graded import Points, Submission
from kvlearn.classroom.outcomes import STATES, Outcome
from kvlearn.classroom.pages import number
from kvlearn.classroom.reasons import CAUSES, plain
from kvlearn.classroom.sections import where_to_read


@dataclass(frozen=True)
class Row:
    """One exercise.

    counts: state -> submissions. known: of the wrong ones, those with a named mistake; causes: how many of
    the others failed in which way (reasons.CAUSES). stopped_by: what was used up -> submissions.
    """

    name: str
    title: str
    again: bool
    counts: dict[str, int]
    known: int
    causes: dict[str, int]
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
    """A question in words: answers that were read, that wait, that are empty; mean and most points."""

    title: str
    read: int
    waiting: int
    empty: int
    mean: float
    most: float

    def __str__(self):
        mean = f", {number(self.mean)} of {number(self.most)} points on average"
        parts = [
            f"{self.read} read{mean}" if self.read else "",
            f"{self.waiting} to be read" if self.waiting else "",
            f"{self.empty} wrote nothing" if self.empty else "",
        ]
        return f"{self.title}: {'; '.join(part for part in parts if part)}"


@dataclass(frozen=True)
class Report:
    """An assignment of a class.

    mean, most: points of a submission by the checks, on average and at most; `prose` has the rest.
    unread: sentences about submissions that could not be read. copies: exercise -> answers that are the
    library's. talk: student -> reasons, fewest right first; empty unless names were asked for.
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

    @property
    def frequent(self) -> list[Misunderstood]:
        """The mistakes that two students or more have made."""
        return [found for found in self.misconceptions if found.students > 1]

    @property
    def single(self) -> list[Misunderstood]:
        return [found for found in self.misconceptions if found.students == 1]


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
    causes = Counter(outcome.cause for outcome in outcomes)
    return Row(
        name=outcomes[0].name,
        title=outcomes[0].title,
        again=outcomes[0].again,
        counts={state: states[state] for state in STATES},
        known=sum(outcome.misconception is not None for outcome in outcomes),
        causes={cause: causes[cause] for cause in CAUSES if causes[cause]},
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


def _prose(found: list[tuple[Outcome, Points | None]]) -> Prose:
    """An empty cell has its 0 points from the check; it counts as read only where a person gave some."""
    empty = [o.state == "not written" and not (points and points.by_hand) for o, points in found]
    written = [points for (_, points), nothing in zip(found, empty, strict=True) if not nothing]
    read = [points for points in written if points is not None and not points.waiting]
    return Prose(
        title=found[0][0].title,
        read=len(read),
        waiting=len(written) - len(read),
        empty=sum(empty),
        mean=sum(points.score for points in read) / max(1, len(read)),
        most=max((points.most for _, points in found if points is not None), default=0.0),
    )


def _copied(submission: Submission) -> set[str]:
    """Names of a submission's exercises of which the answer is the library's."""
    known = {outcome.answer_id: outcome.name for outcome in submission.outcomes}
    by_text = {known[name] for each in submission.copied if (name := each.partition(": ")[0]) in known}
    return by_text | {outcome.name for outcome in submission.outcomes if outcome.library}


def _talk(submissions: list[Submission], flag: bool) -> dict[str, list[str]]:
    """Who has half of the exercises or more not right, or answers that are the library's, and why."""
    found = []
    for submission in submissions:
        asked = [o for o in submission.outcomes if not o.prose and not o.again]
        states = Counter(outcome.state for outcome in asked)
        reasons = []
        if asked and 2 * states["right"] <= len(asked):
            rest = ", ".join(f"{states[state]} {state}" for state in STATES[1:] if states[state])
            reasons.append(f"{states['right']} of {len(asked)} right ({rest})")
            reasons += [f"{o.name}: {o.misconception}" for o in asked if o.misconception]
        if flag:
            taken = [o.name for o in submission.outcomes if o.library]
            reasons += [
                *submission.copied,
                *(f"{name}: what was handed over is the library's" for name in taken),
            ]
        if reasons:
            found.append((states["right"], submission.student, _who(submission), reasons))
    return {who: reasons for _, _, who, reasons in sorted(found)}


def _who(submission: Submission) -> str:
    name = plain(submission.name or submission.student)
    return name if name == submission.student else f"{name} ({submission.student})"
