"""Larger and smaller text, in the whole window at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget

from app.theme import scaled, text_scale

SCALES = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
DEFAULT_SCALE = 1.0
SIZED_FOR = "sizedFor"
"""Property of a window that has seen another scale than that in force when it was made: the scale that its text has."""
_LENGTHS = {"width": "setFixedWidth", "height": "setFixedHeight", "least_width": "setMinimumWidth",
            "least_height": "setMinimumHeight"}  # fmt: skip


def nearest_scale(scale: float) -> float:
    """One of `SCALES`."""
    return min(SCALES, key=lambda known: abs(known - scale))


def next_scale(scale: float, steps: int) -> float:
    """The scale so many steps larger, or smaller; the last one at the end."""
    index = SCALES.index(nearest_scale(scale)) + steps
    return SCALES[max(0, min(index, len(SCALES) - 1))]


def hold(widget: QWidget, **lengths: int) -> None:
    """Give a widget fixed or least lengths that go with the text.

    Args:
        lengths: width, height: fixed; least_width, least_height: minima. Pixels at the scale of 1.
    """
    widget.setProperty("heldLengths", lengths)
    for name, pixels in lengths.items():
        getattr(widget, _LENGTHS[name])(scaled(pixels))


def put_scale_in_force(scale: float, windows: Iterable[QWidget]) -> None:
    """Have all that is made from now on at this scale; these windows, made by now, take it over by `follow_scale`."""
    application = QApplication.instance()
    if application is None:
        return
    for window in windows:
        if window.property(SIZED_FOR) is None and not _is_popup(window):
            window.setProperty(SIZED_FOR, text_scale())
    application.setProperty("textScale", scale)


def follow_scale(window: QWidget) -> None:
    """Take all text of one window, without those that open out of it, to the scale in force.

    A widget with lengths of its own that go with the text has a method `rescale`, which takes them over.
    """
    before = window.property(SIZED_FOR)
    if before is None or before == text_scale():
        return
    window.setProperty(SIZED_FOR, text_scale())
    widgets = list(_widgets_of(window))
    for widget in widgets:
        if widget.testAttribute(Qt.WidgetAttribute.WA_SetFont):
            _rescale_font(widget, before)
        if lengths := widget.property("heldLengths"):
            hold(widget, **lengths)
    for widget in widgets:
        # By its name: to ask for a protocol takes as long for each widget as all else here.
        if rescale := getattr(widget, "rescale", None):
            rescale()


def _widgets_of(window: QWidget) -> Iterator[QWidget]:
    yield window
    for child in window.children():
        # A list that drops down goes with what it drops from, whose font it takes over.
        if isinstance(child, QWidget) and (not child.isWindow() or _is_popup(child)):
            yield from _widgets_of(child)


def _is_popup(widget: QWidget) -> bool:
    return widget.windowType() == Qt.WindowType.Popup


def _rescale_font(widget: QWidget, before: float) -> None:
    font = widget.font()
    if font.pixelSize() <= 0:
        return  # A size in points is the desktop's, not ours.
    # The size that it was made at is kept, or rounding would wear it away.
    drawn_at = widget.property("fontPixels") or 0
    if drawn_at and scaled(drawn_at) == font.pixelSize():
        return  # Whatever set it did so after the scale came into force.
    if round(drawn_at * before) != font.pixelSize():
        drawn_at = round(font.pixelSize() / before)
    widget.setProperty("fontPixels", drawn_at)
    font.setPixelSize(scaled(drawn_at))
    widget.setFont(font)
