"""Probes drafts for the chosen target: asks the engine, shows what comes, and puts a draft into the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QTableWidget, QTableWidgetItem, QVBoxLayout, QWidget

from app.controller import RunController
from app.menus import Menus
from app.services import Services, Session
from app.settings import RunSettings
from app.setup.controls import ControlsPanel
from app.setup.prompt import PromptEditor
from app.theme import scaled
from app.tools.tool_window import TaskDesk, ToolWindow, figure_table, push_button
from app.widgets.fields import describe, offer, table_card
from app.window_layout import open_at
from core.analysis.probe import DraftProbe, DraftProbed, ProbeDone, ProbeRequest, ProbeText, verdict
from core.controls import RunControls
from core.errors import OutriderError, PromptError, SettingsError
from core.text import percent_text
from core.types import LengthPolicy, SamplingParams, StageChanged

GENERATED = 64
"""Tokens that the target writes first, where that is wanted."""

NONE_YET = "Probe the drafts that are here for this target, on this prompt. It takes seconds, and drafts nothing."

NO_DRAFTS = "Each draft gets a row here, the best first: the speedup to expect of it, and at which K."


@dataclass(frozen=True, slots=True)
class ColumnMeaning:
    """A column of the table: its title, and what it is."""

    title: str
    help: str


COLUMNS = (
    ColumnMeaning("Draft", "Drafts that are here, smaller than the target and with the same tokenizer."),
    ColumnMeaning("Expected", "τ(K) / (K c + v(K+1)) at its best K; 95 % interval over the places of the text."),
    ColumnMeaning("Best K", "The K from 1 to 16 with the highest expected speedup; none where plain decoding wins."),
    ColumnMeaning("Acceptance", "Mean of Σ min(p, q) over the places, p the target's law, q the draft's."),
    ColumnMeaning("Top-1", "Share of places where both have the same likeliest token."),
    ColumnMeaning("KL", "Mean of Σ p ln(p / q) in nats, where it is finite."),
    ColumnMeaning("c", "Time of one draft step / time of one step of the target, timed here."),
    ColumnMeaning("v(5)", "Time of the target to score 5 positions / one, timed here."),
)


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A draft as the table has it."""

    probe: DraftProbe
    texts: tuple[str, ...]
    tip: str

    @property
    def is_usable(self) -> bool:
        """Whether there is a K to take it with."""
        return not self.probe.problem and self.probe.best_k > 0


def row_of(probe: DraftProbe, title: Callable[[str], str] = str) -> DraftRow:
    """A draft's figures in words."""
    found, costs, name = probe.agreement, probe.costs, title(probe.draft)
    if probe.problem or found is None or costs is None:
        return DraftRow(probe, (name, "–", "–", "–", "–", "–", "–", "–"), probe.problem)
    at = probe.speedup.at(probe.best_k)
    divergence = found.kl_target_draft
    interval = "" if at.low is None else f" ({at.low:.2f} to {at.high:.2f})"
    survival = ", ".join(percent_text(share) for share in found.survival[:8])
    way = (
        "The text is the target's own, so that this is what a block along it would keep."
        if found.is_own_text
        else "A product along the text, which takes the draft to be as good behind its own tokens."
    )
    return DraftRow(
        probe,
        (
            name,
            f"{at.value:.2f}×{interval}" if probe.best_k else "below 1×",
            str(probe.best_k) if probe.best_k else "none",
            percent_text(found.acceptance.value, 1),
            percent_text(found.top_1),
            "–" if divergence is None else f"{divergence:.2f}",
            f"{costs.cost:.3f}",
            f"{probe.verify.values[4]:.2f}",
        ),
        f"Kept up to token 1, 2, …: {survival}. {way} Over {found.num_places:,} places.",
    )


def question(
    target: str, settings: RunSettings, prompt: str, drafts: tuple[str, ...], *, generate: bool
) -> ProbeRequest:
    """The probe that the settings ask for.

    Raises:
        OutriderError: there is no prompt, or a setting is out of range.
    """
    if not prompt.strip():
        raise PromptError("The prompt is empty. Write a few words for the models to read.")
    return ProbeRequest(
        target=target,
        drafts=drafts,
        texts=(ProbeText("the prompt", prompt=prompt),),
        sampling=SamplingParams(settings.temperature, settings.top_k, settings.top_p, settings.min_p),
        generate=GENERATED if generate else 0,
        chat=settings.chat.as_flag,
        device=settings.device,
        dtype=settings.dtype,
    )


