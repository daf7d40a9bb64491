"""The commands of an instructor: what is wrong is a sentence and an exit code, and nothing is half-done."""

import json
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from submissions import ASSIGNMENT, CLASS, ROOT
from typer.testing import CliRunner

from kvlearn.classroom import command, course, settings

pytestmark = pytest.mark.slow  # gradebooks: half a minute in all


@pytest.fixture(autouse=True)
def signals():
    """`grade` is a whole process of its own, and never gives its handlers back: here they are."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def gradebook(tmp_path_factory):
    """An empty gradebook: to make one takes seconds."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "exercises" / ASSIGNMENT, folder / "exercises" / ASSIGNMENT)
    shutil.copy(ROOT / course.CONFIG, folder)
    course.open_course(folder)
    return folder / "classroom" / "gradebook.db"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A course with one assignment, and no classroom yet."""
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder / ASSIGNMENT, tmp_path / folder / ASSIGNMENT)
    shutil.copy(ROOT / course.CONFIG, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(root, gradebook):
    settings.create(root)
    shutil.copy(gradebook, root / "classroom")
    return root


def run(*words):
    """(exit code, what was said); an exception that nobody has put into a sentence is raised."""
    done = CliRunner().invoke(command.app, words)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output.strip()


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


NEEDS_CLASS = [
    ("release",),
    ("collect", "."),
    ("grade", "00"),
    ("feedback",),
    ("report",),
    ("export", "g.csv"),
]


@pytest.mark.parametrize("words", [("start",), *NEEDS_CLASS], ids=lambda words: words[0])
def test_outside_of_the_course(words, tmp_path, monkeypatch):
    """A classroom/ that is begun wherever one happens to stand."""
    monkeypatch.chdir(tmp_path)
    code, said = run(*words)
    assert (
        code == 2
        and said == f"{tmp_path} is not in the folder of the course, which holds nbgrader_config.py."
    )
    assert files(tmp_path) == {}


@pytest.mark.parametrize("words", NEEDS_CLASS, ids=lambda words: words[0])
def test_before_the_start(words, root):
    """A command that goes on without settings, or leaves a part of a classroom behind."""
    before = files(root)
    code, said = run(*words)
    assert code == 2 and said.count("\n") == 0
    assert "`kvlearn classroom start`" in said or "`kvlearn classroom grade`" in said
    assert {name for name in files(root) if not name.endswith("gradebook.db")} == set(before)


@pytest.mark.parametrize(
    "words, says",
    [
        (("release", "09"), "There is no assignment '09'. There is: 00_start_here."),
        (("collect", "nowhere"), "nowhere is not there"),
        (("collect", "empty"), "empty holds no file. Give the folder, or the .zip, that your"),
        (("collect", "empty", "--assignment", "x"), "There is no assignment 'x'."),
        (("grade", "09"), "There is no assignment '09'."),
        (("grade", "00"), f"{ASSIGNMENT} is not in the gradebook. `kvlearn classroom release {ASSIGNMENT}`"),
        (("feedback", "09"), "There is no assignment '09'."),
        (("feedback", "00"), f"Nothing has been graded of {ASSIGNMENT}. `kvlearn classroom grade`"),
        (("report", "00"), f"Nothing has been graded of {ASSIGNMENT}."),
        (("export", "g.csv"), "The gradebook has no students and grades yet."),
        (("export", "g.csv", "--style", "excel"), "There is no export for 'excel'. There is: plain"),
        (("export", "g.csv", "--assignment", "09"), "There is no assignment '09'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input(words, says, started):
    """A traceback, an exit code of 0, a file that is half-written."""
    (started / "empty").mkdir()
    before = files(started)
    code, said = run(*words)
    assert code == 2 and said.startswith(says) and said.count("\n") == 0
    after = files(started)
    after.pop("classroom/.lock", None)
    assert after == before


@pytest.mark.parametrize("words", [("start",), *NEEDS_CLASS], ids=lambda words: words[0])
def test_one_command_at_a_time(words, started):
    """Two that write one gradebook; or a collection that changes what is being graded."""
    with course.alone(started):
        code, said = run(*words)
    assert code == 2 and said.startswith("Another `kvlearn classroom` command is at work in")
    assert run("start")[0] == 0  # and afterwards all is free again


def test_a_classroom_is_its_instructors_alone(root):
    """Names, grades and seeds that everybody on a shared machine can read."""
    assert run("start")[0] == 0
    assert (root / "classroom").stat().st_mode & 0o777 == 0o700


def test_start_brings_back_the_menus_that_learners_do_not_see(root):
    """A class without a formgrader, or menus of a grader on a learner's first screen."""
    lab = runpy.run_path(str(ROOT / "dev.py"))["jupyter_folders"]
    assert "learners" in lab(str(root))
    code, said = run("start")
    assert code == 0 and "`python3 dev.py lab` in this folder shows nbgrader's menus" in said
    assert "learners" not in lab(str(root))


