"""Pieces of a window's layout, and how it is kept: the main window's in the settings file, other windows' beside it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from PySide6.QtCore import QByteArray, QCoreApplication, QEvent, QObject, QSettings, QSize, Qt, Signal, Slot
from PySide6.QtGui import QCloseEvent, QKeyEvent
from PySide6.QtWidgets import QSplitter, QTabWidget, QVBoxLayout, QWidget

import app.settings
from app.theme import scaled

LEAST_HEIGHT = 640
MARGINS, HANDLE = 32, 8
ALL = 3
SETTINGS_TITLE = "Settings"
TITLE_BAR = 40
"""Pixels of a window's height for its title bar, which Qt leaves out."""


def splitter(orientation: Qt.Orientation, name: str, *parts: tuple[QWidget, int]) -> QSplitter:
    """Widgets side by side, each with its stretch; none can be collapsed."""
    result = QSplitter(orientation)
    result.setObjectName(name)
    result.setHandleWidth(HANDLE)
    result.setChildrenCollapsible(False)
    for index, (widget, stretch) in enumerate(parts):
        result.addWidget(widget)
        result.setStretchFactor(index, stretch)
    return result


def hold_beside(part: QWidget, width: int) -> None:
    """Give the narrow part of two in a splitter a least width, which it also gets if that has changed."""
    pair, has_changed = part.parentWidget(), part.minimumWidth() != width
    part.setMinimumWidth(width)
    if has_changed and isinstance(pair, QSplitter):
        others = max(1, sum(pair.sizes()) - width)
        pair.setSizes([width if pair.widget(index) is part else others for index in range(pair.count())])


def open_at(window: QWidget, width: int, height: int) -> None:
    """Size, place and splitters as when the window was last closed, or else a size in pixels at a scale of 1, which
    grows with the text; never beyond the screen that there is."""
    window.resize(scaled(width), scaled(height))
    kept, name = _kept_layouts(), window.objectName()
    if isinstance(data := kept.value(f"{name}/geometry"), QByteArray):
        window.restoreGeometry(data)
    for part in window.findChildren(QSplitter):
        if isinstance(data := kept.value(f"{name}/{part.objectName()}"), QByteArray):
            part.restoreState(data)
    fit_screen(window)
    window.installEventFilter(_LayoutKeeper(window))


def _kept_layouts() -> QSettings:
    return QSettings(str(app.settings.config_file().with_name("windows.ini")), QSettings.Format.IniFormat)


class _LayoutKeeper(QObject):
    """Keeps the layout of a window that is closed, for `open_at`."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Hide and not event.spontaneous() and isinstance(watched, QWidget):
            kept, name = _kept_layouts(), watched.objectName()
            kept.setValue(f"{name}/geometry", watched.saveGeometry())
            for part in watched.findChildren(QSplitter):
                kept.setValue(f"{name}/{part.objectName()}", part.saveState())
        return False


def fit_screen(window: QWidget) -> None:
    """Shrink a window that is larger than the screen, as far as its contents allow."""
    room = window.screen().availableSize()
    window.resize(window.size().boundedTo(QSize(room.width(), room.height() - TITLE_BAR)))


def bring_forward(window: QWidget) -> None:
    """Show a window above the others, with the keyboard focus."""
    window.show()
    window.raise_()
    window.activateWindow()


class PageWindow(QWidget):
    """A window for one page that otherwise stands beside the text, under a tab with a title and a tooltip.

    Signals:
        closed: by its own button.
    """

    closed = Signal()

    def __init__(self, owner: QWidget, title: str, tooltip: str) -> None:
        super().__init__(owner, Qt.WindowType.Window)
        self._owner, self.title, self.tooltip = owner, title, tooltip
        self.setObjectName(f"{title.lower()}PageWindow")
        self.setWindowTitle(f"{title} – Outrider")
        self.place = QVBoxLayout(self)
        self.place.setContentsMargins(16, 8, 16, 12)
        open_at(self, 440, 720)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Close, and say so."""
        super().closeEvent(event)
        self.closed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """What no page uses is the main window's, such as Space."""
        QCoreApplication.sendEvent(self._owner, event)


