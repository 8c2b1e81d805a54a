"""Rewind and branch: offers tokens for the selected place, and starts a run that continues from there."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from app.controller import RunState
from app.dialogs import Dialogs
from app.menus import key_text
from app.run.inspector.places import siblings, whole_evidence
from app.run.inspector.shares import percent, show
from app.run.live import LiveView
from app.run.playback import PlaybackBar
from app.run.run_view import RunView
from app.run.text.tokens import Place
from app.widgets.fields import plain_tip
from core.draft_length import request_fields
from core.errors import OutriderError
from core.runlog.replay import request_from_config
from core.settings import RunRequest
from core.types import Event, Step

MOST_CHOICES = 12
_NUM_SEEDS = 2**31


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that may be forced; its `target_prob` is after temperature and filters, None if unknown."""

    token_id: int
    text: str
    target_prob: float | None
    is_emitted: bool


def can_branch(run: RunView, place: Place | None) -> bool:
    """Whether a run can be rewound to a place: a token was emitted there, and nothing needed is missing.

    A damaged log may lack settings, or tokens before the place.
    """
    if run.request is None or run.started is None or run.is_on_server:
        return False
    if place is None or not 0 <= place.step < len(run.steps):
        return False
    config = run.started.config
    try:
        request_from_config(config)
        settings_at(run.request, run.steps[place.step])
    except OutriderError:
        return False
    before = (config.get("prompt_token_ids") or (), config.get("continuation_token_ids") or ())
    position = sum(map(len, before)) + sum(len(step.emitted) for step in run.steps[: place.step])
    step = run.steps[place.step]
    return place.slot in step.slots and step.position == position


def choices(run: RunView, place: Place) -> list[Choice]:
    """Tokens that may be forced at a place: those in its evidence, and those emitted and drafted, most likely first."""
    step, slot = run.steps[place.step], place.slot
    at = step.slots.index(slot)
    emitted = step.emitted[at]
    nodes = siblings(step, slot) if slot < step.num_draft_tokens else []
    evidence = whole_evidence(step, slot)
    # The target's probabilities of later candidates are what the earlier ones leave.
    probs = {step.drafted[node]: step.target_probs[node] for node in nodes[:1]}
    texts: dict[int, str] = {}
    if evidence is not None:
        probs = dict(zip(evidence.ids, map(float, evidence.target_probs), strict=True))
        listed = zip(evidence.ids, evidence.texts, strict=True)
        texts = dict(sorted(listed, key=lambda entry: -probs[entry[0]])[:MOST_CHOICES])
    texts.setdefault(emitted, step.emitted_texts[at])
    for node in nodes:
        texts.setdefault(step.drafted[node], step.drafted_texts[node])
    order = list(texts) if evidence is None else sorted(texts, key=lambda token: -probs.get(token, 0.0))
    return [Choice(token, texts[token], probs.get(token), token == emitted) for token in order]


def settings_at(request: RunRequest, step: Step) -> RunRequest:
    """A run's request with the temperature and K in force at a step, so far as its log has them.

    Raises:
        SettingsError: no run can have them; a damaged log may hold anything.
    """
    temperature = request.sampling.temperature if math.isnan(step.temperature) else step.temperature
    length = request.draft_length if step.draft_length is None else step.draft_length
    sampling = replace(request.sampling, temperature=temperature)
    return replace(request, sampling=sampling, **request_fields(length))


def branch(
    run: RunView, place: Place, *, forced: tuple[int, ...] = (), forced_text: str = "", new_seed: bool = False
) -> RunRequest:
    """The request that continues a run from before a place, with the settings in force there and the run's length.

    A forced text doesn't count towards that length. A forced token does, and keeps the seed: at temperature 0 or with
    shared noise the same token leads to the same text.
    """
    request, started = run.request, run.started
    assert request is not None
    assert started is not None
    written = [token for step in run.steps[: place.step] for token in step.emitted]
    step = run.steps[place.step]
    written += step.emitted[: step.slots.index(place.slot)]
    before = started.config.get("continuation_token_ids") or ()
    return replace(
        settings_at(request, step),
        continuation=(*before, *written),
        forced=forced,
        forced_text=forced_text,
        max_new_tokens=max(1, request.max_new_tokens - len(written) - len(forced)),
        seed=secrets.randbelow(_NUM_SEEDS) if new_seed else request.seed,
    )


