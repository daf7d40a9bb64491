"""What is read from an executed notebook: state, reason and misconception of each exercise."""

import nbformat
import pytest
from made import ROOT, asked, error, judged, named, notebook, one, printed, prose, right, sent
from nbgrader.utils import compute_checksum

from kvlearn.checks import find
from kvlearn.classroom.execute import ConfinedExecute
from kvlearn.classroom.outcomes import PROSE, outcomes, plain
from kvlearn.classroom.reasons import GIVEN_CELL
from kvlearn.classroom.sandbox import Limits

NAME = "attention_weights"


def test_a_right_answer():
    """A right answer with a reason or a hint; the answer's cell that is not found by its grade_id."""
    found = one(*right(NAME))
    assert (found.state, found.reason, found.misconception) == ("right", "", None)
    assert (found.grade_id, found.answer_id, found.name) == (f"{NAME}-check", NAME, NAME)
    assert found.title == find(NAME).title and found.answer == f"def {NAME}(q, k):\n    return q"


def test_a_misconception_has_its_name_and_its_sentences():
    """The message as it is: with "Stuck? kvlearn.hint(...)", which nobody can run in a page."""
    misconception = find(NAME).misconceptions[0]
    found = one(*named(NAME))
    assert found.state == "wrong" and found.misconception == misconception.name
    assert found.reason == misconception.says
    assert not found.other_inputs and not found.library


def test_an_answer_that_no_misconception_explains():
    """A reason that loses the place of the first difference, or invents a misconception."""
    found = one(*judged(NAME, lambda q, k: (q @ k.transpose(-2, -1)).softmax(-1) * 1.5))
    assert found.state == "wrong" and found.misconception is None
    assert "At batch 0, head 0, query 0 yours add up to 1.5." in found.reason
    assert found.reason.splitlines()[1].startswith("Inputs: q (")
    assert "Stuck?" not in found.reason and "not right yet" not in found.reason


def test_what_only_the_seeds_of_the_class_find():
    """A student who reads "not right" and sees the own check pass; a seed that is given away."""
    found = one(*named(NAME, seed=987654321))
    assert found.other_inputs and "987654321" not in repr(found)


def not_written(q, k):
    raise NotImplementedError


@pytest.mark.parametrize(
    "outputs, source",
    [
        (judged(NAME, not_written), None),
        (judged(NAME, lambda q, k: None), None),
        ([error("NameError", f"name '{NAME}' is not defined")], "# YOUR CODE HERE\n\n"),
    ],
    ids=["stub", "no return", "emptied"],
)
def test_what_nobody_has_written_is_not_wrong(outputs, source):
    """Blanks counted as mistakes: the lecture would start at what nobody has tried."""
    found = one(*outputs, source=source)
    assert found.state == "not written" and found.misconception is None
    assert "Fill in" not in found.reason and "kvlearn.hint" not in found.reason and found.reason


def test_an_error_in_the_answers_cell_does_not_hide_what_the_check_found():
    """A test of the student's own, below the answer, that fails: the answer itself was checked."""
    left = [printed("trying\n"), error("AssertionError", "mine")]
    assert one(*right(NAME), left=left).state == "right"
    found = one(*named(NAME), left=left)
    assert found.misconception == find(NAME).misconceptions[0].name
    assert found.printed == "trying\nAssertionError: mine"


def test_the_trace_shows_the_lines_of_the_student_alone():
    """Paths of the grader's own Python in a student's page."""
    trace = [
        "-----",
        "\x1b[31mValueError\x1b[0m       Traceback (most recent call last)",
        "\x1b[36mCell\x1b[39m\x1b[36m \x1b[39m\x1b[32mIn[2]\x1b[39m, line 1\n----> 1 torch.ones(-1)",
        "\x1b[36mFile \x1b[39m\x1b[32m/opt/python/lib/x.py:7\x1b[39m, in ones(n)\n      7 raise",
        "ValueError: no",
    ]
    found = one(*named(NAME), left=[error("ValueError", "no", trace)])
    assert found.printed.splitlines()[2:] == [
        "Cell In[2], line 1",
        "----> 1 torch.ones(-1)",
        "ValueError: no",
    ]


