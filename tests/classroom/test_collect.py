"""Downloads as learning platforms write them end in nbgrader's folders; every file is accounted for."""

import errno
import os
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nbgrader.utils import parse_utc

from kvlearn.classroom import collect as module
from kvlearn.classroom import downloads
from kvlearn.classroom.collect import CollectError, collect
from kvlearn.classroom.settings import PATTERNS

NAMES = ("01_attention", "02_causal_masking")
MASKING = NAMES[1]


@pytest.fixture
def folder(tmp_path):
    """A folder of downloads."""
    path = tmp_path / "downloads"
    path.mkdir()
    return path


@pytest.fixture
def run(tmp_path, folder):
    """Collect it, and hold that every file is named once in the result."""

    def collected(source=folder, patterns=PATTERNS, assignment=None):
        result = collect(tmp_path, source, patterns, NAMES, assignment)
        assert not list(tmp_path.rglob("*.part"))
        return result

    return collected


def put(folder, path, text="{}", when=1_700_000_000):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    os.utime(file, (when, when))
    return file


def there(tmp_path):
    """{student/assignment: text} of what was collected."""
    root = tmp_path / "classroom" / "submitted"
    found = {}
    for path in sorted(root.glob("*/*/*")):
        if path.name == f"{path.parent.name}.ipynb":
            found[f"{path.parent.parent.name}/{path.parent.name}"] = path.read_text(encoding="utf-8")
        else:
            assert path.name in ("timestamp.txt", "platform_id.txt")
    return found


def paths(submissions):
    return [submission.file.path for submission in submissions]


@pytest.mark.parametrize(
    ("path", "student", "id"),
    [
        ("doejane_12345_67890_02_causal_masking.ipynb", "doejane", "12345"),
        ("doejane_LATE_12345_67890_02_causal_masking-1.ipynb", "doejane", "12345"),
        ("doejane_12345_67890_02_causal_masking (1).ipynb", "doejane", "12345"),
        ("submissions/doejane_12345_67890_02_causal_masking-2 (3).ipynb", "doejane", "12345"),
        ("Jane Doe_123456_assignsubmission_file_/02_causal_masking.ipynb", "Jane Doe", "123456"),
        ("Jane Doe_123456_assignsubmission_file/02_causal_masking (2).ipynb", "Jane Doe", "123456"),
        ("Jane Doe_123456_assignsubmission_file_02_causal_masking.ipynb", "Jane Doe", "123456"),
        ("Assignment 2_jdoe_attempt_2026-01-30-15-00-00_02_causal_masking.ipynb", "jdoe", ""),
        ("jane_section4_02_causal_masking.ipynb", "jane", ""),
        ("jane_02_causal_masking(1).ipynb", "jane", ""),
        ("jane/02_causal_masking - Copy.ipynb", "jane", ""),
        ("jane/02_causal_masking/02_causal_masking.ipynb", "jane", ""),
        ("JANE_02_Causal_Masking.IPYNB", "JANE", ""),
        ("anon_XK3QZ_900001_02_causal_masking.ipynb", "XK3QZ", "900001"),
        ("Doe, Jane(jdoe)/Submission attachment(s)/02_causal_masking.ipynb", "Doe, Jane(jdoe)", ""),
        ("Müller Zoë_02_causal_masking.ipynb", "Müller Zoë", ""),
        ("李小龍_02_causal_masking.ipynb", "李小龍", ""),
    ],
)
def test_names_as_platforms_write_them(tmp_path, folder, run, path, student, id):
    """A pattern that reads LATE or a number into the student, or that knows no " (1)"."""
    put(folder, path, "a")
    result = run()
    assert there(tmp_path) == {f"{student}/{MASKING}": "a"}
    assert result.unmatched == result.problems == []
    (submission,) = result.collected
    assert (submission.student, submission.assignment, submission.id) == (student, MASKING, id)
    number = tmp_path / "classroom" / "submitted" / student / MASKING / "platform_id.txt"
    assert (number.read_text() if number.exists() else "") == id


