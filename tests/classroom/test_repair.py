"""Whatever a student hands in becomes a notebook that nbgrader grades, with the student's answers in it."""

import copy
import json
from pathlib import Path

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator

from kvlearn.classroom.repair import repair

ROOT = Path(__file__).resolve().parents[2]
NAME = "02_causal_masking"
ANSWERS = ("causal_mask", "position_mask", "masked_attention", "changed_layers")


def read(folder, name=NAME):
    return nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4)


def solved(name=NAME):
    """A perfect submission: the release with the answers of the solution."""
    notebook = read("exercises", name)
    answers = {
        c.metadata.nbgrader.grade_id: c.source
        for c in read("solutions", name).cells
        if "nbgrader" in c.metadata
    }
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = answers[cell.metadata.nbgrader.grade_id]
    return notebook


@pytest.fixture
def release():
    return read("exercises")


@pytest.fixture
def done():
    """A perfect submission, as a dict that tests then damage."""
    return dict(solved())


def find(data, grade_id):
    """The cell with this grade_id, of a dict or a notebook."""
    found = [c for c in data["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id]
    assert len(found) == 1, f"{grade_id}: {len(found)} cells"
    return found[0]


def mend(data, release):
    """Repair, and hold what must be true of every repaired notebook."""
    text = data if isinstance(data, bytes | str) else json.dumps(data)
    before = copy.deepcopy(release)
    repaired = repair(text, release)
    assert release == before, "the release was changed"
    nbformat.validate(repaired.notebook)
    MetadataValidator().validate_nb(repaired.notebook)
    marked = [cell for cell in repaired.notebook.cells if "nbgrader" in cell.metadata]
    expected = [cell for cell in release.cells if "nbgrader" in cell.metadata]
    assert [c.metadata for c in marked] == [c.metadata for c in expected]
    for cell, of in zip(marked, expected, strict=True):
        assert cell.cell_type == of.cell_type
        if cell.metadata.nbgrader.locked:
            assert cell.source == of.source
    assert all(not c.outputs and c.execution_count is None for c in repaired.notebook.cells if "outputs" in c)
    assert repaired.notebook.metadata == release.metadata
    return repaired


def sources(notebook):
    return [cell["source"] for cell in notebook["cells"]]


def code(source, **more):
    return {
        "cell_type": "code",
        "metadata": {},
        "source": source,
        "outputs": [],
        "execution_count": 1,
        **more,
    }


def position(notebook, text):
    """Where the one cell stands that holds this text."""
    found = [i for i, cell in enumerate(notebook["cells"]) if text in cell["source"]]
    assert len(found) == 1, f"{text!r} is in {len(found)} cells"
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "exercises").glob("*/*.ipynb")), ids=lambda p: p.stem)
def test_a_perfect_and_a_blank_submission_stay_as_they_are(path):
    """A repair that damages what is whole, in any assignment."""
    release, solution = nbformat.read(path, 4), solved(path.stem)
    repaired = mend(nbformat.writes(solution), release)
    assert sources(repaired.notebook) == sources(solution) and repaired.notes == ()
    repaired = mend(path.read_bytes(), release)
    assert sources(repaired.notebook) == sources(release) and repaired.notes == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "Your file was empty."),
        (b" \r\n\0\0", "Your file was empty."),
        (b"PK\x03\x04 a zip", "could not be read as a notebook."),
        (b"\xff\xd8\xff\xe0 a photo", "could not be read as a notebook."),
        (b"<!DOCTYPE html><title>Sign in</title>", "could not be read as a notebook."),
        (b"[" * 100_000, "could not be read as a notebook."),
        (b"[1, 2]", "Your file is not a notebook."),
        (b"null", "Your file is not a notebook."),
        (b'{"cells": {"a": 1}}', "Your file is not a notebook."),
        (b'{"nbformat": 3, "worksheets": [3]}', "a notebook of an old kind"),
        ('{"cells": "no"}', "Your file is not a notebook."),
    ],
)
def test_what_is_no_notebook_is_graded_blank_and_says_what_to_hand_in(release, text, says):
    """nbgrader stops with a traceback and the student has no grade at all."""
    repaired = mend(text, release)
    assert sources(repaired.notebook) == sources(release)
    (note,) = repaired.notes
    assert says in note and "Hand in the .ipynb file itself" in note


