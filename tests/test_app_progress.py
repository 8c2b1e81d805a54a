"""Progress bars: filled to a share, busy, and still as soon as they are neither."""

import pytest
from PySide6.QtCore import QAbstractAnimation, QCoreApplication, QEvent
from PySide6.QtWidgets import QProgressBar, QVBoxLayout, QWidget

from app.theme import LIGHT, apply_style
from app.widgets.labels import STEPS, show_share


@pytest.fixture
def bar(qtbot):
    apply_style(LIGHT)
    window = QWidget()
    qtbot.addWidget(window)
    found = QProgressBar(window)
    QVBoxLayout(window).addWidget(found)
    found.setTextVisible(False)
    found.setRange(0, STEPS)
    window.show()
    qtbot.waitExposed(window)
    found.kept = window  # A parent that nobody holds is gone, and its children with it.
    return found


def is_moving(bar: QProgressBar) -> bool:
    """Whether it goes on drawing itself once it has been drawn as it is now."""
    bar.repaint()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    return any(item.state() is QAbstractAnimation.State.Running for item in bar.findChildren(QAbstractAnimation))


@pytest.mark.parametrize(("share", "width"), [(0.0, 40), (0.0001, 200), (0.003, 600), (0.5, 40), (1.0, 200)])
def test_a_bar_that_was_busy_is_still_again_at_every_share(bar, share, width):
    bar.setFixedWidth(width)
    show_share(bar, None)
    assert is_moving(bar)
    show_share(bar, share)
    assert not is_moving(bar)
    assert bar.value() / bar.maximum() == pytest.approx(share, abs=1 / STEPS)
