"""Renders the reports' templates: all text is escaped, and control characters are made visible."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from core.models.catalogue import RESOURCES

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = RESOURCES / "report"
UNKNOWN = "–"
"""Shown for an unknown figure."""

_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
"""Characters that change the direction of the following text, which could falsify a report."""
_VISIBLE = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "␡",
    **dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd"),
    **{code: f"⟨U+{code:04X}⟩" for code in _REORDERING},
}
_ON_ONE_LINE = {ord("\n"): "↵", ord("\t"): "⇥"}


def escaped(text: str) -> Markup:
    """A text as the content of an element; line ends and tabs stay."""
    return escape(text.translate(_VISIBLE))


def one_line(text: str) -> Markup:
    """A text for an attribute's value, or any place that must stay on one line."""
    return escaped(text.translate(_ON_ONE_LINE))


def render(template: str, **values: Any) -> str:
    """A whole HTML file from a template in resources/report."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        # Applied to everything that a template prints, before escaping.
        finalize=lambda value: value.translate(_VISIBLE) if type(value) is str else value,
    )
    environment.filters["one_line"] = one_line
    environment.globals["style_sheet"] = Markup((FOLDER / "report.css").read_text("utf-8"))
    return environment