def test_half_a_download(release, done):
    """A truncated file that is repaired to half a notebook, silently."""
    repaired = mend(json.dumps(done)[:5000], release)
    assert sources(repaired.notebook) == sources(release)
    assert "could not be read as a notebook" in repaired.notes[0]


def test_cells_that_are_none(release, done):
    """A cell that is a number, a source that is a dict, an id that is a list: an AttributeError."""
    done["cells"] += [3, None, {"cell_type": "heading"}, code({"a": 1}), code("x = 1", id=["a"])]
    done["cells"] += [code("y = 1", metadata=None), code("z = '\ud800'")]
    repaired = mend(done, release)
    assert sources(repaired.notebook)[-3:] == ["x = 1", "y = 1", "z = '?'"]


def test_windows_line_ends_a_byte_order_mark_and_utf_16(release, done):
    """Source with \\r\\n differs from the release by its checksum; a mark at the start is no JSON."""
    for cell in done["cells"]:
        cell["source"] = cell["source"].replace("\n", "\r\n")
    text = json.dumps(done, indent=1).replace("\n", "\r\n")
    expected = sources(solved())
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert sources(mend(text.encode(encoding), release).notebook) == expected


def test_deleted_cells_come_back(release, done):
    """toolchain: nbgrader leaves a deleted test cell out, and the exercise has no score."""
    gone = ("causal_mask-check", "position_mask", "position_mask-check", "changed_layers-check")
    done["cells"] = [
        c for c in done["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") not in gone
    ]
    repaired = mend(done, release)
    assert repaired.notebook.cells[position(repaired.notebook, "def position_mask")].source == (
        find(release, "position_mask").source
    )
    assert "### BEGIN SOLUTION" in find(repaired.notebook, "causal_mask").source
    assert len(repaired.notebook.cells) == len(release.cells)


def test_all_cells_deleted(release, done):
    """An empty list of cells that is taken for no notebook."""
    done["cells"] = []
    repaired = mend(done, release)
    assert sources(repaired.notebook) == sources(release) and repaired.notes == ()


def test_the_deleted_import_cell_comes_back_and_an_edited_one_is_kept(release, done):
    """Every check fails with NameError: torch; or the student's own imports are lost."""
    imports = next(c for c in done["cells"] if c["source"].startswith("import torch"))
    place = done["cells"].index(imports)
    imports["source"] = "import torch\nimport math\nimport kvlearn"
    assert sources(mend(done, release).notebook)[place] == "import torch\nimport math\nimport kvlearn"
    done["cells"].remove(imports)
    assert sources(mend(done, release).notebook)[place] == release.cells[place].source


def test_reordered_cells_stand_in_order_again(release, done):
    """A check that runs before its answer."""
    done["cells"].reverse()
    repaired = mend(done, release)
    assert sources(repaired.notebook) == sources(solved())


def test_edited_checks_are_the_releases_own(release, done):
    """A student who writes `pass` into the check and gets the points."""
    for name in ANSWERS:
        check = find(done, f"{name}-check")
        check["source"] = "pass"
        check["metadata"]["nbgrader"].update(points=99, locked=False)
    assert sources(mend(done, release).notebook) == sources(solved())


def test_the_last_of_two_written_cells_is_graded_and_the_student_is_told(release, done):
    """toolchain: two cells with one grade_id are an "old version of the metadata" error, ungraded."""
    first = find(done, "causal_mask")
    second = {**copy.deepcopy(first), "id": "copy", "source": "def causal_mask(a, b):\n    return 'second'"}
    done["cells"].append(second)
    repaired = mend(done, release)
    assert find(repaired.notebook, "causal_mask").source == "def causal_mask(a, b):\n    return 'second'"
    assert repaired.notes == ("Your notebook had two cells for causal_mask; the last one was graded.",)
    assert len(repaired.notebook.cells) == len(release.cells)
    done["cells"].append({**copy.deepcopy(second), "source": "def causal_mask(a, b):\n    return 'third'"})
    assert mend(done, release).notes == (
        "Your notebook had three cells for causal_mask; the last one was graded.",
    )


def test_a_copy_of_the_same_text_needs_no_note(release, done):
    """A note that makes a student look for a difference that is not there."""
    done["cells"].append(copy.deepcopy(find(done, "causal_mask")))
    repaired = mend(done, release)
    assert repaired.notes == () and len(repaired.notebook.cells) == len(release.cells)


