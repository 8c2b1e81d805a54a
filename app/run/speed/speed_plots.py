"""The plots of the Speed page: curves over K, and α beside 1 − TV."""

from __future__ import annotations

from enum import Enum

import numpy as np

from app.widgets.legend import Mark
from app.widgets.pictures import Table, table_of
from app.widgets.plots import DASHED, DOTTED, QUARTERS, THIN, TOP, Plot, set_whiskers, ticks
from core.analysis.calibration import Calibration, Reliability
from core.analysis.diagnosis import KS
from core.analysis.expectation import Curve, Estimate
from core.analysis.theory import SpeedupTheory, TreeTheory
from core.text import percent_text

Meaning = tuple[str, str]
"""A series' name in the legend, and what it shows."""


class Grouping(Enum):
    """How tested tokens are grouped: the choice's title, the axis, and what points and line mean."""

    POSITION = (
        "By position",
        "position in the draft",
        "Points: accepted / tested tokens at each position, with Wilson's 95 % interval.",
        "Dashed: mean of Σ min(p, q) = 1 − TV over the same tested tokens.",
    )
    TENTHS = (
        "By 1 − TV",
        "1 − TV, %",
        "Points: accepted / tested tokens, grouped by 1 − TV in tenths, with Wilson's 95 % interval.",
        "Dashed: where both are equal.",
    )

    def __init__(self, title: str, axis: str, observed: str, predicted: str) -> None:
        self.title, self.axis = title, axis
        self.meanings = (("accepted", observed), ("1 − TV", predicted))


