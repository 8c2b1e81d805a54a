"""How many tokens are drafted: K by hand, or chosen as the run goes."""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QCheckBox, QVBoxLayout, QWidget

from app.widgets.fields import describe
from app.widgets.slider_spin import SliderSpin
from core.types import MAX_DRAFT_TOKENS


class DraftLengthForm(QWidget):
    """K as a slider and a spin box, with a tick for the engine's own choice.

    Signals:
        changed: the new K, or None where the engine chooses; live during a run.
    """

    changed = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.number = SliderSpin(
            "K, draft tokens",
            "How many tokens are drafted before the target tests them in one forward. Live during a run.",
            name="k",
            low=1,
            high=MAX_DRAFT_TOKENS,
        )
        self.auto = QCheckBox("Auto")
        self.auto.setObjectName("autoKCheck")
        describe(
            self.auto,
            "Choose K automatically",
            "Choose K before each step from what forwards cost here and how much was accepted lately. That may be 0, "
            "plain decoding, where drafting doesn't pay. K then follows this machine's timing: a seed repeats its text "
            "only with Reproducible, or at temperature 0.",
        )
        self.number.add_beside_label(self.auto)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.number)
        self.number.value_changed.connect(self._on_number_changed)
        self.auto.toggled.connect(self._on_auto_toggled)

    def value(self) -> int | None:
        """K, or None where the engine chooses."""
        return None if self.auto.isChecked() else int(self.number.value())

    @Slot(float)
    def _on_number_changed(self, _value: float) -> None:
        self.changed.emit(self.value())

    @Slot(bool)
    def _on_auto_toggled(self, is_auto: bool) -> None:
        self.number.slider.setEnabled(not is_auto)
        self.number.spin.setEnabled(not is_auto)
        self.changed.emit(self.value())