def test_a_name_with_decomposed_accents_is_one_student(tmp_path, folder, run):
    """macOS writes e and an accent apart: two students for one."""
    put(folder, "Zoe\u0308_02_causal_masking.ipynb", "mac", when=2000)
    put(folder, "Zo\u00eb_01_attention.ipynb", "windows")
    run()
    assert there(tmp_path) == {"Zo\u00eb/01_attention": "windows", f"Zo\u00eb/{MASKING}": "mac"}


def test_the_time_in_the_name_counts_before_the_files_own(tmp_path, folder, run):
    """A file's date is the date of the download: everybody would be late."""
    put(folder, "A2_jdoe_attempt_2026-01-30-15-00-59_02_causal_masking.ipynb", when=2_000_000_000)
    run()
    text = (tmp_path / "classroom" / "submitted" / "jdoe" / MASKING / "timestamp.txt").read_text()
    local = datetime(2026, 1, 30, 15, 0, 59).astimezone(UTC).replace(tzinfo=None)
    assert parse_utc(text) == local


def test_the_files_date_becomes_nbgraders_timestamp(tmp_path, folder, run):
    """A timestamp in local time, which nbgrader reads as UTC: late by some hours."""
    put(folder, "jane_02_causal_masking.ipynb", when=1_700_000_000)
    run()
    text = (tmp_path / "classroom" / "submitted" / "jane" / MASKING / "timestamp.txt").read_text()
    assert parse_utc(text) == datetime(2023, 11, 14, 22, 13, 20)


def test_the_newest_counts_and_the_others_are_listed(tmp_path, folder, run):
    """The last by name instead of by date; an earlier one dropped without a word."""
    put(folder, "jane_1_2_02_causal_masking.ipynb", "newest", when=3000)
    put(folder, "jane_1_1_02_causal_masking.ipynb", "first", when=1000)
    put(folder, "jane_1_3_02_causal_masking.ipynb", "middle", when=2000)
    result = run()
    assert there(tmp_path) == {f"jane/{MASKING}": "newest"}
    assert paths(result.older) == ["jane_1_1_02_causal_masking.ipynb", "jane_1_3_02_causal_masking.ipynb"]
    assert paths(result.collected) == ["jane_1_2_02_causal_masking.ipynb"]


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (
            ("jane/hw/02_causal_masking.ipynb", "bob/hw/02_causal_masking.ipynb"),
            "{student}/hw/{notebook}.ipynb",
        ),
        (
            ("s1/jane/in/02_causal_masking.ipynb", "s1/bob/in/02_causal_masking.ipynb"),
            "{student}/in/{notebook}.ipynb",
        ),
        (
            ("van_dam_02_causal_masking.ipynb", "van_berg_02_causal_masking.ipynb"),
            "{student}_{notebook}.ipynb",
        ),
    ],
)
def test_two_people_that_a_pattern_takes_for_one(tmp_path, folder, run, names, pattern):
    """One student of two, exit code 0, and the other's work called an older version."""
    for number, name in enumerate(names):
        put(folder, name, str(number), when=1000 + number)
    result = run()
    assert there(tmp_path) == {} and result.older == result.collected == []
    (problem,) = result.problems
    assert f'"{pattern}"' in problem and all(name in problem for name in names)
    again = run(patterns=(pattern, *PATTERNS))
    assert again.problems == [] and len(again.collected) == 2


def test_attempts_and_late_versions_are_one_person(tmp_path, folder, run):
    """Numbers, dates and a LATE that are taken for people."""
    put(folder, "doejane_12345_67890_02_causal_masking.ipynb", "first", when=1000)
    put(folder, "doejane_LATE_12345_67999_02_causal_masking-1.ipynb", "last", when=2000)
    put(folder, "A2_jdoe_attempt_2026-01-30-15-00-00_02_causal_masking.ipynb", "one")
    put(folder, "A2_jdoe_attempt_2026-01-31-16-00-00_02_causal_masking.ipynb", "two")
    result = run()
    assert there(tmp_path) == {f"doejane/{MASKING}": "last", f"jdoe/{MASKING}": "two"}
    assert result.problems == [] and len(result.older) == 2


