"""What a run says beside its text, on stderr: stages, legend, results."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.figures import figure_text
from app.cli.text import STYLES
from core.figures import percent_text
from core.types import Coupling, FinishReason, RunRequest, RunStarted, Summary, TokenKind

_LEGEND = {TokenKind.ACCEPTED: "accepted", TokenKind.CORRECTION: "resampled", TokenKind.BONUS: "bonus"}
_REASONS = {
    FinishReason.LENGTH: "the length asked for",
    FinishReason.EOS: "the model's end of text",
    FinishReason.STOP: "a stop text",
    FinishReason.CANCELLED: "your stop",
    FinishReason.ERROR: "an error",
}


class _Stderr(Console):
    def on_broken_pipe(self) -> None:
        """Fall silent; rich would end the process, although the run and its text are fine."""
        self.quiet = True


class Report:
    """Speaks on stderr, or holds its tongue where `quiet` or where there is no stderr."""

    def __init__(self, *, quiet: bool) -> None:
        quiet = quiet or sys.stderr is None  # Given no file, rich would write into the text.
        self._console = _Stderr(file=sys.stderr, highlight=False, markup=False, emoji=False, quiet=quiet)
        self._device = ""

    def stage(self, text: str) -> None:
        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def started(self, event: RunStarted, *, legend: bool) -> None:
        config = event.config
        self._device = str(config.get("device"))
        draft = config.get("draft") or config.get("method")
        where = f"{config.get('device')} {config.get('dtype')}"
        self.stage(f"{config.get('target')}, drafted by {draft}, on {where}")
        if legend and self._console.is_terminal:
            line = Text()
            line.append("Tokens: ", "dim")
            for kind, name in _LEGEND.items():
                line.append(name, STYLES[kind])
                line.append("  ")
            line.rstrip()
            self._console.print(line, soft_wrap=True)

    def results(self, summary: Summary, request: RunRequest) -> None:
        """A table of the run's figures, each with how it is computed."""
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim", overflow="fold")
        for name, value, meaning in _rows(summary, request, self._device):
            table.add_row(name, value, meaning)
        self._console.print(table)


def _rows(summary: Summary, request: RunRequest, device: str) -> list[tuple[str, str, str]]:
    steps = "step" if summary.num_steps == 1 else "steps"
    rows = [
        ("tokens", str(summary.num_tokens), f"in {summary.num_steps} {steps}; ended by {_end(summary, request)}"),
        ("tokens/s", figure_text(summary.tokens_per_second, ".1f"), "tokens / the steps' time, prefill apart"),
    ]
    if summary.baseline_tokens_per_second is not None:
        rows += [
            (
                "baseline",
                figure_text(summary.baseline_tokens_per_second, ".1f"),
                "tokens/s of plain decoding, run here",
            ),
            ("measured speedup", figure_text(summary.measured_speedup, ".2f", "×"), "tokens/s against the baseline"),
        ]
    else:
        meaning = (
            "the baseline did not finish" if request.baseline else "--baseline runs plain decoding too, and compares"
        )
        rows.append(("measured speedup", "–", meaning))
    memory = "on the device, in this run" if device.startswith("cuda") else "of this process so far"
    accepted = f"{summary.num_accepted_tokens} of {summary.num_draft_tokens} drafted tokens"
    if request.coupling is Coupling.GUMBEL and summary.expected_acceptance_rate is not None:
        accepted += f"; rejection would be {percent_text(summary.expected_acceptance_rate, 1)}"
    rows += [
        ("block efficiency", figure_text(summary.block_efficiency, ".2f"), "tokens per forward of the target"),
        ("acceptance", figure_text(summary.draft_acceptance_rate, ".1%"), accepted),
        ("predicted speedup", figure_text(summary.predicted_speedup, ".2f", "×"), "from acceptance and step times"),
        ("prefill", figure_text(summary.prefill_ms, ".1f", " ms"), "the prompt's forward"),
        ("peak memory", figure_text(summary.peak_memory_mb, ".0f", " MB"), memory),
    ]
    return rows


def _end(summary: Summary, request: RunRequest) -> str:
    if summary.finish_reason is FinishReason.LENGTH and summary.num_tokens < request.max_new_tokens:
        return "the end of the model's context"
    return _REASONS.get(summary.finish_reason, str(summary.finish_reason))
