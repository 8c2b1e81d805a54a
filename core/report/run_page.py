"""The report of one run."""

from __future__ import annotations

from core.report.escaping import attribute, escaped
from core.report.page import page, section, settings_table, warnings
from core.report.run_data import RunData, moment_of, run_data, text_of
from core.report.run_figures import cards, note, verdict
from core.report.run_plots import plots
from core.report.run_text import coloured_text, legend
from core.trace import RunLog
from core.types import FinishReason

REASONS: dict[str, str] = {
    FinishReason.LENGTH: "length reached",
    FinishReason.EOS: "end of text",
    FinishReason.STOP: "stop text",
    FinishReason.ERROR: "with an error",
}


def run_page(log: RunLog) -> str:
    """A run as a whole HTML file, whatever its log lacks: what is missing is said on it."""
    run = run_data(log)
    has_text = bool(run.steps) or bool(run.setting("prompt"))
    return page(
        f"Run {run.run_id}: {run.pair}",
        (
            _head(run),
            warnings(run.problems),
            section("Key figures", f'<p class="verdict">{escaped(verdict(run))}</p>', cards(run), note([run]))
            if run.steps
            else "",
            section("Text", legend(), coloured_text(run)) if has_text else "",
            section("Plots", plots(run)),
            section("Settings", settings_table(run.settings, "Settings of the run")),
            section("Environment", settings_table(run.environment, "Where the run took place")),
        ),
        version=run.version,
    )


def _head(run: RunData) -> str:
    started = moment_of(run.log.run.get("started_at"))
    reason = text_of((run.log.summary or {}).get("finish_reason")) or "cut off"
    reason = REASONS.get(reason, reason)
    facts = [f"Run {run.run_id}", f"started {started}" if started else "", f"ended: {reason}"]
    sampling = ", ".join(
        f"{title} {value}"
        for title, value in (
            ("K =", run.setting("num_draft_tokens")),
            ("temperature", run.setting("temperature")),
            ("method", run.setting("method")),
            ("device", run.setting("device")),
            ("", run.setting("dtype")),
        )
        if value
    )
    error = text_of((run.log.summary or {}).get("error"))
    return (
        f'<header>\n<h1><bdi>{attribute(run.pair)}</bdi></h1>\n<p class="muted">{escaped(sampling)}</p>\n'
        f'<p class="muted">{escaped(" · ".join(fact for fact in facts if fact))}</p>\n'
        + (f"{warnings([error])}\n" if error else "")
        + "</header>"
    )
