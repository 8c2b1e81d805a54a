"""One racer: its name, how far it has come, and its text."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QSizePolicy, QVBoxLayout, QWidget

from app.theme import Theme
from app.view_models.race import Runner, seconds_text, tokens_text
from app.widgets.fields import describe, text_label
from app.widgets.race_text import RaceText

BAR_HELP = "Tokens written by now, of the tokens that the longer of the two texts has."


class RaceLane(QWidget):
    """Shows a `Runner` at a moment of the clock."""

    def __init__(self, name: str, title: str, help_text: str, *, in_kinds: bool) -> None:
        super().__init__()
        self.setObjectName(f"{name}Lane")
        self._runner: Runner | None = None
        self.text = RaceText(f"{name}RaceText", f"{title} text", in_kinds=in_kinds)
        self.count = text_label("", "hint")
        self.count.setObjectName(f"{name}RaceCount")
        self.count.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        # What it says changes with every frame, and must not move what stands around it.
        self.count.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.bar = QProgressBar()
        self.bar.setObjectName(f"{name}RaceBar")
        self.bar.setTextVisible(False)
        describe(self.bar, f"{title} progress", BAR_HELP)
        heading = text_label(title, "section")
        heading.setToolTip(help_text)
        header = QHBoxLayout()
        header.setSpacing(8)
        header.addWidget(heading)
        header.addWidget(self.count, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addLayout(header)
        layout.addWidget(self.bar)
        layout.addWidget(self.text, 1)

    def set_runner(self, runner: Runner, most_tokens: int) -> None:
        """Stand at the start of a race; the bar is full at `most_tokens`."""
        self._runner = runner
        self.bar.setRange(0, max(1, most_tokens))
        self.text.set_tokens(runner.texts, runner.kinds)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.text.set_theme(theme)

    def show_moment(self, clock_ms: float) -> bool:
        """Show how far it has come by then; whether all of the text up to there is shown."""
        if self._runner is None:
            return True
        timeline = self._runner.timeline
        tokens = timeline.tokens_at(clock_ms)
        self.bar.setValue(tokens)
        parts = [tokens_text(tokens)]
        elapsed = min(clock_ms, timeline.end_ms)
        if tokens and elapsed > 0:
            parts.append(f"{1000 * tokens / elapsed:.1f} tokens/s")
        if clock_ms >= timeline.end_ms:
            parts.append(f"done at {seconds_text(timeline.end_ms)}")
        self.count.setText(" · ".join(parts))
        return self.text.show_count(tokens)
