"""A class that hands in what takes each way through the grading: collect, sandbox, nbgrader, gradebook."""

import hashlib
import multiprocessing
import os
import shutil

import nbformat
import pytest
from submissions import ASSIGNMENT, CLASS, ROOT
from walls import first_fails_then_sleeps, killed

from kvlearn.classroom import collect, course, entering, grade, settings, workers
from kvlearn.classroom.folders import Folders

pytestmark = [pytest.mark.bubblewrap, pytest.mark.slow, pytest.mark.timeout(1500)]


def fingerprint(folder):
    """A hash of all files of the library: what submissions must not change."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """{student: (points of split_heads, of merge_heads, the graded notebook as text)}, and the root."""
    root = tmp_path_factory.mktemp("course")
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder / ASSIGNMENT, root / folder / ASSIGNMENT)
    shutil.copy(ROOT / course.CONFIG, root)
    settings.create(root)
    path = settings.file_of(root)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('memory = "6GiB"', 'memory = "3GiB"'), encoding="utf-8")
    downloads = root / "downloads"
    downloads.mkdir()
    for student, submission in CLASS.items():
        (downloads / f"{student}_1_2_{ASSIGNMENT} (1).ipynb").write_bytes(submission.data)
    before = fingerprint(ROOT / "kvlearn")
    found = collect.collect(root, downloads, settings.read(root).patterns, course.assignments(root))
    assert {s.student for s in found.collected} == set(CLASS) and not found.unmatched + found.problems
    api = course.open_course(root)
    assert api.generate_assignment(ASSIGNMENT, force=True, create=True)["success"]
    lines = []
    done = grade.grade(root, ASSIGNMENT, tell=lines.append)
    assert done.problems == {} and sorted(done.graded) == sorted(CLASS)
    assert lines.pop(0) == f"{ASSIGNMENT}: {len(CLASS)} to grade, {os.cpu_count()} at a time"
    assert len(lines) == len(CLASS) and "to go" in lines[0] and "to go" not in lines[-1]
    assert fingerprint(ROOT / "kvlearn") == before
    results = {}
    with api.gradebook as gradebook:
        for student in CLASS:
            notebook = gradebook.find_submission_notebook(ASSIGNMENT, ASSIGNMENT, student)
            points = {one.name: one.score for one in notebook.grades}
            file = root / "classroom" / "autograded" / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
            results[student] = (points["split_heads-check"], points["merge_heads-check"]), file
    return results, root


@pytest.fixture(autouse=True)
def tried_once(graded, monkeypatch):
    """The class's own run has tried a blank submission; the tests below start workers that do no work."""
    monkeypatch.setattr(grade, "try_blank", lambda workers, folders: None)


