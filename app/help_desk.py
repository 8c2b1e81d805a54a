"""What helps a person along: the first hint, the Help window, the list of keys, About."""

from __future__ import annotations

from collections.abc import Callable, Generator

from PySide6.QtCore import QObject, Slot
from PySide6.QtWidgets import QMainWindow

from app.controller import RunController
from app.dialogs import Dialogs
from app.menus import Menus
from app.theme import LIGHT, Theme
from app.turns import Turns, freeze, thaw
from app.view_models.run_view import RunView
from app.widgets.first_hint import FirstHint
from app.widgets.help_page import HelpPage
from app.widgets.status_strip import StatusStrip


class HelpDesk(QObject):
    """Opens what is asked for; the Help window is made when it is first wanted."""

    def __init__(
        self,
        window: QMainWindow,
        menus: Menus,
        run: RunView,
        controller: RunController,
        status: StatusStrip,
        dialogs: Dialogs,
    ) -> None:
        super().__init__(window)
        self._window, self._run, self._status, self._dialogs = window, run, status, dialogs
        self._theme = LIGHT
        self.hint = FirstHint()
        self.hint_seen = False
        self.page: HelpPage | None = None
        self._was_shown = False
        self._turns = Turns(self)
        menus.help.triggered.connect(self.open_method)
        menus.formulas.triggered.connect(self._on_formulas)
        menus.keys.triggered.connect(self._on_keys)
        menus.about.triggered.connect(self._on_about)
        self.hint.help_clicked.connect(self.open_method)
        self.hint.dismissed.connect(self._on_hint_done)
        controller.run_requested.connect(self._on_hint_done)

    def restore(self, *, hint_seen: bool) -> None:
        """Give the hint to who has not seen it."""
        self.hint_seen = hint_seen
        self.hint.setVisible(not hint_seen)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        if self.page is not None:
            self.page.set_theme(theme)

    @Slot()
    def open_method(self) -> None:
        """Explain the method."""
        self._open(lambda page: page.open_method(self._run.steps), is_method=True)

    @Slot()
    def _on_formulas(self) -> None:
        self._open(HelpPage.open_formulas)

    @Slot()
    def _on_keys(self) -> None:
        self._open(HelpPage.open_keys)

    @Slot()
    def _on_about(self) -> None:
        self._dialogs.show_about(self._window, self._status.place.text())

    @Slot()
    def _on_hint_done(self) -> None:
        self.hint_seen = True
        self.hint.hide()

    def close(self) -> None:
        """Close the Help window, or open it no more."""
        self._turns.stop()
        if self.page is not None:
            self.page.close()

    def _open(self, show: Callable[[HelpPage], None], *, is_method: bool = False) -> None:
        if self.page is None:
            self.page = HelpPage(self._window.menuBar(), self._window)
            self.page.set_theme(self._theme)
        is_new = not self._was_shown
        self._turns.start(self._pieces(self.page, show, is_method=is_method, is_new=is_new))
        if not (is_new and self._window.isVisible()):
            self._turns.finish()

    def _pieces(
        self, page: HelpPage, show: Callable[[HelpPage], None], *, is_method: bool, is_new: bool
    ) -> Generator[None]:
        """Make it, lay it out and paint it: each has a turn of the event loop, or more."""
        if is_method:
            yield from page.making()
        if is_new:
            freeze([page], "help")
        try:
            page.show_step(self._run.steps)
            show(page)
            self._was_shown = True
            yield from self._turns.rest()
        finally:
            thaw([page], "help")
        yield from self._turns.rest()
        yield from page.making()
