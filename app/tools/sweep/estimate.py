"""The quick mode of the sweep: it estimates every draft's speedup in seconds, and puts one into the settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QWidget

from app.setup.setting_fields import value_of
from app.setup.settings_panel import SettingsPanel
from app.widgets.fields import boxed, column, held, hint_label, push_button, row, wrapped_label
from app.widgets.rows import Column, Row
from app.widgets.tables import Table
from core.analysis.probe import DraftProbe, ProbeDone, ProbeRequest, verdict
from core.settings import LengthPolicy
from core.text import percent_text

NO_DRAFTS = "Each draft gets a row here, best first: its predicted speedup, and at which K."
SHOWN_TREES = 5
STOPPED = "Stopped before any draft was estimated."
_figure = partial(Column, is_figure=True)
COLUMNS = (
    Column("Draft", "Models on this computer that are smaller than the target and have the same tokenizer.", width=170),
    _figure("Chain", "The predicted speedup at its best K: τ(K) / (K c + v(K+1))."),
    _figure("95 % interval", "Of the predicted speedup of a chain, over the positions of the text.", rank=1),
    _figure("Best K", "The K from 1 to 16 with the best predicted speedup; none if plain decoding is faster."),
    _figure(
        "Tree",
        "The predicted speedup of the fastest tree of at most 16 nodes; a row's tooltip has its shape.",
        rank=4,
    ),
    _figure(
        "Expected α", "Mean of Σ min(p, q) over the positions; p: the target's distribution, q: the draft's.", rank=2
    ),
    _figure("Top-1", "Share of positions where both have the same most probable token.", rank=5),
    _figure("c", "Time of one draft step / time of one step of the target, timed here.", rank=3),
    _figure("v(5)", "Time for the target to score 5 positions / time to score one, timed here.", rank=6),
)
OWN_TEXT = "The text is the target's own, so this is exactly what drafting this text would give."
GIVEN_TEXT = "A product along the text, which assumes that the draft is as good after its own tokens."


def row_of(probe: DraftProbe, title: Callable[[str], str] = str) -> Row[DraftProbe]:
    """A draft's figures as text."""
    found, costs, name = probe.agreement, probe.costs, title(probe.draft)
    if probe.problem or found is None or costs is None:
        texts = (name, *["–"] * (len(COLUMNS) - 1))
        return Row(probe, probe.draft, texts, probe.problem, is_enabled=not probe.problem)
    at = probe.speedup.at(probe.best_k)
    divergence = (
        "" if found.kl_target_draft is None else f" KL, mean of Σ p ln(p / q): {found.kl_target_draft:.2f} nats."
    )
    survival = ", ".join(percent_text(share) for share in found.survival[:8])
    texts = (
        name,
        f"{at.value:.2f}×" if probe.best_k else "below 1×",
        f"{at.low:.2f} to {at.high:.2f}" if probe.best_k and at.low is not None else "–",
        str(probe.best_k) if probe.best_k else "none",
        next((f"{tree.speedup:.2f}×" for tree in probe.shapes), "–"),
        percent_text(found.acceptance.value, 1),
        percent_text(found.top_1),
        f"{costs.cost:.3f}",
        f"{probe.verify.values[4]:.2f}",
    )
    how = OWN_TEXT if found.is_own_text else GIVEN_TEXT
    tip = f"Accepted up to token 1, 2, …: {survival}. {how} Over {found.num_places:,} positions.{divergence}"
    trees = [
        f"{tree.text}: {tree.tokens:.2f} tokens/forward, {tree.speedup:.2f}×" for tree in probe.shapes[:SHOWN_TREES]
    ]
    tip = "\n".join((tip, *(["Trees:", *trees] if trees else [])))
    return Row(probe, probe.draft, texts, tip)


