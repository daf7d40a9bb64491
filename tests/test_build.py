"""The build of the notebooks, on a course of one lesson and one assignment in a temporary folder."""

import hashlib
import re
import shutil

import nbformat
import pytest
from course_tools import ROOT, build, code_cells, marks, reading, run_all, running

from kvlearn.checks import REGISTRY

LESSON = """\
# %% [markdown]
# # A lesson
#
# What is two and two?

# %%
import warnings

print("two")
print("and two")

# %%
2 + 2

# %% tags=["nbval-ignore-output"]
import ipywidgets

warnings.warn("on stderr")
ipywidgets.interact(lambda n: print(n), n=(0, 3));

# %% tags=["raises-exception"]
1 / 0

# %%
2 + 2
"""

ASSIGNMENT = '''\
# %% [markdown]
# # An assignment

# %%
import kvlearn

# %% [markdown]
# ## Split the heads

# %% answer="split_heads"
def split_heads(x, num_heads):
    """The heads of x."""
    ### BEGIN SOLUTION
    B, L, width = x.shape
    return x.view(B, L, num_heads, width // num_heads).transpose(1, 2)
    ### END SOLUTION

# %% check="split_heads"
kvlearn.check("split_heads", split_heads)

# %% [markdown]
# Paste what you wrote before.

# %% paste="merge_heads"
def merge_heads(x):
    ### BEGIN SOLUTION
    return x.transpose(1, 2).flatten(2)
    ### END SOLUTION

# %% check="merge_heads"
kvlearn.check("merge_heads", merge_heads)

# %% [markdown]
# Why is a copy needed?

# %% [markdown] why="a_copy"
# <!-- ### BEGIN SOLUTION -->
# The heads lie apart in memory.
#
# **Rubric**
#
# - says that after the transpose the numbers of one token do not lie side
#   by side (2 points)
# - says that a view cannot jump (1 point)
# <!-- ### END SOLUTION -->
'''
HIDDEN = """\
kvlearn.check("split_heads", split_heads)
### BEGIN HIDDEN TESTS
# Not in the exercise: nbgrader puts these lines back when it grades.
kvlearn.check("split_heads", split_heads, seed=SEED)
kvlearn.check("split_heads", split_heads, seed=SEED)
### END HIDDEN TESTS"""


def lay_course(root, lesson=LESSON, assignment=ASSIGNMENT):
    for kind, text in (("lessons", lesson), ("assignments", assignment)):
        folder = root / "course" / kind
        folder.mkdir(parents=True, exist_ok=True)
        if text:
            (folder / "07_toy.py").write_text(text)
    return root


def texts(root):
    """{path from root: text} of all that is built."""
    return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*.ipynb"))}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course that has been built; tests copy it before they change it."""
    root = lay_course(tmp_path_factory.mktemp("course"))
    build.build(root)
    return root


def cells_of(text, points=lambda name: 2, tmp=None):
    """The cells of an assignment's text, not run."""
    lay_course(tmp, assignment=text)
    target = next(t for t in reading.targets(tmp) if t.released)
    return reading.unexecuted(tmp, target, points).cells


@pytest.mark.slow
def test_two_builds_are_the_same_bytes(course, tmp_path):
    """Would catch random cell ids, timings, widget ids, or anything else that a run leaves behind."""
    first = texts(course)
    assert list(first) == [
        "exercises/07_toy/07_toy.ipynb",
        "notebooks/07_toy.ipynb",
        "solutions/07_toy/07_toy.ipynb",
    ]
    build.build(lay_course(tmp_path))
    assert texts(tmp_path) == first
    assert build.check(course) == []
    assert build.build(course) == []  # nothing is done twice


@pytest.mark.slow
def test_prose_alone_is_written_without_a_run_and_code_is_not(course, tmp_path, monkeypatch):
    """Would catch outputs carried over to code, or from a running.py, that did not make them; or a build of
    minutes for one word of prose."""
    root = shutil.copytree(course, tmp_path / "course")
    path = root / "notebooks/07_toy.ipynb"
    built, ran = path.read_text(), []
    monkeypatch.setitem(build.build.__globals__, "execute", lambda root, target, notebook: ran.append(target))
    text = root / "course/lessons/07_toy.py"
    text.write_text(LESSON.replace("two and two?", "two plus two?"))
    assert build.build(root) == ["notebooks/07_toy.ipynb"] and ran == []
    assert path.read_text().replace("two plus two?", "two and two?") != built  # made_from has changed too
    before, after = (code_cells(p) for p in (course / "notebooks/07_toy.ipynb", path))
    assert after == before and build.check(root) == []
    text.write_text(LESSON)
    for break_it in (
        lambda nb: nb.cells[2].update(source="print('two')"),
        lambda nb: nb.cells[3].metadata.update(tags=["raises-exception"]),
        lambda nb: nb.cells[3].update(execution_count=None),
        lambda nb: nb.metadata.kvlearn.update(ran_by="older"),
    ):
        notebook = nbformat.reads(built, as_version=4)
        break_it(notebook)
        nbformat.write(notebook, path)
        build.build(root)
        assert ran and ran.pop().built == "notebooks/07_toy.ipynb"


