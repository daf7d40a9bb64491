"""course/laying.py: a learner's copies in work/ are renewed, or kept, and never lost."""

import errno
import hashlib
import json
import os
import posixpath
import re
import shutil
from urllib.parse import unquote

import nbformat
import pytest
from course_tools import ROOT, laying, reading

LESSON, EXERCISE = "work/04_toy/04_lesson.ipynb", "work/04_toy/04_toy.ipynb"
SOLUTION = "work/04_toy/04_solution.ipynb"
KEPT = "Kept as you have it, although the course has a newer edition: {}. To get the new one, rename yours"


def notebook(*sources, original=False):
    """A notebook's text: markdown where a source begins with #, else code."""
    v4 = nbformat.v4
    cells = [v4.new_markdown_cell(s) if s[0] == "#" else v4.new_code_cell(s) for s in sources]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    metadata = {"kvlearn": {"made_from": "a text"}}
    if original:
        metadata["kvlearn"]["ran_by"] = "a running.py"
        tags = {"tags": [laying.ORIGINAL]}
        cells.insert(0, v4.new_markdown_cell("An original.", id="original", metadata=tags))
    return nbformat.writes(v4.new_notebook(cells=cells, metadata=metadata)) + "\n"


def publish(root, lesson="1 + 1", exercise="raise NotImplementedError", solution="return 1"):
    """Write an edition of the course's one lesson."""
    files = {"course/lessons/04_toy.py": "", "course/assignments/04_toy.py": ""}
    files["notebooks/04_toy.ipynb"] = notebook("# A lesson", lesson, original=True)
    files["exercises/04_toy/04_toy.ipynb"] = notebook("# Exercises", exercise, original=True)
    files["solutions/04_toy/04_toy.ipynb"] = notebook("# Solutions", solution, original=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def run_and_save(path, answer=None):
    """Leave what JupyterLab does when all is run and saved: outputs, counts, metadata, an empty last cell."""
    there = nbformat.read(path, as_version=4)
    for cell in there.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [nbformat.v4.new_output("stream", text="ran")], 7
            cell.metadata["jupyter"] = {"outputs_hidden": False}
            cell.source = answer or cell.source
    there.cells.append(nbformat.v4.new_code_cell(""))
    there.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    nbformat.write(there, path)


def sources(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def left_over(root):
    """Files in work/ that are neither copies nor the record."""
    known = {LESSON, EXERCISE, SOLUTION, laying.RECORD}
    files = {p.relative_to(root).as_posix() for p in root.glob("work/**/*") if not p.is_dir()}
    return files - known | {p.name for p in root.glob("work/**/.laying-*")}


def test_each_notebook_is_laid_once_without_its_first_cell(tmp_path):
    """Would catch a lesson that is run and saved where git tracks it; and a copy that says "an original"."""
    publish(tmp_path)
    assert laying.lay(tmp_path) == ["New in work/: 04_toy."]
    assert sources(tmp_path / LESSON) == ["# A lesson", "1 + 1"]
    assert sources(tmp_path / EXERCISE) == ["# Exercises", "raise NotImplementedError"]
    assert sources(tmp_path / SOLUTION) == ["# Solutions", "return 1"]
    before = (tmp_path / LESSON).stat()
    assert laying.lay(tmp_path) == []
    assert (tmp_path / LESSON).stat() == before and left_over(tmp_path) == set()


def test_what_the_learner_has_touched_is_kept_and_said(tmp_path):
    """Would catch the worst that this repository could do: a learner's answer written over."""
    publish(tmp_path)
    laying.lay(tmp_path)
    run_and_save(tmp_path / EXERCISE, answer="return my_answer")
    mine = (tmp_path / EXERCISE).read_bytes()
    assert laying.lay(tmp_path) == []  # nothing to say while the course is as it was
    publish(tmp_path, exercise="raise NotImplementedError  # clearer")
    for _ in range(2):  # it goes on being true
        (line,) = laying.lay(tmp_path)
        assert line.startswith(KEPT.format(EXERCISE)) and "start again" in line
    assert (tmp_path / EXERCISE).read_bytes() == mine
    (tmp_path / EXERCISE).rename(tmp_path / "work/04_toy/mine.ipynb")
    assert laying.lay(tmp_path) == ["New in work/: 04_toy."]
    assert sources(tmp_path / EXERCISE)[1] == "raise NotImplementedError  # clearer"
    assert (tmp_path / "work/04_toy/mine.ipynb").read_bytes() == mine
    assert laying.lay(tmp_path) == []


@pytest.mark.parametrize("ran", [False, True])
def test_what_was_only_run_is_renewed(tmp_path, ran):
    """Would catch an update that reaches nobody, since running a cell already changes the file's bytes."""
    publish(tmp_path)
    laying.lay(tmp_path)
    if ran:
        run_and_save(tmp_path / LESSON)
    publish(tmp_path, lesson="2 + 2")
    assert laying.lay(tmp_path) == [f"Updated (you had not changed it): {LESSON}."]
    assert sources(tmp_path / LESSON) == ["# A lesson", "2 + 2"]
    run_and_save(tmp_path / LESSON, answer="3 + 3")
    publish(tmp_path, lesson="4 + 4")
    assert laying.lay(tmp_path)[0].startswith(KEPT.format(LESSON))
    assert sources(tmp_path / LESSON)[1] == "3 + 3" and left_over(tmp_path) == set()


@pytest.mark.parametrize(
    "change",
    [
        lambda cells: cells[1].update(source="1 + 1  # noted"),
        lambda cells: cells[0].update(source="# My lesson"),
        lambda cells: cells[1].update(cell_type="raw"),
        lambda cells: cells.pop(),
        lambda cells: cells.reverse(),
        lambda cells: cells.append(nbformat.v4.new_markdown_cell("My note")),
    ],
    ids=["code", "prose", "kind", "deleted", "order", "added"],
)
def test_each_change_of_a_cell_counts(tmp_path, change):
    """Would catch notes that an update throws away, because only code was compared."""
    publish(tmp_path)
    laying.lay(tmp_path)
    there = nbformat.read(tmp_path / LESSON, as_version=4)
    change(there.cells)
    (tmp_path / LESSON).write_text(json.dumps(there))
    mine = (tmp_path / LESSON).read_bytes()
    publish(tmp_path, lesson="2 + 2")
    assert laying.lay(tmp_path)[0].startswith(KEPT.format(LESSON))
    assert (tmp_path / LESSON).read_bytes() == mine


def test_a_new_edition_of_outputs_alone_is_no_news_for_a_changed_copy(tmp_path):
    """Would catch a learner who is told at each start of an edition in which nothing can be read anew."""
    publish(tmp_path)
    laying.lay(tmp_path)
    run_and_save(tmp_path / LESSON, answer="3 + 3")
    original = tmp_path / "notebooks/04_toy.ipynb"
    text = original.read_text()
    original.write_text(text.replace('"execution_count": null', '"execution_count": 5'))
    assert original.read_text() != text
    assert laying.lay(tmp_path) == []
    publish(tmp_path, lesson="3 + 3")  # the learner's own version has become the course's
    assert laying.lay(tmp_path) == []


@pytest.mark.parametrize("changed", [False, True], ids=["same edition", "newer edition"])
@pytest.mark.parametrize("copy", ["as laid", "run", "answered"])
def test_work_from_before_lessons_were_laid_loses_nothing(tmp_path, copy, changed):
    """Would catch an update of dev.py that takes an older work/ for its own, or tells everybody of news."""
    old = notebook("# Exercises", "raise NotImplementedError")
    path = tmp_path / EXERCISE
    path.parent.mkdir(parents=True)
    path.write_text(old)
    record = {"04_toy": hashlib.sha256(old.encode()).hexdigest()}
    (tmp_path / laying.RECORD).write_text(json.dumps(record))
    if copy != "as laid":
        run_and_save(path, answer="return my_answer" if copy == "answered" else None)
    mine = path.read_bytes()
    publish(tmp_path, exercise="raise NotImplementedError  # 2" if changed else "raise NotImplementedError")
    lines = laying.lay(tmp_path)
    assert lines[0] == "New in work/: 04_toy."  # the lesson and the solution
    if changed and copy == "as laid":
        assert lines[1:] == [f"Updated (you had not changed it): {EXERCISE}."]
        assert sources(path)[1] == "raise NotImplementedError  # 2"
    else:
        assert path.read_bytes() == mine
        assert [line[:20] for line in lines[1:]] == [KEPT[:20]] * changed
    assert [line[:20] for line in laying.lay(tmp_path)] == [KEPT[:20]] * (changed and copy != "as laid")


def test_a_copy_of_unknown_origin_is_kept(tmp_path):
    """Would catch a copy made by hand, or one whose record is lost, that is taken for the course's own."""
    publish(tmp_path)
    (tmp_path / EXERCISE).parent.mkdir(parents=True)
    mine = notebook("# Mine")
    (tmp_path / EXERCISE).write_text(mine)
    assert laying.lay(tmp_path) == ["New in work/: 04_toy."]
    (tmp_path / laying.RECORD).unlink()
    assert laying.lay(tmp_path) == []
    publish(tmp_path, exercise="2", lesson="2")
    (kept, updated) = sorted(laying.lay(tmp_path))
    assert kept.startswith(KEPT.format(EXERCISE)) and (tmp_path / EXERCISE).read_text() == mine
    assert updated == f"Updated (you had not changed it): {LESSON}."


def odd_folder(path, elsewhere):
    path.mkdir()


def odd_link(path, elsewhere):
    path.symlink_to(elsewhere)


def odd_link_to_nothing(path, elsewhere):
    path.symlink_to(elsewhere.with_name("gone"))


def odd_pipe(path, elsewhere):
    os.mkfifo(path)


def odd_half(path, elsewhere):
    path.write_text(notebook("# A lesson")[:40])


def odd_bytes(path, elsewhere):
    path.write_bytes(b"\xff\xfe\x00")


def odd_list(path, elsewhere):
    path.write_text("[1, 2]")


def odd_read_only(path, elsewhere):
    shutil.copy(elsewhere, path)
    path.chmod(0o444)


@pytest.mark.parametrize(
    "make, says",
    [
        (odd_folder, "Cannot be read as a notebook"),
        (odd_link_to_nothing, "Cannot be read as a notebook"),
        (odd_pipe, "Cannot be read as a notebook"),
        (odd_half, "Cannot be read as a notebook"),
        (odd_bytes, "Cannot be read as a notebook"),
        (odd_list, "Cannot be read as a notebook"),
        (odd_link, "Kept as you have it"),
        (odd_read_only, "Kept as you have it"),
    ],
)
def test_what_is_no_plain_file_stays_and_is_said(tmp_path, make, says):
    """Would catch a traceback instead of the lessons, or a file behind a link that is written over."""
    publish(tmp_path)
    laying.lay(tmp_path)
    elsewhere = shutil.move(tmp_path / LESSON, tmp_path / "elsewhere.ipynb")
    text = elsewhere.read_bytes()
    make(tmp_path / LESSON, elsewhere)
    before = os.lstat(tmp_path / LESSON)
    publish(tmp_path, lesson="2 + 2")
    (line,) = laying.lay(tmp_path)
    assert line.startswith(says) and LESSON in line and "start again" in line
    after = os.lstat(tmp_path / LESSON)
    assert (after.st_mode, after.st_ino, after.st_mtime) == (before.st_mode, before.st_ino, before.st_mtime)
    assert elsewhere.read_bytes() == text


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path):
    """Would catch a traceback, or JupyterLab that does not start, because of one file in the way."""
    publish(tmp_path)
    (tmp_path / "work").write_text("mine")
    (line,) = laying.lay(tmp_path)
    assert line == "Your copies belong in a folder named work, which cannot be made: File exists."
    (tmp_path / "work").unlink()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/04_toy").write_text("mine")
    lines = laying.lay(tmp_path)
    assert lines[0] == f"{LESSON} cannot be written or read: File exists." and len(lines) == 3
    assert (tmp_path / "work/04_toy").read_text() == "mine"


@pytest.mark.parametrize("record", ["", "{", "[]", "null", '{"04_toy": 3, "04_toy/04_toy.ipynb": "x"}', None])
def test_a_record_that_cannot_be_read_costs_nothing(tmp_path, record):
    """Would catch a half-written .laid.json that stops every later start, or makes answers look untouched."""
    publish(tmp_path)
    laying.lay(tmp_path)
    run_and_save(tmp_path / EXERCISE, answer="return my_answer")
    (tmp_path / laying.RECORD).unlink()
    if record is None:
        (tmp_path / laying.RECORD).mkdir()
    else:
        (tmp_path / laying.RECORD).write_text(record)
    publish(tmp_path, exercise="raise NotImplementedError  # 2")
    lines = laying.lay(tmp_path)
    assert sources(tmp_path / EXERCISE)[1] == "return my_answer"
    assert lines == ([] if record is not None else [f"{laying.RECORD} cannot be written: Is a directory."])
    assert left_over(tmp_path) == set()


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n{}", "[]", '{"cells": [1]}', '{"cells": [{"source": ""}]}'])
def test_an_original_that_is_broken_is_said_and_the_others_are_laid(tmp_path, text):
    """Would catch a conflict of git in one notebook that keeps the whole course from starting."""
    publish(tmp_path)
    (tmp_path / "exercises/04_toy/04_toy.ipynb").write_text(text)
    original = "exercises/04_toy/04_toy.ipynb"
    assert laying.lay(tmp_path) == [
        "New in work/: 04_toy.",
        f"{original} cannot be read. To restore it: git checkout -- {original}",
    ]
    assert (tmp_path / LESSON).exists() and not (tmp_path / EXERCISE).exists()


@pytest.mark.parametrize("step", ["link", "replace"])
def test_ctrl_c_leaves_nothing_half_written(tmp_path, monkeypatch, step):
    """Would catch an empty notebook that no later start repairs, and a record that forgets what was laid."""
    publish(tmp_path)
    if step == "replace":
        laying.lay(tmp_path)
        publish(tmp_path, "2 + 2", "2", "2")
    real, calls = getattr(os, step), []

    def interrupted(*paths):
        calls.append(paths)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            laying.lay(tmp_path)
    assert left_over(tmp_path) == set()
    for copy in (LESSON, EXERCISE, SOLUTION):
        assert not (tmp_path / copy).exists() or sources(tmp_path / copy)
    assert "04_toy/04_lesson.ipynb" in json.loads((tmp_path / laying.RECORD).read_text())
    laying.lay(tmp_path)
    publish(tmp_path, "3 + 3", "3", "3")
    (line,) = laying.lay(tmp_path)
    assert line == f"Updated (you had not changed it): {LESSON}, {EXERCISE}, {SOLUTION}."


@pytest.mark.parametrize("links", [True, False])
def test_of_two_that_lay_at_once_the_second_writes_nothing(tmp_path, monkeypatch, links):
    """Would catch an answer that another start of the lab, a moment later, covers with a stub."""
    publish(tmp_path)
    real = os.link

    def link(made, path):
        if path.name == "04_toy.ipynb":
            path.write_text(notebook("# Exercises", "return my_answer"))  # the other one, and the learner
        if not links:
            raise OSError(errno.EPERM, "this file system has no hard links")
        return real(made, path)

    monkeypatch.setattr(os, "link", link)
    laying.lay(tmp_path)
    assert sources(tmp_path / EXERCISE)[1] == "return my_answer"
    assert sources(tmp_path / LESSON)[1] == "1 + 1" and left_over(tmp_path) == set()


def test_a_copy_that_is_saved_while_it_is_renewed_is_kept(tmp_path, monkeypatch):
    """Would catch an answer saved by an open JupyterLab between the look at the file and its renewal."""
    publish(tmp_path)
    laying.lay(tmp_path)
    publish(tmp_path, exercise="2")
    real = laying.is_writable_file

    def saved(path):
        path.write_text(notebook("# Exercises", "return my_answer"))
        return real(path)

    monkeypatch.setattr(laying, "is_writable_file", saved)
    assert laying.lay(tmp_path)[0].startswith(KEPT.format(EXERCISE))
    assert sources(tmp_path / EXERCISE)[1] == "return my_answer"


@pytest.mark.parametrize(
    "link, becomes",
    [
        ("[a](../exercises/04_toy/04_toy.ipynb)", "[a](04_toy.ipynb)"),
        ("[a](../exercises/04_toy/04_toy.ipynb#Part-2)", "[a](04_toy.ipynb#Part-2)"),
        ("[a](04_toy.ipynb)", "[a](04_lesson.ipynb)"),
        ("[a](../docs/a%20page.md)", "[a](../../docs/a%20page.md)"),
        ("[a](<../docs/b.md>) and ![b](../docs/b.md)", "[a](<../../docs/b.md>) and ![b](../../docs/b.md)"),
        ('[a](../docs/b.md "title")', '[a](../../docs/b.md "title")'),
        ("[a]: ../docs/b.md", "[a]: ../../docs/b.md"),
        ('<img src="../docs/b.md">', '<img src="../../docs/b.md">'),
        ("[a](https://example.org/04_toy.ipynb)", None),
        ("[a](#section)", None),
        ("[a](../docs/missing.md)", None),
        ("`f[0](x)` and [0](x)", None),
        ("![a](attachment:04_toy.ipynb)", None),
    ],
)
def test_links_lead_from_work_to_copies_and_to_other_files(tmp_path, link, becomes):
    """Would catch a link in a copy that opens the tracked original, or that leads nowhere."""
    publish(tmp_path, lesson=f"#\n{link}")
    (tmp_path / "docs").mkdir()
    for name in ("a page.md", "b.md"):
        (tmp_path / "docs" / name).write_text("")
    laying.lay(tmp_path)
    assert sources(tmp_path / LESSON)[1] == f"#\n{becomes or link}"


def relative_links(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r'\]\(<?([^)>\s]+)|(?:href|src)="([^"]+)', cell.source):
                target = "".join(target).partition("#")[0]
                if target and not re.match(r"[a-z]+:", target):
                    yield unquote(target)


def test_every_link_of_every_copy_leads_somewhere(tmp_path):
    """Would catch a lesson's link that is right on the web and dead in the learner's copy, or the reverse."""
    for name in ("course", "notebooks", "exercises", "solutions", "docs", "kvlearn", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    laying.lay(tmp_path)
    places, to_exercises = laying.copies(tmp_path), set()
    assert len(places) == len(reading.targets(ROOT)) + len([t for t in reading.targets(ROOT) if t.released])
    for original, copy in places.items():
        for target in relative_links(ROOT / original):
            assert (ROOT / posixpath.dirname(original) / target).exists(), (original, target)
        for target in relative_links(tmp_path / copy):
            file = posixpath.normpath(posixpath.join(posixpath.dirname(copy), target))
            assert (tmp_path / file).exists() and file not in places, (copy, target)
            to_exercises |= {(copy, file)} & {
                (places[f"notebooks/{n}.ipynb"], places[f"exercises/{n}/{n}.ipynb"])
                for n in [posixpath.basename(posixpath.dirname(copy))]
            }
    assert len(to_exercises) == len([t for t in reading.targets(ROOT) if t.released])
