"""Assignments graded whole, with one mistake in each: its name, its points, and all other points.

Two of them in `dev.py test`, all in `dev.py test --all`. The mistakes' names are looked at in all of them.
"""

import json
import shutil

import nbformat
import pytest
from course_answers import course_answers
from markupsafe import escape
from submissions import ROOT

from kvlearn.checks import REGISTRY, judge
from kvlearn.classroom import collect, course, feedback, grade, graded, report, settings

# assignment: an exercise, a part of the course's answer, what a student wrote there, and the mistake's name
MISTAKES = {
    "01_attention": (
        "attention_weights",
        "scores, dim=-1",
        "scores, dim=-2",
        "the softmax ran over the queries",
    ),
    "02_causal_masking": (
        "causal_mask",
        "key_length - query_length",
        "0",
        "the triangle touches the top left corner",
    ),
    "03_naive_decoder": (
        "rms_norm",
        "x / torch.sqrt",
        "x * torch.sqrt",
        "multiplied by the root mean square instead of divided",
    ),
    "04_kv_cache": (
        "chunked_prefill",
        "(piece.shape[2], end)",
        "(piece.shape[2], end).tril()",
        "the mask's triangle begins at the first key",
    ),
    "05_napkin": (
        "bytes_per_token",
        "* 2 *",
        "*",
        "the factor 2 was forgotten: keys or values, but not both",
    ),
    "06_fewer_heads": (
        "mean_pool_heads",
        ".mean(dim=1)",
        ".sum(dim=1)",
        "the heads were added up instead of averaged",
    ),
    "07_fewer_tokens": ("window_mask", "key > query", "key >= query", "the window is one position too wide"),
    "08_fewer_bits": ("quantize_int8", "steps.round()", "steps", "the steps are cut off, not rounded"),
}

GRADED = ("01_attention", "08_fewer_bits")  # a short one; the longest, with the real model


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_has_its_name_with_the_seeds_of_a_class(name):
    """A mistake that loses its name where the seed is another one."""
    exercise, right, wrong, mistake = MISTAKES[name]
    answer = course_answers()[exercise]
    assert answer.file == f"{name}.py" and answer.source.count(right) == 1
    for seed in (0, 3):
        result = judge(REGISTRY[exercise], answer.run(answer.source.replace(right, wrong)), seed)
        assert result.misconception == mistake, result.message


def handed_in(assignment):
    """The course's answers with one mistake among them, as a student's notebook."""
    exercise, right, wrong, _ = MISTAKES[assignment]
    answers = nbformat.read(ROOT / "solutions" / assignment / f"{assignment}.ipynb", as_version=4)
    sources = {c.metadata.nbgrader.grade_id: c.source for c in answers.cells if "nbgrader" in c.metadata}
    assert sources[exercise].count(right) == 1
    sources[exercise] = sources[exercise].replace(right, wrong)
    notebook = json.loads((ROOT / "exercises" / assignment / f"{assignment}.ipynb").read_text("utf-8"))
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = sources[cell["metadata"]["nbgrader"]["grade_id"]]
    return json.dumps(notebook)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A class whose gradebook has no assignment yet."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / course.CONFIG, root)
    settings.create(root)
    return root


@pytest.fixture
def released(root, name):
    """The class, in which ann has handed this assignment in."""
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder / name, root / folder / name)
    assert course.open_course(root).generate_assignment(name, force=True, create=True)["success"]
    downloads = root / f"downloads-{name}"
    downloads.mkdir()
    (downloads / f"ann_1_2_{name}.ipynb").write_text(handed_in(name), encoding="utf-8")
    collect.collect(root, downloads, settings.read(root).patterns, [name])
    return root


@pytest.mark.bubblewrap
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name not in GRADED)) for name in MISTAKES]
)
def test_one_mistake_costs_its_own_points(name, released):
    """An assignment that needs memory, a file or a model that the sandbox does not give; a mistake that
    loses its name; hidden seeds that a right answer fails."""
    done = grade.grade(released, name, tell=lambda line: None)
    assert done.graded == ["ann"], done.problems
    (found,), problems = graded.read_graded(released, name, ["ann"])
    assert not problems
    exercise, _, _, mistake = MISTAKES[name]
    points = {one.grade_id: found.points[one.grade_id].score for one in found.outcomes if not one.prose}
    want = {f"{e.name}-check": e.difficulty for e in REGISTRY.values() if e.lesson == int(name[:2])}
    want[f"{exercise}-check"] = 0
    assert {key: score for key, score in points.items() if "-again-" not in key} == want
    (wrong,) = [one for one in found.outcomes if one.state == "wrong"]
    assert (wrong.name, wrong.misconception) == (exercise, mistake)
    text = feedback.page(found)
    assert f"<strong>{escape(mistake)}</strong>" in text
    (summary,) = report.read(released, name)
    assert [(m.students, m.exercise, m.name) for m in summary.misconceptions] == [(1, exercise, mistake)]