def test_of_one_date_the_highest_number_counts(tmp_path, folder, run):
    """Unpacked files all have one date: " (10)" is newer than " (9)", and than none."""
    for number in ("", " (9)", " (10)", "-2"):
        put(folder, f"jane_02_causal_masking{number}.ipynb", number)
    run()
    assert there(tmp_path) == {f"jane/{MASKING}": " (10)"}


def test_twice_changes_nothing_newer_replaces_older_does_not(tmp_path, folder, run):
    """A second run that touches files makes nbgrader grade everything again."""
    file = put(folder, "jane_02_causal_masking.ipynb", "one", when=2000)
    assert paths(run().collected) == [file.name]
    target = tmp_path / "classroom" / "submitted" / "jane" / MASKING
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in target.iterdir()}
    result = run()
    assert paths(result.unchanged) == [file.name] and not result.collected and not result.replaced
    put(folder, "jane_02_causal_masking.ipynb", "one", when=9000)  # the same text, downloaded again
    assert paths(run().unchanged) == [file.name]
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in target.iterdir()} == before
    put(folder, "jane_02_causal_masking.ipynb", "older", when=1000)
    result = run()
    assert paths(result.older) == [file.name] and there(tmp_path) == {f"jane/{MASKING}": "one"}
    put(folder, "jane_02_causal_masking.ipynb", "newer", when=3000)
    result = run()
    assert paths(result.replaced) == [file.name] and there(tmp_path) == {f"jane/{MASKING}": "newer"}
    assert parse_utc((target / "timestamp.txt").read_text()) == datetime(1970, 1, 1, 0, 50)


def test_a_run_cut_off_between_the_two_files_goes_on(tmp_path, folder, run, monkeypatch):
    """A timestamp that is newer than its notebook: the newer notebook is refused for ever."""
    put(folder, "jane_02_causal_masking.ipynb", "one", when=2000)
    run()
    put(folder, "jane_02_causal_masking.ipynb", "two", when=3000)
    write = module.write_whole

    def killed(path, data):
        if path.name == "timestamp.txt":
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(module, "write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()
    put(folder, "jane_02_causal_masking.ipynb", "three", when=3001)
    assert len(run().replaced) == 1
    assert there(tmp_path) == {f"jane/{MASKING}": "three"}


def test_a_students_clone_of_the_course(tmp_path, folder, run):
    """Repositories as they are cloned: students called `exercises` and `solutions`, one of each a class."""
    for student in ("ann", "bob-b"):
        for place in ("exercises", "solutions", "work"):
            put(folder, f"masking-{student}/{place}/{MASKING}/{MASKING}.ipynb", f"{student} {place}")
    for result in (run(), run(assignment=MASKING)):
        assert not result.collected and len(result.unmatched) == 6
    result = run(patterns=["masking-{student}/exercises/{notebook}/{notebook}.ipynb"])
    assert there(tmp_path) == {f"ann/{MASKING}": "ann exercises", f"bob-b/{MASKING}": "bob-b exercises"}
    assert len(result.unmatched) == 4


def test_what_matches_nothing_is_listed(tmp_path, folder, run):
    """toolchain: nbgrader's zip_collect skips it with a line in its log."""
    strange = ["02_causal_masking.ipynb", "jane_02_casual_masking.ipynb", "jane_02_causal_masking.pdf"]
    strange += ["__MACOSX/._jane_02_causal_masking.ipynb", ".ipynb_checkpoints/jane_02_causal_masking.ipynb"]
    strange += ["jane_02_causal_masking.ipynb.txt", "notes.txt"]
    for path in strange:
        put(folder, path)
    result = run()
    assert sorted(result.unmatched) == sorted(strange)
    assert there(tmp_path) == {} and not result.collected


def test_a_renamed_file_in_the_download_of_one_assignment(tmp_path, folder, run):
    """A student who hands in homework.ipynb is not graded; or, of "02_causal_masking", is student 02."""
    put(folder, "doejane_12345_67890_my homework.ipynb", "renamed")
    put(folder, "Max Roe_9_assignsubmission_file_/Untitled.ipynb", "untitled")
    put(folder, "02_causal_masking.ipynb")
    put(folder, "moe_1_2_01_attention.ipynb")
    result = run(assignment=MASKING)
    assert there(tmp_path) == {f"doejane/{MASKING}": "renamed", f"Max Roe/{MASKING}": "untitled"}
    assert result.unmatched == ["02_causal_masking.ipynb"]
    assert result.problems == [
        "moe_1_2_01_attention.ipynb: it is named after 01_attention, "
        "and this is a download of 02_causal_masking."
    ]
    put(folder, "moe_1_2_homework.ipynb")
    assert "moe_1_2_homework.ipynb" in run().unmatched


def test_a_pattern_of_ones_own(tmp_path, folder, run):
    """A dot of a pattern that fits any letter; a name repeated that must be the same."""
    patterns = ("{notebook}.by.{student}.ipynb", "{student}/{student}_{notebook}.ipynb")
    put(folder, "02_causal_masking.by.jane.ipynb")
    put(folder, "02_causal_masking_by_moe.ipynb")
    put(folder, "max/max_02_causal_masking.ipynb")
    put(folder, "max/zoe_02_causal_masking.ipynb")
    result = run(patterns=patterns)
    assert sorted(there(tmp_path)) == [f"jane/{MASKING}", f"max/{MASKING}"]
    assert sorted(result.unmatched) == ["02_causal_masking_by_moe.ipynb", "max/zoe_02_causal_masking.ipynb"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a\\b", r"holds '\\'"),
        ("a\nb", r"holds '\n'"),
        ("a*", "holds '*'"),
        ("a[1]", "holds '['"),
        ("jane.", "begins or ends with a dot"),
        (" ", "it is empty"),
        ("a\u202eb", "holds the character U+202E"),
        ("x" * 121, "longer than 120 bytes"),
    ],
)
def test_students_that_cannot_be_folders(tmp_path, folder, run, name, says):
    """A student named .. writes into the classroom's own folder; one named * is every student to nbgrader."""
    put(folder, f"{name}_02_causal_masking.ipynb")
    result = run()
    assert len(result.problems) == 1 and says in result.problems[0]
    assert not result.collected and not (tmp_path / "classroom").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", ".git", "a\0", "\ud800", "a?b", "C:"])
