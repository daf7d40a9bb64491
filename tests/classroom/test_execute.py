"""Submissions that end a kernel, or never end, cost a cell and not the rest."""

from copy import deepcopy

import nbformat
import pytest
from nbgrader.utils import determine_grade

from kvlearn.classroom.execute import ConfinedExecute, leave_to_the_check
from kvlearn.classroom.results import MIME
from kvlearn.classroom.sandbox import Limits

pytestmark = [pytest.mark.bubblewrap, pytest.mark.slow]

RIGHT = {
    "split_heads": """
def split_heads(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
""",
    "merge_heads": """
def merge_heads(x):
    return x.transpose(1, 2).flatten(2)
""",
}
LOOP = """
while True:
    try:
        while True:
            pass
    except KeyboardInterrupt:
        pass
"""


def cell(source, grade_id, grade):
    one = nbformat.v4.new_code_cell(source)
    one.metadata["nbgrader"] = {
        "grade": grade,
        "solution": not grade,
        "locked": grade,
        "grade_id": grade_id,
        "schema_version": 3,
        "points": 1,
    }
    return one


def notebook(*others, **answers):
    """Two exercises, a cell between them, and what is wrong with them."""
    written = RIGHT | answers
    cells = [nbformat.v4.new_code_cell("import kvlearn\nshared = 6 * 7")]
    for name in RIGHT:
        cells += [cell(written[name], name, False)]
        cells += [cell(f'kvlearn.check("{name}", {name})', f"{name}-check", True)]
    cells[3:3] = [nbformat.v4.new_code_cell(source) for source in others]
    return nbformat.v4.new_notebook(cells=cells + [nbformat.v4.new_code_cell("print(shared)")])


class Counted(ConfinedExecute):
    """Counts its kernels. `endless`: the only cells whose time is up, on a busy machine too."""

    started, endless = 0, None

    def _kernel(self, *given):
        self.started += 1
        return super()._kernel(*given)

    def _seconds_left(self, cell):
        seconds = super()._seconds_left(cell)
        return seconds if self.endless is None or name_of(cell) in self.endless else 600


def name_of(cell):
    return cell.metadata.get("nbgrader", {}).get("grade_id") or cell.source


def run(given, limits=None, answers=RIGHT, endless=(), scratch=""):
    """{grade_id or place: (errors, results)} of a notebook; cells named in `endless` alone can time out."""
    execute = Counted(limits=limits or Limits(), seeds=[3], answers=answers, scratch=str(scratch))
    execute.endless = endless
    done, _ = execute.preprocess(given, {})
    done.metadata["started"] = execute.started
    return {
        one.metadata.get("nbgrader", {}).get("grade_id", place): (
            [output.evalue for output in one.outputs if output.output_type == "error"],
            [output.data[MIME].get("passed") for output in one.outputs if MIME in output.get("data", {})],
        )
        for place, one in enumerate(done.cells)
    }, done


def check_cell(*outputs):
    one = cell("kvlearn.check('split_heads', split_heads)", "split_heads-check", True)
    one.outputs, one.execution_count = list(outputs), 3
    return one


def result(passed):
    data = {MIME: {"exercise": "split_heads", "passed": passed, "message": "m"}, "text/plain": "m"}
    return nbformat.v4.new_output("display_data", data=data)


def shown(text):
    return nbformat.v4.new_output("execute_result", data={"text/plain": text}, execution_count=3)


FAILED = nbformat.v4.new_output("error", ename="CheckFailed", evalue="no", traceback=[])
WARNING = nbformat.v4.new_output("stream", name="stderr", text="UserWarning")


@pytest.mark.parametrize(
    "outputs, points",
    [
        ([result(True)], 1),
        ([shown("'hello'"), result(False), FAILED], 0),
        ([shown("1"), result(False), FAILED], 0),
        ([shown("0.25"), result(True)], 1),
        ([shown("7"), result(True)], 1),
        ([WARNING, result(True)], 1),
        ([result(True), result(False)], 0),
        ([result(False)], 0),
        ([shown("1")], 0),
        ([], 0),
    ],
)
def test_points_come_from_the_check_alone(outputs, points):
    """`sys.displayhook("hello")` in an answer: nbgrader stops reading at it, and gives full points; a number
    there is taken for the points, and a warning for an error."""
    one = check_cell(*map(nbformat.from_dict, deepcopy(outputs)))
    leave_to_the_check(one)
    assert determine_grade(one) == (points, 1)
    nbformat.validate(nbformat.v4.new_notebook(cells=[one]))