@pytest.mark.parametrize("stub", ["release", "older", "blank"])
def test_a_stub_further_down_does_not_win_over_the_answer(release, done, stub):
    """ "The last one" taken literally: a pasted stub, or an emptied cell, costs the student the points."""
    cell = copy.deepcopy(find(done, "causal_mask"))
    cell["source"] = {
        "release": find(release, "causal_mask").source + "  \n",
        "older": 'def causal_mask(a, b):\n    """Older words."""\n    # YOUR CODE HERE\n'
        "    raise NotImplementedError",
        "blank": " \n",
    }[stub]
    done["cells"].append(cell)
    repaired = mend(done, release)
    assert "### BEGIN SOLUTION" in find(repaired.notebook, "causal_mask").source
    assert repaired.notes == () and len(repaired.notebook.cells) == len(release.cells)


def test_an_emptied_answer_is_the_stub(release, done):
    """An empty cell makes the check fail with NameError, which names no exercise."""
    find(done, "causal_mask")["source"] = "\n"
    assert find(mend(done, release).notebook, "causal_mask").source == find(release, "causal_mask").source


def test_a_written_answer_that_keeps_the_stub_behind_it_is_graded(release, done):
    """A return above `raise NotImplementedError` works; taken for unwritten, it is lost."""
    written = "def causal_mask(a, b):\n    return 1\n    # YOUR CODE HERE\n    raise NotImplementedError"
    find(done, "causal_mask")["source"] = written
    assert find(mend(done, release).notebook, "causal_mask").source == written


def test_the_answer_below_the_stub_is_found(release, done):
    """A student who leaves the stub and writes in a new cell is graded blank."""
    answer = find(done, "causal_mask")["source"]
    find(done, "causal_mask")["source"] = find(release, "causal_mask").source
    done["cells"] += [code("OFFSET = 1  # a helper"), code(answer)]
    repaired = mend(done, release)
    assert find(repaired.notebook, "causal_mask").source == answer
    # The helper stood before the answer and must still stand before its check.
    helper = position(repaired.notebook, "OFFSET = 1")
    assert repaired.notebook.cells[helper + 1].metadata.nbgrader.grade_id == "causal_mask"
    assert len(repaired.notebook.cells) == len(release.cells) + 1


@pytest.mark.parametrize("editor", ["no marks", "no ids", "no marks, no ids", "colab"])
def test_marks_and_ids_that_an_editor_dropped(release, done, editor):
    """An editor that saves no nbgrader metadata (or nbformat 4.4, without ids): all exercises blank."""
    for cell in done["cells"]:
        if "marks" in editor or editor == "colab":
            cell["metadata"].pop("nbgrader", None)
        if "ids" in editor:
            cell.pop("id")
        if editor == "colab":
            cell["metadata"] = {"id": cell.pop("id"), "outputId": "1"}
    done.update(nbformat_minor=0 if editor == "colab" else 4)
    done["metadata"] = {"colab": {"provenance": []}, "kernelspec": {"name": "python3"}}
    repaired = mend(done, release)
    assert sources(repaired.notebook) == sources(solved()) and repaired.notes == ()


def test_vs_code(release, done):
    """VS Code adds its own metadata to cells and notebook, which nbgrader's validator need not know."""
    for cell in done["cells"]:
        cell["metadata"]["vscode"] = {"languageId": "python"}
    done["metadata"]["vscode"] = {"interpreter": {"hash": "x"}}
    done["metadata"]["kernelspec"] = {"name": "venv", "display_name": ".venv"}
    assert sources(mend(done, release).notebook) == sources(solved())


def test_a_class_is_found_by_the_name_that_the_check_asks_for():
    """The exercise growing_cache asks for MyGrowingCache: content that is looked for by grade_id alone."""
    release, done = read("exercises", "04_kv_cache"), solved("04_kv_cache")
    for cell in done.cells:
        cell.metadata.pop("nbgrader", None)
        cell.id = f"new-{cell.id}"
    repaired = mend(nbformat.writes(done), release)
    assert sources(repaired.notebook) == sources(solved("04_kv_cache"))


def test_a_cell_pasted_from_an_earlier_assignment_answers_the_again_cell():
    """Its mark is that assignment's, split_heads, not split_heads-again: found by none, or refused."""
    release, done = read("exercises", "01_attention"), solved("01_attention")
    earlier = solved("00_start_here")
    place = position(done, "def split_heads")
    done.cells[place] = find(earlier, "split_heads")
    done.cells[place + 1] = find(earlier, "split_heads-check")
    repaired = mend(nbformat.writes(done), release)
    assert find(repaired.notebook, "split_heads-again").source == find(earlier, "split_heads").source
    assert len(repaired.notebook.cells) == len(release.cells)