@pytest.mark.slow
def test_what_is_built_says_at_its_top_what_it_is(course):
    """Would catch a learner who runs and saves the course's own file, and whose next `git pull` refuses; and
    a student who is told not to write into the file that an instructor handed out."""
    for path, given in (
        ("notebooks/07_toy.ipynb", False),
        ("solutions/07_toy/07_toy.ipynb", True),
        ("exercises/07_toy/07_toy.ipynb", True),
    ):
        first, title, *_ = nbformat.read(course / path, as_version=4).cells
        assert "work in the copy\nthat `python3 dev.py lab` puts into `work/`" in first.source
        assert ("If an instructor gave you this file, it is yours: work here." in first.source) == given
        assert reading.ORIGINAL in first.metadata.tags and title.source.startswith("# ")


@pytest.mark.slow
def test_an_assignment_leads_back_to_its_lesson_and_on_to_the_next(course):
    """Would catch a learner who has finished the exercises and has no way to go on."""
    for folder in ("solutions", "exercises"):
        cells = nbformat.read(course / folder / "07_toy/07_toy.ipynb", as_version=4).cells
        assert cells[-1].source == "Back to the lesson: [A lesson](../../notebooks/07_toy.ipynb)"
    ends = {
        target.name: nbformat.read(ROOT / target.released, as_version=4).cells[-1].source
        for target in reading.targets(ROOT)
        if target.released
    }
    assert ends["04_kv_cache"] == (
        "Back to the lesson: [04 · The KV cache](../../notebooks/04_kv_cache.ipynb)"
        " · Next: [05 · Napkin maths](../../notebooks/05_napkin.ipynb)"
    )
    assert [name for name, text in ends.items() if "Next: " not in text] == [max(ends)]


@pytest.mark.slow
def test_a_lesson_keeps_what_a_reader_should_see(course):
    """Would catch outputs that are lost, joined wrongly, or that carry a widget's id or a local path."""
    two, four, widget, error, four_again = code_cells(course / "notebooks/07_toy.ipynb")
    assert [o.text for o in two.outputs] == ["two\nand two\n"]
    assert four.outputs[0].data == {"text/plain": "4"}
    assert [o.data["text/plain"] for o in widget.outputs] == ["(interactive: run this cell to play with it)"]
    assert error.outputs[0].traceback == ["ZeroDivisionError: division by zero"]
    assert four.source == four_again.source and four.id != four_again.id
    kept = str([widget.outputs, nbformat.read(course / "notebooks/07_toy.ipynb", 4).metadata])
    assert "stderr" not in kept and "widget" not in kept


@pytest.mark.slow
def test_an_exercise_is_its_solution_without_the_answers(course):
    """Would catch an answer that is published, a check that can be edited, an output left in."""
    path = course / "exercises/07_toy/07_toy.ipynb"
    _, split, split_check, merge, merge_check = code_cells(path)
    assert split.source == (
        'def split_heads(x, num_heads):\n    """The heads of x."""\n'
        "    # YOUR CODE HERE\n    raise NotImplementedError"
    )
    assert "transpose" not in path.read_text()
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code_cells(path))
    assert [c.metadata.nbgrader.grade_id for c in (split, split_check, merge, merge_check)] == [
        "split_heads",
        "split_heads-check",
        "merge_heads-again",
        "merge_heads-again-check",
    ]
    assert [c.metadata.get("editable", True) for c in (split, split_check)] == [True, False]
    assert split_check.source == 'kvlearn.check("split_heads", split_heads)'
    *_, prose, _ = nbformat.read(path, as_version=4).cells
    assert prose.source == "YOUR ANSWER HERE" and prose.metadata.nbgrader.grade_id == "a_copy-why"
    assert prose.metadata.get("editable", True)