class CalibrationPlot(Plot):
    """Observed α as points with whiskers, and 1 − TV, what it is expected to be, as a line."""

    def __init__(self) -> None:
        super().__init__(
            object_name="calibrationPlot",
            title="Acceptance of tested tokens, beside 1 − TV",
            x_label=Grouping.POSITION.axis,
            y_label="accepted, %",
        )
        self.grouping = Grouping.POSITION
        self.calibration: Calibration | None = None
        self.getPlotItem().getAxis("left").setTicks([QUARTERS])
        observed, predicted = self.grouping.meanings
        self.predicted = self.add_line("text", *predicted, dashes=DASHED)
        self.whiskers = self.add_whiskers("draft_bar", beam=0.18)
        self.points = self.add_points("draft_bar", 8, *observed, edge=1)
        self.samples.reverse()
        self.getPlotItem().setMouseEnabled(x=True, y=False)
        self.set_hint("Whether acceptance was as 1 − TV says")

    def show_calibration(self, calibration: Calibration | None) -> None:
        """Show a run's calibration."""
        self.calibration = calibration
        self.settle(is_over=True)

    def show_grouping(self, grouping: Grouping) -> None:
        """Group the tokens in another way."""
        self.grouping = grouping
        self._labels["bottom"] = grouping.axis
        for sample, meaning in zip(self.samples, grouping.meanings, strict=True):
            sample.set_meaning(*meaning)
        self.restyle()
        self.reset_view()

    @property
    def groups(self) -> tuple[Reliability, ...]:
        """The calibration that is shown."""
        if self.calibration is None:
            return ()
        return self.calibration.positions if self.grouping is Grouping.POSITION else self.calibration.bins

    def details(self, place: int) -> list[tuple[str, str]]:
        """A group in figures."""
        group = self.groups[place]
        title = f"Position {group.title}" if self.grouping is Grouping.POSITION else f"1 − TV {group.title}"
        return [
            (title, ""),
            ("accepted", f"{percent_text(group.observed, 1)} of {group.num_tested:,} tested"),
            ("1 − TV", percent_text(group.predicted, 1)),
            ("95 % interval", f"{percent_text(group.low)} to {percent_text(group.high)}"),
        ]

    def table(self) -> Table:
        """One row per position, then one per tenth."""
        found = self.calibration
        groups = {} if found is None else {"position": found.positions, "predicted": found.bins}
        rows = [
            (name, group.title, group.num_tested, group.predicted, group.observed, group.low, group.high)
            for name, members in groups.items()
            for group in members
        ]
        alphas = ("predicted_alpha", "observed_alpha", "observed_low_95", "observed_high_95")
        return table_of(("by", "group", "tested_tokens", *alphas), rows)

    def _xs(self) -> np.ndarray:
        by_position = self.grouping is Grouping.POSITION
        return np.array([float(group.title) if by_position else group.predicted for group in self.groups])

    def _extent(self) -> tuple[float, float]:
        return (float(self._xs().max()) or 1.0, TOP) if self.groups else (0.0, TOP)

    def _fit(self, extent: tuple[float, float]) -> None:
        if self.grouping is Grouping.POSITION:
            last = max(4, int(extent[0]))
            self._frame((0.4, last + 0.6), (0, TOP), {"bottom": ticks(range(1, last + 1))})
        else:
            self._frame((-0.03, 1.03), (0, TOP), {"bottom": QUARTERS})

    def _place_at(self, x: float) -> int:
        xs = self._xs()
        if not len(xs):
            return -1
        place = int(np.abs(xs - x).argmin())
        return place if abs(xs[place] - x) <= (0.5 if self.grouping is Grouping.POSITION else 0.05) else -1

    def _draw(self) -> None:
        xs, groups = self._xs(), self.groups
        observed = np.array([group.observed for group in groups])
        if self.grouping is Grouping.POSITION or not groups:
            self.predicted.setData(xs, np.array([group.predicted for group in groups]))
        else:
            self.predicted.setData(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
        self.points.setData(xs, observed)
        self.whiskers.setData(beam=0.18 if self.grouping is Grouping.POSITION else 0.02)
        set_whiskers(self.whiskers, xs, observed, [group.low for group in groups], [group.high for group in groups])


RAN = "as it ran"
BEYOND_HELP = "Dotted: beyond the longest timed block, where v is extrapolated."
CHAIN = ("chain", "Dashed: the same for the first candidates alone.")


class Quantity(Enum):
    """What is plotted over K: the choice's title, the axis, and what the lines mean for chains and for trees."""

    SPEEDUP = (
        "Speedup",
        "speedup, ×",
        ("formula", "Line: τ / (K c + v(K+1)) with this run's α, c and v. Band: 95 % over resampled steps."),
        ("if verifying cost one plain forward", "Dashed: τ / (K c + 1), Leviathan et al., theorem 3.8: v = 1 for any "
         "number of positions."),
        ("trees", "Line: tokens / (levels × c + v(K+1)) of the first K nodes of this run's trees, at the "
         "fastest depth. Band: 95 % over resampled steps."),
        (RAN, "Diamond: the run itself, tokens × plain step's time / total time, with its 95 % interval."),
    )  # fmt: skip
    TOKENS = (
        "Block efficiency",
        "tokens per step",
        ("by α", "Line: (1 − α^(K+1)) / (1 − α), Leviathan et al., equation 1. Band: 95 % over resampled steps."),
        ("position by position", "Dashed: 1 + Σ over i of the product of accepted / tested at the positions up to i; "
         "beyond the positions measured often enough, with α."),
        ("trees", "Line: 1 + how many of the first K nodes of this run's trees were accepted, at the fastest "
         "depth. Band: 95 % over resampled steps."),
        (RAN, "Diamond: new tokens / steps of the run, with its 95 % interval."),
    )  # fmt: skip

    def __init__(self, title: str, axis: str, first: Meaning, second: Meaning, of_trees: Meaning, ran: Meaning) -> None:
        self.title, self.axis = title, axis
        self.meanings, self.tree_meanings = (first, second, ran), (of_trees, CHAIN, ran)


class SpeedupPlot(Plot):
    """Two curves over K: a band around the first, the run's own point, and a line for plain decoding. For trees, K
    is the number of nodes, and the second curve is a chain's."""

    def __init__(self) -> None:
        super().__init__(
            object_name="speedupPlot", title="Speedup over K", x_label="K, draft tokens", y_label="speedup, ×"
        )
        self.quantity = Quantity.SPEEDUP
        self.theory: SpeedupTheory | None = None
        self.unit = self.add_line("muted", width=THIN, angle=0)
        self.unit.setValue(1.0)
        first, second, ran = self.quantity.meanings
        self.edges = self.add_band("accent")
        self.other = self.add_line("text", *second, dashes=DASHED)
        self.beyond = self.add_line("accent", "extrapolated", BEYOND_HELP, dashes=DOTTED)
        self.line = self.add_line("accent", *first, mark=Mark.BAND)
        self.whisker = self.add_whiskers("text", beam=0.35)
        self.point = self.add_points("text", 12, *ran, symbol="d", edge=THIN)
        dashed, self._beyond_sample, whole, diamond = self.samples
        self.samples[:] = whole, dashed, diamond, self._beyond_sample
        self.getViewBox().setLimits(xMin=-0.5, minXRange=2, yMin=0, minYRange=0.1)
        self.set_hint("The speedup by the formula at each K")

    def show_theory(self, theory: SpeedupTheory | None) -> None:
        """Show a run's curves."""
        had_trees = self._trees is not None
        self.theory = theory
        if had_trees != (self._trees is not None):
            self.show_quantity(self.quantity)
        self.settle(is_over=True)

    def show_quantity(self, quantity: Quantity) -> None:
        """Show the speedup, or the block efficiency."""
        self.quantity = quantity
        self.setAccessibleName(f"{quantity.title} over K")
        self._labels["left"] = quantity.axis
        self._labels["bottom"] = "K, draft tokens" if self._trees is None else "K, nodes"
        for sample, meaning in zip(self.samples[:3], self._meanings, strict=True):
            sample.set_meaning(*meaning)
        self.restyle()
        self.reset_view()

    def details(self, place: int) -> list[tuple[str, str]]:
        """A K in figures."""
        first, second = self._curves()
        found = first.at(place)
        names = [name for name, _ in self._meanings]
        depth = f", depth {self._trees.depths[place]}" if self._trees is not None and place else ""
        rows = [(f"K = {place}{depth}", ""), (names[0], f"{found.value:.2f}{self._sign}")]
        if found.low is not None:
            rows.append(("95 % interval", f"{found.low:.2f} to {found.high:.2f}{self._sign}"))
        rows.append((names[1], f"{second.values[place]:.2f}{self._sign}"))
        assert self.theory is not None
        beyond = ", extrapolated" if place > self.theory.longest else ""
        rows.append((f"v({place + 1})", f"{self.theory.verify.values[place]:.2f}{beyond}"))
        return rows

    def table(self) -> Table:
        """One row per K."""
        theory = self.theory
        if theory is None:
            return {"num_draft_tokens": []}
        found = theory.measured_verify
        count = len(found.values)
        shown: Table = {
            "num_draft_tokens": range(count),
            "speedup_measured_v": found.values,
            "speedup_low_95": found.low or [None] * count,
            "speedup_high_95": found.high or [None] * count,
            "speedup_v_1": theory.leviathan.values,
            "verify_cost": theory.verify.values,
            "tokens_per_step": theory.tokens.values,
        }
        if self._trees is None:
            return {**shown, "tokens_per_step_by_place": theory.tokens_by_position.values}
        chain = {
            "chain_speedup": self._trees.chain_speedup.values,
            "chain_tokens_per_step": self._trees.chain_tokens.values,
        }
        return {**shown, "depth": self._trees.depths, **chain}

    @property
    def _trees(self) -> TreeTheory | None:
        return self.theory.trees if self.theory is not None else None

    @property
    def _meanings(self) -> tuple[Meaning, ...]:
        return self.quantity.meanings if self._trees is None else self.quantity.tree_meanings

    @property
    def _ks(self) -> np.ndarray:
        return np.arange(len(self.theory.verify.values) if self.theory is not None else len(KS))

    @property
    def _sign(self) -> str:
        return "×" if self.quantity is Quantity.SPEEDUP else ""

    def _curves(self) -> tuple[Curve, Curve]:
        assert self.theory is not None
        theory, trees = self.theory, self._trees
        if self.quantity is Quantity.SPEEDUP:
            return theory.measured_verify, theory.leviathan if trees is None else trees.chain_speedup
        return theory.tokens, theory.tokens_by_position if trees is None else trees.chain_tokens

    def _ran(self) -> Estimate:
        assert self.theory is not None
        return self.theory.ran_speedup if self.quantity is Quantity.SPEEDUP else self.theory.ran_tokens

    def _extent(self) -> tuple[float, float]:
        if self.theory is None:
            return 0.0, 0.0
        first, second = self._curves()
        ran = self._ran()
        # The curve of v = 1 may rise far above; what matters is where the two diverge.
        highest = max(*first.values, *first.high, ran.high or ran.value, 1.0)
        return float(len(self._ks)), 1.08 * max(highest, min(max(second.values), 1.6 * highest))

    def _fit(self, extent: tuple[float, float]) -> None:
        last = len(self._ks)
        self.getViewBox().setLimits(xMax=last)
        marked = ticks(range(0, last, 2 if last < 34 else 8))
        self._frame((-0.4, last - 0.4), (0, extent[1] or 1), {"bottom": marked})

    def _place_at(self, x: float) -> int:
        place = round(x)
        return place if self.theory is not None and 0 <= place < len(self._ks) else -1

    def _draw(self) -> None:
        self.unit.setVisible(self.theory is not None)
        is_short = self.theory is not None and self.theory.longest + 1 < len(self._ks)
        self._beyond_sample.setVisible(is_short and self.quantity is Quantity.SPEEDUP)
        if self.theory is None:
            for part in (self.line, self.beyond, self.other, *self.edges, self.point):
                part.setData([], [])
            set_whiskers(self.whisker, [], [], [], [])
            return
        first, second = self._curves()
        values, ks = np.array(first.values), self._ks
        known = self.theory.longest + 1 if self.quantity is Quantity.SPEEDUP else len(ks)
        self.line.setData(ks[:known], values[:known])
        self.beyond.setData(ks[known - 1 :], values[known - 1 :])
        self.other.setData(ks, np.array(second.values))
        for edge, bound in zip(self.edges, (first.low, first.high), strict=True):
            edge.setData(ks[: len(bound)], np.array(bound))
        ran = self._ran()
        at = [self.theory.ran_k]
        self.point.setData(at, [ran.value])
        has_interval = ran.low is not None and ran.high is not None
        set_whiskers(self.whisker, *([at, [ran.value], [ran.low], [ran.high]] if has_interval else [[]] * 4))
