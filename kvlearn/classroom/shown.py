"""A student's notebook in nbgrader's formgrader: text of a stranger, in a page that may do all you can.

nbgrader renders markdown and outputs as they are, scripts too. `nbgrader_config.py` puts these in the place
of nbconvert's: HTML in prose is shown as the characters that it is, and HTML in outputs is cleaned.
"""

from jinja2 import pass_context
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors.sanitize import SanitizeHTML


class SanitizeOutputs(SanitizeHTML):
    """nbconvert's own, but for markdown: cleaned before it is rendered, `a < b` is shown as `a &lt; b`."""

    def preprocess_cell(self, cell, resources, cell_index):
        if cell.cell_type == "markdown":
            return cell, resources
        return super().preprocess_cell(cell, resources, cell_index)


@pass_context
def markdown2html(context, source: str) -> str:
    """Markdown with formulas as HTML, as nbconvert makes it, but for HTML in it, and links that run code."""
    cell = context.get("cell", {})
    renderer = IPythonRenderer(
        escape=True, allow_harmful_protocols=False, attachments=cell.get("attachments", {})
    )
    return MarkdownWithMath(renderer=renderer).render(source)
