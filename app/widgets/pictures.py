"""Writes what plots show to files: pictures as pixels or as lines and text, and tables of their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QPointF, QRectF, QSize
from PySide6.QtGui import QImage, QImageWriter, QPainter
from PySide6.QtSvg import QSvgGenerator

from core.text import csv_text

SCALE = 2
"""Pixels in a PNG per pixel on screen."""

Paint = Callable[[QPainter], None]
Table = Mapping[str, Iterable[float | int | str | None]]
"""Columns by name, in order. A name ends in its unit, if any, as in total_ms."""


def table_of(names: Sequence[str], rows: Sequence[Sequence[float | int | str | None]]) -> Table:
    """Rows as a table with these columns."""
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def image_of(size: QSize, paint: Paint) -> QImage:
    """The picture at twice its size on screen."""
    image = QImage(size * SCALE, QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(SCALE)
    with QPainter(image) as painter:
        paint(painter)
    return image


def png_bytes(image: QImage) -> bytes:
    """The contents of a PNG file. May be called in any thread."""
    buffer = _buffer()
    QImageWriter(buffer, QByteArray(b"png")).write(image)
    return bytes(buffer.data().data())


def svg_of(size: QSize, paint: Paint, title: str, *, resolution: int | None = None) -> bytes:
    """The picture as lines and text, at a screen's resolution if given."""
    buffer = _buffer()
    generator = QSvgGenerator(QSvgGenerator.SvgVersion.Svg11)  # The other version doesn't support clipping.
    generator.setOutputDevice(buffer)
    if resolution is not None:
        generator.setResolution(resolution)
    generator.setSize(size)
    generator.setViewBox(QRectF(QPointF(0, 0), size.toSizeF()))
    generator.setTitle(title)
    with QPainter(generator) as painter:
        paint(painter)
    return bytes(buffer.data().data())


def _buffer() -> QBuffer:
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    return buffer


def to_csv(table: Table) -> str:
    """The table below a row of names; cells without a figure are empty."""
    return csv_text(table, zip(*table.values(), strict=True), "{:.6g}".format)
