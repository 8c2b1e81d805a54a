"""The first minute: a recorded run with three callouts, a live one, a race, and the offer of a chat model.

The recorded run is a kept run, replayed slowly. A bar above the text describes it and offers the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.controller import RunController
from app.introduction.callout import Callout
from app.introduction.guide_bar import GuideBar, Part
from app.jobs import Job, Jobs
from app.menus import Menus
from app.run.pacing import Pace
from app.run.playback import PlaybackBar
from app.run.run_view import COMPLETE, RunView
from app.run.text.token_text import ON_ONE_LINE
from app.run.text.tokens import Place
from app.setup.model_picker import ModelRole
from app.setup.prompt import FOR_CHAT, Preset, PromptEditor, load_presets
from app.setup.settings_panel import SettingsPanel
from app.theme import RESOURCES
from app.tools.models.downloads import Download
from app.tools.models.models import Models
from app.widgets.fields import boxed, column, labelled, row, set_flag, text_label, wrapped_label
from core.errors import OutriderError
from core.models.catalogue import EMBEDDED_TITLES, ModelEntry
from core.models.remote import hub
from core.runlog.reading import read_run_log
from core.runlog.replay import events, request_to_show
from core.settings import Coupling, RunRequest, VerificationRule
from core.text import short_name
from core.types import Event, Step

RECORDING = RESOURCES / "introduction" / "recorded.jsonl"
CHAT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
CALLOUT_MS = 6_000
"""How long a callout stays, unless Next is pressed."""
RECORDED_FACTS = ("Target", "Drafts from", "K, draft tokens", "Temperature", "New tokens", "Seed")
OWN_SETTINGS = "Your own settings return after this run."
FIRST_EXPLAINED = 2
"""The first steps are only watched."""


class Introduction(QObject):
    """Leads through the first minute, and offers the chat model whenever it is missed. A panel of the `LiveView`.

    Signals:
        failed: one sentence.
        replay_wanted: a request and its events, to be shown at the chosen pace.
        run_wanted: a `RunRequest` to start.
        race_wanted: the run on screen and its baseline are to be raced.

    Attributes:
        is_seen: whether it has been shown, in this session or an earlier one.
    """

    failed = Signal(str)
    replay_wanted = Signal(object, object)
    run_wanted = Signal(object)
    race_wanted = Signal()

    def __init__(
        self,
        controller: RunController,
        run: RunView,
        playback: PlaybackBar,
        models: Models,
        controls: SettingsPanel,
        prompt: PromptEditor,
        menus: Menus,
        jobs: Jobs,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._controller, self._run, self._playback, self._models = controller, run, playback, models
        self._controls, self._prompt, self._jobs = controls, prompt, jobs
        self.is_seen = False
        self.bar = GuideBar()
        self.callout = Callout(playback.view)
        self._facts = {title: wrapped_label("recordedFact", "strong") for title in RECORDED_FACTS}
        target, draft, *others = (labelled(title, value) for title, value in self._facts.items())
        pairs = (row((one, 1), (other, 1)) for one, other in zip(others[::2], others[1::2], strict=True))
        note = wrapped_label("recordedNote", "hint", OWN_SETTINGS)
        self._settings = boxed(column(text_label("Recorded run", "section"), target, draft, *pairs, note))
        self._callouts: list[tuple[str, str, str]] = []
        """The callouts that are still to come: which of how many, title and text."""
        self._explained: Step | None = None
        self._part = Part.NOTHING
        self._is_running = False
        """Whether the part's own run is on."""
        self._requested: RunRequest | None = None
        self._timer = QTimer(self, singleShot=True, interval=CALLOUT_MS)
        self._timer.timeout.connect(self._show_next_callout)
        self.callout.next_button.clicked.connect(self._show_next_callout)
        self.bar.go_button.clicked.connect(self._on_go)
        self.bar.leave_button.clicked.connect(self._on_leave)
        menus.introduction.triggered.connect(self.start)
        menus.stop.triggered.connect(self._on_escape)
        controller.run_requested.connect(self._on_run_requested)
        models.downloads.changed.connect(self._on_download_changed)
        models.downloads.arrived.connect(self._on_model_arrived)
        models.downloads.dismissed.connect(self._on_download_dismissed)
        prompt.preset_chosen.connect(self._on_preset_chosen)

    def start_if_new(self) -> None:
        """Show the introduction to a user who hasn't seen it."""
        if not self.is_seen and RECORDING.is_file() and self._run.request is None:
            self.start()

    @Slot()
    def start(self) -> None:
        """Show the recorded run, unless the engine is busy."""

        def read(_job: Job) -> tuple[RunRequest, tuple[Event, ...]]:
            log = read_run_log(RECORDING, packs_evidence=True)
            return request_to_show(log), tuple(events(log))

        if sentence := self._controller.busy_sentence():
            self.failed.emit(sentence)
            return
        self.is_seen = True
        self._jobs.submit(
            read, lambda found: self._replay(*found), failed=self.failed.emit, what="The recorded run could not be read"
        )

    def _replay(self, request: RunRequest, found: tuple[Event, ...]) -> None:
        if not self._controller.busy_sentence():
            self._playback.set_pace(Pace.SLOWED)
            self._show_settings(request)
            self._show_part(Part.RECORDED)
            self.replay_wanted.emit(request, self._held(found))

    def _show_settings(self, request: RunRequest) -> None:
        """Show the settings of the recorded run in the left column."""
        values = (
            short_name(request.target),
            EMBEDDED_TITLES.get(request.draft or "", short_name(request.draft or "")),
            request.num_draft_tokens,
            f"{request.sampling.temperature:.2f}",
            request.max_new_tokens,
            request.seed,
        )
        for label, value in zip(self._facts.values(), values, strict=True):
            label.setText(str(value))

    def _show_part(self, part: Part) -> None:
        self._part, self._is_running = part, False
        self._controls.show_instead(self._settings, shown=part is Part.RECORDED)
        # The text shows the recorded prompt; the user's own would seem to belong to it.
        if part is Part.RECORDED:
            self._prompt.set_folded(is_folded=True)
            self._prompt.edit.clearFocus()
        self._prompt.setVisible(part is not Part.RECORDED)
        # One button stands out: what to do next.
        set_flag(self._prompt.run_button, "stands", "back" if self.bar.show_part(part) else "")
        self._models.shown_elsewhere = frozenset({CHAT_MODEL} if part is Part.GET_CHAT else ())
        self._end_callouts()

    # --- The callouts ---

    def _held(self, found: tuple[Event, ...]) -> Iterator[Event]:
        """The events; the showing pauses while the draft of one step is explained."""
        steps = (event for event in found if isinstance(event, Step) and event.index >= FIRST_EXPLAINED)
        # It shows all that can happen to a draft: tokens kept, one replaced.
        whole = (step for step in steps if 0 < step.num_accepted < len(step.drafted) and not step.parents)
        explained = next(whole, None)
        for event in found:
            if event is explained and self._playback.pacing.is_slow:
                self._playback.pacing.pause()
                texts = callouts_of(explained)
                self._callouts = [(f"{number} of {len(texts)}", *each) for number, each in enumerate(texts, 1)]
                self._explained = explained
                QTimer.singleShot(0, self, self._show_next_callout)  # Once the draft is on screen.
            yield event

    @Slot()
    def _show_next_callout(self) -> None:
        if not self._callouts or self._explained is None:
            self._end_callouts()
            return
        number, title, text = self._callouts.pop(0)
        # The last one points at the token that was replaced.
        at = Place(self._explained.index, -1 if self._callouts else self._explained.num_accepted)
        if not self._callouts:
            self._playback.pacing.step_once()
        self._playback.refresh(has_news=False)
        self.callout.show_text(number, title, text, at, is_last=not self._callouts)
        self._timer.start()

    def _end_callouts(self) -> None:
        self._callouts = []
        self._timer.stop()
        if not self.callout.isHidden():
            self.callout.hide()
            self._playback.pacing.resume()

    # --- A panel of the live view ---

    def begin(self) -> None:
        """A run starts."""
        self._end_callouts()

    def refresh(self, *, has_news: bool) -> None:
        """Keep the callout at its step; the user may also go on with Resume."""
        if not self.callout.isHidden():
            self.callout.fit()
            if not self._playback.pacing.is_paused:
                self._end_callouts()

    def end(self) -> None:
        """After a run, offer the next part."""
        if self._part is Part.RECORDED:
            self._show_part(Part.LIVE)
        elif self._is_running:
            summary = self._run.summary
            is_whole = summary is not None and summary.finish_reason in COMPLETE and self._run.baseline_steps
            # A run that was refused or stopped while loading leaves the one before on screen.
            if not is_whole or self._run.request is not self._requested:
                self._show_part(self._part)
            elif self._part is Part.RACE:
                self.race_wanted.emit()
                self.offer_chat()
            else:
                self._show_part(Part.RACE)

    @Slot(object)
    def _on_run_requested(self, request: RunRequest) -> None:
        self._requested = request
        # Whoever presses Run during the recorded run goes on live.
        if self._part is Part.RECORDED:
            self._show_part(Part.LIVE)
        if self._part in {Part.LIVE, Part.RACE} and not self._is_running:
            self._is_running = True
            self.bar.hide()
            set_flag(self._prompt.run_button, "stands", "")

    # --- The bar ---

    @Slot()
    def _on_go(self) -> None:
        part = self._part
        if part is Part.GET_CHAT:
            self._models.downloads.get(CHAT_MODEL)
            return
        try:
            if part is Part.ASK_CHAT:
                self._show_part(Part.NOTHING)
                self._choose_chat()
            request = self._controls.request_here(self._prompt.text(), "The introduction")
        except OutriderError as error:
            self.failed.emit(str(error))
            return
        # Only for this run: the controls keep their values.
        if part in {Part.LIVE, Part.RACE}:
            request = replace(request, baseline=True)
        if part is Part.RACE:
            request = replace(request, coupling=Coupling.GUMBEL, verification=VerificationRule.TOKEN)
        self._playback.set_pace(Pace.SLOWED if part is Part.LIVE else Pace.FULL)
        self.run_wanted.emit(request)

    @Slot()
    def _on_leave(self) -> None:
        if self._part is Part.RECORDED:
            self._end_callouts()
            self._playback.pacing.hurry()
        else:
            self._show_part(Part.NOTHING)
            if self._playback.pace.member() is not Pace.FULL:  # Choosing it resumes a run.
                self._playback.set_pace(Pace.FULL)

    @Slot()
    def _on_escape(self) -> None:
        if self._part is Part.RECORDED:
            self._on_leave()

    # --- The chat model ---

    def offer_chat(self) -> None:
        """Offer to get the chat model, or to ask it if it is on this computer."""
        if CHAT_MODEL in self._models.library.refs:
            self._show_part(Part.ASK_CHAT)
        else:
            self._show_part(Part.NOTHING if hub.is_offline() else Part.GET_CHAT)

    def _choose_chat(self) -> None:
        """Choose the chat model as the target, and a question as the prompt unless there is one."""
        self._models.form.choose(ModelRole.TARGET, CHAT_MODEL)
        questions = {preset.text: preset for preset in load_presets() if preset.category == FOR_CHAT}
        if questions and self._prompt.text() not in questions:
            self._prompt.show_preset(next(iter(questions.values())))

    @Slot(object)
    def _on_preset_chosen(self, preset: Preset) -> None:
        self._on_escape()  # The preset is for a run of the user's own.
        target = self._models.library.entry(self._controls.target.ref)
        is_shown = self._part in {Part.GET_CHAT, Part.ASK_CHAT, Part.NO_CHAT}
        if preset.category == FOR_CHAT and target is not None and target.embedded:
            self.offer_chat()
            if self._part is Part.NOTHING:
                self._show_part(Part.NO_CHAT)
        elif is_shown and not self._models.downloads.is_active(CHAT_MODEL):
            self._show_part(Part.NOTHING)

    @Slot(object)
    def _on_download_changed(self, download: Download) -> None:
        if self._part is Part.GET_CHAT and download.ref == CHAT_MODEL:
            self.bar.show_download(download, self._models.downloads)

    @Slot(str)
    def _on_download_dismissed(self, ref: str) -> None:
        if self._part is Part.GET_CHAT and ref == CHAT_MODEL:
            self._show_part(Part.GET_CHAT)

    @Slot(object)
    def _on_model_arrived(self, entry: ModelEntry) -> None:
        if self._part is Part.GET_CHAT and entry.ref == CHAT_MODEL:
            self._show_part(Part.ASK_CHAT)


def callouts_of(step: Step) -> list[tuple[str, str]]:
    """What to say about a step: a title and a text for its draft, its check and its result."""
    count, kept = len(step.drafted), step.num_accepted
    rejected, drawn = step.drafted_texts[kept], step.emitted_texts[kept]
    return [
        (
            "Drafted",
            f"The small draft model guessed {count} tokens: {_quoted(''.join(step.drafted_texts))}. The dashed line "
            "means that they have not been checked yet.",
        ),
        (
            "Being checked",
            f"The target, SmolLM2, reads all {count} at once. That takes little longer than writing one token: "
            "this is where the time is saved.",
        ),
        (
            "Kept or replaced",
            f"SmolLM2 keeps {_quoted(''.join(step.drafted_texts[:kept]))}, and draws {_quoted(drawn)} in place of "
            f"{_quoted(rejected)}. Tokens are kept and replaced so that the text follows the target's distribution "
            "exactly.",
        ),
    ]


def _quoted(text: str) -> str:
    return f"“{text.strip(' ').translate(ON_ONE_LINE)}”"
