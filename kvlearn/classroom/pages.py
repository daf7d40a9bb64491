"""Pages for people: HTML in one file, without JavaScript, fit for an attachment of a mail."""

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

# Autoescape: whatever a page is given is text, never markup. Students write much of it.
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)


def render(template: str, **facts) -> str:
    """The page of `template`, a file beside this one."""
    return _TEMPLATES.get_template(template).render(**facts)


def code(text: str) -> Markup:
    """Text as markup, `what stands in backticks` as code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


def number(value: float) -> str:
    """Points as people write them: 2, 1.5."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def title(assignment: str) -> str:
    """`04_kv_cache` as people say it: Assignment 04: KV cache."""
    count, _, words = assignment.partition("_")
    words = re.sub(r"\bkv\b", "KV", words.replace("_", " "))
    return f"Assignment {count}: {words}" if count.isdigit() and words else assignment


_TEMPLATES.filters |= {"code": code, "number": number, "assignment": title}
