"""Executed notebooks and their gradebook, made by hand, for the tests of feedback and report."""

import functools
import shutil
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.api import MissingEntry
from nbgrader.utils import determine_grade, is_grade, is_solution

from kvlearn.checks import find, judge
from kvlearn.classroom import course, settings
from kvlearn.classroom.outcomes import outcomes
from kvlearn.classroom.results import MIME

ROOT = Path(__file__).resolve().parents[2]
ASSIGNMENT = "01_attention"


def marks(grade_id, **more):
    base = {"grade": False, "solution": False, "task": False, "locked": False, "schema_version": 3}
    return {"nbgrader": base | {"grade_id": grade_id} | more}


def error(name, text, trace=()):
    return new_output("error", ename=name, evalue=text, traceback=list(trace) or [f"{name}: {text}"])


def printed(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def sent(exercise, passed=False, **facts):
    """What the check of a class sends."""
    found = {"exercise": exercise, "passed": passed, "misconception": None, "message": "", "seed": 0}
    return new_output("display_data", data={MIME: found | {"library": False} | facts, "text/plain": ""})


def judged(exercise, answer, seed=0, **facts):
    """The outputs of a check that has really judged an answer."""
    result = judge(find(exercise), answer, seed)
    said = {"passed": result.passed, "misconception": result.misconception, "message": result.message}
    outputs = [sent(exercise, **(said | {"seed": seed} | facts))]
    return outputs if result.passed else [*outputs, error("CheckFailed", result.message)]


def named(exercise, number=0, seed=0, **facts):
    """The outputs of a check of the `number`-th misconception of an exercise."""
    return judged(exercise, find(exercise).misconceptions[number].answer, seed, **facts)


def right(exercise, **facts):
    return [sent(exercise, passed=True, message=f"{exercise}: right on 3 inputs.", **facts)]


def asked(name, outputs, source=None, left=(), points=2, again=False):
    """Two cells: an answer, with what it left behind, and its check, with its outputs."""
    answer_id = f"{name}-again" if again else name
    source = f"def {name}(q, k):\n    return q" if source is None else source
    return [
        new_code_cell(
            source, metadata=marks(answer_id, solution=True), outputs=list(left), execution_count=1
        ),
        new_code_cell(
            f'kvlearn.check("{name}", {name})',
            metadata=marks(f"{answer_id}-check", grade=True, locked=True, points=points),
            outputs=list(outputs),
            execution_count=2,
        ),
    ]


def prose(grade_id, text, points=3):
    return [new_markdown_cell(text, metadata=marks(grade_id, grade=True, solution=True, points=points))]


def notebook(*groups, notes=(), copied=()):
    made = new_notebook(
        cells=[new_code_cell("import kvlearn"), *(cell for group in groups for cell in group)]
    )
    made.metadata["kvlearn"] = {"record": "x", "notes": list(notes), "copied": list(copied)}
    return made


def one(*outputs, **facts):
    """The outcome of a notebook with the single exercise attention_weights."""
    (found,) = outcomes(notebook(asked("attention_weights", outputs, **facts)))
    return found


def classroom(folder, *assignments):
    """A course with these assignments (01_attention alone, if none is named) and a class's settings."""
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for name in assignments or (ASSIGNMENT,):
        shutil.copytree(ROOT / "exercises" / name, folder / "exercises" / name)
    settings.create(folder)
    (folder / "classroom" / "gradebook.db").write_bytes(_new_gradebook())
    return folder


@functools.cache
def _new_gradebook() -> bytes:
    """One for all tests: nbgrader starts a program for each that it makes."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "nbgrader_config.py", folder)
        api = course.open_course(Path(folder))
        return course.gradebook_path(api.coursedir).read_bytes()


def enter(root, student, made, assignment=ASSIGNMENT, **names):
    """Grade a notebook that has been run: as nbgrader does it, without running it."""
    path = root / "classroom" / "autograded" / student / assignment / f"{assignment}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(made, path)
    with course.open_course(root).gradebook as book:
        try:
            book.find_notebook(assignment, assignment)
        except MissingEntry:
            book.update_or_create_assignment(assignment)
            book.add_notebook(assignment, assignment)
        for cell in made.cells:
            own = cell.metadata.get("nbgrader", {})
            at = (own.get("grade_id"), assignment, assignment)
            if is_grade(cell):
                facts = {"cell_type": cell.cell_type, "max_score": own["points"]}
                book.update_or_create_grade_cell(at[0], at[1], at[2], **facts)
            if is_solution(cell):
                book.update_or_create_solution_cell(*at)
        book.update_or_create_student(student, **names)
        book.add_submission(assignment, student)
        for cell in made.cells:
            if is_grade(cell):
                grade = book.find_grade(cell.metadata.nbgrader.grade_id, assignment, assignment, student)
                grade.auto_score = determine_grade(cell)[0]
        book.db.commit()


def by_hand(root, student, grade_id, comment_on=None, comment="", assignment=ASSIGNMENT, **scores):
    """What a person writes into nbgrader's grading page."""
    with course.open_course(root).gradebook as book:
        grade = book.find_grade(grade_id, assignment, assignment, student)
        for name, value in scores.items():
            setattr(grade, name, value)
        if comment_on:
            book.find_comment(comment_on, assignment, assignment, student).manual_comment = comment
        book.db.commit()