def test_partial_points_of_an_instructors_own_cell_stay():
    """nbgrader's way to give half of the points: a cell that shows 0.5."""
    one = check_cell(shown("0.5"))
    one.source = "points_of(split_heads)"
    leave_to_the_check(one)
    assert determine_grade(one) == (0.5, 1)


def test_right_answers():
    """Walls that stop what is right."""
    found, done = run(notebook())
    assert found["split_heads-check"] == ([], [True]) and found["merge_heads-check"] == ([], [True])
    for check in (done.cells[2], done.cells[4]):  # a class's seeds too, each time
        assert [output.data[MIME]["seeds"] for output in check.outputs] == [[0, 3]]
    assert done.cells[-1].outputs[0].text == "42\n"
    assert done.cells[2].source == 'kvlearn.check("split_heads", split_heads)'  # as it was


def test_a_cell_that_ends_python_costs_itself():
    """Without a new kernel nothing after it would be graded: DeadKernelError ends nbgrader's own run."""
    found, done = run(notebook("exit()", split_heads="import os\nos._exit(3)"))
    ended = "This cell ended Python itself, by os._exit or quit, or by a crash."
    assert found["split_heads"] == ([ended], []) and found[3] == ([ended], [])
    assert found["split_heads-check"] == ([f"There is nothing to check. {ended}"], [])
    assert found["merge_heads-check"] == ([], [True])
    assert done.cells[-1].outputs[0].text == "42\n"  # the cells before have been run again


NEEDS = """
import torch
def merge_heads(x):
    if split_heads(torch.zeros(1, 2, 6), 3).shape != (1, 3, 2, 2):
        raise ValueError("split_heads is wrong")
    return x.transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(
    "split, between",
    [
        ("def split_heads(x, num_heads):\n    return x", ""),
        ("def split_heads(x, num_heads):\n    return x", "import os\nos._exit(0)"),
        ("import os\ndef split_heads(x, num_heads):\n    os._exit(0)", ""),
        ("import torch as the_torch\ndef split_heads(x, num_heads)\n    pass", ""),
    ],
    ids=["wrong", "wrong, and then a new kernel", "ends Python when called", "cannot be read"],
)
def test_a_wrong_answer_costs_its_own_points(split, between):
    """One mistake that costs all the exercises behind it, whose answers are right."""
    given = notebook(split_heads=split, merge_heads=NEEDS)
    given.cells[3:3] = [nbformat.v4.new_code_cell(between)]
    found, done = run(given)
    assert found["split_heads-check"][0] and True not in found["split_heads-check"][1]
    assert found["merge_heads-check"] == ([], [True])


def test_what_replaces_an_answer_and_the_seeds_are_not_shown():
    """`%history` in a later cell puts the class's seeds and the course's answer on the student's page."""
    shows = "%history\nprint(In)\n" + RIGHT["merge_heads"]
    found, done = run(notebook(split_heads="def split_heads(x, num_heads):\n    return x", merge_heads=shows))
    assert found["merge_heads-check"] == ([], [True])
    printed = "".join(output.get("text", "") for output in done.cells[3].outputs)
    assert "shared = 6 * 7" in printed
    assert "unflatten" not in printed and "SEEDS" not in printed and "afresh" not in printed


def test_output_that_is_cleared_in_a_check():
    """A right answer that clears the output takes the check's result with it, and has no point."""
    clears = "from IPython.display import clear_output\n" + RIGHT["split_heads"].replace(
        "    return", "    clear_output()\n    return"
    )
    given = notebook(split_heads=clears)
    given.cells[2].source += '\nkvlearn.check("split_heads", split_heads, seed=8)'
    assert run(given)[0]["split_heads-check"] == ([], [True, True])


def test_a_loop_that_catches_the_interrupt():
    """An interrupt that is swallowed hangs a grader that waits for it; a loop inside a check is the same."""
    inside_the_check = "def merge_heads(x):" + LOOP.replace("\n", "\n    ")
    given, endless = notebook(LOOP, merge_heads=inside_the_check), (LOOP, "merge_heads-check")
    found, _ = run(given, Limits(cell_seconds=2), endless=endless)
    ended = "This cell had not ended after 2 seconds, and was stopped."
    assert found[3] == ([ended], [])
    assert found["split_heads-check"] == ([], [True])
    assert found["merge_heads"] == ([], []) and found["merge_heads-check"] == ([ended], [])


