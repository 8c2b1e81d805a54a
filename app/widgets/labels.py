"""Labels that fit their text to the available room, the banner for messages, and tabbed panels."""

from __future__ import annotations

from PySide6.QtCore import QAbstractAnimation, QEvent, QSize, Qt, Slot
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
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
from app.widgets.fields import boxed, named, plain_tip, row, wrapped_label


class MessageBar(QFrame):
    """A sentence with buttons beside it, hidden while there is none."""

    def __init__(self, object_name: str, label_name: str, role: str, *buttons: QWidget) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.label = wrapped_label(label_name, role)
        self.label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        layout = row((self.label, 1), *buttons)
        for button in buttons:
            layout.setAlignment(button, Qt.AlignmentFlag.AlignTop)
        boxed(layout, self, margins=(12, 6, 6, 6))
        self.hide()

    def sentence(self) -> str:
        """The sentence shown; empty if there is none."""
        return self.label.text() if not self.isHidden() else ""

    @Slot(str)
    def show_sentence(self, sentence: str) -> None:
        """Show a sentence instead of the previous one."""
        self.label.setText(sentence)
        self.setAccessibleName(sentence)
        self.show()

    @Slot()
    def dismiss(self) -> None:
        """Hide the sentence."""
        self.hide()
        self.label.clear()


class Banner(MessageBar):
    """Shows the latest problem until it is dismissed or mended, or a run starts."""

    is_until_changed = False
    """Whether the sentence is about the settings, and goes when they are changed."""

    def __init__(self) -> None:
        self.close_button = named(QToolButton(), "dismissButton", "Dismiss the message")
        self.close_button.setText("Dismiss")
        super().__init__("banner", "bannerText", "", self.close_button)
        self.close_button.clicked.connect(self.dismiss)

    @Slot(str)
    def show_sentence(self, sentence: str) -> None:
        """Show a sentence instead of the previous one."""
        super().show_sentence(sentence)
        self.is_until_changed = False

    @Slot(str)
    def show_until_changed(self, sentence: str) -> None:
        """Show a problem with the settings, the prompt or the models, until one of them is changed."""
        self.show_sentence(sentence)
        self.is_until_changed = True

    @Slot(str)
    def retract(self, sentence: str) -> None:
        """Hide this sentence, whose cause is mended; another one stays."""
        if sentence == self.sentence():
            self.dismiss()

    @Slot()
    def dismiss_if_changed(self) -> None:
        """Hide such a problem."""
        if self.is_until_changed:
            self.dismiss()


MIN_NOTE_HEIGHT = 32


class FittingNote(QLabel):
    """Wraps its sentence, or shows a short form if it would take more than `most_lines`."""

    most_lines = 3

    def __init__(self) -> None:
        super().__init__()
        self.setWordWrap(True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self._whole, self._short = "", ""

    def show_note(self, whole: str, short: str = "") -> None:
        """Show this, or the short form where the whole text is too tall."""
        self._whole, self._short = whole, short or whole
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Choose the text, and ask for its height."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """Fit the text after a change of its size."""
        super().changeEvent(event)
        if event.type() in {QEvent.Type.FontChange, QEvent.Type.StyleChange}:
            self._fit()

    def _fit(self) -> None:
        self.setMinimumHeight(0)  # Otherwise the height could never shrink.
        self.setText(self._whole)
        if self.heightForWidth(self.width()) > self.most_lines * self.fontMetrics().lineSpacing() + 2:
            self.setText(self._short)
        # A layout gives wrapped text its full height only if there is room to spare.
        self.setMinimumHeight(max(scaled(MIN_NOTE_HEIGHT), self.heightForWidth(self.width())))


MIN_WIDTH = 24


class ElidedLabel(QLabel):
    """A one-line label, cut where `elided` says if there is no room for all of it; the tooltip has the whole text."""

    def __init__(
        self,
        text: str,
        role: str,
        *,
        name: str = "",
        takes_all: bool = False,
        elided: Qt.TextElideMode = Qt.TextElideMode.ElideRight,
    ) -> None:
        super().__init__(text)
        self.setObjectName(name)
        self._short, self._elided = "", elided
        self.setProperty("role", role)
        self.setTextFormat(Qt.TextFormat.PlainText)
        wide = QSizePolicy.Policy.Ignored if takes_all else QSizePolicy.Policy.Preferred
        self.setSizePolicy(wide, QSizePolicy.Policy.Fixed)
        self.setToolTip(plain_tip(text))

    def setText(self, text: str) -> None:
        """Show another text; `set_short` comes after it."""
        self._short = ""
        super().setText(text)
        self.setToolTip(plain_tip(text))

    def set_short(self, text: str) -> None:
        """Set what to show if the whole text doesn't fit; empty: its beginning."""
        self._short = text
        self.update()

    def minimumSizeHint(self) -> QSize:
        """A few characters are enough."""
        return QSize(MIN_WIDTH, super().minimumSizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw as much of the text as fits."""
        option = QStyleOption()
        option.initFrom(self)
        with QPainter(self) as painter:
            self.style().drawPrimitive(QStyle.PrimitiveElement.PE_Widget, option, painter, self)
            fits = self.fontMetrics().horizontalAdvance(self.text()) <= self.width()
            text = self.text() if fits or not self._short else self._short
            shown = self.fontMetrics().elidedText(text, self._elided, self.width())
            painter.setPen(self.palette().color(self.foregroundRole()))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, shown)


STEPS = 1000


def show_share(bar: QProgressBar, share: float | None) -> None:
    """Fill a bar to a share from 0 to 1; None: busy, with no end known yet."""
    bar.setRange(0, 0 if share is None else STEPS)
    if share is not None:
        bar.setValue(round(share * STEPS))
        # Otherwise an empty bar that was busy would keep redrawing 30 times a second.
        for movement in bar.findChildren(QAbstractAnimation):
            movement.stop()


class SidePanel(QTabWidget):
    """Pages under tabs."""

    def __init__(self, name: str = "side", title: str = "About this run") -> None:
        """Create a panel named like sidePanel, with tabs like sideTabs; the title is for assistive technology."""
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
        """Add a page under a short title; all tabs must fit into 340 pixels."""
        self.setTabToolTip(self.addTab(page, title), help_text)

    def tabInserted(self, index: int) -> None:
        """Measure the tabs again: Qt did so while the one before the current tab was taken for it, which is bold."""
        super().tabInserted(index)
        QApplication.sendEvent(self.tabBar(), QEvent(QEvent.Type.StyleChange))

    def title(self) -> str:
        """The title of the current page."""
        return self.tabText(self.currentIndex())

    def show_title(self, title: str) -> None:
        """Bring the page of this title to the front, if there is one."""
        for index in range(self.count()):
            if self.tabText(index) == title:
                self.setCurrentIndex(index)