@pytest.mark.parametrize("student", CLASS)
def test_everyone_gets_what_the_answers_are_worth(student, graded):
    """A submission that is graded wrongly, or takes another's grade with it; a reason that is not said."""
    points, file = graded[0][student]
    assert points == CLASS[student].points
    notebook = nbformat.read(file, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    told = [str(dict(output)) for output in outputs] + [str(dict(notebook.metadata.kvlearn))]
    for words in CLASS[student].said:
        assert words in "\n".join(told)


def test_a_second_run_grades_nobody_again(graded):
    """A run that starts anew each time; a grade that changes without anything new."""
    root = graded[1]
    again = grade.grade(root, ASSIGNMENT)
    assert sorted(again.unchanged) == sorted(CLASS) and again.graded == []


def test_a_run_that_was_broken_off_goes_on(graded):
    """What is left, and only that: one notebook that no worker has run, and one that the gradebook lacks."""
    root = graded[1] / "classroom"
    shutil.rmtree(root / "executed" / "half")
    shutil.rmtree(root / "autograded" / "half")
    shutil.rmtree(root / "autograded" / "perfect")
    kept = (root / "executed" / "perfect" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").stat().st_mtime_ns
    again = grade.grade(graded[1], ASSIGNMENT)
    assert sorted(again.graded) == ["half", "perfect"]
    assert (root / "executed" / "perfect" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").stat().st_mtime_ns == kept
    with course.open_course(graded[1]).gradebook as gradebook:
        assert gradebook.find_submission(ASSIGNMENT, "half").score == 1
        assert gradebook.find_submission(ASSIGNMENT, "perfect").score == 2


def forget(root, *students):
    for step in ("executed", "autograded"):
        for student in students:
            shutil.rmtree(root / "classroom" / step / student)


def kept(root, student):
    return (root / "classroom/executed" / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").stat().st_mtime_ns


def test_a_gradebook_that_lacks_somebody_is_filled_again(graded):
    """A gradebook that was lost: all notebooks are there, nobody is graded again, and no grade is left."""
    root = graded[1]
    api, before = course.open_course(root), kept(root, "half")
    with api.gradebook as gradebook:
        gradebook.remove_submission(ASSIGNMENT, "half")
    assert grade.grade(root, ASSIGNMENT).graded == ["half"] and kept(root, "half") == before
    with api.gradebook as gradebook:
        assert gradebook.find_submission(ASSIGNMENT, "half").score == 1


def test_points_by_hand_need_no_second_look_where_nothing_changed(graded):
    """nbgrader sends every cell with points by hand back to be read, the same letters again."""
    root = graded[1]
    api = course.open_course(root)

    def merge_heads(gradebook):
        return gradebook.find_grade("merge_heads-check", ASSIGNMENT, ASSIGNMENT, "half")

    with api.gradebook as gradebook:
        one = merge_heads(gradebook)
        one.manual_score, one.needs_manual_grade = 0.5, False
        gradebook.db.commit()
    autograded = root / "classroom/autograded/half" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    text = autograded.read_text(encoding="utf-8")
    for old, waits in (("", False), ("raise NotImplementedError", True)):
        # What was graded before: the same, and another answer.
        autograded.write_text(text.replace(old, "pass") if old else text, encoding="utf-8")
        assert entering.enter(entering.open_to_enter(root), Folders(root, ASSIGNMENT), "half") is None
        with api.gradebook as gradebook:
            one = merge_heads(gradebook)
            assert (one.manual_score, one.needs_manual_grade) == (0.5, waits)
            one.manual_score, one.needs_manual_grade = (None, False) if waits else (0.5, False)
            gradebook.db.commit()


def test_a_worker_that_is_killed_costs_nothing(graded, monkeypatch):
    """A worker killed on the way: tried again, and then left for the next run with a sentence."""
    root = graded[1]
    forget(root, "perfect")
    with monkeypatch.context() as patch:
        patch.setattr(workers, "WORK", killed)
        first = grade.grade(root, ASSIGNMENT, ["perfect"])
    assert first.problems == {"perfect": "its worker was killed, twice"} and first.graded == []
    assert grade.grade(root, ASSIGNMENT, ["perfect"]).graded == ["perfect"]


def test_an_interrupt_takes_the_workers_along(graded, monkeypatch, tmp_path):
    """Ctrl-C that waits for workers, which here never end, or leaves them running."""
    root, lines = graded[1], []
    steps = [root / "classroom" / step for step in ("executed", "autograded")]
    for step in steps:  # put back at the end: the other tests need them
        shutil.copytree(step, tmp_path / step.name)
    forget(root, "perfect", "half")

    def interrupt(line):
        lines.append(line)
        if len(lines) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(workers, "WORK", first_fails_then_sleeps)
    with pytest.raises(KeyboardInterrupt):
        grade.grade(root, ASSIGNMENT, ["perfect", "half"], tell=interrupt)
    assert lines[1].startswith("1 of 2: ") and multiprocessing.active_children() == []
    for step in steps:
        shutil.copytree(tmp_path / step.name, step, dirs_exist_ok=True)


def test_what_cannot_be_graded_is_said(graded, tmp_path):
    """No such assignment, nothing handed in, somebody unknown: a sentence, and nothing written."""
    root = graded[1]
    with pytest.raises(course.CourseError, match="There is no assignment '07'. There is: 00_start_here"):
        grade.grade(root, "07")
    with pytest.raises(course.CourseError, match="nobody has handed in nothing"):
        grade.grade(root, ASSIGNMENT, ["nobody"])
    with pytest.raises(course.CourseError, match="is not the folder of the course"):
        settings.create(tmp_path)
        grade.grade(tmp_path, ASSIGNMENT)


def test_an_assignment_that_changed_since_its_release(graded):
    """Points of the old release, kept for good: submissions are entered with them, and are unchanged then."""
    root = graded[1]
    source = root / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace('"points": 1', '"points": 2', 1), encoding="utf-8")
    try:
        with pytest.raises(course.CourseError, match="has changed since it was released: .* release 00"):
            grade.grade(root, ASSIGNMENT, ["half"])
    finally:
        source.write_text(text, encoding="utf-8")
    assert grade.grade(root, ASSIGNMENT, ["half"]).unchanged == ["half"]
