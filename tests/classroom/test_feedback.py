"""A page for each student: what stands in it, and that nothing in it can run."""

import os
from html.parser import HTMLParser

import pytest
from made import asked, by_hand, classroom, enter, error, named, notebook, printed, prose, right

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
    """A page without the name, the points, the hint or the place to read; the first hint, when the mistake is
    named already."""
    exercise = find(NAME)
    text = page(asked(NAME, named(NAME)), points={f"{NAME}-check": Points(0, 2, 0)}).text
    assert "Feedback for Jane Doe (jane)" in text and "0 of 2 points" in text
    assert exercise.title in text and "wrong · 0 of 2 points" in text
    assert f"This looks like: {exercise.misconceptions[0].name} ." in text
    assert exercise.misconceptions[0].says in text
    assert f"A hint {exercise.hints[1]}" in text and exercise.hints[0] not in text
    assert (
        'Read again notebooks/01_attention.ipynb, sections "2 · One token looks at three, by hand" and '
        '"3 · Why divide by √D?"'
    ) in text
    assert f"def {NAME}(q, k):" in text
    assert "kvlearn.hint" not in text and "Stuck" not in text and "other inputs" not in text


def test_the_first_hint_where_no_misconception_is_known():
    """The second hint before the first, or one for what is right."""
    exercise = find(NAME)
    text = page(asked(NAME, [error("TypeError", "no")])).text
    assert exercise.hints[0] in text and exercise.hints[1] not in text
    done = page(asked(NAME, right(NAME)), points={f"{NAME}-check": Points(2, 2, 2)})
    assert "A hint" not in done.text and "Read again" not in done.text and "2 of 2 points" in done.text
    pasted = page(asked("split_heads", right("split_heads"), again=True, points=0),
                  points={"split_heads-again-check": Points(0, 0, 0)})  # fmt: skip
    assert "right · no points" in pasted.text
    assert [attrs for tag, attrs in done.tags if tag == "details"] == [{}]  # closed: nothing to look at


def test_what_the_seeds_of_the_class_found_is_explained():
    """A student whose own check passes and who is told nothing of other inputs."""
    text = page(asked(NAME, named(NAME, seed=12345))).text
    assert "The check in your notebook passes. This was found with other inputs" in text
    assert "12345" not in text


def test_what_the_answers_cell_printed_is_shown_where_it_failed():
    """A reason without the lines of the student that it is about."""
    left = [printed("so far\n"), error("SyntaxError", "invalid syntax", ["line 1\n  def f(:"])]
    text = page(asked(NAME, [error("NameError", "x")], source="def f(:", left=left)).text
    assert "Your answer's cell ended in an error. SyntaxError: invalid syntax" in text
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
    assert "1 of 2 points, given by a person (by the check: 0)" in text and "Nearly. Look again." in text
    assert "1 of 5 points" in text and "in words · not graded yet, of 3 points" in text
    assert "About your file A note." in text
    assert told == ["01_attention: feedback for 1 of 1"] and not done.problems
    by_hand(root, "jane", "why", manual_score=2.5, extra_credit=0.5, comment_on="why", comment="Yes!")
    feedback.write(root, tell=told.append)
    text = Page(path.read_text(encoding="utf-8")).text
    assert "3 of 3 points, given by a person, 0.5 of them extra" in text and "Yes!" in text
    assert "4 of 5 points" in text


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
