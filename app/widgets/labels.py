"""Columns of pages under tabs: what is known about the run, on the right; its text and its race, in the middle."""

from __future__ import annotations

from PySide6.QtCore import QAbstractAnimation, QEvent, QSize, Qt, Signal, Slot
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QSizePolicy,
    QStyle,
    QStyleOption,
    QTabWidget,
    QToolButton,
    QWidget,
)

from app.theme import scaled


class Banner(QFrame):
    """Shows the latest sentence until it is dismissed or a run starts."""

    dismissed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.label = QLabel()
        self.label.setObjectName("bannerText")
        self.label.setWordWrap(True)
        self.label.setTextFormat(Qt.TextFormat.PlainText)
        self.label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.close_button = QToolButton()
        self.close_button.setObjectName("dismissButton")
        self.close_button.setText("Dismiss")
        self.close_button.setAccessibleName("Dismiss the message")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 6, 6, 6)
        layout.setSpacing(12)
        layout.addWidget(self.label, 1)
        layout.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignTop)
        self.close_button.clicked.connect(self.dismiss)
        self.hide()

    def sentence(self) -> str:
        """What is shown; empty if nothing is."""
        return self.label.text() if not self.isHidden() else ""

    @Slot(str)
    def show_sentence(self, sentence: str) -> None:
        """Show a sentence in place of the one before."""
        self.label.setText(sentence)
        self.setAccessibleName(sentence)
        self.show()

    @Slot()
    def dismiss(self) -> None:
        """Take the sentence away."""
        self.hide()
        self.label.clear()
        self.dismissed.emit()


class FittingButton(QToolButton):
    """Shows its whole text, or the short one, but never a part of either as long as the short one has room."""

    def __init__(self, text: str, short: str) -> None:
        super().__init__()
        self._whole, self._short = text, short
        self.setText(text)
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        """Room for the whole text, whichever is shown."""
        return self._room_for(self._whole)

    def minimumSizeHint(self) -> QSize:
        """Room for the short one."""
        return self._room_for(self._short)

    def _room_for(self, text: str) -> QSize:
        hint, metrics = super().sizeHint(), self.fontMetrics()
        more = metrics.horizontalAdvance(text) - metrics.horizontalAdvance(self.text())
        return QSize(hint.width() + more, hint.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Choose the text that fits."""
        super().resizeEvent(event)
        self.setText(self._whole if self.width() >= self.sizeHint().width() else self._short)


MOST_LINES = 3
LEAST_HEIGHT = 32


class FittingNote(QLabel):
    """Wraps its sentence. One that would take more than three lines gives way to its short form, if it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.setWordWrap(True)
        self._whole, self._short = "", ""

    def show_note(self, whole: str, short: str = "") -> None:
        """Say this, or the short form where the whole one would tower above its neighbours."""
        self._whole, self._short = whole, short or whole
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Choose the words, and ask for their height."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """The text has another size."""
        super().changeEvent(event)
        if event.type() in {QEvent.Type.FontChange, QEvent.Type.StyleChange}:
            self._fit()

    def _fit(self) -> None:
        self.setMinimumHeight(0)  # or no text would take less than the one before it
        self.setText(self._whole)
        if self.heightForWidth(self.width()) > MOST_LINES * self.fontMetrics().lineSpacing() + 2:
            self.setText(self._short)
        # A layout gives a wrapped text its height only where it has some to spare.
        self.setMinimumHeight(max(scaled(LEAST_HEIGHT), self.heightForWidth(self.width())))


MIN_WIDTH = 24


class ElidedLabel(QLabel):
    """A label in one line, cut short where there is no room; the tooltip has all of it."""

    def __init__(self, text: str, role: str, *, takes_all: bool = False) -> None:
        super().__init__(text)
        self._short = ""
        self.setProperty("role", role)
        self.setTextFormat(Qt.TextFormat.PlainText)
        wide = QSizePolicy.Policy.Ignored if takes_all else QSizePolicy.Policy.Preferred
        self.setSizePolicy(wide, QSizePolicy.Policy.Fixed)
        self.setToolTip(text)

    def setText(self, text: str) -> None:
        """Show another text."""
        super().setText(text)
        self.setToolTip(text)

    def set_short(self, text: str) -> None:
        """What to show where the whole text has no room; empty: the beginning of it."""
        self._short = text
        self.update()

    def minimumSizeHint(self) -> QSize:
        """Next to nothing is enough."""
        return QSize(MIN_WIDTH, super().minimumSizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw as much of the text as there is room for."""
        option = QStyleOption()
        option.initFrom(self)
        with QPainter(self) as painter:
            self.style().drawPrimitive(QStyle.PrimitiveElement.PE_Widget, option, painter, self)
            shown = self.fontMetrics().elidedText(self.shown_text(), Qt.TextElideMode.ElideRight, self.width())
            painter.setPen(self.palette().color(self.foregroundRole()))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, shown)

    def shown_text(self) -> str:
        """The whole text, or the short one where that alone has room."""
        fits = self.fontMetrics().horizontalAdvance(self.text()) <= self.width()
        return self.text() if fits or not self._short else self._short


STEPS = 1000


def show_share(bar: QProgressBar, share: float | None) -> None:
    """Fill a bar to a share from 0 to 1; None: busy, with no end in sight yet."""
    maximum = 0 if share is None else STEPS
    value = round((share or 0.0) * STEPS)
    if (bar.maximum(), bar.value()) == (maximum, value) or (maximum == 0 == bar.maximum()):
        return
    # A progress bar paints itself at once, and with it all that waits to be painted; it should wait its turn.
    bar.setUpdatesEnabled(False)
    bar.setMaximum(maximum)
    if share is not None:
        bar.setValue(value)
        # Where nothing of it is filled, a bar that was busy would go on moving unseen, and draw 30 times a second.
        for movement in bar.findChildren(QAbstractAnimation):
            movement.stop()
    bar.setUpdatesEnabled(True)


class SidePanel(QTabWidget):
    """Pages under tabs; each page is a panel that stands for itself."""

    def __init__(self, name: str = "side", title: str = "About this run") -> None:
        """Name the column, as sidePanel, and its tabs, as sideTabs; the title is for assistive technology."""
        super().__init__()
        self.setObjectName(f"{name}Panel")
        self.setAccessibleName(title)
        self.setProperty("role", "pages")
        self.setDocumentMode(True)
        self.tabBar().setDrawBase(False)
        self.tabBar().setExpanding(False)
        self.tabBar().setObjectName(f"{name}Tabs")
        self.tabBar().setAccessibleName(f"Pages: {title}")

    def add_page(self, title: str, page: QWidget, help_text: str) -> None:
        """Add a page behind the others.

        Args:
            title: one or two short words; all tabs must fit into 340 pixels.
            page: the panel.
            help_text: what it shows, in a sentence.
        """
        self.setTabToolTip(self.addTab(page, title), help_text)

    def title(self) -> str:
        """The page at the front, by its title."""
        return self.tabText(self.currentIndex())

    def show_title(self, title: str) -> None:
        """Bring the page of this title to the front, if there is one."""
        for index in range(self.count()):
            if self.tabText(index) == title:
                self.setCurrentIndex(index)

    def show_page(self, page: QWidget) -> None:
        """Bring a page to the front."""
        self.setCurrentWidget(page)
