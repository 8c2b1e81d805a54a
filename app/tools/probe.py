"""The window that ranks drafts for the chosen target, and puts one of them into the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import Slot
from PySide6.QtWidgets import QCheckBox, QWidget

from app.controller import RunController
from app.settings import RunSettings
from app.setup.controls import ControlsPanel
from app.setup.prompt import PromptEditor
from app.tools.tool_window import ReportWindow, ResultRow, ResultTable
from app.widgets.fields import named, push_button, table_card
from app.window_layout import open_at
from core.analysis.probe import DraftProbe, ProbeDone, ProbeRequest, ProbeText, verdict
from core.controls import RunControls
from core.errors import OutriderError, PromptError, SettingsError
from core.settings import LengthPolicy, SamplingParams
from core.text import percent_text
from core.types import StageChanged

# --- What is shown ---

GENERATED = 64
"""Number of tokens that the target writes first, if that is checked."""
NONE_YET = "Rank the drafts on this computer for this target, on this prompt. It takes seconds."
NO_DRAFTS = "Each draft gets a row here, the best first: the speedup to expect of it, and at which K."
STOPPED = "Stopped before a draft was probed."
COLUMNS = (
    ("Draft", "Models on this computer that are smaller than the target and have the same tokenizer.", False),
    ("Expected", "τ(K) / (K c + v(K+1)) at its best K; 95 % interval over the positions of the text.", True),
    ("Best K", "The K from 1 to 16 with the highest expected speedup; none where plain decoding is faster.", True),
    ("Acceptance", "Mean of Σ min(p, q) over the positions; p: the target's distribution, q: the draft's.", True),
    ("Top-1", "Share of positions where both have the same most probable token.", True),
    ("KL", "Mean of Σ p ln(p / q) in nats, where it is finite.", True),
    ("c", "Time of one draft step / time of one step of the target, timed here.", True),
    ("v(5)", "Time of the target to score 5 positions / time to score one, timed here.", True),
)
OWN_TEXT = "The text is the target's own, so this is what blocks along it would keep."
GIVEN_TEXT = "A product along the text, which assumes that the draft is as good after its own tokens."


def is_usable(probe: DraftProbe) -> bool:
    """Whether the draft pays at any K."""
    return not probe.problem and probe.best_k > 0


def row_of(probe: DraftProbe, title: Callable[[str], str] = str) -> ResultRow:
    """A draft's figures as text."""
    found, costs, name = probe.agreement, probe.costs, title(probe.draft)
    if probe.problem or found is None or costs is None:
        return ResultRow((name, *["–"] * (len(COLUMNS) - 1)), probe.problem, is_enabled=not probe.problem)
    at, divergence = probe.speedup.at(probe.best_k), found.kl_target_draft
    interval = "" if at.low is None else f" ({at.low:.2f} to {at.high:.2f})"
    survival = ", ".join(percent_text(share) for share in found.survival[:8])
    texts = (
        name,
        f"{at.value:.2f}×{interval}" if probe.best_k else "below 1×",
        str(probe.best_k) if probe.best_k else "none",
        percent_text(found.acceptance.value, 1),
        percent_text(found.top_1),
        "–" if divergence is None else f"{divergence:.2f}",
        f"{costs.cost:.3f}",
        f"{probe.verify.values[4]:.2f}",
    )
    how = OWN_TEXT if found.is_own_text else GIVEN_TEXT
    return ResultRow(texts, f"Kept up to token 1, 2, …: {survival}. {how} Over {found.num_places:,} positions.")


def probe_request(target: str, settings: RunSettings, prompt: str, *, generate: bool) -> ProbeRequest:
    """A probe of these settings, without its drafts, which are found later.

    Raises:
        OutriderError: there is no target or prompt, or a setting is out of range.
    """
    if not target:
        raise SettingsError("Choose a target first.")
    if not prompt.strip():
        raise PromptError("The prompt is empty. Write a few words for the models to read.")
    return ProbeRequest(
        target=target,
        drafts=("?",),
        texts=(ProbeText("the prompt", prompt=prompt),),
        sampling=SamplingParams(settings.temperature, settings.top_k, settings.top_p, settings.min_p),
        generate=GENERATED if generate else 0,
        chat=settings.chat,
        device=settings.device,
        dtype=settings.dtype,
    )


# --- The window ---

GENERATE_HELP = (
    "Acceptance is about texts that the target itself writes. Without it both models only read the prompt, which is "
    "faster and says less."
)


