"""How far a sweep is, on stderr: a bar with the time left on a terminal, a line every tenth of the way elsewhere."""

from __future__ import annotations

from app.cli.bench.progress import Display, open_progress
from app.cli.errors import say
from app.sentences import in_words
from core.sweep.types import RunMeasured


class SweepProgress:
    """The display of a sweep. What is said in between stands above it."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._display: Display | None = None
        self._tenth = -1
        self._stages: set[str] = set()

    def stage(self, text: str) -> None:
        """Something that a person waits for. Where models make room for each other, and load again and again, a line
        is said once."""
        if text and (self._is_terminal or text not in self._stages):
            self._stages.add(text)
            self._shown().stage(text)

    def advance(self, event: RunMeasured) -> None:
        """A run is over."""
        tenth = 10 * event.num_done // event.num_runs
        text = f"About {in_words(event.seconds_left)} left" if event.num_done < event.num_runs else "Done"
        if self._is_terminal:
            self._shown().advance(text, event.num_done, event.num_runs)
        elif tenth > self._tenth:
            self._shown().stage(f"{event.num_done:,} of {event.num_runs:,} runs. {text}.")
        self._tenth = max(tenth, self._tenth)

    def say(self, sentence: str) -> None:
        """Print a sentence that stays."""
        self.close()
        say(sentence)

    def close(self) -> None:
        """Take the display away; the next progress brings it back."""
        display, self._display = self._display, None
        if display is not None:
            display.__exit__(None, None, None)

    def _shown(self) -> Display:
        if self._display is None:
            self._display = open_progress().__enter__()
        return self._display