@dataclass(frozen=True, slots=True)
class Before:
    """A run left for a branch: what shows it again, and the branch's request, which identifies the branch."""

    request: RunRequest
    events: tuple[Event, ...]
    title: str
    branch: RunRequest


KEYS = key_text("Ctrl+B")
HELP = f"Rewind to before the selected token, draw again or force another token, and continue from there ({KEYS})"
SELECT_FIRST, PAUSE_FIRST = f"Select a token first, to branch from it ({KEYS})", "Pause the run first (Space)"
WAIT_FIRST = "Wait until the run and its baseline are over, or stop (Esc)"
NO_BRANCH = "No run can branch from this place."
BEFORE_TITLE = "before the branch"
LONGEST = 24
MOST_LEFT = 8
"""Most runs kept for going back from branches of branches; all are among the kept runs anyway."""
ON_A_SERVER = "A branch needs the models on this machine; a server can't continue from a token."
AT_ZERO = "At temperature 0 nothing is drawn; force another token."
AT_THE_END = "After this token the run has its requested length, so nothing could follow."


class Branching(QObject):
    """Fills the branch menu for the selected token, starts what is chosen there, and goes back from it.

    Signals:
        undone: the `RunRequest` of the run that is shown again.
    """

    undone = Signal(object)

    def __init__(
        self,
        window: QWidget,
        bar: PlaybackBar,
        live: LiveView,
        dialogs: Dialogs,
        start: Callable[[RunRequest], None],
    ) -> None:
        super().__init__(window)
        self._window = window
        self._bar, self._controller, self._run, self._selection = bar, bar.controller, bar.run, bar.selection
        self._action, self._undo = bar.menus.branch, bar.menus.undo_branch
        self._dialogs = dialogs
        self._start = start
        self._then: Callable[[], None] | None = None
        """What follows when the run on screen, which was told to stop, has ended."""
        self._left: list[Before] = []
        self._selection.changed.connect(self._show)
        self._controller.state_changed.connect(self._show)
        bar.pace_changed.connect(self._show)
        self._live = live
        live.run_shown.connect(self._on_run_shown)
        live.run_replaced.connect(self._show)
        self._bar.branch_menu.aboutToShow.connect(self._on_menu_wanted)
        bar.view.menu_opening.connect(self._on_context_menu)
        self._action.triggered.connect(self._bar.branch_button.showMenu)
        self._undo.triggered.connect(self._on_undo)
        self._show()

    @property
    def _place(self) -> Place | None:
        """The selected place, if the run can be rewound to it."""
        is_still = self._controller.state in {RunState.IDLE, RunState.PAUSED}
        place = self._selection.place
        return place if is_still and can_branch(self._run, place) else None

    @Slot()
    def _show(self) -> None:
        self._bar.branch_button.setToolTip(plain_tip(self._tip()))
        self._bar.branch_button.setEnabled(self._place is not None)
        self._action.setEnabled(self._place is not None)
        self._undo.setEnabled(self._can_undo)

    def _tip(self) -> str:
        """What the button does, or why it can't."""
        if self._run.is_on_server:
            return ON_A_SERVER
        if self._place is not None:
            return HELP
        if self._selection.place is None:
            return SELECT_FIRST
        if self._controller.state in {RunState.IDLE, RunState.PAUSED}:
            return NO_BRANCH
        # The pause of a slowed text doesn't pause the engine, and a baseline has none.
        can_pause = self._bar.pause_button.isEnabled() and not self._bar.pacing.is_slow
        return PAUSE_FIRST if can_pause else WAIT_FIRST

    @Slot()
    def _on_menu_wanted(self) -> None:
        self._bar.branch_menu.clear()
        self._fill(self._bar.branch_menu)

    @Slot(QMenu)
    def _on_context_menu(self, menu: QMenu) -> None:
        menu.addSeparator()
        submenu = menu.addMenu("Branch from here")
        submenu.setToolTipsVisible(True)
        submenu.setEnabled(self._place is not None)
        self._fill(submenu)
        menu.addAction(self._undo)

    def _fill(self, menu: QMenu) -> None:
        place = self._place
        if place is None:
            return
        step = self._run.steps[place.step]
        menu.addAction(f"Continue from before {_quoted(step.emitted_texts[step.slots.index(place.slot)])}").setEnabled(
            False
        )
        again = self._add(menu, "Draw again, with a new seed", partial(branch, self._run, place, new_seed=True))
        if step.temperature <= 0:
            again.setEnabled(False)
            again.setToolTip(AT_ZERO)
        menu.addSeparator()
        has_room = branch(self._run, place).max_new_tokens > 1
        for choice in choices(self._run, place):
            force = self._add(menu, _title(choice), partial(branch, self._run, place, forced=(choice.token_id,)))
            if not has_room:
                force.setEnabled(False)
                force.setToolTip(AT_THE_END)
        menu.addSeparator()
        menu.addAction("Force text…").triggered.connect(lambda: self._force_text(place))

    def _add(self, menu: QMenu, title: str, request: Callable[[], RunRequest]) -> QAction:
        action = menu.addAction(title)
        action.triggered.connect(lambda: self._go(request()))
        return action

    def _force_text(self, place: Place) -> None:
        step = self._run.steps[place.step]
        text = self._dialogs.ask_forced_text(self._window, step.emitted_texts[step.slots.index(place.slot)])
        # Another run may have been started meanwhile.
        if text and place == self._place:
            self._go(branch(self._run, place, forced_text=text))

    def _go(self, request: RunRequest) -> None:
        if self._controller.state is RunState.PAUSED:
            self._then = partial(self._leave, request)
            self._controller.stop()
        else:
            self._leave(request)

    def _leave(self, request: RunRequest) -> None:
        """Start a branch, and keep what shows the run it branches off; nothing is kept if it doesn't start."""
        self._live.finish()
        before, events = self._run.request, self._run.past_events()
        title = self._live.kept_title or BEFORE_TITLE
        self._start(request)
        if before is not None and self._live.upcoming is not None:
            self._left.append(Before(before, events, title, self._live.upcoming))
            del self._left[:-MOST_LEFT]
        self._show()

    @property
    def _can_undo(self) -> bool:
        """Whether the run on screen is a branch that can be left: another run has its own past."""
        is_branch = bool(self._left) and self._left[-1].branch is self._run.request
        return is_branch and self._controller.state is not RunState.STOPPING and self._then is None

    @Slot()
    def _on_undo(self) -> None:
        """Go back to the run that was left. The branch is among the kept runs, like every run."""
        if not self._can_undo:
            return
        if self._controller.state is RunState.IDLE:
            self._live.finish()
            before = self._left.pop()
            self._selection.clear()
            self._live.show_kept(before.request, before.events, before.title)
            self.undone.emit(before.request)
        else:
            self._then = self._on_undo
            self._controller.stop()
            self._live.finish()

    @Slot()
    def _on_run_shown(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
        elif self._live.upcoming is None:
            # A branch that didn't start, or that another run has replaced, can't be left any more.
            while self._left and self._left[-1].branch is not self._run.request:
                self._left.pop()
        self._show()


def _title(choice: Choice) -> str:
    """A token in a menu: its text, its probability, and whether it was emitted there."""
    title = f"Force {_quoted(choice.text) if choice.text else f'token {choice.token_id}'}"
    if choice.is_emitted:
        title += " (as it was)"
    # A menu shows text after a tab in its own column.
    is_known = choice.target_prob is not None and math.isfinite(choice.target_prob)
    return f"{title}\t{percent(choice.target_prob or 0.0)}" if is_known else title


def _quoted(text: str) -> str:
    shown = show(text)
    shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"
    # An ampersand would underline the next letter.
    return f"“{shown}”".replace("&", "&&") if text else "a token without text"