@pytest.mark.slow
def test_a_solution_shows_that_the_hidden_seeds_pass(course):
    """Would catch hidden tests that did not run, or whose lines cannot be told from the first one."""
    _, _, check, _, again = code_cells(course / "solutions/07_toy/07_toy.ipynb")
    first, *others = check.outputs[0].text.splitlines()
    assert first.startswith("split_heads: right on ")
    seeds = marks.hidden_seeds("split_heads")
    assert others == [f"split_heads: right for seed {seed} too." for seed in seeds]
    assert len(again.outputs[0].text.splitlines()) == 1


@pytest.mark.slow
def test_run_all_reaches_every_check_of_an_exercise_and_a_solution_passes(course, tmp_path):
    """Would catch a stub, or a first check that fails, that keeps a learner from the later exercises."""
    assert run_all(course / "exercises/07_toy/07_toy.ipynb", tmp_path) == {
        'kvlearn.check("split_heads", split_heads)': "CheckFailed",
        'kvlearn.check("merge_heads", merge_heads)': "CheckFailed",
    }
    assert run_all(course / "solutions/07_toy/07_toy.ipynb", tmp_path) == {}


@pytest.mark.slow
def test_nbgrader_itself_accepts_both(course):
    """Would catch metadata that only our own build understands: this is `nbgrader validate`."""
    from nbgrader.validator import Validator

    assert Validator().validate(str(course / "solutions/07_toy/07_toy.ipynb")) == {}
    found = Validator().validate(str(course / "exercises/07_toy/07_toy.ipynb"))
    assert list(found) == ["failed"] and [cell["source"] for cell in found["failed"]] == [
        'kvlearn.check("split_heads", split_heads)',
        'kvlearn.check("merge_heads", merge_heads)',
        "YOUR ANSWER HERE",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "break_it, says",
    [
        (lambda nb: nb.cells[2].update(source="print('two')"), "cell 3 has another source"),
        (lambda nb: nb.cells[2].update(id="other"), "cell 3 has another id"),
        (lambda nb: nb.cells[2].metadata.update(tags=["nbval-skip"]), "cell 3 has another metadata"),
        (lambda nb: nb.cells.reverse(), "cell 1 has another id"),
        (lambda nb: nb.cells.pop(), "it has 6 cells, a fresh build has 7"),
        (lambda nb: nb.cells[2].update(execution_count=None), "not every cell was executed"),
        (lambda nb: nb.metadata.kvlearn.update(made_from="older"), "its metadata differ"),
    ],
    ids=["source", "id", "tag", "order", "missing", "not executed", "stale"],
)
def test_check_sees_each_difference(course, break_it, says):
    """Would catch a notebook that was edited by hand, or is older than its text, and passes CI."""
    path = course / "notebooks/07_toy.ipynb"
    before = path.read_text()
    try:
        notebook = nbformat.read(path, as_version=4)
        break_it(notebook)
        nbformat.write(notebook, path)
        found = build.check(course)
        assert any(line.startswith(f"notebooks/07_toy.ipynb: {says}") for line in found), found
    finally:
        path.write_text(before)


@pytest.mark.slow
def test_check_sees_exercises_that_are_not_of_this_course(course):
    """Would catch an exercise that still shows an answer, and a notebook whose text was removed."""
    path, stray = course / "exercises/07_toy/07_toy.ipynb", course / "notebooks/08_gone.ipynb"
    before = path.read_text()
    try:
        path.write_text(before.replace("raise NotImplementedError", "return x"))
        stray.write_text((course / "notebooks/07_toy.ipynb").read_text())
        found = build.check(course)
    finally:
        path.write_text(before)
        stray.unlink()
    assert found == [
        "exercises/07_toy/07_toy.ipynb: cell 5 has another source",
        "exercises/07_toy/07_toy.ipynb: cell 8 has another source",
        "notebooks/08_gone.ipynb: nothing in course/ makes it",
    ]


