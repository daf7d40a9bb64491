"""nbgrader's folders and gradebook for the course: one answer for `nbgrader` and for `kvlearn classroom`."""

import logging
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from kvlearn.classroom import course
from kvlearn.classroom.course import CourseError

pytestmark = pytest.mark.slow  # gradebooks and processes: half a minute in all

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A clone with two assignments, and its gradebook: making one takes seconds."""
    folder = tmp_path_factory.mktemp("template")
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for name in ("01_attention", "02_causal_masking"):
        shutil.copytree(ROOT / "exercises" / name, folder / "exercises" / name)
    course.open_course(folder)
    return folder


@pytest.fixture
def root(template, tmp_path):
    return shutil.copytree(template, tmp_path / "clone")


def test_the_folders_are_those_of_the_course(root):
    """A folder that is left at nbgrader's own name: submissions would lie outside the ignored classroom/."""
    api = course.open_course(root)
    folder = api.coursedir
    assert folder.course_id == "kvlearn"
    assert folder.format_path(folder.source_directory, ".", "02") == f"{root}/solutions/./02"
    assert folder.format_path(folder.release_directory, ".", "02") == f"{root}/exercises/./02"
    assert (
        folder.format_path(folder.submitted_directory, "jane", "02") == f"{root}/classroom/submitted/jane/02"
    )
    assert folder.format_path(folder.autograded_directory, "jane", "02") == (
        f"{root}/classroom/autograded/jane/02"
    )
    assert folder.format_path(folder.feedback_directory, "jane", "02") == f"{root}/classroom/feedback/jane/02"


def test_the_gradebook_lies_in_the_classroom_wherever_one_stands(root, tmp_path_factory, monkeypatch):
    """A gradebook that is relative to the working directory: a second one, empty, from another folder."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with course.open_course(root).gradebook as gradebook:
        gradebook.add_student("jane")
    assert course.gradebook_path(course.open_course(root).coursedir) == root / "classroom" / "gradebook.db"
    with course.open_course(root).gradebook as gradebook:
        assert [student.id for student in gradebook.students] == ["jane"]
    assert not list(Path.cwd().iterdir())


def test_a_relative_root(root, monkeypatch):
    """A root of "." that is kept as it is and means another folder after nbgrader changes into its own."""
    monkeypatch.chdir(root)
    assert course.open_course(Path(".")).coursedir.root == str(root)


def test_opening_says_nothing(root, caplog):
    """nbgrader's complaint, at each command, that there is no exchange, which the course does not use."""
    with caplog.at_level(logging.DEBUG):
        course.open_course(root)
    assert not [record for record in caplog.records if "exchange" in record.getMessage().lower()]
    assert logging.getLogger("traitlets").disabled is False


def test_git_ignores_what_a_class_hands_in():
    """A line `classroom/` without its slash would also ignore kvlearn/classroom/."""
    paths = ["classroom/submitted/jane/02/02.ipynb", "classroom/gradebook.db", "classroom/settings.toml"]
    ours = ["kvlearn/classroom/course.py", "tests/classroom/test_course.py"]
    told = subprocess.run(
        ["git", "check-ignore", "--no-index", *paths, *ours], cwd=ROOT, capture_output=True, text=True
    )
    assert told.stdout.split() == paths


