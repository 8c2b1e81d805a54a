"""Pictures as files: whatever can be drawn, as pixels or as lines and text."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QPointF, QRectF, QSize
from PySide6.QtGui import QImage, QImageWriter, QPainter
from PySide6.QtSvg import QSvgGenerator

SCALE = 2
"""Pixels of a PNG for each pixel on screen."""

Paint = Callable[[QPainter], None]


def png_of(size: QSize, paint: Paint) -> bytes:
    """The picture at twice its size on screen."""
    return png_bytes(image_of(size, paint))


def image_of(size: QSize, paint: Paint) -> QImage:
    """The picture's pixels, twice as many as on screen in both directions."""
    image = QImage(size * SCALE, QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(SCALE)
    painter = QPainter(image)
    paint(painter)
    painter.end()
    return image


def png_bytes(image: QImage) -> bytes:
    """A file's contents. May be called in any thread."""
    buffer = _buffer()
    QImageWriter(buffer, QByteArray(b"png")).write(image)
    return bytes(buffer.data().data())


def svg_of(size: QSize, paint: Paint, title: str, *, resolution: int | None = None) -> bytes:
    """The picture as lines and text; at a screen's resolution where that is given."""
    buffer = _buffer()
    generator = QSvgGenerator()
    generator.setOutputDevice(buffer)
    if resolution is not None:
        generator.setResolution(resolution)
    generator.setSize(size)
    generator.setViewBox(QRectF(QPointF(0, 0), size.toSizeF()))
    generator.setTitle(title)
    painter = QPainter(generator)
    paint(painter)
    painter.end()
    return bytes(buffer.data().data())


def _buffer() -> QBuffer:
    """To write into. Whoever writes does not own it, so that it is held until the end."""
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    return buffer