class EstimateView(QWidget):
    """The drafts of the last estimate, the best first."""

    def __init__(self, controls: SettingsPanel) -> None:
        super().__init__()
        self._controls = controls
        self._in_titles = controls.models.library.in_titles
        self._target, self._temperature = "", 0.0
        self._probes: tuple[DraftProbe, ...] = ()
        self.headline = wrapped_label("estimateHeadline", "title")
        self.subject = wrapped_label("estimateSubject", "hint")
        self.table: Table[DraftProbe] = Table("estimateTable", "Drafts, best first", COLUMNS, NO_DRAFTS)
        use_help = "Put target, temperature, draft and its best K, or its best tree if faster, into the settings"
        self.use_button = push_button("Use these settings", "estimateUseButton", use_help, self._on_use)
        self.note = hint_label("estimateNote")
        foot = row((self.note, 1), self.use_button)
        boxed(column(self.headline, self.subject, (self.table, 1), foot), self)
        self.table.chosen.connect(self._on_selected)
        self.table.activated.connect(self._on_use)

    def begin(self, request: ProbeRequest) -> None:
        """Show that an estimate is on its way."""
        self._target, self._temperature = request.target, request.sampling.temperature
        self.headline.setText("Estimating…")
        asked = f"From the form: target {request.target}, temperature {self._temperature:g} (the first)"
        subject = f"{asked} · From the main window: the prompt · Every draft on this computer, K from 1\u00a0to\u00a016"
        self.subject.setText(held(self._in_titles(subject)))
        self.note.clear()
        self._show_probes(())

    def show_event(self, event: object) -> None:
        """Show a draft, or the answer."""
        if isinstance(event, DraftProbe):
            self._show_probes((*self._probes, event))
        elif isinstance(event, ProbeDone):
            self._show_probes(event.probes)
            stopped = " Stopped before all were estimated." if event.is_stopped else ""
            if event.probes or not event.is_stopped:
                text = self._in_titles(verdict(event.probes))
                self.headline.setText(f"At temperature {self._temperature:g}, {text[0].lower()}{text[1:]}{stopped}")
            self.subject.setText(" · ".join(filter(None, (self.subject.text(), " ".join(event.notes)))))

    def end(self) -> None:
        """Note that the engine has stopped."""
        if self.headline.text() == "Estimating…":
            self.headline.setText(STOPPED)

    def _show_probes(self, probes: Sequence[DraftProbe]) -> None:
        self._probes = tuple(probes)
        self.table.show_rows([row_of(probe, self._in_titles) for probe in probes])
        self.table.select([probe.draft for probe in probes[:1]])
        self._on_selected()

    def _selected(self) -> DraftProbe | None:
        """The selected draft, if it pays at any K, or in a tree; one with a problem has neither."""
        return next((probe for probe in self.table.selected() if probe.best_k or probe.faster_tree), None)

    @Slot()
    def _on_selected(self) -> None:
        self.use_button.setEnabled(self._selected() is not None)

    @Slot()
    def _on_use(self) -> None:
        if (probe := self._selected()) is None:
            return
        k, shape = probe.best_k, ""
        chosen: dict[str, Any] = {"method": "draft-model"}
        if (tree := probe.faster_tree) is not None:
            k, shape = tree.num_nodes, f" in a tree of depth {tree.depth}"
            options = {"draft-tree": {"depth": tree.depth, "branching": tree.branching}}
            chosen = {"method": "draft-tree", "method_options": options}
        pair = {"engine": "", "target": self._target, "draft": probe.draft}
        fixed = {"num_draft_tokens": k, "length_policy": LengthPolicy.FIXED, "temperature": self._temperature}
        self._controls.change({**pair, **chosen, **fixed})
        reached = value_of(self._controls.fields["temperature"])
        at = f" at temperature {reached:g}"
        if not math.isclose(reached, self._temperature):  # The window has fewer temperatures than a sweep.
            at += f", but this K is the best at {self._temperature:g}"
        self.note.setText(f"The settings now have {self._in_titles(probe.draft)} with K = {k}{shape}{at}.")
