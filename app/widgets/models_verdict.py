"""What a pair will need and cost, in a line beneath the dropdowns, told before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.text_size import hold
from app.view_models.model_text import verdict_help, verdict_text
from app.widgets.fields import set_flag, text_label

if TYPE_CHECKING:
    from core.models.compatibility import PairVerdict

LINE_HEIGHT = 16


class VerdictLine(QWidget):
    """Memory and expected cost; warnings beneath. Its first line has its room before anything is known."""

    def __init__(self) -> None:
        super().__init__()
        self.line = text_label("", "hint")
        self.line.setObjectName("verdictLine")
        self.line.setAccessibleName("Memory and expected cost of the pair")
        hold(self.line, least_height=LINE_HEIGHT)
        self.warnings = text_label("", "warning")
        self.warnings.setObjectName("verdictWarnings")
        for label in (self.line, self.warnings):
            label.setWordWrap(True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(self.line)
        layout.addWidget(self.warnings)
        self.show_verdict(None)

    def show_verdict(self, verdict: PairVerdict | None) -> None:
        """Show a forecast; None: nothing is known. A pair that can't work has no figures: its problem is elsewhere."""
        shown = verdict if verdict is not None and verdict.problem is None else None
        is_too_large = shown is not None and shown.memory is not None and shown.memory.fits is False
        self.line.setText(verdict_text(shown) if shown is not None else "")
        self.line.setToolTip(verdict_help(shown) if shown is not None else "")
        self.line.setAccessibleDescription(self.line.text())
        set_flag(self.line, "role", "problem" if is_too_large else "hint")
        warnings = "\n".join(shown.warnings) if shown is not None else ""
        self.warnings.setText(warnings)
        self.warnings.setVisible(bool(warnings))