class Columns:
    """A window's columns: settings, text and pages, or as many as fit.

    In a narrow window, the settings are one more page. Each page can be taken out into a window of its own.

    Attributes:
        windows: each page's own window.
        is_narrow: whether the settings are one of the pages.
    """

    def __init__(self, window: QWidget, parts: QSplitter, settings: QWidget, text: QWidget, pages: QTabWidget) -> None:
        self._window, self._parts = window, parts
        self._settings, self._text, self._pages = settings, text, pages
        self._state = QByteArray()
        """The splitter's state before a column left it."""
        self.windows: dict[QWidget, PageWindow] = {}
        for index in range(pages.count()):
            if (page := pages.widget(index)) is not None:
                self.windows[page] = PageWindow(window, pages.tabText(index), pages.tabToolTip(index))
                self.windows[page].closed.connect(partial(self.put_back, page))
        self.is_narrow = False
        self._chosen: list[int] = []
        self._chosen_least = 0
        """The columns' widths as the user left them, and the settings' least width then. A change of the window's or
        the text's size starts from these, so that changing it back restores them."""
        parts.splitterMoved.connect(self.remember)
        self._room = 0
        """The width from which on all columns fit; 0 until `fit`."""

    def fit(self) -> None:
        """Set the columns' least widths: the settings' scales with the text, the others' less or not at all."""
        widths = (max(scaled(272), 228), max(372, scaled(340)), 172 + scaled(160))
        for part, width in zip((self._settings, self._text, self._pages), widths, strict=True):
            part.setMinimumWidth(width)
        settings, text, pages = widths
        self._window.setMinimumSize(text + max(settings, pages) + MARGINS + HANDLE, LEAST_HEIGHT)
        self._room = sum(widths) + MARGINS + 2 * HANDLE
        self.arrange()

    def arrange(self) -> None:
        """Show the pages, if any, and the settings in a column if the window is wide enough for it, else as a page."""
        has_pages = not all(map(self.is_apart, self.windows))
        is_narrow = has_pages and self._window.width() < self._room
        has_column = self._parts.indexOf(self._pages) >= 0
        if is_narrow is self.is_narrow and has_pages is has_column:
            self._lay_out()
            return
        self._keep()
        focus = self._window.focusWidget()
        if is_narrow and not self.is_narrow:
            self._pages.insertTab(0, self._settings, SETTINGS_TITLE)
            self._pages.setTabToolTip(0, "Models, K, temperature and everything else that a run starts with.")
        elif self.is_narrow and not is_narrow:
            self._pages.removeTab(0)
            self._parts.insertWidget(0, self._settings)
            self._settings.show()
        self.is_narrow = is_narrow
        if has_pages and not has_column:
            self._parts.addWidget(self._pages)
            self._pages.show()
        elif has_column and not has_pages:
            self._pages.hide()
            self._pages.setParent(self._window)
        self._lay_out()
        if focus is not None and self._settings.isAncestorOf(focus):
            self.show_settings()
            focus.setFocus()

    def show_settings(self) -> None:
        """Bring the settings to the front, if they are a page."""
        if self.is_narrow:
            self._pages.setCurrentWidget(self._settings)

    def is_apart(self, page: QWidget) -> bool:
        """Whether a page is in its own window."""
        return page in self.windows and self._pages.indexOf(page) < 0

    def show_page(self, page: QWidget) -> None:
        """Bring a page to the front, wherever it is."""
        if self.is_apart(page):
            bring_forward(self.windows[page])
        else:
            self._pages.setCurrentWidget(page)

    def take_out(self, page: QWidget | None) -> None:
        """Move a page into its own window; not the settings."""
        if page not in self.windows or self.is_apart(page):
            return
        self._keep()
        own = self.windows[page]
        own.place.addWidget(page)  # Which takes it from the others.
        page.show()
        self.arrange()
        own.setVisible(self._window.isVisible())

    def put_back(self, page: QWidget) -> None:
        """Move a page back beside the text, and show it."""
        earlier = list(self.windows)[: list(self.windows).index(page)]
        place = self.is_narrow + sum(not self.is_apart(other) for other in earlier)
        own = self.windows[page]
        self._pages.insertTab(place, page, own.title)
        self._pages.setTabToolTip(place, own.tooltip)
        self._pages.setCurrentWidget(page)
        self.arrange()

    @property
    def titles_apart(self) -> tuple[str, ...]:
        """The titles of the pages that are in their own windows."""
        return tuple(own.title for page, own in self.windows.items() if self.is_apart(page))

    def take_out_all(self, titles: Collection[str]) -> None:
        """Move the pages of these titles into their own windows."""
        for page, own in self.windows.items():
            if own.title in titles:
                self.take_out(page)

    def state(self) -> QByteArray:
        """The splitter's state while all three columns are in it, or when they last were."""
        return self._parts.saveState() if self._parts.count() == ALL else self._state

    @Slot()
    def remember(self) -> None:
        """Take the widths of the columns as the user's choice: at first, and when a handle was moved."""
        if self._parts.count() == ALL:
            self._chosen, self._chosen_least = self._parts.sizes(), self._settings.minimumWidth()

    def _keep(self) -> None:
        if self._parts.count() == ALL:
            self._state = self._parts.saveState()

    def _lay_out(self) -> None:
        """Give the settings their width, grown with the text, and the pages their share; the text has the rest."""
        if self._parts.count() != ALL or not self._parts.isVisible():
            return
        self._parts.refresh()  # Handles of columns that just came back count, too.
        if not self._chosen:  # The window was first shown with fewer columns.
            self._parts.restoreState(self._state)
            self.remember()
        room = sum(self._parts.sizes())
        settings = round(self._chosen[0] * self._settings.minimumWidth() / self._chosen_least)
        pages = round(self._chosen[2] * room / sum(self._chosen))
        self._parts.setSizes([settings, room - settings - pages, pages])


def to_text(data: QByteArray) -> str:
    """Qt's own state as base64."""
    return bytes(data.toBase64().data()).decode("ascii")


def from_text(text: str) -> QByteArray:
    """The inverse of `to_text`; invalid text becomes bytes that Qt rejects."""
    return QByteArray.fromBase64(text.encode("ascii", "ignore"))
