"""Progress bars: filled to a share, busy, and still as soon as they are neither."""

import pytest
from PySide6.QtCore import QAbstractAnimation
from PySide6.QtWidgets import QProgressBar, QVBoxLayout, QWidget

from app.dress import dress, put_in_force
from app.theme import LIGHT
from app.widgets.progress import STEPS, show_share


@pytest.fixture
def bar(qtbot):
    put_in_force(LIGHT)
    window = QWidget()
    qtbot.addWidget(window)
    found = QProgressBar(window)
    QVBoxLayout(window).addWidget(found)
    found.setRange(0, STEPS)
    dress(window)
    window.show()
    qtbot.waitExposed(window)
    found.kept = window  # A parent that nobody holds is gone, and its children with it.
    return found


def is_moving(bar: QProgressBar) -> bool:
    """Whether it goes on drawing itself once it has been drawn as it is now."""
    bar.repaint()
    return any(item.state() is QAbstractAnimation.State.Running for item in bar.findChildren(QAbstractAnimation))


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.5, 1.0])
def test_a_bar_that_was_busy_is_still_again_at_every_share(bar, share):
    show_share(bar, None)
    assert is_moving(bar)
    show_share(bar, share)
    assert not is_moving(bar)
    assert bar.value() / bar.maximum() == pytest.approx(share, abs=1 / STEPS)


def test_a_bar_can_be_busy_again(bar):
    for _ in range(2):
        show_share(bar, 0.3)
        show_share(bar, None)
        assert bar.maximum() == 0