def test_two_answers_in_one_cell(release, done):
    """Cells that were merged: the second exercise gets the stub, which undoes the first one's definition."""
    first, second = find(done, "causal_mask"), find(done, "position_mask")
    both = f"{first['source']}\n\n\n{second['source']}"
    first["source"] = both
    done["cells"].remove(second)
    repaired = mend(done, release)
    assert find(repaired.notebook, "causal_mask").source == both
    assert find(repaired.notebook, "position_mask").source == both
    assert repaired.notes == ()


def test_a_cell_that_was_split(release, done):
    """Both halves carry the mark; "the last one" alone loses the helper, or the answer itself."""
    cell = find(done, "causal_mask")
    helper = {**copy.deepcopy(cell), "source": "START = 0"}
    after = {**copy.deepcopy(cell), "source": "print(causal_mask(2, 3))"}
    place = done["cells"].index(cell)
    done["cells"][place : place + 1] = [helper, cell, after]
    repaired = mend(done, release)
    assert "### BEGIN SOLUTION" in find(repaired.notebook, "causal_mask").source
    order = [
        position(repaired.notebook, t) for t in ("START = 0", "def causal_mask", "print(causal_mask(2, 3))")
    ]
    assert order == list(range(order[0], order[0] + 3))
    assert repaired.notes == ()


def test_own_cells_stay_behind_the_cell_that_they_followed(release, done):
    """Helpers that are dropped, or collected at the end, behind the check that needs them."""

    def behind(grade_id):
        return done["cells"].index(find(done, grade_id)) + 1

    done["cells"].insert(0, code("# top"))
    done["cells"].insert(behind("causal_mask"), code("# fix\ncausal_mask = causal_mask"))
    done["cells"].insert(behind("position_mask-check"), {**code("a *note*"), "cell_type": "markdown"})
    done["cells"].insert(behind("position_mask-check"), code("def position_mask(x):\n    return 'a play'"))
    done["cells"].insert(behind("position_mask-check"), code("   "))
    done["cells"].append(code("# end"))
    notebook = mend(done, release).notebook
    assert notebook.cells[0].source == "# top" and notebook.cells[-1].source == "# end"
    assert notebook.cells[position(notebook, "# fix") - 1] == find(notebook, "causal_mask")
    assert notebook.cells[position(notebook, "# fix") + 1] == find(notebook, "causal_mask-check")
    assert notebook.cells[position(notebook, "'a play'") - 1] == find(notebook, "position_mask-check")
    assert position(notebook, "a *note*") == position(notebook, "'a play'") + 1
    assert len(notebook.cells) == len(release.cells) + 5
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def test_an_answer_cell_turned_into_text_is_code_again(release, done):
    """M pressed in command mode: a markdown cell that defines nothing."""
    cell = find(done, "causal_mask")
    cell["cell_type"] = "markdown"
    for key in ("outputs", "execution_count"):
        cell.pop(key, None)
    assert sources(mend(done, release).notebook) == sources(solved())


def test_an_older_release(release, done):
    """Other words in the text, other ids, an exercise that is gone: the answers count all the same."""
    done["metadata"]["kvlearn"]["made_from"] = "0" * 64
    for number, cell in enumerate(done["cells"]):
        cell["id"] = f"old{number}"
    gone = copy.deepcopy(find(done, "causal_mask"))
    gone["metadata"]["nbgrader"]["grade_id"] = "banded_mask"
    gone["source"] = "def banded_mask(n):\n    return n"
    done["cells"].insert(4, gone)
    repaired = mend(done, release)
    assert repaired.notes == (
        "Your notebook is of another release of this assignment; your answers were moved into this one.",
    )
    for name in ANSWERS:
        assert "### BEGIN SOLUTION" in find(repaired.notebook, name).source
    assert "nbgrader" not in repaired.notebook.cells[position(repaired.notebook, "def banded_mask")].metadata


def test_metadata_of_a_million_letters(done, release):
    """A field that is searched in a way that takes hours, in the worker, where no limit holds."""
    done["metadata"]["kvlearn"] = {"source": "a" * 1_000_000}
    found = repair(json.dumps(done), release)
    assert max(map(len, found.notes)) < 400