def test_names_of_files_are_shown_on_one_line_and_obey_nobody(started):
    """A file's name that writes a line of its own, or that a terminal takes for an order."""
    (started / "downloads").mkdir()
    (started / "downloads" / "fake\n30 new\x1b]0;title\x07.txt").write_text("x", encoding="utf-8")
    code, said = run("collect", "downloads")
    assert code == 1 and "\x1b" not in said and "\x07" not in said
    assert "no pattern fits: fake\\x0a30 new\\x1b]0;title\\x07.txt" in said.splitlines()


def test_a_run_under_nohup_is_not_broken_off_at_logout(started):
    """The end of a terminal ends the grading of five hundred, although it was started to go on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run("grade", "00")
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_a_release_that_fails_leaves_the_exercises(started, monkeypatch):
    """nbgrader empties exercises/ASSIGNMENT before it has anything better, and leaves it so."""
    before = files(started / "exercises")
    source = started / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    notebook = json.loads(source.read_text(encoding="utf-8"))
    notebook["cells"][-1]["metadata"]["nbgrader"] = {"grade_id": "x", "schema_version": 99}
    source.write_text(json.dumps(notebook), encoding="utf-8")
    code, said = run("release", "00")
    assert code == 2 and said.startswith(f"nbgrader cannot release {ASSIGNMENT}: ") and said.count("\n") == 0
    assert files(started / "exercises") == before
    assert not (started / "classroom" / "release.part").exists()


def test_a_release_of_another_text_makes_the_exercise_new(started):
    """An instructor's change in solutions/ that students never see, or that is not said."""
    source = started / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    source.write_text(
        source.read_text(encoding="utf-8").replace("split_heads", "split_the_heads", 1), "utf-8"
    )
    code, said = run("release", "00")
    assert code == 0 and said.startswith(
        f"exercises/{ASSIGNMENT} is new: it did not equal solutions/{ASSIGNMENT}."
    )
    released = (started / "exercises" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text(encoding="utf-8")
    assert "split_the_heads" in released and "BEGIN SOLUTION" not in released
    assert run("release", "00")[1].startswith(f"{ASSIGNMENT}: in the gradebook.")


@pytest.mark.bubblewrap
def test_a_full_disk(root):
    """Half a file, a lost exercise, a gradebook that nothing can read; a command that says it went well."""
    (root / "classroom").mkdir()
    (root / "downloads").mkdir()
    (root / "downloads" / f"ann_1_2_{ASSIGNMENT}.ipynb").write_bytes(CLASS["misconception"].data)
    exercises = files(root / "exercises")
    script = Path(__file__).with_name("full_disk.py")
    disk = ["bwrap", "--dev-bind", "/", "/", "--size", str(2**21), "--tmpfs", str(root / "classroom")]
    done = subprocess.run([*disk, sys.executable, script, root], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert files(root / "exercises") == exercises
    for word, disk, code, said, left in told:
        if disk == "full":
            assert code in (1, 2) and ("No space left on device" in said or "disk is full" in said), (
                word,
                said,
            )
            assert "Traceback" not in said and not [name for name in left if name.endswith(".part")]
        else:
            assert code == 0, (word, said)
    made = set(told[-1][4])
    assert {"classroom/gradebook.db", "classroom/grades.csv", "classroom/settings.toml"} <= made
    assert f"classroom/feedback/ann/{ASSIGNMENT}/feedback.html" in made
