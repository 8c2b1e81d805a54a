"""A callout beside a step of the transcript: what is happening to its tokens, in a title and a sentence."""

from __future__ import annotations

from PySide6.QtCore import QRect
from PySide6.QtWidgets import QFrame

from app.run.text.token_text import TokenText
from app.theme import hold_font, scaled
from app.widgets.fields import boxed, column, push_button, row, text_label, wrapped_label

WIDTH = 380
GAP = 8


class Callout(QFrame):
    """Stands below the last step of a text, or above it where there is no room."""

    def __init__(self, view: TokenText) -> None:
        super().__init__(view)
        self._view = view
        self.setObjectName("callout")
        hold_font(self, 13)  # Not that of the text which it stands on.
        self.place = text_label("", "hint")
        self.title = text_label("", "title")
        self.text = wrapped_label("calloutText", "plain")
        self.next_button = push_button("Next", "calloutNext", "Go on with the recorded run")
        head = row(self.title, None, self.place)
        self._layout = column(head, self.text, row(None, self.next_button), spacing=6)
        boxed(self._layout, self, margins=(14, 10, 12, 10))
        self.hide()

    def show_text(self, place: str, title: str, text: str) -> None:
        """Show a callout in place of the last one."""
        self.place.setText(place)
        self.title.setText(title)
        self.text.setText(text)
        self.setAccessibleName(f"{title}: {text}")
        self.show()
        self.fit()

    def fit(self) -> None:
        """Move to the last step, which may have moved."""
        view, window = self._view, self._view.window()
        if self.isHidden():
            return
        if self.parent() is not window:
            # Over all panels, because a small transcript has no room for it.
            self.setParent(window)
            self.show()
        port = view.viewport()
        places = [found.toAlignedRect() for found in view.last_rectangles()] or [port.rect()]
        first, last = (QRect(port.mapTo(window, place.topLeft()), place.size()) for place in (places[0], places[-1]))
        width = min(scaled(WIDTH), window.width() - 2 * GAP)
        self.setFixedWidth(width)
        height = self.heightForWidth(width)
        left = min(first.left(), window.width() - width - GAP)
        below, above = last.bottom() + GAP, first.top() - GAP - height
        has_room = below + height <= window.height() - GAP
        self.setGeometry(max(GAP, left), below if has_room else max(GAP, above), width, height)
        self._layout.activate()
        self.raise_()
