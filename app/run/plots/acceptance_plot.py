"""Acceptance over the steps: how much of each block, or of each tree, was accepted."""

from __future__ import annotations

import numpy as np

from app.run.plots.step_plot import StepPlot, bar_centres, grown
from app.run.run_view import RunView
from app.widgets.legend import Mark
from app.widgets.pictures import Table
from app.widgets.plots import DASHED, ticks
from core.analysis.run_counts import Column
from core.settings import Coupling
from core.text import percent_text

PREDICTED_HELP = (
    "Dashed: accepted tokens per step as predicted from the two distributions: sum(min(p, q)) at each drafted "
    "position, weighted by the probability that earlier tokens are accepted. Under block verification, the weights are "
    "those of its own test. Averaged over the run; the two lines converge as the run continues."
)
BAND_HELP = (
    "Line: mean number of accepted tokens per drafting step so far. Its band is Wilson's 95 % confidence interval for "
    "accepted / drafted, with the effective number of independent tokens. Tokens of a block are not independent, since "
    "a rejection discards the rest; blocks are assumed to be independent."
)
REJECTION_HELP = (
    "Dashed: accepted tokens per step as predicted for rejection sampling, from the two distributions at the positions "
    "drafted in this run. On average the solid line stays a little below it: that is the cost of Gumbel coupling."
)
ACCEPTED_HELP = "Bar: accepted tokens of each step."
DRAFTED_HELP = "Pale bar: how many tokens in a row were drafted; of a tree, its depth."
PLAIN_HELP = "Hollow: a plain step. Nothing was drafted, and the target added one token."
CHOSEN_HELP = (
    "Tokens drafted in each step: the K that was set, or that the policy chose, less what didn't fit before the end of "
    "the text. 0 is a plain step."
)
TOKEN_TICKS = (1, 2, 4, 8, 16)
"""Steps between the ticks of the tokens."""


