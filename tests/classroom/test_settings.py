"""classroom/settings.toml: written once, read whole, refused with the file, the key and the value."""

import os
import tomllib

import pytest

from kvlearn.classroom import settings
from kvlearn.classroom.settings import SettingsError


def write(root, text):
    (root / "classroom").mkdir(exist_ok=True)
    (root / "classroom" / "settings.toml").write_text(text, encoding="utf-8")


def test_what_start_writes_reads_back_as_the_defaults(tmp_path):
    """A comment or a brace of the template that breaks the TOML, or a default that differs from it."""
    path, written = settings.create(tmp_path)
    assert written and path == tmp_path / "classroom" / "settings.toml"
    read = settings.read(tmp_path)
    assert read.patterns == settings.PATTERNS
    assert (read.cell_seconds, read.submission_seconds, read.library) == (60, 600, "flag")
    assert read.memory == 6 * 2**30
    assert read.cores == os.cpu_count()
    assert len(read.hidden_seeds) == 2 and 0 < read.hidden_seeds[0] < read.hidden_seeds[1] < 2**31


def test_the_template_sets_every_setting(tmp_path):
    """A setting that the file does not show is one that no instructor finds."""
    path, _ = settings.create(tmp_path)
    assert set(tomllib.loads(path.read_text(encoding="utf-8"))) == set(settings.READERS)


def test_a_second_start_changes_nothing(tmp_path):
    """New seeds in the middle of a class would grade the second half by other tests."""
    path, _ = settings.create(tmp_path)
    before = path.read_bytes()
    assert settings.create(tmp_path) == (path, False)
    assert path.read_bytes() == before


def test_seeds_differ_between_classes_and_are_for_the_owner_alone(tmp_path):
    """Seeds written into the source, or drawn from a seeded generator; a file that others can read."""
    seeds = set()
    for number in range(3):
        root = tmp_path / str(number)
        root.mkdir()
        path, _ = settings.create(root)
        seeds.add(settings.read(root).hidden_seeds)
        if os.name == "posix":
            assert path.stat().st_mode & 0o077 == 0
    assert len(seeds) == 3


def test_a_full_disk_leaves_no_settings(tmp_path, monkeypatch):
    """Half a file would be read for ever after, for create() never writes over one."""
    monkeypatch.setattr(settings, "TEXT", FullDisk())
    with pytest.raises(SettingsError, match="No space left"):
        settings.create(tmp_path)
    assert not settings.file_of(tmp_path).exists()


class FullDisk:
    def format(self, **_):
        raise OSError(28, "No space left on device")


def test_all_settings_are_read(tmp_path):
    """A key that is accepted and then ignored."""
    write(
        tmp_path,
        'hidden_seeds = [7, 9, 8]\npatterns = ["{student}-{notebook}.ipynb"]\ncell_seconds = 2.5\n'
        'submission_seconds = 90\nmemory = "2.5GB"\nlibrary = "allow"\ncores = 3\n',
    )
    assert settings.read(tmp_path) == settings.Settings(
        (7, 9, 8), ("{student}-{notebook}.ipynb",), 2.5, 90, 2_500_000_000, "allow", 3
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cell_second = 5", "no setting 'cell_second'. Did you mean cell_seconds?"),
        ("zzz = 5", "no setting 'zzz'. There is: hidden_seeds, patterns"),
        ('cell_seconds = "60"', "cell_seconds = '60': it must be a number of seconds"),
        ("cell_seconds = 0", "cell_seconds = 0: it must be"),
        ("cell_seconds = true", "cell_seconds = True: it must be"),
        ("submission_seconds = nan", "submission_seconds = nan: it must be"),
        ("memory = 6", "memory = 6: it must be a text"),
        ('memory = "6 gigabytes"', "memory = '6 gigabytes': it must be a text"),
        ('memory = "6MiB"', "memory = '6MiB': it must be 1.5GiB or more"),
        ('library = "ignore"', 'library = \'ignore\': it must be "flag" or "allow"'),
        ("cores = -1", "cores = -1: it must be a whole number"),
        ("cores = 1.5", "cores = 1.5: it must be a whole number"),
        ("patterns = []", "patterns = []: it must be a list"),
        ("patterns = [3]", "a pattern is a text, not 3"),
        ('patterns = ["{student}.ipynb"]', "'{student}.ipynb' needs {notebook}"),
        ('patterns = ["{notebook}.ipynb"]', "'{notebook}.ipynb' needs {student}"),
        ('patterns = ["{student}_{date}_{notebook}.ipynb"]', "has {date}; there is {student}"),
        ('patterns = ["{student}_{notebook.ipynb"]', "a brace has no partner"),
    ],
)
def test_what_is_wrong_names_file_key_and_value(tmp_path, line, says):
    """A wrong value that is taken, or an error that does not say where it stands."""
    write(tmp_path, f"hidden_seeds = [1, 2]\n{line}\n")
    with pytest.raises(SettingsError) as caught:
        settings.read(tmp_path)
    assert says in str(caught.value)
    assert str(settings.file_of(tmp_path)) in str(caught.value)


@pytest.mark.parametrize("seeds", ["[]", "[1, 1]", "[0, 2]", "[1.5, 2]", "[true, 2]", "7"])
def test_seeds_that_are_none(tmp_path, seeds):
    """Seed 0 is the one that students see; a seed twice is one hidden test fewer."""
    write(tmp_path, f"hidden_seeds = {seeds}\n")
    with pytest.raises(SettingsError, match="different whole numbers above 0"):
        settings.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [("cores = 1", "hidden_seeds is missing"), ("hidden_seeds = [1, ", "cannot be read as TOML")],
)
def test_a_file_that_is_not_whole(tmp_path, text, says):
    """A traceback of the TOML reader, or grading without hidden tests."""
    write(tmp_path, text)
    with pytest.raises(SettingsError, match=says):
        settings.read(tmp_path)


def test_no_file_says_what_to_run(tmp_path):
    """A bare FileNotFoundError."""
    with pytest.raises(SettingsError, match="`kvlearn classroom start` writes it"):
        settings.read(tmp_path)
