"""docs/instructors.md names commands, options, settings, errors and files that exist."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch
import typer
from nbgrader.apps import NbGraderApp

from kvlearn.checks import Case, Exercise, Misconception, judge
from kvlearn.checks.draw import randn
from kvlearn.classroom import collect, command, course, export, outcomes, sandbox, settings
from kvlearn.classroom.downloads import Download

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs/instructors.md").read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"^```sh\n(.*?)^```", GUIDE, flags=re.M | re.S))
LINES = [line for line in SHELL.splitlines() if line]
COMMANDS = typer.main.get_command(command.app).commands


def section(title):
    return re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", GUIDE, flags=re.M | re.S)[1]


def rows(text):
    """Rows of the tables of a text, their headers left out, as lists of cells."""
    found = re.findall(r"(?:^\|.*\n)+", text, flags=re.M)
    lines = [line for table in found for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


OURS = [line for line in LINES if line.startswith("kvlearn classroom ")]


@pytest.mark.parametrize("line", OURS)
def test_a_command_can_be_parsed_as_it_stands(line):
    """A command or an option is renamed, and the guide's line ends in a usage message."""
    name, *words = shlex.split(line)[2:]
    COMMANDS[name].make_context(name, words)


def test_every_command_is_in_the_guide():
    """A command is added, and no instructor learns of it."""
    assert {line.split()[2] for line in OURS} == set(COMMANDS)
    for word in set(re.findall(r"`(--[a-z-]+)", GUIDE)):
        assert any(word in p.opts for one in COMMANDS.values() for p in one.params), word


def test_the_other_commands_exist():
    """A subcommand of nbgrader, or a command of dev.py, that is not there."""
    used = re.findall(r"`nbgrader (\w+)", GUIDE) + re.findall(r"^nbgrader (\w+)", SHELL, flags=re.M)
    assert "db" in used and set(used) <= set(NbGraderApp.subcommands)
    dev = (ROOT / "dev.py").read_text(encoding="utf-8")
    for name in set(re.findall(r"dev\.py (\w+)", GUIDE)):
        assert f'"{name}": {name}' in dev
    for line in LINES:
        known = (".", "kvlearn", "nbgrader", "jupyter", "python", "python3", "sudo", "bwrap")
        assert line.split()[0] in known, line
    assert Path(ROOT / "kvlearn/classroom/validate.py").is_file()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "'.[classroom]'" in SHELL and "classroom" in extras


def test_assignments_that_are_named_exist():
    """An assignment is renamed, and the guide releases the old one."""
    known = course.assignments(ROOT)
    named = set(re.findall(r"(?<!\d)\d\d_[a-z]\w*", GUIDE))
    assert {"00_start_here", "01_attention", "02_causal_masking"} <= named <= set(known)


def test_settings_are_those_of_the_file():
    """A setting is added or its first value changed, and the guide still tells the old one."""
    written = tomllib.loads(settings.TEXT.format(patterns="", seeds=[1, 2]))
    told = {row[0].strip("`"): row[1].strip("`") for row in rows(section("Settings"))}
    assert list(told) == list(written)
    for key in ("cell_seconds", "submission_seconds", "memory", "library", "cores"):
        assert tomllib.loads(f"value = {told[key]}")["value"] == written[key]


def test_names_of_downloads_are_read_as_the_guide_says():
    """A pattern is changed, and the names of a platform are no longer read, or as somebody else's."""
    table = rows(section("Collect"))
    assert {row[0].partition(",")[0] for row in table} == {
        "Canvas",
        "Moodle",
        "Sakai",
        "Blackboard",
        "by hand",
    }
    for _, path, student in table:
        file = Download(path.strip("`"), collect.datetime(2026, 1, 30, tzinfo=collect.UTC), Path("x"))
        found = collect.read_name(file, settings.PATTERNS, ["01_attention", "02_causal_masking"])
        assert (found.student, found.assignment) == (student.strip("`"), "02_causal_masking")


def test_errors_of_odd_submissions_are_those_that_grading_writes():
    """The table names an error that no notebook shows, or leaves one out."""
    written = {*outcomes.STOPPED, "NotChecked"}
    table = rows(section("What comes in, and what becomes of it"))
    named = {word for row in table for word in re.findall(r"`(\w+)`", row[1]) if word[0].isupper()}
    assert named - {"MemoryError"} == written  # (that one is Python's own)
    assert len(table) == 23 and all(len(row) == 3 for row in table)


def test_limits_and_styles_are_those_of_the_code():
    """A limit of the sandbox changes, or a style of export is added."""
    limits = sandbox.Limits()
    words = r"processes \((\d+)\), open files \((\d+)\) and the size of files \((\d+) MiB, "
    told = re.search(words.replace(" ", r"\s+"), GUIDE)
    assert [int(n) for n in told.groups()] == [
        limits.processes, limits.open_files, limits.file_bytes // 2**20
    ]  # fmt: skip
    assert {row[1].strip("`") for row in rows(section("Feedback, report, export"))} == set(export.STYLES)
    assert f"`{export.title('01_attention')}`" in GUIDE


def test_links_lead_somewhere():
    """A file is renamed, and the guide's link is dead."""
    links = re.findall(r"\]\(([^)]+)\)", GUIDE)
    assert len(links) > 8
    for link in links:
        assert (ROOT / "docs" / link).exists(), link


def test_readme_leads_to_what_instructors_need():
    """Both files are written, and nobody finds them."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("docs/instructors.md", "docs/teaching.md", "docs/student-checks.yml"):
        assert f"]({name})" in readme and (ROOT / name).is_file()


def test_the_worked_exercise_works():
    """The example is out of date with the engine, or its cases cannot tell its mistakes apart."""
    code, cells = re.findall(r"^```python\n(.*?)^```", GUIDE, flags=re.M | re.S)
    names = {"torch": torch, "randn": randn, "Case": Case, "Exercise": Exercise}
    exec(code, scope := {**names, "Misconception": Misconception})
    exercise = scope["LAST_TOKEN"]
    (answers,) = re.findall(r'`"last_token": (\[.*\])`', GUIDE)
    for seed in range(3):
        for answer in eval(answers):
            assert judge(exercise, answer, seed).passed
        for mistake in exercise.misconceptions:
            assert judge(exercise, mistake.answer, seed).misconception == mistake.name
    assert f"*{exercise.minutes} minutes · difficulty {exercise.difficulty} of 3*" in cells
    answer = {}
    exec(cells.partition('# %% answer="last_token"')[2].partition("# %%")[0], answer)
    assert judge(exercise, answer["last_token"]).passed