class AcceptancePlot(StepPlot):
    """Bars, in tokens: accepted and drafted depth of each block. Lines: accepted on average, and predicted."""

    def __init__(self, run: RunView) -> None:
        super().__init__(run, object_name="acceptancePlot", title="Acceptance per step", y_label="tokens")
        self.getViewBox().setYRange(0, 1, padding=0)
        self.drafted_bars = self.add_bars("draft_tint", "drafted", DRAFTED_HELP)
        self.accepted_bars = self.add_bars("draft_bar", "accepted", ACCEPTED_HELP)
        self.plain_bars = self.add_bars("field_border", "plain", PLAIN_HELP, is_hollow=True)
        self.add_previous(Column.MEAN_DRAFTED, Column.RUNNING_RATE)
        self.band_edges = self.add_band("text")
        self.predicted_line = self.add_line("correction", "predicted", PREDICTED_HELP, dashes=DASHED)
        self.rate_line = self.add_line("text", "mean", BAND_HELP, mark=Mark.BAND)
        self.chosen_line = self.add_line("accent", "K", CHOSEN_HELP, width=1.25)
        self.drafted_sample, accepted, self.plain_sample, previous, self.predicted_sample, mean, self.chosen_sample = (
            self.samples
        )
        bars = accepted, self.drafted_sample, self.plain_sample
        self.samples[:] = *bars, mean, self.predicted_sample, self.chosen_sample, previous
        self.set_hint("One bar per step: accepted of drafted tokens")
        self._top = 0.0

    def readout(self, step: int) -> str:
        """One step in words."""
        drafted, accepted, depth = (
            self._run.counts.columns[column][step] for column in (Column.NUM_DRAFTED, Column.NUM_ACCEPTED, Column.DEPTH)
        )
        if not drafted:
            return f"step {step + 1}: {'draft unknown' if self._hides_draft(step) else 'nothing drafted'}"
        if drafted != depth:
            return f"step {step + 1}: {accepted} of {depth}, {drafted} nodes"
        rate = self._run.counts.columns[Column.RUNNING_RATE][step]
        running = f", so far {percent_text(rate)}" if np.isfinite(rate) else ""
        return f"step {step + 1}: {accepted} of {drafted}{running}"

    def details(self, step: int) -> list[tuple[str, str]]:
        """One step in figures."""
        values = {column: values[step] for column, values in self._run.counts.columns.items()}
        drafted, accepted, depth = values[Column.NUM_DRAFTED], values[Column.NUM_ACCEPTED], values[Column.DEPTH]
        rate, predicted = values[Column.RUNNING_RATE], values[Column.PREDICTED_RATE]
        low, high = values[Column.RATE_LOW], values[Column.RATE_HIGH]
        known = f"{accepted:.0f} of {depth:.0f} tokens"
        rows = [(f"Step {step + 1}", ""), ("accepted", "draft unknown" if self._hides_draft(step) else known)]
        if drafted != depth:
            rows.append(("nodes scored", f"{drafted:.0f}, {percent_text(accepted / drafted)} useful"))
        if np.isfinite(rate):
            rows += [
                ("accepted so far", f"{rate * values[Column.MEAN_DRAFTED]:.2f} tokens"),
                ("acceptance so far", percent_text(rate, 1)),
            ]
        if np.isfinite(low):
            rows.append(("95 % band", f"{percent_text(low, 1)} to {percent_text(high, 1)}"))
        if np.isfinite(predicted):
            rows.append(("predicted" if self._is_rejection else "with rejection sampling", percent_text(predicted, 1)))
        return rows

    def table(self) -> Table:
        """One row per step."""
        table = self._run.counts.table(*list(Column)[:7], Column.DEPTH)
        if not self._is_rejection:
            table["rate_by_rejection"] = table.pop(Column.PREDICTED_RATE)
        return table

    def _hides_draft(self, step: int) -> bool:
        return self._run.steps[step].may_hide_draft

    @property
    def _is_rejection(self) -> bool:
        return self._run.coupling is Coupling.REJECTION

    @property
    def _shows_choice(self) -> bool:
        # A tree's K counts nodes, not tokens in a row.
        is_chosen = self._run.length_policy is not None or len(self._run.lengths) > 1
        return is_chosen and not self._run.counts.sums.is_tree

    def settle(self, *, is_over: bool) -> None:
        """Label the dashed line for the run's coupling."""
        if self._is_rejection:
            self.predicted_sample.set_meaning("predicted", PREDICTED_HELP)
        else:
            self.predicted_sample.set_meaning("with rejection sampling", REJECTION_HELP)
        super().settle(is_over=is_over)

    def refresh(self) -> None:
        """Show what is new; plain steps are in the legend if there are any."""
        sums = self._run.counts.sums
        self.plain_sample.setVisible(sums.num_steps > sums.num_blocks and sums.knows_drafts)
        self.chosen_sample.setVisible(self._shows_choice)
        self.predicted_sample.setVisible(sums.predicted_rate is not None or not sums.num_blocks)
        super().refresh()

    def _draw_bars(self, first: int, last: int, width: int) -> None:
        counts = self._run.counts
        depths, accepted, nodes, mean = (
            counts.binned(column, first, last, width)
            for column in (Column.DEPTH, Column.NUM_ACCEPTED, Column.NUM_DRAFTED, Column.MEAN_DRAFTED)
        )
        x = bar_centres(first, depths.size, width)
        self.drafted_bars.setOpts(x=x, height=depths, width=self._bar_width)
        self.accepted_bars.setOpts(x=x, height=accepted, width=self._bar_width)
        is_plain = (depths == 0) & counts.sums.knows_drafts
        self.plain_bars.setOpts(x=x[is_plain], height=np.ones(is_plain.sum()), width=self._bar_width)
        self.chosen_line.setVisible(self._shows_choice)
        if self._shows_choice:
            edges = np.column_stack((x - width / 2, x + width / 2)).ravel()
            self.chosen_line.setData(edges, np.repeat(nodes, 2))
        self._fit_tokens(max(float(depths.max(initial=1.0)), self._draw_previous(first, last, width)))
        self.rate_line.setData(x, mean * counts.binned(Column.RUNNING_RATE, first, last, width))
        self.predicted_line.setData(x, mean * counts.binned(Column.PREDICTED_RATE, first, last, width))
        for edge, column in zip(self.band_edges, (Column.RATE_LOW, Column.RATE_HIGH), strict=True):
            bound = np.minimum(mean * counts.binned(column, first, last, width), self._top)
            # Only the run's first steps lack a band.
            is_there = np.isfinite(bound)
            edge.setData(x[is_there], bound[is_there])

    def _fit_tokens(self, depth: float) -> None:
        """Scale the tokens; the scale grows immediately, and shrinks when much room is empty."""
        top = grown(self._top, depth)
        if top == self._top:
            return
        self._top = top
        every = next((step for step in TOKEN_TICKS if step * 5 > top), TOKEN_TICKS[-1])
        self.getPlotItem().getAxis("left").setTicks([ticks(range(0, int(top) + 1, every))])
        self.getViewBox().setYRange(0.0, 1.15 * top, padding=0)
