"""Put an assignment into the gradebook: its cells and their points, as nbgrader finds them in solutions/.

nbgrader's GenerateAssignment also writes what students get, and empties the folder for it first. Here it
writes beside it, so that exercises/ keeps what it holds until there is something better.
"""

import shutil
from pathlib import Path

import nbformat

from kvlearn.classroom import course
from kvlearn.classroom.course import CourseError
from kvlearn.classroom.files import write_whole


def release(root: Path, assignment: str) -> bool:
    """Release an assignment; whether exercises/ holds another notebook than before.

    Raises CourseError; exercises/ and the gradebook are then as they were.
    """
    before = course.released(root, assignment)
    api = course.open_course(root)
    folder = Path(root) / "classroom" / "release.part"
    api.coursedir.release_directory = str(folder.relative_to(root))
    try:
        outcome = api.generate_assignment(assignment, force=True, create=True)
        if not outcome["success"]:
            raise CourseError(f"nbgrader cannot release {assignment}: {course.reason(outcome)}")
        made = folder / assignment / f"{assignment}.ipynb"
        new = nbformat.read(made, as_version=4).cells != before.cells
        if new:
            write_whole(course.released_path(root, assignment), made.read_bytes())
        return new
    except OSError as error:
        raise CourseError(f"{error.filename or folder}: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