@pytest.mark.slow
def test_a_cell_that_fails_is_named(tmp_path, capsys):
    """Would catch a build that stores a notebook with an error in it, or does not say where."""
    text = "# %% [markdown]\n# # A\n\n# %%\nx = 1\n\n# %%\nx.shape\n"
    noise = "# %% [markdown]\n# # A\n\n# %%\nimport sys\n\nprint('loud', file=sys.stderr)\n"
    lay_course(tmp_path, lesson=text, assignment=None)
    (tmp_path / "course/lessons/08_noise.py").write_text(noise)
    assert build.main(["--root", str(tmp_path)]) == 1
    says = capsys.readouterr().err
    assert "course/lessons/07_toy.py: cell 4, which begins with `x.shape`, did not run." in says
    assert "AttributeError: 'int' object has no attribute 'shape'" in says
    assert "course/lessons/08_noise.py: cell 3 writes to stderr" in says and "'loud'" in says
    assert texts(tmp_path) == {}


def test_ids_come_from_the_text_alone(tmp_path):
    """Would catch ids that count cells: one inserted cell would then change every id after it."""
    before = cells_of(ASSIGNMENT, tmp=tmp_path)
    after = cells_of(ASSIGNMENT.replace("# %%\nimport", "# %%\n1\n\n# %%\nimport"), tmp=tmp_path)
    assert [c.id for c in after if c.source != "1"] == [c.id for c in before]
    assert len({c.id for c in after}) == len(after)


def test_points_are_the_difficulty_and_a_pasted_answer_gives_none(tmp_path):
    """Would catch an answer that is graded in two assignments."""
    cells = [c.metadata.get("nbgrader") for c in cells_of(ASSIGNMENT, tmp=tmp_path)]
    found = {c["grade_id"]: c.get("points") for c in cells if c}
    assert found == {
        "split_heads": None,
        "split_heads-check": 2,
        "merge_heads-again": None,
        "merge_heads-again-check": 0,
        "a_copy-why": 3,
    }
    role = {c["grade_id"]: (c["grade"], c["solution"], c["locked"], c["cell_type"]) for c in cells if c}
    assert role["split_heads"] == (False, True, False, "code")
    assert role["split_heads-check"] == (True, False, True, "code")
    assert role["a_copy-why"] == (True, True, False, "markdown")
    assert reading.registered_points("split_heads") in (1, 2, 3)
    with pytest.raises(reading.BuildError, match="no exercise named 'nothing'"):
        reading.registered_points("nothing")


@pytest.mark.parametrize(
    "old, new, says",
    [
        ('check="split_heads"', 'tags=["a"]', "comes before the check of 'split_heads'"),
        ('check="merge_heads"', 'tags=["a"]', "comes before the check of 'merge_heads'"),
        (ASSIGNMENT[ASSIGNMENT.index('# %% check="merge') :], "", "answer to 'merge_heads' has no check"),
        ('check="split_heads"', 'check="merge_heads"', "does not follow the answer that it checks"),
        ('kvlearn.check("split_heads", s', "kvlearn.hint(s", "has no line kvlearn.check"),
        ("### END SOLUTION", "", "has no ### BEGIN SOLUTION"),
        ('paste="merge_heads"', 'answer="split_heads"', "'split_heads' is there twice"),
        ('answer="split_heads"', 'anwser="split_heads"', "does not follow the answer"),
        ('answer="split_heads"', 'answer="split_heads" pionts=3', "marked 'pionts'"),
        ("# # An assignment", "# An assignment", "opens with a title"),
        ('[markdown] why="a_copy"', 'why="a_copy"', "must be a markdown cell"),
        ("# %% [markdown]\n# Why is a copy needed?", "# %%\n1", "with the question in one before it"),
        ("# <!-- ### BEGIN", "# The heads lie apart.\n# <!-- ### BEGIN", "the rest is published"),
        ("# <!-- ### END SOLUTION -->", "", "has no ### BEGIN SOLUTION ... ### END SOLUTION"),
        ("by side (2 points)", "by side (1 point)", "a rubric of 2 points, and the question gives 3"),
        ('why="a_copy"', 'why="split_heads"', "'split_heads' is there twice"),
    ],
)
def test_a_mark_that_is_wrong_is_said(tmp_path, old, new, says):
    """Would catch an answer without a check, or an answer that would be published with the exercise."""
    assert old in ASSIGNMENT
    with pytest.raises(reading.BuildError, match="course/assignments/07_toy.py: .*") as error:
        cells_of(ASSIGNMENT.replace(old, new), tmp=tmp_path)
    assert says in str(error.value)


