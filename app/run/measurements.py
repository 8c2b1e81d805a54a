"""The Run page: tiles and plots."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QSizePolicy, QWidget

from app.run.plots.acceptance_plot import AcceptancePlot
from app.run.plots.latency_plot import LatencyPlot
from app.run.plots.position_plot import PositionPlot
from app.run.plots.tree_plots import CostPlot, RankPlot
from app.run.run_page import RunPage
from app.run.run_view import RunView
from app.theme import hold_font
from app.widgets.fields import boxed, column, grid, plain_tip, scrolled, text_label
from app.widgets.labels import ElidedLabel
from app.widgets.plot_card import PlotCard
from app.window_layout import splitter
from core.analysis.run_counts import Column
from core.settings import Coupling, LengthPolicy
from core.text import percent_text

UNKNOWN = "–"


class Tile(QFrame):
    """A title, a value and a note. Its size doesn't depend on their texts."""

    def __init__(self, title: str, object_name: str, how: str) -> None:
        super().__init__()
        self.setObjectName("card")
        self.setToolTip(plain_tip(how))
        self.setAccessibleDescription(how)
        self.value = text_label(UNKNOWN, "", name=object_name)
        hold_font(self.value, 22, weight=QFont.Weight.DemiBold)
        self.note = ElidedLabel("", "tileNote", takes_all=True)
        self.heading = text_label(title, "tileTitle")
        boxed(column(self.heading, self.value, self.note, spacing=1), self, margins=(12, 5, 8, 5))

    def show_value(self, value: str, note: str, short: str = "") -> None:
        """Show a value and its note; `short` stands in for a note that doesn't fit."""
        self.value.setText(value)
        self.setAccessibleName(f"{self.heading.text()}: {value}")
        self.note.setText(note)
        self.note.set_short(short)
        self.note.setToolTip(plain_tip(f"{note}\n\n{self.accessibleDescription()}"))


TILES = (
    ("Tokens per second", "speedValue", "New tokens / the sum of the steps' times. The prefill is not included."),
    (
        "Measured speedup",
        "speedupValue",
        "Tokens per second of this run / those of the target alone, run here right afterwards with the same "
        "sampling. Measured, never estimated; below 1, drafting doesn't pay here. With a 95 % interval from "
        "the variation of the steps.",
    ),
    (
        "Acceptance rate",
        "acceptanceValue",
        "The useful share of the tokens, or of a tree's nodes, that the target scored. "
        "Accepted / drafted tokens. In a tree one path at most is accepted, so at most depth / nodes. Tokens after a "
        "rejected one count as drafted, so this is lower than α on the Speed page, which counts tested tokens only. "
        "Predicted: from sum(min(p, q)), the overlap of the distributions, at each drafted position, weighted by the "
        "probability that it is tested; under block verification from its own weights. On average a run with Gumbel "
        "coupling accepts a little less than this value, which assumes rejection sampling. Typical acceptance has no "
        "prediction.",
    ),
    (
        "Block efficiency",
        "efficiencyValue",
        "New tokens, resampled and bonus ones included / forwards of the target. Plain decoding has 1.",
    ),
    (
        "Chosen K",
        "chosenValue",
        "Tokens, or a tree's nodes, that the policy chose to draft in the latest step, and on average over all "
        "steps. A plain step drafts nothing.",
    ),
)
"""Title, object name and help of each."""