def test_a_cell_of_ten_million_letters(done, release):
    """All that comes after reads an answer that nobody wrote by hand."""
    find(done, "causal_mask")["source"] += "# x" * 5_000_000
    assert len(find(repair(json.dumps(done), release).notebook, "causal_mask")["source"]) <= 1_000_000


def test_the_notebook_of_another_assignment(release):
    """A blank grade without a word about why."""
    repaired = mend(nbformat.writes(solved("01_attention")), release)
    assert repaired.notes == (
        "Your file is the notebook of 01_attention, not of 02_causal_masking. "
        "Hand in the one of 02_causal_masking.",
    )


def test_an_old_notebook_format(release, done):
    """nbformat 3 (IPython 2): worksheets, `input`, `heading`: read as nothing at all."""
    notebook = nbformat.convert(nbformat.from_dict(done), 3)
    repaired = mend(json.dumps(notebook), release)
    for name in ANSWERS:
        assert "### BEGIN SOLUTION" in find(repaired.notebook, name).source


def test_huge_outputs_are_dropped_and_pictures_in_text_kept(release, done):
    """A gradebook folder of gigabytes; or the photo of a worked answer lost."""
    image = {"output_type": "display_data", "data": {"image/png": "A" * 5_000_000}, "metadata": {}}
    for cell in done["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = [image]
    picture = {"a.png": {"image/png": "iVBORw0KGgo="}}
    done["cells"].append({"cell_type": "markdown", "metadata": {}, "source": "![a](attachment:a.png)"})
    done["cells"][-1]["attachments"] = picture
    repaired = mend(done, release)
    assert len(nbformat.writes(repaired.notebook)) < 200_000
    assert repaired.notebook.cells[-1].attachments == picture


@pytest.mark.slow
def test_a_notebook_with_very_many_cells(release, done):
    """Minutes in the grader's own process, where no limit holds."""
    done["cells"] += [code("1")] * 50_000
    repaired = mend(done, release)
    assert len(repaired.notebook.cells) == 2000
    assert len(done["cells"]) == 50_000 + len(release.cells)
    assert repaired.notes[0].endswith("cells; the first 2000 were read.")
    assert "### BEGIN SOLUTION" in find(repaired.notebook, "changed_layers").source


@pytest.mark.parametrize("where", ["marked", "id", "in its place", "below the stub"])
def test_a_prose_answer(release, done, where):
    """A text has no name to be found by; nbgrader gives 0, ungraded, to a cell that was not changed."""
    marks = {"grade_id": "why", "schema_version": 3, "grade": True, "locked": False, "solution": True}
    stub = {
        "cell_type": "markdown",
        "source": "Write here.",
        "metadata": {"nbgrader": {**marks, "points": 2}},
    }
    stub["metadata"]["nbgrader"]["task"] = False
    question = {"cell_type": "markdown", "metadata": {}, "source": "Why is it so?"}
    after = {"cell_type": "markdown", "metadata": {}, "source": "Well done."}
    for number, cell in enumerate((question, stub, after)):
        release.cells.append(nbformat.from_dict({**copy.deepcopy(cell), "id": f"p{number}"}))
    written = {"cell_type": "markdown", "metadata": {}, "source": "Because of the past."}
    answers = {
        "marked": [question, {**stub, "source": "Because of the past."}, after],
        "id": [question, {**written, "id": "p1"}, after],
        "in its place": [question, written, after],
        "below the stub": [question, stub, written, after],
    }
    done["cells"] += copy.deepcopy(answers[where])
    notebook = mend(done, release).notebook
    assert find(notebook, "why").source == "Because of the past."
    assert sources(notebook)[-3:] == ["Why is it so?", "Because of the past.", "Well done."]
    for _ in answers[where]:
        done["cells"].pop()
    done["cells"] += copy.deepcopy([question, after])
    assert find(mend(done, release).notebook, "why").source == "Write here."


def test_repairing_twice_changes_nothing(release, done):
    """What the repair adds itself (ids of own cells) taken for a change of the student's."""
    done["cells"].insert(5, code("x = 1"))
    once = mend(done, release)
    twice = mend(nbformat.writes(once.notebook), release)
    assert sources(twice.notebook) == sources(once.notebook) and twice.notes == once.notes == ()
