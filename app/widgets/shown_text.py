"""Emitted text as it is shown: character for character, and whole characters although tokens cut them up."""

from __future__ import annotations

from PySide6.QtCore import QTextBoundaryFinder

# One character for each, so that positions in the document count as those in the text do. Line ends and tabs are left
# to the document; what would end lines or frames in some other way, or not show at all, gets a picture.
SHOWN = str.maketrans(
    {code: chr(0x2400 + code) for code in range(32) if code not in {9, 10}}
    | {0x7F: "\u2421", 0xFFFC: "\ufffd", 0xFDD0: "\ufffd", 0xFDD1: "\ufffd"}
)
"""How emitted text is shown; what is copied is the text itself."""
ON_ONE_LINE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"})
"""Drafts that were not kept are shown on one line: text that was never emitted must not break lines."""
FIRST_JOINING = "\u0300"
"""No character before this one joins the one before it."""
TAIL = 16
"""Characters that may belong to one that is seen as a whole, such as a family of emoji."""


def num_units(text: str) -> int:
    """Length as Qt counts it, in UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def num_joined(tail: str, text: str) -> int:
    """How many characters at the start of a text belong to one that began before it."""
    finder = QTextBoundaryFinder(QTextBoundaryFinder.BoundaryType.Grapheme, tail + text)
    seam = num_units(tail)
    finder.setPosition(seam)
    if finder.isAtBoundary():
        return 0
    end = finder.toNextBoundary()
    if end < 0:
        return len(text)
    joined = text.encode("utf-16-le", "surrogatepass")[: 2 * (end - seam)]
    return len(joined.decode("utf-16-le", "replace"))
