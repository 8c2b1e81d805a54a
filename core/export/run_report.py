"""The report of several runs beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from core.export.charts import Axis, Mark, Plot, Words, figure, headroom, thinned
from core.export.page import attribute, escaped, figures_table, page, section, settings_table, warnings
from core.export.run_data import RunData, cards, moment_of, note, rows, run_data, text_of, verdict
from core.export.run_plots import over_time, plots
from core.runlog.log import RunLog
from core.text import significant_text
from core.types import Coupling, FinishReason, Step, TokenKind

CLASSES = {TokenKind.ACCEPTED: "a", TokenKind.CORRECTION: "r", TokenKind.BONUS: "b"}
TITLES = {TokenKind.ACCEPTED: "accepted", TokenKind.CORRECTION: "resampled", TokenKind.BONUS: "bonus"}
MEANINGS = {
    TokenKind.ACCEPTED: "drafted, tested and kept: the draft’s work",
    TokenKind.CORRECTION: "a draft was rejected here, and this drawn in its place",
    TokenKind.BONUS: "the target’s own: behind a whole block, or with no draft",
}
LINES = {TokenKind.ACCEPTED: "solid line", TokenKind.CORRECTION: "wavy line", TokenKind.BONUS: "dotted line"}


def legend() -> str:
    """What the lines and colours mean."""
    keys = "".join(
        f'<span><span class="{CLASSES[kind]}">{TITLES[kind]}</span> <span class="note">{LINES[kind]}: '
        f"{MEANINGS[kind]}</span></span>\n"
        for kind in TokenKind
    )
    return (
        f'<p class="legend">{keys}</p>\n<p class="note">Hold the pointer over a token for its step, the '
        "probabilities p of the target and q of the draft, and the number u that it was tested with: a token is kept "
        "where u is below p / q.</p>"
    )


def coloured_text(run: RunData) -> str:
    """The prompt, muted, and the run's tokens."""
    config = run.config
    gap = "\n\n" if config.get("chat") else ""
    before = text_of(config.get("prompt")) + gap
    before += text_of(config.get("continuation_text")) + text_of(config.get("forced_text"))
    is_rejection = config.get("coupling") != Coupling.GUMBEL
    tokens = "".join(part for step in run.steps for part in _tokens(step, is_rejection))
    prompt = f'<span class="p" title="prompt">{escaped(before)}</span>' if before else ""
    return f'<div class="text" dir="auto" lang="">{prompt}{tokens}</div>'


def _tokens(step: Step, is_rejection: bool) -> Iterator[str]:
    for slot, (kind, text) in enumerate(zip(step.emitted_kinds, step.emitted_texts, strict=False)):
        if text:
            tip = attribute(_tip(step, slot, kind, is_rejection))
            yield f'<span class="{CLASSES[kind]}" title="{tip}">{escaped(text)}</span>'


def _tip(step: Step, slot: int, kind: TokenKind, is_rejection: bool) -> str:
    parts = [f"{TITLES[kind]}, step {step.index}"]
    if slot < len(step.drafted) and kind is not TokenKind.BONUS:
        if kind is TokenKind.CORRECTION:
            parts.append(f"in place of “{step.drafted_texts[slot]}”, which had")
        parts += _numbers(step, slot, is_rejection)
    elif step.next_uniform is not None:
        parts.append(f"u {significant_text(step.next_uniform, 3)}")
    return " · ".join(parts)


def _numbers(step: Step, slot: int, is_rejection: bool) -> list[str]:
    named = [("p", step.target_probs[slot]), ("q", step.draft_probs[slot])]
    if is_rejection and slot < len(step.uniforms):
        named.append(("u", step.uniforms[slot]))
    return [f"{name} {significant_text(value, 3)}" for name, value in named if math.isfinite(value)]


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


DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "1 3")
COLOURS = ("run_1", "run_2", "run_3", "run_4", "run_5", "run_6")


def compare_page(logs: Sequence[RunLog]) -> str:
    """Runs as a whole HTML file: what differs in their settings, their figures, and the text of each."""
    runs = [run_data(log) for log in logs]
    names = [f"Run {number}" for number in range(1, len(runs) + 1)]
    differing, shared = _settings(runs)
    problems = [f"{name}: {problem}" for name, run in zip(names, runs, strict=True) for problem in run.problems]
    settings = figures_table(names, differing, "Settings that differ", of_words=True) if differing else ""
    return page(
        f"{len(runs)} runs compared",
        (
            f"<header>\n<h1>{len(runs)} runs compared</h1>\n{_heads(names, runs)}</header>",
            warnings(problems),
            section("What differs", settings or '<p class="muted">Nothing in their settings.</p>'),
            section("Key figures", figures_table(names, rows(runs), "Key figures of the runs"), note(runs)),
            section("Plots", _over_time(names, runs)),
            section("Texts", legend(), *(_text(name, run) for name, run in zip(names, runs, strict=True))),
            section("Settings that they share", settings_table(shared, "Settings that the runs share")),
        ),
        version=next((run.version for run in runs if run.version), ""),
    )


def _heads(names: Sequence[str], runs: Sequence[RunData]) -> str:
    return "\n".join(
        f'<p><b>{name}</b> <bdi>{escaped(run.pair)}</bdi> <span class="muted">{escaped(run.run_id)}. '
        f"{escaped(verdict(run))}</span></p>"
        for name, run in zip(names, runs, strict=True)
    )


def _settings(runs: Sequence[RunData]) -> tuple[list[tuple[str, list[str]]], dict[str, str]]:
    """Those that differ, by run; and those that are the same."""
    differing, shared = [], {}
    found = [{**run.settings, "prompt": run.setting("prompt")} for run in runs]
    for name in dict.fromkeys(name for settings in found for name in settings):
        values = [settings.get(name, "") for settings in found]
        if len(set(values)) > 1:
            differing.append((name, [_cut(value) for value in values]))
        else:
            shared[name] = _cut(values[0])
    return differing, shared


def _cut(value: str) -> str:
    return value if len(value) <= 200 else f"{value[:199]}…"


def _over_time(names: Sequence[str], runs: Sequence[RunData]) -> str:
    lines = [thinned(over_time(run.steps)) for run in runs]
    ends = [line[-1] for line in lines]
    words = Words(
        "tokens", "Tokens over time", "New tokens against seconds of decoding. The steepest line is the fastest."
    )
    x = Axis("time, s", 0, max(end[0] for end in ends) or 1.0)
    plot = Plot(words, x, Axis("tokens", 0, headroom([end[1] for end in ends]), is_whole=True))
    marks = [Mark(name, COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]) for place, name in enumerate(names)]
    for line, mark in zip(lines, marks, strict=True):
        plot.line(line, mark)
    return figure(plot, words, marks)


def _text(name: str, run: RunData) -> str:
    title = f"{name}: {run.pair}, K = {run.setting('num_draft_tokens')}"
    return f"<details open>\n<summary><bdi>{escaped(title)}</bdi></summary>\n{coloured_text(run)}\n</details>"
