"""A probe's figures on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.table import Table
from rich.text import Text

from app.cli.errors import say, writing_output
from app.cli.models.rendering import printable
from app.cli.terminal import open_console
from core.figures import percent_text
from core.probe.types import Agreement, Costs, DraftProbe, ProbeDone, ProbeRequest, verdict

_LEGEND = (
    "acceptance: mean of Σ min(p, q) over the places, and its 95 % interval; top-1: share of places where both models "
    "have the same likeliest token; KL: mean of Σ p ln(p / q), p the target's law, where it is finite; c: a draft "
    "step / a step of the target; v(5): scoring 5 positions / scoring one; expected: τ(K) / (K c + v(K+1)) at the best "
    "K, its interval that of the text alone."
)
_OWN = "The text is the target's own, so that blocks are counted exactly as they would be drafted along it."
_CHAIN = (
    "The text was not written by the target at these settings: blocks are a product along it, which takes the draft "
    "to be as good behind its own tokens. --generate N has the target write a text first."
)


def write_probe(request: ProbeRequest, done: ProbeDone) -> None:
    """Print the ranking, what its figures mean, and what to do.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    console = open_console()
    if console is None:
        return
    if done.is_stopped and not done.probes:
        say("Stopped before a draft was probed.")
        return
    with writing_output():
        found = [probe for probe in done.probes if not probe.problem]
        places = found[0].agreement.num_places if found and found[0].agreement else 0
        console.print(Text(printable(f"{request.target}, {places:,} places, {_sampling(request)}")))
        if found:
            console.print()
            console.print(_table(found))
            console.print()
            is_own = all(probe.agreement is not None and probe.agreement.is_own_text for probe in found)
            for line in (*done.notes, _LEGEND, _OWN if is_own else _CHAIN):
                console.print(Text(printable(line), "dim"))
        for probe in done.probes:
            if probe.problem:
                console.print(Text(printable(f"{probe.draft}: {probe.problem}")))
        if done.is_stopped:
            console.print(Text("Stopped before all drafts were probed."))
        console.print(Text(printable(verdict(done.probes)), "bold"))
        sys.stdout.flush()


def _sampling(request: ProbeRequest) -> str:
    sampling = request.sampling
    parts = [f"temperature {sampling.temperature:g}"]
    parts += [f"top-k {sampling.top_k}"] if sampling.top_k else []
    parts += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    parts += [f"min-p {sampling.min_p:g}"] if sampling.min_p else []
    return ", ".join(parts)


def _table(probes: list[DraftProbe]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("draft")
    columns: tuple[tuple[str, Callable[[DraftProbe, Agreement, Costs], str]], ...] = (
        ("acceptance", lambda probe, found, costs: _interval(found)),
        ("top-1", lambda probe, found, costs: percent_text(found.top_1)),
        (
            "KL, nats",
            lambda probe, found, costs: "–" if found.kl_target_draft is None else f"{found.kl_target_draft:.2f}",
        ),
        ("c", lambda probe, found, costs: f"{costs.cost:.3f}"),
        ("v(5)", lambda probe, found, costs: f"{probe.verify.values[4]:.2f}"),
        ("τ at best K", lambda probe, found, costs: f"{found.tokens.values[probe.best_k]:.2f}"),
        ("best K", lambda probe, found, costs: str(probe.best_k) if probe.best_k else "none"),
        ("expected", lambda probe, found, costs: _speedup(probe)),
        ("seconds", lambda probe, found, costs: f"{probe.seconds:.1f}"),
    )
    for title, _ in columns:
        table.add_column(title, justify="right")
    for probe in probes:
        assert probe.agreement is not None
        assert probe.costs is not None
        cells = [show(probe, probe.agreement, probe.costs) for _, show in columns]
        table.add_row(Text(printable(probe.draft)), *map(Text, cells))
    return table


def _interval(found: Agreement) -> str:
    first = found.acceptance
    text = percent_text(first.value, 1)
    if first.low is None or first.high is None:
        return text
    return f"{text} ({percent_text(first.low)}–{percent_text(first.high)})"


def _divergence(found: Agreement) -> str:
    return "–" if found.kl_target_draft is None else f"{found.kl_target_draft:.2f}"


def _speedup(probe: DraftProbe) -> str:
    found = probe.speedup.at(probe.best_k)
    if not probe.best_k or found.low is None:
        return f"{found.value:.2f}×"
    return f"{found.value:.2f}× ({found.low:.2f}–{found.high:.2f})"