def test_no_name_leads_out_of_the_folder(name):
    """The last check before a folder is made, whatever pattern an instructor writes."""
    with pytest.raises(ValueError, match="the student's name|cannot be a student's name"):
        module.check_student(name)


def test_the_exercises_themselves_are_no_student(tmp_path, folder, run):
    """A copy of exercises/ among the downloads: a student named 02_causal_masking."""
    put(folder, "02_causal_masking/02_causal_masking.ipynb")
    assert run().unmatched == ["02_causal_masking/02_causal_masking.ipynb"]
    assert there(tmp_path) == {}


def test_students_that_differ_by_case_are_named_and_not_mixed(tmp_path, folder, run):
    """On Windows and macOS one folder: the second student's work replaces the first's."""
    put(folder, "jane_02_causal_masking.ipynb")
    put(folder, "Jane_01_attention.ipynb")
    put(folder, "moe_01_attention.ipynb")
    result = run()
    assert sorted(there(tmp_path)) == ["moe/01_attention"]
    assert result.problems[0].startswith("Jane and jane differ only by capital letters")
    (folder / "jane_02_causal_masking.ipynb").unlink()
    put(folder, "MOE_02_causal_masking.ipynb")
    result = run()
    assert result.problems[0].startswith("MOE and moe differ only by capital letters")
    assert sorted(there(tmp_path)) == ["Jane/01_attention", "moe/01_attention"]


def test_two_people_of_one_name(tmp_path, folder, run):
    """Canvas writes doejane for every Jane Doe: one of the two would be graded for both."""
    put(folder, "doejane_11_1_02_causal_masking.ipynb")
    put(folder, "doejane_22_2_02_causal_masking.ipynb")
    result = run()
    assert there(tmp_path) == {}
    assert result.problems == [
        "02_causal_masking: doejane stands for 2 people, numbers 11, 22. "
        "Nothing of them was collected. Rename the files so that the names differ."
    ]


