"""A page for each student: what stands in it, and that nothing in it can run."""

import os
from html.parser import HTMLParser

import pytest
from made import asked, by_hand, classroom, enter, error, judged, named, notebook, printed, prose, right
from nbformat.v4 import new_code_cell

from kvlearn.checks import find
from kvlearn.classroom import feedback
from kvlearn.classroom.course import CourseError
from kvlearn.classroom.graded import Points, Submission
from kvlearn.classroom.outcomes import outcomes

pytestmark = pytest.mark.slow  # gradebooks and processes: half a minute in all

NAME = "attention_weights"
BOMB = '<script>alert("1")</script><img src=x onerror=alert(2)>'


class Page(HTMLParser):
    """Tags with their attributes, and the text of each element with an id or the whole page's."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.words, self.hidden = [], [], 0
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.hidden += tag == "style"

    def handle_endtag(self, tag):
        self.hidden -= tag == "style"

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)


def page(*groups, points=None, **facts):
    made = notebook(*groups)
    names = {"name": "Jane Doe", "student": "jane", "assignment": "01_attention"}
    return Page(
        feedback.page(Submission(outcomes=tuple(outcomes(made)), points=points or {}, **(names | facts)))
    )


def test_a_page_says_all_that_is_known_of_a_mistake():
    """A page without the name, the points or the place to read; a hint about something else beside it, which
    reads as a second mistake."""
    exercise = find(NAME)
    text = page(asked(NAME, named(NAME)), points={f"{NAME}-check": Points(0, 2, 0)}).text
    assert "Assignment 01: attention Feedback for Jane Doe (jane) 0 of 2 points ." in text
    assert exercise.title in text and "wrong · 0 of 2 points" in text
    assert f"This looks like: {exercise.misconceptions[0].name} ." in text
    assert exercise.misconceptions[0].says in text
    assert not any(hint in text for hint in exercise.hints)
    assert (
        'Read again Lesson 01, sections "2 · One token looks at three, by hand" and "3 · Why divide by √D?" '
        f'(notebooks/01_attention.ipynb) Hints kvlearn.hint("{NAME}") in your notebook'
    ) in text
    assert f"def {NAME}(q, k):" in text and "To go on: correct the cell" in text
    assert "Stuck" not in text and "other inputs" not in text


def test_a_hint_where_nothing_better_is_known():
    """No hint for what nobody has written; one for what is right, or a section to read again."""
    exercise = find(NAME)
    wrong = page(asked(NAME, judged(NAME, lambda q, k: q))).text
    assert f"A hint {exercise.hints[0]} Read again" in wrong and "More hints kvlearn.hint" in wrong
    unwritten = page(asked(NAME, judged(NAME, lambda q, k: None))).text
    assert f"A hint {exercise.hints[0]} Read Lesson 01" in unwritten
    done = page(asked(NAME, right(NAME)), points={f"{NAME}-check": Points(1, 1, 1)})
    assert "int Read" not in done.text and "int kvlearn.hint" not in done.text and "To go on" not in done.text
    assert "right · 1 of 1 point Your answer" in done.text
    pasted = page(asked("split_heads", right("split_heads"), again=True, points=0),
                  points={"split_heads-again-check": Points(0, 0, 0)})  # fmt: skip
    assert "right · no points" in pasted.text
    assert [attrs for tag, attrs in done.tags if tag == "details"] == [{}]  # closed: nothing to look at


@pytest.mark.parametrize(
    "outputs, left, words",
    [
        ("NameError", error("SyntaxError", "expected ':' (1.py, line 1)"), "Line 1: expected ':'"),
        ("NameError", error("StdinNotImplementedError", "raw_input was called"), "It calls input()"),
        ("MemoryError", None, "more memory than a submission may use"),
        ("CellTimeoutError", None, "Is there a loop that never ends?"),
    ],
)
def test_neither_hint_nor_section_where_the_lesson_is_not_the_matter(outputs, left, words):
    """A hint about the softmax under a missing colon: the student looks for a second mistake."""
    text = page(asked(NAME, [error(outputs, "")], left=[left] if left else ())).text
    assert words in text and "To go on" in text
    assert "hint" not in text.lower() and "Read" not in text


def test_a_given_cell_that_was_changed_is_shown():
    """A reason about a cell of which the page shows nothing, beside an answer that is right."""
    given = [new_code_cell("def half(q):\n    return q / 2")]
    mine = [new_code_cell("def half(q):\n    return qq")]
    mine[0]["id"] = given[0]["id"]
    checked = asked(NAME, [error("CheckFailed", f"{NAME}: not right yet.\nYour code raised NameError: x\n"
                                 "  in half, line 2: return qq")])  # fmt: skip
    found = outcomes(notebook(mine, checked), notebook(given, checked))
    shown = Page(feedback.page(Submission("jane", "01_attention", tuple(found))))
    assert "The cell that you have changed def half(q): return qq" in shown.text
    assert [attrs for tag, attrs in shown.tags if tag == "details"] == [{"open": None}, {}]
    assert "hint" not in shown.text


def test_what_the_seeds_of_the_class_found_is_explained():
    """A student whose own check passes and who is told nothing of other inputs."""
    text = page(asked(NAME, named(NAME, seed=12345))).text
    assert "The check in your notebook passes. This was found with other inputs" in text
    assert "12345" not in text


def test_what_the_answers_cell_printed_is_shown_where_it_failed():
    """A reason without the lines of the student that it is about."""
    left = [printed("so far\n"), error("SyntaxError", "invalid syntax", ["line 1\n  def f(:"])]
    text = page(asked(NAME, [error("NameError", "x")], source="def f(:", left=left)).text
    assert "Python could not read your answer's cell. SyntaxError: invalid syntax" in text
    assert "What this cell left behind when it was run: so far line 1 def f(:" in text
    assert "What this cell" not in page(asked(NAME, right(NAME), left=[printed("hello")])).text


def test_nothing_that_a_student_writes_can_run():
    """<script> in code, in printed output, in an error, a note, a comment, a name, or a result."""
    made = asked(
        NAME,
        [error("NameError", BOMB)],
        source=f"# {BOMB}\ndef f(): '{BOMB}",
        left=[printed(BOMB), error(BOMB, BOMB, [BOMB])],
    )
    found = page(
        made,
        prose(f"why{BOMB}", BOMB),
        asked("x" + BOMB, named(NAME)),
        name=BOMB,
        student=BOMB,
        assignment=BOMB,
        notes=(BOMB,),
        comments={NAME: BOMB},
    )
    assert found.text.count(BOMB) >= 12  # as text, at each place
    assert {tag for tag, _ in found.tags} & {"script", "img", "iframe", "object", "link", "a "} == set()
    assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]


def test_a_page_needs_nothing_but_itself():
    """A style sheet, a font or a picture from elsewhere: an attachment of a mail shows none of them."""
    found = page(asked(NAME, named(NAME)), asked("split_heads", right("split_heads"), again=True))
    for _, attrs in found.tags:
        assert not {"src", "srcset", "action", "data"} & set(attrs)
        assert attrs.get("href", "#").startswith("#")
    html = feedback.page(Submission("jane", "01_attention", ()))
    assert "white-space: pre-wrap" in html  # a long line of prose is read whole, on paper too
    assert "@import" not in html and "url(" not in html and "http://" not in html and "https://" not in html
    links = [attrs["href"][1:] for tag, attrs in found.tags if tag == "a"]
    assert links == [attrs["id"] for tag, attrs in found.tags if tag == "section"] == ["e1", "e2"]


def test_points_by_a_person_and_comments(tmp_path):
    """What a person corrected or wrote, missing from the page that the student gets."""
    root = classroom(tmp_path)
    enter(root, "jane", notebook(asked(NAME, named(NAME)), prose("why", "Because."), notes=["A note."]))
    by_hand(root, "jane", f"{NAME}-check", manual_score=1.0, comment_on=NAME, comment="Nearly.\nLook again.")
    told = []
    done = feedback.write(root, "01", tell=told.append)
    (path,) = done.paths
    assert path == root / "classroom" / "feedback" / "jane" / "01_attention" / "feedback.html"
    text = Page(path.read_text(encoding="utf-8")).text
    assert "1 of 2 points, given by your teacher (by the check: 0)" in text and "Nearly. Look again." in text
    assert "1 of 2 points so far . Up to 3 more are given when your answer in words has been read." in text
    assert "to be read · not graded yet, of 3 points" in text and "To go on" in text
    assert "About your file A note." in text
    assert told == ["01_attention: feedback for 1 of 1"] and not done.problems
    by_hand(root, "jane", "why", manual_score=2.5, extra_credit=0.5, comment_on="why", comment="Yes!")
    feedback.write(root, tell=told.append)
    text = Page(path.read_text(encoding="utf-8")).text
    assert "read · 3 of 3 points, given by your teacher, 0.5 of them extra" in text and "Yes!" in text
    assert "4 of 5 points ." in text and "to be read" not in text


def test_what_is_flagged_is_not_for_the_student(tmp_path):
    """A suspicion in a student's mail, before a person has looked at it."""
    root = classroom(tmp_path)
    copied = [f"{NAME}: it uses kvlearn.attention"]
    enter(root, "jane", notebook(asked(NAME, right(NAME, library=True)), copied=copied))
    (path,) = feedback.write(root, tell=str).paths
    assert (
        "kvlearn.attention" not in path.read_text(encoding="utf-8")
        and "librar" not in Page(path.read_text(encoding="utf-8")).text
    )