class ProbeWindow(ReportWindow):
    """Starts a probe, ranks the drafts, and puts one into the settings."""

    task_title = "A probe"

    def __init__(
        self, main: QWidget | None, controller: RunController, controls: ControlsPanel, prompt: PromptEditor
    ) -> None:
        super().__init__(
            main,
            controller,
            "probe",
            "Probe drafts",
            start_help="Compare the models at every position, and time them",
            stop_help="End the probe and keep what it has",
            progress_title="A probe is running",
        )
        self._controls, self._prompt = controls, prompt
        self._in_titles = controls.models.library.in_titles
        self._probes: tuple[DraftProbe, ...] = ()
        self._has_answer = False
        title = f"Let the target write {GENERATED} tokens first"
        self.generate = named(QCheckBox(title), "probeGenerateCheck", title, GENERATE_HELP)
        self.generate.setChecked(True)
        self.use_button = push_button("Use this draft and K", "useDraftButton", "Put them into the settings")
        self.table = ResultTable("probeTable", "Drafts, the best first", COLUMNS, NO_DRAFTS)
        self.progress.setRange(0, 0)
        self._lay_out(None, (self.generate,), table_card(self.table), self.use_button)
        open_at(self, 860, 420)
        self._show_running(is_running=False)
        self.show_probes(())
        self.say(NONE_YET)
        self.use_button.clicked.connect(self._on_use)
        self.table.itemSelectionChanged.connect(self._on_selected)
        self.table.itemActivated.connect(self._on_use)

    @Slot()
    def start(self) -> None:
        """Probe the drafts on the main window's prompt."""
        if self.is_running:
            return
        target, prompt = self._controls.target.ref, self._prompt.text()
        try:
            asked = probe_request(target, self._controls.settings(prompt), prompt, generate=self.generate.isChecked())
        except OutriderError as error:
            self.say(str(error), role="problem")
            return

        def work(session: Any, controls: RunControls) -> Iterator[Any]:
            from core.analysis.probe import drafts_here
            from core.analysis.probing import probe

            yield StageChanged("Looking for drafts…")
            yield from probe(session, replace(asked, drafts=drafts_here(target)), controls)

        if self._start_task(work) is None:
            self.say(self._controller.busy_sentence(), role="problem")
            return
        self._has_answer = False
        self.show_probes(())
        self.say("Probing…")
        temperature = asked.sampling.temperature
        self.subject.setText(f"Target: {self._in_titles(target)} · temperature {temperature:g} · the current prompt")
        self._show_running(is_running=True)

    # --- What is shown ---

    def refresh(self) -> None:
        """Show the chosen target."""
        if not self.is_running:
            self.subject.setText(f"Target: {self._in_titles(self._controls.target.ref) or 'none chosen'}")

    def show_probes(self, probes: Sequence[DraftProbe]) -> None:
        """Show drafts in this order, the first selected."""
        self._probes = tuple(probes)
        self.table.show_rows([row_of(probe, self._in_titles) for probe in probes])
        if probes:
            self.table.selectRow(0)
        self._on_selected()

    def _show_events(self, events: Iterator[Any]) -> None:
        for event in events:
            if isinstance(event, StageChanged):
                self.stage.setText(event.text)
            elif isinstance(event, DraftProbe):
                self.show_probes((*self._probes, event))
            elif isinstance(event, ProbeDone):
                self._show_done(event)

    def _show_done(self, done: ProbeDone) -> None:
        self._has_answer = True
        self.show_probes(done.probes)
        if done.is_stopped and not done.probes:
            self.say(STOPPED)
        else:
            stopped = " Stopped before all of them were probed." if done.is_stopped else ""
            self.say(f"{self._in_titles(verdict(done.probes))}{stopped}")
        if done.notes:
            self.subject.setText(f"{self.subject.text()} · {' '.join(done.notes)}")

    def _show_failure(self, sentence: str) -> None:
        self._has_answer = True
        self.say(sentence, role="problem")

    def _show_end(self) -> None:
        self._show_running(is_running=False)
        self.stage.clear()
        if not self._has_answer:
            self.say(STOPPED)

    # --- Use ---

    def _selected(self) -> DraftProbe | None:
        place = self.table.currentRow()
        return self._probes[place] if 0 <= place < len(self._probes) and is_usable(self._probes[place]) else None

    @Slot()
    def _on_selected(self) -> None:
        self.use_button.setEnabled(self._selected() is not None)

    @Slot()
    def _on_use(self) -> None:
        if (probe := self._selected()) is None:
            return
        current, k = self._controls.settings(self._prompt.text()), probe.best_k
        fixed = LengthPolicy.FIXED
        self._controls.apply(
            replace(current, method="draft-model", draft=probe.draft, num_draft_tokens=k, length_policy=fixed)
        )
        self._controls.changed.emit()
        self.stage.setText(f"{self._in_titles(probe.draft)} and K = {k} are in the settings.")
