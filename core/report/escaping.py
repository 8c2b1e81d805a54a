"""Text that came from a model, a prompt or a file, made safe to stand in HTML and to be seen for what it is."""

from __future__ import annotations

import html

_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
"""Characters that turn the direction of what follows them: they could make a report read as something else."""


def _visible_table() -> dict[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20)}
    table[0x7F] = "␡"
    table |= dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd")
    table |= {code: f"⟨U+{code:04X}⟩" for code in _REORDERING}
    for kept in "\n\t":
        del table[ord(kept)]
    return table


_VISIBLE = _visible_table()
_ON_ONE_LINE = {**_VISIBLE, ord("\n"): "↵", ord("\t"): "⇥"}


def escaped(text: str) -> str:
    """For the inside of an element; line ends and tabs stay."""
    return html.escape(text.translate(_VISIBLE))


def attribute(text: str) -> str:
    """For an attribute's value in double quotes, and for whatever else has to stay on a line."""
    return html.escape(text.translate(_ON_ONE_LINE))
