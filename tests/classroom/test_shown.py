"""What the formgrader shows of a student's notebook: nothing that runs, and prose that can be read."""

import nbformat
import pytest
from nbconvert.exporters import HTMLExporter
from nbgrader.server_extensions.formgrader import handlers
from submissions import ROOT

from kvlearn.classroom import course

BAD = (
    "<script>ran()</script>",
    "<img src=x onerror=ran()>",
    "<svg onload=ran()></svg>",
    "[a link](javascript:ran())",
    "<a href='javascript:ran()'>x</a>",
    "![a picture](javascript:ran())",
)


@pytest.fixture(scope="module")
def exporter():
    """nbgrader's own template, with the settings of nbgrader_config.py."""
    config = course.config(ROOT)
    config.HTMLExporter.template_name = "formgrade"
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    return HTMLExporter(config=config)


def page(exporter, *cells):
    facts = dict.fromkeys(("notebook_id", "submission_id", "assignment_id", "student", "mathjax_url"), "x")
    facts |= {"index": 0, "total": 1, "base_url": "/", "last_name": "", "first_name": "", "resources": {}}
    shown, _ = exporter.from_notebook_node(
        nbformat.v4.new_notebook(cells=list(cells)), resources={**facts, "metadata": {"name": "x"}}
    )
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("bad", BAD)
def test_nothing_of_a_students_prose_runs(exporter, bad):
    """A script in an answer in words runs in the instructor's Jupyter, which may run any code."""
    shown = page(exporter, nbformat.v4.new_markdown_cell(f"A word. {bad}"))
    assert "A word." in shown
    for harm in ("<script>ran", "<img src=x onerror", "<svg onload", 'href="javascript', 'src="javascript'):
        assert harm not in shown


def test_nothing_of_an_output_runs(exporter):
    """The same from a cell's outputs, and a raw cell."""
    data = {
        "text/html": "<script>ran()</script><b>kept</b>",
        "application/javascript": "ran()",
        "image/svg+xml": "<svg onload='ran()'></svg>",
        "text/markdown": "<img src=x onerror=ran()>",
    }
    outputs = [nbformat.v4.new_output("display_data", data={kind: text}) for kind, text in data.items()]
    outputs.append(
        nbformat.v4.new_output("error", ename="<script>ran()", evalue="", traceback=["<script>ran()"])
    )
    raw = nbformat.v4.new_raw_cell("<script>ran()</script>", metadata={"raw_mimetype": "text/html"})
    shown = page(exporter, nbformat.v4.new_code_cell("1", outputs=outputs), raw)
    for harm in ("<script>ran", "<img src=x", "<svg onload", ">ran()</script>"):
        assert harm not in shown, harm


def test_prose_about_masks_can_be_read(exporter):
    """Cleaned before it is rendered, `<` is escaped twice, and a formula with & breaks."""
    text = "Keep `key <= query`, **not** more: $a<b$.\n\n$$x &= 1$$\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    shown = page(exporter, nbformat.v4.new_markdown_cell(text))
    assert "<code>key &lt;= query</code>" in shown and "<strong>not</strong>" in shown
    assert (
        "$a&lt;b$" in shown and "x &amp;= 1" in shown and "&amp;lt;" not in shown and "&amp;amp;" not in shown
    )
    assert "<td>1</td>" in shown