def test_cells_that_were_not_reached():
    """A notebook that ran out of time: its last exercises look like mistakes."""
    late = error("NotRun", "The notebook had not ended after 600 seconds in all; this cell was not run.")
    found = one(late, left=[late])
    assert (found.state, found.stopped_by) == ("stopped", "time")
    again = error("NotRunAgain", "The cells before this one could not be run a second time.")
    assert one(again, left=[again]).stopped_by == "crash"
    assert one(error("NoResult", "The check did not come to its end.")).state == "stopped"


def test_a_result_is_not_believed_against_an_error():
    """A student who sends a result of one's own: `passed`, before the check says otherwise or is ended."""
    fake = sent(NAME, passed=True, message="right")
    assert one(fake, *named(NAME)).misconception == find(NAME).misconceptions[0].name
    assert one(named(NAME)[0], fake).state == "wrong"
    assert one(fake, error("CellTimeoutError", "This cell had not ended.")).state == "stopped"
    assert one(fake, error("CheckFailed", f"{NAME}: not right yet.\nNo.\nStuck? x")).reason == "No."
    assert one(sent("split_heads", passed=True), *named(NAME)).state == "wrong"


def test_facts_of_any_shape_in_a_result():
    """A result that is no dictionary, or holds a list where a name is expected, ends the whole report."""
    output = sent(NAME, misconception=["x"], message={"a": 1}, seed="8", library="yes")
    found = one(output, error("CheckFailed", "x"))
    assert (found.state, found.misconception, found.library) == ("wrong", None, False)
    output.data["application/vnd.kvlearn.check+json"] = [1]
    assert one(output, error("CheckFailed", f"{NAME}: not right yet.\nNo.")).reason == "No."


def test_a_misconception_that_the_exercise_does_not_know_is_no_misconception():
    """Any text of a student as a row of the class report."""
    found = one(sent(NAME, misconception="Jane was here", message="x"), error("CheckFailed", "x"))
    assert found.misconception is None


def test_a_notebook_that_plain_nbgrader_has_run():
    """No results, because the checks were the ordinary ones: the error's text has all that is needed."""
    result = judged(NAME, find(NAME).misconceptions[1].answer)
    assert one(result[1]).misconception == find(NAME).misconceptions[1].name
    assert one(printed(f"{NAME}: right on 4 inputs.\n")).state == "right"
    cells = asked(NAME, [])
    cells[1].execution_count = None
    assert outcomes(notebook(cells))[0].state == "stopped"


def test_an_answer_pasted_again_is_told_from_the_first():
    """A pasted answer under the name of an exercise that nobody knows."""
    (found,) = outcomes(notebook(asked("split_heads", named("split_heads"), points=0, again=True)))
    assert found.again and found.name == "split_heads" and found.title == find("split_heads").title
    assert (found.grade_id, found.answer_id) == ("split_heads-again-check", "split_heads-again")


def test_an_answer_in_words():
    """A prose cell, which has no check, taken for a check; one that nobody touched sent to a person."""
    cells = prose("keys_stay-why", "Because later tokens only look back.")
    (found,) = outcomes(notebook(cells))
    assert (found.state, found.prose, found.title) == (PROSE, True, "Why? Keys stay")
    assert found.answer == "Because later tokens only look back." and found.answer_id == "keys_stay-why"
    cells[0].metadata.nbgrader.checksum = compute_checksum(cells[0])
    blank = outcomes(notebook(cells))[0]
    assert (blank.state, blank.answer) == ("not written", "")  # "YOUR ANSWER HERE" is nobody's answer


