"""Shows the window as it was left, and saves what changes: settings, prompt, theme, pages and layout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Slot
from PySide6.QtGui import QTextCursor

from app.settings import SettingsStore, remember_model
from app.theme import text_scale
from app.window_layout import from_text, to_text

if TYPE_CHECKING:
    from app.main_window import MainWindow

SAVE_DELAY_MS = 1_000
"""How long after the last change the settings and the prompt are saved."""


class WindowState(QObject):
    """What a window shows of the settings file, and writes to it.

    Attributes:
        settings: what was last loaded or saved.
        saving: saves a while after its last start.
    """

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._store = SettingsStore()
        self.settings = self._store.load()
        self.saving = QTimer(self, singleShot=True, interval=SAVE_DELAY_MS)
        self.saving.timeout.connect(self.save)

    def restore(self) -> None:
        """Show the settings in the window, which must be whole."""
        window, settings = self._window, self.settings
        window.resize(1280, 800)
        window.main_splitter.setSizes([296, 552, 384])
        window.text_splitter.setSizes([230, 460])
        if settings.geometry:
            window.restoreGeometry(from_text(settings.geometry))
        window.menus.theme_actions[settings.theme].setChecked(True)
        window.menus.show_scale(settings.text_scale)
        for item in (window.main_splitter, window.text_splitter):
            if state := settings.splitters.get(item.objectName()):
                item.restoreState(from_text(state))
        window.columns.take_out_all(settings.pages_apart)
        window.columns.fit()
        window.transcript.set_ghosts_shown(settings.show_ghosts)
        window.menus.show_ghosts.setChecked(settings.show_ghosts)
        window.transcript.colors.choose(settings.color_by)
        window.menus.show_previous.setChecked(settings.show_previous)
        window.prompt.edit.setPlainText(settings.run.prompt)  # Which can't be undone.
        window.prompt.edit.moveCursor(QTextCursor.MoveOperation.End)
        window.prompt.edit.setFocus()
        window.controls.engine.servers.update(settings.servers)
        window.controls.apply(settings.run)
        window.controls.advanced.set_open(settings.is_advanced_open)
        window.models.recall(*settings.opened_models, settings.run.target, settings.run.draft)
        window.introduction.is_seen = settings.introduction_seen
        window.side.show_title(settings.side_page)
        if self._store.problem:
            window.banner.show_sentence(self._store.problem)

    @Slot(str)
    def remember_model(self, ref: str) -> None:
        """Keep a model that was opened from a file or folder."""
        self.settings = remember_model(self.settings, ref)
        self.save()

    @Slot()
    def save(self) -> None:
        """Write what the window shows; a failure is shown above the text."""
        self.saving.stop()
        window = self._window
        self.settings = replace(
            self.settings,
            theme=window.appearance.mode,
            text_scale=text_scale(),
            introduction_seen=window.introduction.is_seen,
            side_page=window.side.title(),
            show_ghosts=window.menus.show_ghosts.isChecked(),
            color_by=window.transcript.colors.member(),
            show_previous=window.menus.show_previous.isChecked(),
            geometry=to_text(window.saveGeometry()),
            pages_apart=window.columns.titles_apart,
            is_advanced_open=window.controls.advanced.button.isChecked(),
            servers=dict(window.controls.engine.servers),
            splitters={**self.settings.splitters, **self.splitters()},
            run=window.controls.settings(window.prompt.text()),
        )
        if sentence := self._store.save(self.settings):
            window.starter.fail(sentence)

    def splitters(self) -> dict[str, str]:
        """The state of both splitters; while the prompt is folded, not of the one below it."""
        window = self._window
        found = {window.main_splitter.objectName(): to_text(window.columns.state())}
        if not window.prompt.is_folded:
            found[window.text_splitter.objectName()] = to_text(window.text_splitter.saveState())
        return found
