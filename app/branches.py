"""Rewind and branch: offers what may stand in a token's place, and starts the run that continues from there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QObject, Slot
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from app.controller import RunState
from app.dialogs import Dialogs
from app.live_view import LiveView
from app.playback import PlaybackDesk
from app.view_models.branching import Choice, branch, can_branch, choices, emitted_text, is_drawn
from app.view_models.laws import percent, show
from app.view_models.selection import Place
from core.types import RunRequest

LONGEST = 24
AT_ZERO = "At temperature 0 nothing is drawn; force another token."


class BranchDesk(QObject):
    """Fills the branch menu for the token that is selected, and starts what is chosen there."""

    def __init__(
        self,
        window: QWidget,
        playback: PlaybackDesk,
        live: LiveView,
        dialogs: Dialogs,
        start: Callable[[RunRequest], None],
    ) -> None:
        super().__init__(window)
        self._window = window
        self._controller = playback.controller
        self._run = playback.run
        self._selection = playback.selection
        self._bar = playback.bar
        self._action = playback.menus.branch
        self._dialogs = dialogs
        self._start = start
        self._waiting: RunRequest | None = None
        """To be started when the paused run, which it branches off, has ended."""
        self._selection.changed.connect(self._on_selected)
        self._controller.state_changed.connect(self._on_state_changed)
        live.run_shown.connect(self._on_run_shown)
        self._bar.branch_menu.aboutToShow.connect(self._on_menu_wanted)
        playback.view.menu_opening.connect(self._on_context_menu)
        self._action.triggered.connect(self._bar.branch_button.showMenu)

    @property
    def _place(self) -> Place | None:
        """Where a run could be gone back to, if anywhere."""
        is_still = self._controller.state in {RunState.IDLE, RunState.PAUSED}
        place = self._selection.place
        return place if is_still and can_branch(self._run, place) else None

    def _show(self) -> None:
        self._bar.set_branchable(self._place is not None)
        self._action.setEnabled(self._place is not None)

    @Slot()
    def _on_menu_wanted(self) -> None:
        self._bar.branch_menu.clear()
        self._fill(self._bar.branch_menu)

    @Slot(QMenu)
    def _on_context_menu(self, menu: QMenu) -> None:
        menu.addSeparator()
        submenu = menu.addMenu("Branch from here")
        submenu.setEnabled(self._place is not None)
        self._fill(submenu)

    def _fill(self, menu: QMenu) -> None:
        place = self._place
        if place is None:
            return
        menu.setToolTipsVisible(True)
        heading = menu.addAction(f"Continue from before {_quoted(emitted_text(self._run, place))}")
        heading.setEnabled(False)
        again = self._add(menu, "Draw again, with a new seed", partial(branch, self._run, place, new_seed=True))
        if not is_drawn(self._run, place):
            again.setEnabled(False)
            again.setToolTip(AT_ZERO)
        menu.addSeparator()
        for choice in choices(self._run, place):
            self._add(menu, _title(choice), partial(branch, self._run, place, forced=(choice.token_id,)))
        menu.addSeparator()
        menu.addAction("Force a text…").triggered.connect(lambda: self._force_text(place))

    def _add(self, menu: QMenu, title: str, request: Callable[[], RunRequest]) -> QAction:
        action = menu.addAction(title)
        action.triggered.connect(lambda: self._go(request()))
        return action

    def _force_text(self, place: Place) -> None:
        text = self._dialogs.ask_forced_text(self._window, emitted_text(self._run, place))
        # A run may have been started from elsewhere meanwhile.
        if text and place == self._place:
            self._go(branch(self._run, place, forced_text=text))

    def _go(self, request: RunRequest) -> None:
        if self._controller.state is RunState.PAUSED:
            self._waiting = request
            self._controller.stop()
        else:
            self._start(request)

    @Slot()
    def _on_run_shown(self) -> None:
        request, self._waiting = self._waiting, None
        if request is not None:
            self._start(request)
        self._show()

    @Slot(object)
    def _on_selected(self, _place: Place | None) -> None:
        self._show()

    @Slot(object)
    def _on_state_changed(self, _state: RunState) -> None:
        self._show()


def _title(choice: Choice) -> str:
    """A token in a menu: its text, how likely it is, and whether it is what stands there."""
    title = f"Force {_quoted(choice.text) if choice.text else f'token {choice.token_id}'}"
    if choice.is_emitted:
        title += " (as it was)"
    # A menu sets what stands behind a tab in a column of its own.
    return title if choice.target_prob is None else f"{title}\t{percent(choice.target_prob)}"


def _quoted(text: str) -> str:
    shown = show(text)
    shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"
    # An ampersand would underline the letter behind it.
    return f"“{shown}”".replace("&", "&&") if text else "a token without text"