def test_folders_links_and_pipes(tmp_path, folder, run):
    """A link to a file of the instructor's that is then sent back as feedback; a pipe that never ends."""
    secret = put(tmp_path, "secret.ipynb", "secret")
    put(folder, "zoe_02_causal_masking.ipynb/file.txt")
    put(folder, "real.ipynb", "fine")
    (folder / "out_02_causal_masking.ipynb").symlink_to(secret)
    (folder / "in_02_causal_masking.ipynb").symlink_to(folder / "real.ipynb")
    (folder / "gone_02_causal_masking.ipynb").symlink_to(folder / "nothing")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe_02_causal_masking.ipynb")
    result = run()
    assert there(tmp_path) == {f"in/{MASKING}": "fine"}
    assert sorted(result.problems) == [
        "gone_02_causal_masking.ipynb: it cannot be read: No such file or directory.",
        "linked: it is a link to a folder, and is not followed.",
        "out_02_causal_masking.ipynb: it is a link out of the folder, and is not followed.",
        "pipe_02_causal_masking.ipynb: it is not a plain file.",
        "zoe_02_causal_masking.ipynb: it is a folder, not a notebook.",
    ]


def test_a_file_that_cannot_be_read_costs_only_itself(tmp_path, folder, run, monkeypatch):
    """One file without permission ends the whole collection."""
    put(folder, "jane_02_causal_masking.ipynb")
    put(folder, "moe_02_causal_masking.ipynb")

    def opener(path, flags):
        if "jane" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return os.open(path, flags)

    monkeypatch.setattr(downloads, "_plain", opener)
    result = run()
    assert list(there(tmp_path)) == [f"moe/{MASKING}"]
    assert result.problems == ["jane_02_causal_masking.ipynb: it cannot be read: Permission denied."]


def test_files_that_are_too_large(tmp_path, folder, run, monkeypatch):
    """A disk filled by one file; a size in a zip that is a lie."""
    monkeypatch.setattr(downloads, "MOST_BYTES", 1000)
    put(folder, "jane_02_causal_masking.ipynb", "x" * 1001)
    put(folder, "moe_02_causal_masking.ipynb", "x" * 1000)
    result = run()
    assert list(there(tmp_path)) == [f"moe/{MASKING}"]
    assert result.problems[0].startswith("jane_02_causal_masking.ipynb: it is larger than")


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members:
            info = (
                name if isinstance(name, zipfile.ZipInfo) else zipfile.ZipInfo(name, (2026, 1, 30, 15, 0, 0))
            )
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text)
    return path


def test_a_zip_is_read_like_a_folder(tmp_path, run):
    """An archive with an outer folder, or written on Windows with backslashes: nothing matches."""
    source = make_zip(
        tmp_path / "all.zip",
        [
            ("submissions/jane_1_2_02_causal_masking.ipynb", "one"),
            ("Jane Doe_5_assignsubmission_file_\\01_attention.ipynb", "two"),
            ("readme.txt", "three"),
            ("empty/", ""),
        ],
    )
    result = run(source)
    assert there(tmp_path) == {"Jane Doe/01_attention": "two", f"jane/{MASKING}": "one"}
    assert result.unmatched == ["readme.txt"]
    assert result.collected[1].time == datetime(2026, 1, 30, 15, 0).astimezone(UTC)
    assert len(run(source).unchanged) == 2


