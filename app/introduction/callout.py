"""A callout that points at tokens of the transcript: what is happening to them, in a title and a sentence."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, QRectF
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QFrame

from app.run.text.token_text import TokenText
from app.run.text.tokens import Place
from app.theme import current_theme, hold_font, scaled
from app.widgets.fields import boxed, column, push_button, row, text_label, wrapped_label

WIDTH, LEAST_WIDTH = 380, 300
GAP = 8
ARROW = 9
"""Height of the arrow, and half its width."""
CORNER = 10


class Callout(QFrame):
    """Stands below the tokens that it points at, or above them where there is no room."""

    def __init__(self, view: TokenText) -> None:
        super().__init__(view)
        self._view = view
        self._at = Place(-1, -1)
        self._tip = QPointF()
        self.setObjectName("callout")
        hold_font(self, 13)  # Not the font of the text around it.
        self.place = text_label("", "hint")
        self.title = text_label("", "title")
        self.text = wrapped_label("calloutText", "plain")
        self.next_button = push_button("Next", "calloutNext", "Go on with the recorded run")
        self.next_button.setProperty("role", "primary")
        head = row(self.title, None, self.place)
        self._layout = column(head, self.text, row(None, self.next_button), spacing=6)
        # Room for the arrow above and below.
        boxed(self._layout, self, margins=(14, 10 + ARROW, 12, 10 + ARROW))
        self.hide()

    def show_text(self, place: str, title: str, text: str, at: Place, *, is_last: bool) -> None:
        """Show a callout in place of the last one.

        Args:
            at: the step that it points at, and one of its tokens; the whole block if the slot is -1.
        """
        self._at = at
        self.place.setText(place)
        self.title.setText(title)
        self.text.setText(text)
        self.next_button.setText("Continue" if is_last else "Next")
        self.next_button.setAccessibleName(self.next_button.text())
        self.setAccessibleName(f"{title}: {text}")
        # Over all panels, because a small transcript has no room for it.
        self.setParent(self._view.window())
        self.show()
        self._view.to_end()
        self.fit()

    def fit(self) -> None:
        """Move to the tokens, which may have moved."""
        view, window = self._view, self._view.window()
        port = view.viewport()
        # Tokens that were scrolled out of view are somewhere beyond its lower edge.
        edge = QRect(0, port.height() - 1, port.width(), 1)
        places = [found.toAlignedRect() for found in view.rectangles_of(self._at)] or [edge]
        first, last = (QRect(port.mapTo(window, place.topLeft()), place.size()) for place in (places[0], places[-1]))
        # Within the text if that is wide enough, else within the window.
        room = QRect(port.mapTo(window, port.rect().topLeft()), port.size())
        if room.width() < scaled(LEAST_WIDTH):
            room = window.rect().adjusted(GAP, 0, -GAP, 0)
        width = min(scaled(WIDTH), room.width())
        self.setFixedWidth(width)
        height = self.heightForWidth(width)
        below = last.bottom() + height <= window.height() - GAP
        tip = QPointF(last.center().x(), last.bottom() + 1) if below else QPointF(first.center().x(), first.top() - 1)
        left = min(max(room.left(), round(tip.x() - width / 2)), room.right() + 1 - width)
        top = round(tip.y()) if below else max(GAP, round(tip.y()) - height)
        self.setGeometry(left, top, width, height)
        self._tip = tip - QPointF(left, top)
        self._layout.activate()
        self.update()
        self.raise_()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the frame with its arrow."""
        theme, box = current_theme(), QPainterPath()
        body = QRectF(self.rect()).adjusted(1, ARROW, -1, -ARROW)
        box.addRoundedRect(body, CORNER, CORNER)
        x = min(max(self._tip.x(), body.left() + CORNER + ARROW), body.right() - CORNER - ARROW)
        is_above = self._tip.y() < body.center().y()
        foot, tip = (body.top() + 1, 1.0) if is_above else (body.bottom() - 1, self.height() - 1.0)
        arrow = QPainterPath()
        arrow.addPolygon(QPolygonF([QPointF(x - ARROW, foot), QPointF(x, tip), QPointF(x + ARROW, foot)]))
        arrow.closeSubpath()
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(QColor(theme.accent), 2))
            painter.setBrush(QColor(theme.surface))
            painter.drawPath(box.united(arrow))
