"""Why an answer is not right: the sentences that a student reads, and the kind of mistake that is counted."""

from types import SimpleNamespace

import pytest
from made import asked, error, judged, notebook, one
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from kvlearn.checks import find
from kvlearn.classroom.execute import ConfinedExecute, OutOfMemory
from kvlearn.classroom.outcomes import outcomes
from kvlearn.classroom.reasons import DID_NOT_RUN, ELSE, KIND, RAISED
from kvlearn.classroom.sandbox import Limits

NAME = "attention_weights"


def test_the_answers_own_error_is_the_reason_and_not_the_checks():
    """A syntax error that is told as "name ... is not defined"."""
    trace = [
        "\x1b[0;36m  Cell \x1b[0;32mIn[2], line 1\x1b[0m\n    def f(:\n          ^\n"
        "SyntaxError: invalid syntax"
    ]
    found = one(
        error("NameError", f"name '{NAME}' is not defined"),
        source="def f(:",
        left=[error("SyntaxError", "invalid syntax (1.py, line 1)", trace)],
    )
    assert found.state == "wrong"
    assert found.reason == "Python could not read your answer's cell. Line 1: invalid syntax"
    assert found.cause == DID_NOT_RUN
    assert found.printed == "  Cell In[2], line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax"


def test_a_name_that_is_missing_without_any_error():
    """A renamed function: the sentence must say which name is wanted."""
    found = one(error("NameError", f"name '{NAME}' is not defined"))
    assert found.state == "wrong"
    assert found.reason.startswith(f"The check did not find what it was to check. NameError: name '{NAME}'")


def lost(exception, exceeded=False, in_check=False):
    """A lost cell's exercise, as `execute` writes it."""
    execute = ConfinedExecute(limits=Limits(cell_seconds=7, memory_bytes=3 * 2**30))
    execute._lost = {}
    execute._watch = SimpleNamespace(
        exceeded="memory" if exceeded == "limit" else None,
        was_near_the_limit=lambda: exceeded == "near",
        machine_ran_out=lambda: exceeded == "machine",
    )
    execute._replaced = set()
    cells = asked(NAME, [])
    cell = cells[1 if in_check else 0]
    cell["id"] = "x"
    execute._lose(cell, exception)
    if not in_check:
        why = cell.outputs[-1].evalue
        cells[1].outputs = [error("NotChecked", f"There is nothing to check. {why}")]
    (found,) = outcomes(notebook(cells))
    return found


@pytest.mark.parametrize("in_check", [False, True], ids=["answer", "check"])
@pytest.mark.parametrize(
    "exception, exceeded, by, says",
    [
        (CellTimeoutError("slow"), False, "time", "had not ended after 7 seconds"),
        (DeadKernelError("dead"), False, "crash", "ended Python itself"),
        (DeadKernelError("dead"), "limit", "memory", "more than 3 GiB of memory"),
        (CellTimeoutError("slow"), "limit", "memory", "more than 3 GiB of memory"),
        (DeadKernelError("dead"), "near", "memory", "more than 3 GiB of memory"),
        (CellTimeoutError("slow"), "near", "time", "had not ended after 7 seconds"),
        (DeadKernelError("dead"), "machine", "memory", "The computer ran out of memory while"),
        (OutOfMemory(), False, "memory", "more than 3 GiB of memory"),
    ],
)
def test_what_was_stopped_and_by_what(exception, exceeded, by, says, in_check):
    """A loop, a memory bomb and os._exit counted as wrong answers, or as each other."""
    found = lost(exception, exceeded, in_check)
    assert (found.state, found.stopped_by) == ("stopped", by)
    assert says in found.reason and found.reason.count("\n") == 1
    assert found.reason.startswith("The check, which calls" if in_check else "Your answer's cell")
    assert found.printed == ""  # the reason again, and no more
    assert "input()" not in found.reason  # which never waits, and is no loop


GROWS = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 536870912 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    "raised",
    [RuntimeError(GROWS), MemoryError(), RuntimeError("std::bad_alloc")],
    ids=["torch", "Python", "C"],
)
def test_memory_that_could_not_be_had_is_no_wrong_answer(raised):
    """A list that grows, told as "wrong" in the words of torch's allocator."""

    def grows(q, k):
        raise raised

    called = one(*judged(NAME, grows))
    assert (called.state, called.stopped_by, called.cause) == ("stopped", "memory", None)
    assert called.reason.startswith(
        "Your function asked for more memory than a submission may use.\nIt was in grows, line "
    )
    assert "enforce" not in called.reason and "Is there a tensor or a list that grows" in called.reason
    missing = error("NameError", f"name '{NAME}' is not defined")
    in_cell = one(missing, left=[error(type(raised).__name__, str(raised))])
    assert (in_cell.state, in_cell.stopped_by) == ("stopped", "memory")
    assert in_cell.reason.startswith("Your answer's cell asked for more memory")


@pytest.mark.parametrize("number, words", [(28, "No space left on device"), (27, "File too large")])
def test_space_that_has_run_out_is_no_wrong_answer(number, words):
    """A full /dev/shm told in the kernel's words, as if the answer were wrong."""

    def writes(q, k):
        raise OSError(number, words)

    called = one(*judged(NAME, writes))
    missing = error("NameError", f"name '{NAME}' is not defined")
    in_cell = one(missing, left=[error("OSError", f"[Errno {number}] {words}")])
    assert [(found.state, found.stopped_by) for found in (called, in_cell)] == [("stopped", "files")] * 2
    assert called.reason.startswith(
        "Your function wrote more data, or a larger file, than a submission may.\nIt was"
    )


def test_input_in_the_function_is_told_as_in_the_cell():
    """A student who reads "this frontend does not support input requests" and nothing more."""
    StdinNotImplementedError = type("StdinNotImplementedError", (RuntimeError,), {})

    def asks(q, k):
        raise StdinNotImplementedError("raw_input was called, but")

    found = one(*judged(NAME, asks))
    assert found.reason.endswith("Write the value into the code instead.") and found.cause == RAISED


def raises(q, k):
    raise KeyError("x")


@pytest.mark.parametrize(
    "answer, cause",
    [
        (raises, RAISED),
        (lambda q, k: q, KIND),
        (lambda q, k: (q.double() @ k.double().transpose(-2, -1)).softmax(-1), KIND),
        (lambda q, k: 7, KIND),
        (lambda q, k: (q @ k.transpose(-2, -1)).softmax(-1) * 1.5, ELSE),
        (7, ELSE),
        (find(NAME).misconceptions[0].answer, None),
        (find(NAME).reference, None),
    ],
)
def test_how_an_answer_without_a_known_mistake_is_wrong(answer, cause):
    """Wrong answers of which the class report says nothing at all; a cause beside a known mistake."""
    assert one(*judged(NAME, answer)).cause == cause