def test_a_check_that_gives_points_has_hidden_seeds(tmp_path):
    """Would catch an answer that fits the numbers of seed 0, and an id that changes with the hidden lines."""
    cells = [c for c in cells_of(ASSIGNMENT, tmp=tmp_path) if "nbgrader" in c.metadata]
    cells = {c.metadata.nbgrader.grade_id: c for c in cells}
    source = cells["split_heads-check"].source
    first, second = (int(seed) for seed in re.findall(r"seed=(\d+)", source))
    assert re.sub(r"seed=\d+", "seed=SEED", source) == HIDDEN
    assert 0 < first != second > 0 and (first, second) == marks.hidden_seeds("split_heads")
    assert cells["merge_heads-again-check"].source == 'kvlearn.check("merge_heads", merge_heads)'
    text = "code\n" + 'kvlearn.check("split_heads", split_heads)' + "\n1"
    assert cells["split_heads-check"].id == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_hidden_seeds_differ_from_exercise_to_exercise():
    """Would catch seeds that depend on the process (hash()), or two exercises that share theirs."""
    assert marks.hidden_seeds("split_heads") == (1153, 2500)
    seeds = [marks.hidden_seeds(name) for name in REGISTRY]
    assert len(set(seeds)) == len(seeds)


def test_a_long_check_is_written_in_two_lines():
    """Would catch a hidden line that is wider than a page, or one that hands over something else."""
    name = "scaled_dot_product_attention"
    line = marks.check_line(name, name, 1234)
    assert max(len(part) for part in line.splitlines()) <= 76
    assert marks.answer_of(line) == name and line.endswith("seed=1234)")
    assert marks.answer_of('kvlearn.check("growing_cache", MyGrowingCache)') == "MyGrowingCache"


def test_an_unknown_name_is_said(tmp_path, capsys):
    """Would catch `build 9` that does nothing and reports success."""
    lay_course(tmp_path)
    assert build.main(["--root", str(tmp_path), "9"]) == 1
    assert "starts with '9'. There is: 07_toy." in capsys.readouterr().err


@pytest.mark.slow
def test_a_dead_kernel_is_an_error(tmp_path):
    """Would catch a build that hangs, or that ends with a traceback of its own, when a cell crashes."""
    text = "# %% [markdown]\n# # A\n\n# %%\nimport os\n\nos._exit(3)\n"
    lay_course(tmp_path, lesson=text, assignment=None)
    target = reading.targets(tmp_path)[0]
    with pytest.raises(reading.BuildError, match="import os"):
        running.execute(tmp_path, target, reading.unexecuted(tmp_path, target))


def test_what_draws_is_part_of_what_a_picture_is_made_from(tmp_path, monkeypatch):
    """Would catch stale pictures behind "What is built equals a fresh build": the drawing has changed."""
    for folder in ("course/lessons", "kvlearn/figures"):
        (tmp_path / folder).mkdir(parents=True)
    lessons = {"01_plain": "print(3)", "02_drawn": "from kvlearn import figures"}
    for name, code in lessons.items():
        (tmp_path / f"course/lessons/{name}.py").write_text(f"# %% [markdown]\n# # Title\n\n# %%\n{code}\n")
    (tmp_path / "course/running.py").write_text("")
    drawing = tmp_path / "kvlearn/figures/one.py"
    drawing.write_text("red = 1\n")
    monkeypatch.setattr(reading, "HERE", tmp_path / "course")

    def made_from():
        return [reading.unexecuted(tmp_path, t).metadata.kvlearn.made_from for t in reading.targets(tmp_path)]

    before = made_from()
    drawing.write_text("red = 2\n")
    plain, drawn = (a == b for a, b in zip(before, made_from(), strict=True))
    assert plain and not drawn


CLAIM = """\
# %% [markdown]
# # A measurement

# %% claim="took[0] < took[1]"
took = [1, 2]
"""


@pytest.mark.slow
def test_a_measurement_that_contradicts_its_sentence_is_not_published(tmp_path):
    """Would catch a chart on which a naive decoder gets faster, under a sentence that says the opposite."""
    (tmp_path / "course/lessons").mkdir(parents=True)
    text = tmp_path / "course/lessons/07_toy.py"
    text.write_text(CLAIM)
    assert build.build(tmp_path) == ["notebooks/07_toy.ipynb"]
    (cell,) = code_cells(tmp_path / "notebooks/07_toy.ipynb")
    assert cell.source == "took = [1, 2]" and "claim" not in cell.metadata
    text.write_text(CLAIM.replace("[1, 2]", "[2, 1]"))
    with pytest.raises(reading.BuildError, match=r"assert took\[0\] < took\[1\]"):
        build.build(tmp_path)
