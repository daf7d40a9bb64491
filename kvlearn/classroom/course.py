"""nbgrader's folders and gradebook for this course.

`nbgrader_config.py` at the root says where they are, so that `nbgrader` by hand and `kvlearn classroom`
agree: solutions/ and exercises/ hold the assignments; classroom/, which git ignores, holds what students
hand in, what was graded, the feedback and the gradebook.
"""

import difflib
import logging
import os
import re
import sqlite3
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import nbformat
from filelock import FileLock, Timeout
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning
from traitlets.config import Config, PyFileConfigLoader

# What nbgrader says of its own way with the database: an instructor can do nothing about it, and what goes
# wrong there comes back as an outcome as well (`reason`).
warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")
logging.getLogger("tornado.application").addHandler(logging.NullHandler())

CONFIG = "nbgrader_config.py"


class CourseError(ValueError):
    """Why the course, an assignment or the gradebook cannot be used, in a sentence."""


def config(root: Path) -> Config:
    """nbgrader's settings for the course at `root`, with `root` and the gradebook as absolute paths."""
    root = Path(root).resolve()
    if not (root / CONFIG).is_file():
        raise CourseError(
            f"{root} is not the folder of the course: it has no {CONFIG}. "
            "Go to the folder that holds exercises/ and solutions/."
        )
    try:
        loaded = PyFileConfigLoader(CONFIG, path=str(root)).load_config()
    except Exception as error:  # whatever the instructor wrote into it
        raise CourseError(f"{root / CONFIG} cannot be run: {type(error).__name__}: {error}.") from None
    loaded.CourseDirectory.root = str(root)
    return loaded


def open_course(root: Path) -> NbGraderAPI:
    """nbgrader's API for the course at `root`; makes classroom/ and, on first use, the gradebook.

    `.coursedir` has the folders, `.gradebook` opens the gradebook (close it, or use it in a `with`).
    Raises CourseError.
    """
    settings = config(root)
    try:
        (Path(root) / "classroom").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CourseError(f"classroom/ cannot be made in {root}: {error.strerror or error}.") from None
    course = CourseDirectory(config=settings)
    check_gradebook(course)
    make_gradebook(course)
    # Of nbgrader's exchange (a folder shared by students on one server) this course uses nothing, and
    # the API says at every start that there is none.
    log = logging.getLogger("traitlets")
    before, log.disabled = log.disabled, True
    try:
        return NbGraderAPI(coursedir=course, config=settings)
    finally:
        log.disabled = before


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keep other commands away from classroom/ meanwhile. Raises CourseError where one is at work."""
    folder = Path(root) / "classroom"
    if not folder.is_dir():  # nothing there yet to get into disorder
        yield
        return
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise CourseError(
            f"Another `kvlearn classroom` command is at work in {folder}. Wait for its end, then try again."
        ) from None
    except OSError as error:
        raise CourseError(f"{folder} cannot be written: {error.strerror or error}.") from None
    try:
        yield
    finally:
        lock.release()


def gradebook_path(course: CourseDirectory) -> Path:
    return Path(course.db_url.removeprefix("sqlite:///"))


def check_gradebook(course: CourseDirectory) -> None:
    """Refuse what is no gradebook, and the gradebook of another course: grades would mix."""
    path = gradebook_path(course)
    if not course.db_url.startswith("sqlite:///") or not path.exists():
        return
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if tables and "course" not in tables:
                raise sqlite3.DatabaseError("it holds other tables")
            rows = database.execute("SELECT id FROM course") if tables else []
            # nbgrader's own preprocessors open the gradebook without a course, which makes a default one.
            others = sorted({str(row[0]) for row in rows} - {course.course_id, "default_course"})
        finally:
            database.close()
    except sqlite3.Error as error:
        raise CourseError(
            f"{path} is not a gradebook that can be read: {error}. If it is one, see that you may read it; "
            "if it is none, move it away."
        ) from None
    if others:
        raise CourseError(
            f"{path} is the gradebook of another course, {others[0]!r}; this one is {course.course_id!r}. "
            "Move it away, or work in a clone of its own for each class."
        )


def make_gradebook(course: CourseDirectory) -> None:
    """An empty gradebook where there is none. Made whole under another name first."""
    path = gradebook_path(course)
    if not course.db_url.startswith("sqlite:///") or (path.exists() and path.stat().st_size):
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    # nbgrader runs `alembic` from the PATH, where it is missing when the environment is not activated. (Its
    # own `setenv` will not do: it looks up a variable by its new value, and takes PATH away afterwards.)
    here = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    try:
        with mock.patch.dict(os.environ, PATH=here), Gradebook(f"sqlite:///{part}", course.course_id):
            pass
        part.replace(path)
    except Exception as error:  # of SQLAlchemy, of the disk, of alembic
        reason = str(getattr(error, "orig", None) or getattr(error, "strerror", None) or error)
        raise CourseError(f"The gradebook {path} could not be made: {reason}.") from None
    finally:
        part.unlink(missing_ok=True)


def assignments(root: Path) -> list[str]:
    """The names of the assignments that are released, in order."""
    folder = Path(root) / config(root).CourseDirectory.release_directory
    found = [path.parent.name for path in folder.glob("*/*.ipynb") if path.stem == path.parent.name]
    if not found:
        raise CourseError(f"{folder} holds no assignment. `python3 dev.py build` makes them.")
    return sorted(found)


def find_assignment(root: Path, name: str) -> str:
    """The whole name of an assignment from its beginning: 02 is 02_causal_masking. Raises CourseError."""
    known = assignments(root)
    if name in known:
        return name
    matches = [n for n in known if name and n.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise CourseError(f"{name!r} fits more than one assignment: {', '.join(matches)}.")
    close = difflib.get_close_matches(name, known, 1) or known
    raise CourseError(f"There is no assignment {name!r}. There is: {', '.join(close)}.")


def released_path(root: Path, assignment: str) -> Path:
    folder = Path(root) / config(root).CourseDirectory.release_directory
    return folder / assignment / f"{assignment}.ipynb"


def released(root: Path, assignment: str) -> NotebookNode:
    """The notebook that students were given. Raises CourseError."""
    path = released_path(root, assignment)
    try:
        return nbformat.read(path, as_version=4)
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, nbformat.ValidationError):
        raise CourseError(f"{path} is not a notebook. `python3 dev.py build` makes it again.") from None


def reason(outcome: dict) -> str:
    """Why a command of nbgrader's API failed: the last error of its log, in one line."""
    text = outcome.get("log") or outcome.get("error") or "no reason was given"
    errors = re.findall(r"^\s*(?:\w+\.)*\w*(?:Error|Exception|Entry): (.+)$", text, flags=re.MULTILINE)
    return (errors or text.strip().splitlines())[-1]
