"""Pages for people: HTML in one file, without JavaScript, fit for an attachment of a mail."""

import os
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from kvlearn.classroom.course import CourseError

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


_TEMPLATES.filters |= {"code": code, "number": number}


def write_whole(path: Path, text: str) -> Path:
    """Write a file whole or not at all. Raises CourseError."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(text, encoding="utf-8", newline="\n")
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CourseError(f"{path} could not be written: {error.strerror or error}.") from None
    return path