def test_some_students_alone_and_one_whom_nobody_knows(tmp_path):
    """Pages for all when one was asked for; silence for a name that is misspelt."""
    root = classroom(tmp_path)
    for student in ("ann", "bob"):
        enter(root, student, notebook(asked(NAME, right(NAME))))
    done = feedback.write(root, "01_attention", ["bob"], tell=str)
    assert [path.parts[-3] for path in done.paths] == ["bob"]
    assert [path.name for path in (root / "classroom" / "feedback").iterdir()] == ["bob"]
    with pytest.raises(CourseError, match="Nothing of bop has been graded"):
        feedback.write(root, None, ["bop"], tell=str)


def test_a_full_disk_leaves_the_page_of_before(tmp_path, monkeypatch):
    """Half a page under the name of a whole one; one disk error that ends the run without a word."""
    root = classroom(tmp_path)
    enter(root, "jane", notebook(asked(NAME, right(NAME))))
    (path,) = feedback.write(root, tell=str).paths
    path.write_text("before", encoding="utf-8")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = feedback.write(root, tell=str)
    assert done.paths == [] and list(done.problems) == ["jane, 01_attention"]
    assert done.problems["jane, 01_attention"].endswith("could not be written: No space left on device.")
    assert path.read_text(encoding="utf-8") == "before" and os.listdir(path.parent) == ["feedback.html"]