def test_a_folder_that_is_no_course(tmp_path):
    """nbgrader makes an empty gradebook wherever it stands."""
    with pytest.raises(CourseError, match="is not the folder of the course: it has no nbgrader_config.py"):
        course.open_course(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_config_that_cannot_run(root):
    """A traceback that ends in traitlets."""
    with open(root / "nbgrader_config.py", "a", encoding="utf-8") as file:
        file.write("\nc.X.y = undefined\n")
    with pytest.raises(CourseError, match="cannot be run: NameError: name 'undefined'"):
        course.open_course(root)


def test_the_gradebook_of_another_course_is_refused_and_left_alone(root):
    """nbgrader adds its course to whatever gradebook it finds: two classes' grades in one export."""
    path = course.gradebook_path(course.open_course(root).coursedir)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE course SET id = 'physics'")
    before = path.read_bytes()
    with pytest.raises(
        CourseError, match="the gradebook of another course, 'physics'; this one is 'kvlearn'"
    ):
        course.open_course(root)
    assert path.read_bytes() == before


def test_a_gradebook_that_cannot_be_made_is_not_half_there(root, monkeypatch):
    """Tables without nbgrader's version, which `nbgrader db upgrade` then takes for an old gradebook."""
    shutil.rmtree(root / "classroom")
    monkeypatch.setattr(course, "Gradebook", full_disk)
    with pytest.raises(CourseError, match="gradebook.db could not be made: No space left on device"):
        course.open_course(root)
    assert not list((root / "classroom").iterdir())


def full_disk(url, course_id):
    Path(url.removeprefix("sqlite:///")).write_text("half")
    raise OSError(28, "No space left on device")


def test_the_gradebook_is_made_where_the_environment_is_not_activated(root, monkeypatch):
    """nbgrader runs `alembic` from the PATH: FileNotFoundError for who starts .venv/bin/kvlearn. And a PATH
    that is gone afterwards, as nbgrader's own setenv leaves it."""
    shutil.rmtree(root / "classroom")
    monkeypatch.setenv("PATH", "/nowhere")
    path = course.gradebook_path(course.open_course(root).coursedir)
    with sqlite3.connect(path) as database:
        assert len(database.execute("SELECT version_num FROM alembic_version").fetchall()) == 1
    assert os.environ["PATH"] == "/nowhere"


def test_a_file_that_is_no_gradebook(root):
    """An SQL traceback, or the file written over."""
    path = root / "classroom" / "gradebook.db"
    path.write_bytes(b"student,score\njane,3\n" * 200)
    with pytest.raises(CourseError, match="is not a gradebook that can be read: file is not a database"):
        course.open_course(root)
    assert path.read_bytes().startswith(b"student,score")


def test_an_empty_database_is_a_new_gradebook(root):
    """A database without tables has no courses to compare."""
    (root / "classroom" / "gradebook.db").write_bytes(b"")
    with course.open_course(root).gradebook as gradebook:
        assert gradebook.assignments == []


def test_assignments_and_their_beginnings(root):
    """A folder that is no assignment in the list; a beginning that fits two and takes the first."""
    (root / "exercises" / "notes").mkdir()
    (root / "exercises" / "notes" / "other.ipynb").write_text("{}", encoding="utf-8")
    assert course.assignments(root) == ["01_attention", "02_causal_masking"]
    assert course.find_assignment(root, "02") == "02_causal_masking"
    assert course.find_assignment(root, "01_attention") == "01_attention"
    with pytest.raises(CourseError, match="'0' fits more than one assignment: 01_attention, 02_"):
        course.find_assignment(root, "0")
    with pytest.raises(CourseError, match="no assignment '02_casual_masking'. There is: 02_causal_masking"):
        course.find_assignment(root, "02_casual_masking")
    with pytest.raises(CourseError, match="no assignment ''"):
        course.find_assignment(root, "")


def test_the_released_notebook(root):
    """The solution read in place of the exercise."""
    notebook = course.released(root, "02_causal_masking")
    answers = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("solution")]
    assert [cell.metadata.nbgrader.grade_id for cell in answers][0] == "causal_mask"
    assert all("raise NotImplementedError" in cell.source for cell in answers if cell.cell_type == "code")


def test_a_release_that_is_not_there_or_broken(root):
    """A FileNotFoundError or a JSON traceback in the middle of a class."""
    with pytest.raises(CourseError, match="cannot be read: No such file"):
        course.released(root, "07")
    (root / "exercises" / "01_attention" / "01_attention.ipynb").write_text("{", encoding="utf-8")
    with pytest.raises(CourseError, match="is not a notebook. `python3 dev.py build` makes it again"):
        course.released(root, "01_attention")
    shutil.rmtree(root / "exercises")
    with pytest.raises(CourseError, match="holds no assignment"):
        course.assignments(root)