def test_a_memory_bomb_of_many_processes():
    """Each process within its own limit."""
    bomb = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        held = b"x" * (200 * 2**20)
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""
    found, _ = run(notebook(split_heads=bomb), Limits(memory_bytes=2 * 2**30))
    assert found["split_heads"] == (["This cell took more than 2 GiB of memory, and was stopped."], [])
    assert found["merge_heads-check"] == ([], [True])


def test_a_list_that_grows_and_is_kept():
    """The answer's list still holds all memory after its MemoryError: every cell behind it would fail too."""
    grows = "held = []\nwhile True:\n    held.append(bytearray(2**20))"
    found, _ = run(notebook(split_heads=grows), Limits(memory_bytes=3 * 2**29))
    assert found["split_heads"][0][-1] == "This cell took more than 1.5 GiB of memory, and was stopped."
    assert found["merge_heads-check"] == ([], [True])


def test_fifty_megabytes_of_output_and_a_question():
    """Output that fills the gradebook's disk; `input()` that waits for ever."""
    found, done = run(notebook("print('x' * 50_000_000)\nprint('later')", "input('your name? ')"))
    assert sum(len(output.get("text", "")) for output in done.cells[3].outputs) < 1000
    assert "was dropped" in done.cells[3].outputs[-1].text
    assert "input" in found[4][0][0]
    assert found["split_heads-check"] == ([], [True]) and found["merge_heads-check"] == ([], [True])


SEND = "k = get_ipython().kernel\nk.session.send(k.iopub_socket, 'stream', {}, parent=k.get_parent())"
BAD_SIGNATURE = """
import time
get_ipython().kernel.iopub_socket.send_multipart([b"x", b"<IDS|MSG>", b"bad", b"{}", b"{}", b"{}", b"{}"])
time.sleep(1)
"""
NO_OUTPUT = "from IPython.display import publish_display_data\npublish_display_data({'text/plain': 5})"


def test_messages_that_are_none():
    """What code sends Jupyter past IPython ends the worker, and the submission is never graded."""
    found, done = run(notebook(SEND, BAD_SIGNATURE, NO_OUTPUT))
    unreadable = ["This cell sent Jupyter a message that cannot be read, and was stopped."]
    assert found[3] == found[4] == found[5] == (unreadable, [])
    nbformat.validate(done)
    assert found["split_heads-check"] == ([], [True]) and found["merge_heads-check"] == ([], [True])


def test_files_beside_the_sockets(tmp_path):
    """The folder that both sides see is on the instructor's disk: its files count, and go."""
    fill = """
import pathlib, time
place = pathlib.Path(get_ipython().config["IPKernelApp"]["connection_file"]).parent
for number in range(24):
    (place / str(number)).write_bytes(bytes(2**20))
    time.sleep(0.1)
time.sleep(60)
"""
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
    limits = Limits(file_bytes=16 * 2**20)
    found, _ = run(notebook(fill, split_heads=RIGHT["split_heads"] + deep), limits, scratch=tmp_path)
    assert found[3] == (["This cell wrote more than 16 MiB or 1000 files, and was stopped."], [])
    assert found["merge_heads-check"] == ([], [True])
    assert list(tmp_path.iterdir()) == []


def test_results_of_ones_own_without_end():
    """A check's kind of message is no way around the limit on output."""
    flood = f"""
from IPython.display import publish_display_data
for _ in range(30):
    publish_display_data({{{MIME!r}: {{"exercise": "split_heads", "message": "x" * 100_000}}}})
"""
    found, done = run(notebook(flood, split_heads=RIGHT["split_heads"] + flood))
    assert len(nbformat.writes(done)) < 2_000_000
    assert found["split_heads-check"] == ([], [True])


def test_who_ends_python_again_and_again_pays_for_it():
    """Twenty starts of Python, none of them within the time that a submission has."""
    given = notebook(*["import os\nos._exit(0)"] * 20)
    _, done = run(given, Limits(submission_seconds=1), endless=None)
    assert done.metadata.started <= 3  # each takes a second at least, and the first is not the student's


def test_the_whole_has_a_limit_too():
    """A hundred cells within their limit: a class would never be graded."""
    given = notebook(*["import time; time.sleep(1)"] * 5)
    found, done = run(given, Limits(cell_seconds=30, submission_seconds=3), endless=None)
    assert "had not ended after 3 seconds in all" in found["merge_heads-check"][0][0]
    assert found["merge_heads-check"][1] == []
