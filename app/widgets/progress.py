"""Progress bars that are filled to a share, or busy."""

from __future__ import annotations

from PySide6.QtCore import QAbstractAnimation
from PySide6.QtWidgets import QProgressBar

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