ROW_HEIGHT = 28
GENERATE_HELP = (
    "Acceptance is about texts that the target itself writes. Without it both models read the prompt alone, which is "
    "faster and says less."
)


class ProbeWindow(ToolWindow):
    """Asks for a probe and ranks what comes of it.

    Signals:
        probe_wanted: the button was pressed.
        draft_chosen: a `DraftProbe` to run with.
    """

    probe_wanted = Signal()
    draft_chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("probe", "Probe drafts", "A probe is going", parent)
        self._rows: tuple[DraftRow, ...] = ()
        self.generate = QCheckBox(f"Let the target write {GENERATED} tokens first")
        self.generate.setObjectName("probeGenerateCheck")
        self.generate.setChecked(True)
        describe(self.generate, self.generate.text(), GENERATE_HELP)
        self.probe_button = push_button("Probe", "probeButton", "Compare the models at every place, and time them")
        self.probe_button.setProperty("role", "primary")
        self.stop_button = push_button("Stop", "stopProbeButton", "End the probe with what it has")
        self.use_button = push_button("Use this draft and K", "useDraftButton", "Put them into the settings")
        self.progress.setRange(0, 0)
        self.table = _table()
        self._lay_out()
        open_at(self, 860, 420)
        self.show_going(is_going=False)
        self.show_rows(())
        self.say(NONE_YET)
        self.probe_button.clicked.connect(self.probe_wanted)
        self.stop_button.clicked.connect(self.stop_wanted)
        self.use_button.clicked.connect(self._on_use)
        self.table.itemSelectionChanged.connect(self._on_selected)
        self.table.itemActivated.connect(self._on_use)

    def _lay_out(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(8)
        top.addWidget(self.generate)
        top.addStretch(1)
        top.addWidget(self.stop_button)
        top.addWidget(self.probe_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 14, 16, 16)
        layout.setSpacing(8)
        layout.addWidget(self.headline)
        layout.addWidget(self.subject)
        layout.addLayout(top)
        layout.addWidget(table_card(self.table), 1)
        layout.addLayout(self._foot(90, self.use_button))

    # --- For the desk ---

    def show_stage(self, text: str) -> None:
        """What is being done."""
        self.stage.setText(text)

    def show_going(self, *, is_going: bool) -> None:
        """Offer only what can be done now."""
        offer(self.probe_button, self.stop_button, is_running=is_going)
        self.generate.setEnabled(not is_going)
        self.progress.setVisible(is_going)

    def show_rows(self, rows: Sequence[DraftRow]) -> None:
        """Show drafts in this order, the first selected."""
        self._rows = tuple(rows)
        self.table.setRowCount(len(rows))
        for index, row in enumerate(rows):
            for column, text in enumerate(row.texts):
                item = QTableWidgetItem(text)
                item.setToolTip(row.tip)
                across = Qt.AlignmentFlag.AlignRight if column else Qt.AlignmentFlag.AlignLeft
                item.setTextAlignment(across | Qt.AlignmentFlag.AlignVCenter)
                if row.probe.problem:
                    item.setFlags(item.flags() & ~Qt.ItemFlag.ItemIsEnabled)
                self.table.setItem(index, column, item)
            self.table.setRowHeight(index, scaled(ROW_HEIGHT))
        if rows:
            self.table.selectRow(0)
        self._on_selected()

    def selected(self) -> DraftRow | None:
        """The row that is selected."""
        place = self.table.currentRow()
        return self._rows[place] if self._rows and 0 <= place < len(self._rows) else None

    # --- Itself ---

    @Slot()
    def _on_selected(self) -> None:
        row = self.selected()
        self.use_button.setEnabled(row is not None and row.is_usable)

    @Slot()
    def _on_use(self) -> None:
        row = self.selected()
        if row is not None and row.is_usable:
            self.draft_chosen.emit(row.probe)


def _table() -> QTableWidget:
    columns = [(meaning.title, meaning.help, place > 0) for place, meaning in enumerate(COLUMNS)]
    return figure_table("probeTable", "Drafts, the best first", columns, NO_DRAFTS)


TITLE = "A probe"
PROBING = "Probing…"
UNKNOWN_YET = ("?",)
"""Stands for the drafts until the engine's thread has looked for them."""


class ProbeDesk(TaskDesk):
    """Its window is made when it is first wanted."""

    def __init__(
        self,
        window: QWidget,
        menus: Menus,
        services: Services,
        controller: RunController,
        controls: ControlsPanel,
        prompt: PromptEditor,
    ) -> None:
        super().__init__(window, controller)
        self._main, self._services = window, services
        self._controls, self._prompt = controls, prompt
        self._in_titles = controls.models.library.in_titles
        self._probes: list[DraftProbe] = []
        self.window: ProbeWindow | None = None
        menus.probe.triggered.connect(self.open)

    @Slot()
    def open(self) -> None:
        """Show the window."""
        if self.window is None:
            self.window = ProbeWindow(self._main)
            self.window.probe_wanted.connect(self.start)
            self.window.stop_wanted.connect(self.stop)
            self.window.draft_chosen.connect(self._on_chosen)
        if self._task is None:
            self.window.show_subject(f"Target: {self._in_titles(self._controls.target.ref) or 'none chosen'}")
        self.window.open()

    @Slot()
    def start(self) -> None:
        """Probe on the prompt as it stands."""
        window = self.window
        if window is None or self._task is not None:
            return
        try:
            asked = self._question(with_own_text=window.generate.isChecked())
        except OutriderError as error:
            window.say(str(error), is_problem=True)
            return
        services = self._services

        def work(session: Session, controls: RunControls) -> Iterator[Any]:
            yield StageChanged("Looking for drafts…")
            found = replace(asked, drafts=services.find_drafts(asked.target))
            yield from services.probe(session, found, controls)

        if self._start_task(TITLE, work) is None:
            window.say(self._controller.busy_sentence(), is_problem=True)
            return
        self._probes = []
        window.show_rows(())
        window.say(PROBING)
        target, temperature = self._in_titles(asked.target), asked.sampling.temperature
        window.show_subject(f"Target: {target} · temperature {temperature:g} · the prompt at hand")
        window.show_going(is_going=True)

    def _question(self, *, with_own_text: bool) -> ProbeRequest:
        target, prompt = self._controls.target.ref, self._prompt.text()
        if not target:
            raise SettingsError("Choose a target first.")
        return question(target, self._controls.settings(prompt), prompt, UNKNOWN_YET, generate=with_own_text)

    def _show_stopping(self) -> None:
        if self.window is not None:
            self.window.show_stage("Stopping…")

    def _show_events(self, events: Iterator[Any]) -> None:
        window = self.window
        if window is None:
            return
        for event in events:
            if isinstance(event, StageChanged):
                window.show_stage(event.text)
            elif isinstance(event, DraftProbed):
                self._probes.append(event.probe)
                window.show_rows([row_of(probe, self._in_titles) for probe in self._probes])
            elif isinstance(event, ProbeDone):
                self._show_done(event)

    def _show_done(self, done: ProbeDone) -> None:
        window = self.window
        assert window is not None
        window.show_rows([row_of(probe, self._in_titles) for probe in done.probes])
        if done.is_stopped and not done.probes:
            window.say("Stopped before a draft was probed.")
        else:
            stopped = " Stopped before all of them were probed." if done.is_stopped else ""
            window.say(f"{self._in_titles(verdict(done.probes))}{stopped}")
        if done.notes:
            window.show_subject(f"{window.subject.text()} · {' '.join(done.notes)}")

    def _show_failure(self, sentence: str) -> None:
        if self.window is not None:
            self.window.say(sentence, is_problem=True)

    def _show_end(self) -> None:
        if self.window is None:
            return
        self.window.show_going(is_going=False)
        self.window.show_stage("")
        if self.window.headline.text() == PROBING:
            self.window.say("Stopped before a draft was probed.")

    @Slot(object)
    def _on_chosen(self, probe: DraftProbe) -> None:
        current = self._controls.settings(self._prompt.text())
        self._controls.apply(
            replace(
                current,
                method="draft-model",
                draft=probe.draft,
                num_draft_tokens=probe.best_k,
                length_policy=LengthPolicy.FIXED,
            )
        )
        self._controls.changed.emit()
        if self.window is not None:
            self.window.show_stage(f"{self._in_titles(probe.draft)} and K = {probe.best_k} are in the settings.")