def test_a_zip_that_climbs_out_links_or_explodes(tmp_path, run, monkeypatch):
    """Zip slip: a path with .. writes anywhere; a bomb of a few kB fills memory and disk."""
    monkeypatch.setattr(downloads, "MOST_BYTES", 10**6)
    link = zipfile.ZipInfo("link_02_causal_masking.ipynb")
    link.external_attr = 0o120777 << 16
    source = make_zip(
        tmp_path / "all.zip",
        [
            ("../../jane_02_causal_masking.ipynb", "x"),
            ("/etc/moe_02_causal_masking.ipynb", "x"),
            ("C:\\max_02_causal_masking.ipynb", "x"),
            (link, "/etc/passwd"),
            ("bomb_02_causal_masking.ipynb", "0" * 20_000_000),
            ("dir_02_causal_masking.ipynb/", ""),
            ("l" * 1100 + "_02_causal_masking.ipynb", "x"),
            ("zoe_02_causal_masking.ipynb", "fine"),
        ],
    )
    assert source.stat().st_size < 100_000
    result = run(source)
    assert there(tmp_path) == {f"zoe/{MASKING}": "fine"}
    assert [problem.partition(": ")[2] for problem in result.problems] == [
        "its path leads out of the folder, with `..`.",
        "its path starts at the root of a disk.",
        "its path starts at the root of a disk.",
        "it is a link, and is not followed.",
        "it is larger than 1 MB (20 MB or more).",
        "it is a folder, not a notebook.",
        "its path is longer than 1000 letters.",
    ]


def test_a_size_in_the_zip_that_is_a_lie(tmp_path, run, monkeypatch):
    """The directory says 10 bytes, the data unpack to 20 MB: the limit must hold while reading."""
    source = make_zip(tmp_path / "all.zip", [("bomb_02_causal_masking.ipynb", "0" * 20_000_000)])
    data = source.read_bytes().replace((20_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    source.write_bytes(data)
    result = run(source)
    assert there(tmp_path) == {} and len(result.problems) == 1
    assert "it cannot be unpacked" in result.problems[0]


def test_a_damaged_zip(tmp_path, run):
    """A traceback of zipfile; or half of a notebook collected."""
    source = make_zip(tmp_path / "all.zip", [("jane_02_causal_masking.ipynb", "abc" * 1000)])
    data = bytearray(source.read_bytes())
    data[60:64] = b"\0\0\0\0"
    source.write_bytes(data)
    result = run(source)
    assert there(tmp_path) == {} and "it cannot be unpacked" in result.problems[0]


def test_too_many_files(tmp_path, run, monkeypatch):
    """The home folder given by mistake: minutes of silence."""
    monkeypatch.setattr(downloads, "MOST_FILES", 3)
    source = make_zip(tmp_path / "all.zip", [(f"{i}.txt", "") for i in range(4)])
    with pytest.raises(CollectError, match="holds 4 files; the most is 3"):
        run(source)
    for number in range(4):
        put(tmp_path / "downloads", f"{number}.txt")
    with pytest.raises(CollectError, match="holds more than 3 files"):
        run()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "is not there"),
        ("file.txt", "neither a folder nor a .zip"),
        ("downloads", "holds no file"),
    ],
)
def test_no_download(tmp_path, run, name, says):
    """ "Collected 0 submissions", and exit code 0."""
    put(tmp_path, "file.txt", "text")
    with pytest.raises(CollectError, match=says):
        run(tmp_path / name)


def test_a_full_disk_stops_and_leaves_nothing_half_written(tmp_path, folder, run, monkeypatch):
    """Half a notebook that is then graded; or one sentence for each of 500 students."""
    for student in ("ann", "bob", "cy", "dot"):
        put(folder, f"{student}_02_causal_masking.ipynb", student)
    sync = os.fsync
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) > 2:  # ann's notebook and timestamp fit
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    result = run()
    assert there(tmp_path) == {f"ann/{MASKING}": "ann"}
    assert "No space left on device" in result.problems[0]
    assert result.problems[1] == "2 more files were not collected. Run it again when there is room."
    monkeypatch.undo()
    result = run()
    assert len(result.collected) == 3 and len(result.unchanged) == 1


def test_the_downloads_are_left_as_they_were(folder, run):
    """Moved instead of copied: a second class room has nothing to collect."""
    file = put(folder, "jane_02_causal_masking.ipynb", "one")
    before = file.stat().st_mtime_ns
    run()
    assert file.read_text() == "one" and file.stat().st_mtime_ns == before
    assert [p.name for p in Path(folder).iterdir()] == [file.name]