def test_a_question_in_words_has_the_heading_of_the_release():
    """A title made of a grade_id; or one that a student has written, on a page for the whole class."""
    given = nbformat.read(ROOT / "exercises/01_attention/01_attention.ipynb", as_version=4)
    mine = nbformat.from_dict(given)
    for cell in mine.cells:
        cell.source = cell.source.replace("## Why? One more token", "## Jane was here")
    assert "Jane was here" in str(mine)
    assert outcomes(mine, given)[-1].title == "Why? One more token"


def raises(q, k):
    raise KeyError("x")


def half(q):
    raise NameError("name 'qq' is not defined")


def given_cell(source, name="helper"):
    cell = nbformat.v4.new_code_cell(source)
    cell["id"] = name
    return [cell]


@pytest.mark.parametrize(
    "mine, outputs, blamed",
    [
        ("def half(q):\n    return qq", judged(NAME, lambda q, k: half(q)), True),
        ("def hlaf(q):\n    return q / 2", [error("NameError", "name 'half' is not defined")], True),
        ("def half(q):\n    return q / 2\n", judged(NAME, lambda q, k: half(q)), False),
        ("def half(q):\n    return qq", judged(NAME, raises), False),
        ("def half(q):\n    return qq", named(NAME), False),
    ],
    ids=["raised there", "gone", "as given", "raised elsewhere", "another mistake"],
)
def test_an_error_that_comes_from_a_given_cell_that_was_changed(mine, outputs, blamed):
    """A student sent to an answer that is right; or to a cell that is as it was given."""
    given = notebook(given_cell("def half(q):\n    return q / 2"), asked(NAME, []))
    found = outcomes(notebook(given_cell(mine), asked(NAME, outputs)), given)[0]
    assert (found.cause == GIVEN_CELL) == blamed == ("with `half`, which you have changed" in found.reason)
    assert found.given == (mine if blamed else "")


def test_an_exercise_of_somebodys_own():
    """An instructor's own test cell, with asserts, is an exercise too: a KeyError of the registry."""
    cells = asked("my_sum", [error("AssertionError", "2 + 2")])
    (found,) = outcomes(notebook(cells))
    assert (found.state, found.title, found.exercise) == ("wrong", "My sum", None)
    assert found.reason == "The check ended in an error. AssertionError: 2 + 2"
    assert outcomes(notebook(asked("my_sum", [])))[0].state == "right"


def test_text_is_cut_and_cleaned():
    """50 MB of print in a page; escape sequences that write over a terminal."""
    assert plain("\x1b[31mred\x1b[0m\x07 \x00ok\ttab\r\n") == "red ok\ttab"
    assert plain(["a\n", "b"]) == "a\nb"
    assert plain("x\n" * 1000, lines=3) == "x\nx\nx\n[... and more, left out here]"
    assert len(plain("y" * 10**6)) < 20_100


@pytest.mark.bubblewrap
@pytest.mark.slow  # a kernel inside the sandbox
def test_a_real_run_of_an_assignment_with_one_wrong_answer():
    """Results in another form than `inside` sends them; a wrong answer that takes the next one with it."""
    given = nbformat.read(ROOT / "solutions/01_attention/01_attention.ipynb", as_version=4)
    for cell in given.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == NAME:
            cell.source = cell.source.replace("** 0.5", "** 1.0")
            assert "q.shape[-1] ** 1.0" in cell.source
    execute = ConfinedExecute(limits=Limits(cell_seconds=60, submission_seconds=200), seeds=[11, 12])
    done, _ = execute.preprocess(given, {})
    found = [outcome for outcome in outcomes(done) if not outcome.prose]
    assert [(o.grade_id, o.state) for o in found] == [
        ("attention_weights-check", "wrong"),
        ("scaled_dot_product_attention-check", "wrong"),
        ("split_heads-again-check", "right"),
        ("merge_heads-again-check", "right"),
        ("multi_head_attention-check", "wrong"),
    ]
    assert found[0].misconception == "scaled by d instead of sqrt(d)"
    assert found[0].reason.startswith("A dot product of d random products has a spread of sqrt(d), not d.")
    assert not found[0].other_inputs and not any(o.library for o in found)