class MetricTiles(QWidget):
    """Tokens per second, measured speedup, acceptance, block efficiency; and K, if a policy chooses it."""

    def __init__(self) -> None:
        super().__init__()
        self.speed, self.speedup, self.acceptance, self.efficiency, self.chosen = tiles = [
            Tile(*texts) for texts in TILES
        ]
        layout = grid(self, across=8, down=8)
        for index, tile in enumerate(tiles):
            layout.addWidget(tile, index // 2, index % 2, 1, 2 if tile is self.chosen else 1)
        layout.setColumnStretch(0, 1)
        layout.setColumnStretch(1, 1)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.show_run(RunView())

    def show_run(self, run: RunView) -> None:
        """Show a run's values so far, or those of its summary once it has arrived."""
        sums, summary = run.counts.sums, run.summary
        tokens, speed = sums.tokens, 1000 * sums.timed_tokens / sums.total_ms if sums.total_ms > 0 else None
        acceptance = sums.accepted / sums.drafted if sums.drafted and sums.knows_drafts else None
        efficiency = sums.tokens / sums.num_steps if sums.num_steps else None
        if summary is not None:
            tokens, speed = summary.num_tokens, summary.tokens_per_second
            acceptance, efficiency = summary.draft_acceptance_rate, summary.block_efficiency
        elif run.is_on_server:
            from core.engines.steps import shows_speed  # Late: most runs need no HTTP.

            speed = speed if shows_speed(sums.num_steps - 1, sums.total_ms) else None
        if speed is None and run.is_on_server and summary is not None:
            self.speed.show_value(UNKNOWN, "too few steps, or all came at once", "too few steps")
        elif speed is None:
            self.speed.show_value(UNKNOWN, "decoding only")
        else:
            taken = f"in {sums.total_ms / 1000:.2f} s"
            self.speed.show_value(f"{speed:,.1f}", f"{tokens:,} tokens {taken}", f"{tokens:,} {taken}")
        self.speedup.show_value(*_speedup(run))
        self.acceptance.heading.setText("Nodes accepted" if run.drafts_trees else "Acceptance rate")
        self.acceptance.show_value(UNKNOWN if acceptance is None else percent_text(acceptance), *_predicted(run))
        shown = UNKNOWN if efficiency is None else f"{efficiency:.2f}"
        self.efficiency.show_value(shown, "tokens per target forward", "tokens per forward")
        self.chosen.setVisible(run.length_policy is not None)
        if run.length_policy is not None:
            self.chosen.show_value(*_chosen(run, run.length_policy))


def _chosen(run: RunView, policy: LengthPolicy) -> tuple[str, str]:
    lengths, sums = run.counts.columns[Column.NUM_DRAFTED], run.counts.sums
    if not lengths:
        return UNKNOWN, f"by {policy.value}"
    if len(run.lengths) > 1:
        return f"{lengths[-1]}", f"by {policy.value} since it was changed"
    plain = sums.num_steps - sums.num_blocks
    words = f"by {policy.value}, {sums.drafted / sums.num_steps:.1f} on average"
    return f"{lengths[-1]}", f"{words}, {plain:,} plain of {sums.num_steps:,} steps" if plain else words


def _predicted(run: RunView) -> tuple[str, str]:
    if run.counts.sums.is_tree:
        sums = run.counts.sums
        most = f"at most {percent_text(sums.levels / sums.drafted)}"
        return (f"lossy, {most}", "lossy") if run.is_lossy else (f"of {sums.drafted:,} nodes, {most}", most)
    if run.predicted_acceptance is None:
        return ("lossy, no prediction", "lossy") if run.is_lossy else ("accepted of drafted", "of drafted")
    share = percent_text(run.predicted_acceptance)
    if run.coupling is Coupling.GUMBEL:
        return f"rejection sampling {share}", f"rejection {share}"
    return f"of drafted, predicted {share}", f"predicted {share}"


def _speedup(run: RunView) -> tuple[str, str, str]:
    if run.is_on_server:
        return UNKNOWN, "needs the models on this machine", "see Speed"
    summary, plain = run.summary, 1000 / run.baseline_step_ms if run.baseline_step_ms else None
    if summary is not None:
        plain = summary.baseline_tokens_per_second
    measured = ("", "") if plain is None else (f"baseline {plain:,.1f} tokens/s", f"baseline {plain:,.1f}/s")
    if run.measured_speedup is not None and plain is not None:
        between = f"95 %: {interval}" if (interval := run.interval) else ""
        return (
            f"{run.measured_speedup:.2f}×",
            ", ".join(filter(None, (between, measured[0]))),
            between or measured[1],
        )
    if run.was_stepped and plain is not None:
        return UNKNOWN, "the steps were taken one by one", "step by step"
    if summary is not None and run.wants_baseline:
        if summary.baseline_text is not None:
            return UNKNOWN, "too short to measure", "too short"
        if run.baseline_steps:
            return UNKNOWN, "the baseline did not finish", "unfinished baseline"
        return UNKNOWN, "the baseline did not run", "no baseline ran"
    if not run.wants_baseline:
        if run.request is None:  # Whether it will be measured is the next run's tick.
            return UNKNOWN, "measured against the baseline", "against baseline"
        return UNKNOWN, "needs “Measure the baseline”", "needs a baseline"
    if plain is not None:
        return UNKNOWN, *measured
    return UNKNOWN, "shown at the end", "at the end"


class MeasurementsPanel(RunPage):
    """The Run page: a `RunView`'s values, its plots over steps, and its acceptance by position; for trees, by depth
    and rank, with the time to verify them."""

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self._run = run
        self.acceptance, self.latency, self.positions = AcceptancePlot(run), LatencyPlot(run), PositionPlot(run)
        self.ranks, self.costs = RankPlot(run), CostPlot(run)
        self.chain_card = PlotCard("Acceptance by position", self.positions)
        self.tree_cards = (
            PlotCard("Acceptance by depth and rank", self.ranks),
            PlotCard("Verify time by nodes", self.costs),
        )
        over_steps = (
            PlotCard("Acceptance by step", self.acceptance),
            PlotCard("Latency per token, by step", self.latency),
        )
        self.cards = (*over_steps, self.chain_card, *self.tree_cards)
        self.tiles = MetricTiles()
        plots = splitter(Qt.Orientation.Vertical, "runSplitter", *((card, 0) for card in self.cards))
        boxed(column(self.tiles, (scrolled(plots, "runPlots"), 1)), self)
        self._show_cards(has_trees=False)

    def _show_cards(self, *, has_trees: bool) -> None:
        self.chain_card.setVisible(not has_trees)
        for card in self.tree_cards:
            card.setVisible(has_trees)

    def _show_run(self, *, has_turned: bool) -> None:
        self.tiles.show_run(self._run)
        self._show_cards(has_trees=self._run.drafts_trees)
        for card in self.cards:
            if card.isHidden():
                continue
            if has_turned:
                card.plot.settle(is_over=not self.is_running)
            else:
                card.plot.refresh()
