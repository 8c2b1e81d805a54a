"""How many tokens are drafted: K by hand, or chosen as the run goes."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.text_size import hold
from app.widgets.fields import EnumCombo, WheelGuard, describe
from app.widgets.slider_spin import SPIN_WIDTH, SliderSpin
from core.draft_length import DraftLength
from core.types import MAX_DRAFT_TOKENS, LengthPolicy

TITLES = {LengthPolicy.FIXED: "Fixed", LengthPolicy.AUTO: "Auto", LengthPolicy.ADAPTIVE: "Adaptive"}
HELP = (
    "Fixed: K as it is set here, in every step.\n"
    "Auto: before each step, from what forwards cost here and how much was accepted lately; 0, plain decoding, where "
    "drafting doesn't pay.\n"
    "Adaptive: as Auto, and a block ends early where the draft is unsure of its own tokens.\n"
    "With the last two K follows this machine's timing: a seed repeats its text only with Reproducible, or at "
    "temperature 0."
)


class DraftLengthForm(QWidget):
    """K as a slider and a spin box, and who chooses it.

    Signals:
        changed: the new K, or the policy that chooses it; live during a run.
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
        self.policy = EnumCombo(TITLES, "kPolicyCombo")
        hold(self.policy, width=SPIN_WIDTH)
        describe(self.policy, "How K is chosen", HELP)
        for index, line in enumerate(HELP.splitlines()[: len(TITLES)]):
            self.policy.setItemData(index, line, Qt.ItemDataRole.ToolTipRole)
        self._guard = WheelGuard(self)
        self._guard.watch(self.policy)
        self.number.add_above_number(self.policy)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.number)
        self.number.value_changed.connect(self._on_number_changed)
        self.policy.currentIndexChanged.connect(self._on_policy_changed)

    def value(self) -> DraftLength:
        """K, or the policy that chooses it."""
        policy = self.policy.member()
        return int(self.number.value()) if policy is LengthPolicy.FIXED else policy

    @Slot(float)
    def _on_number_changed(self, _value: float) -> None:
        self.changed.emit(self.value())

    @Slot(int)
    def _on_policy_changed(self, _index: int) -> None:
        is_fixed = self.policy.member() is LengthPolicy.FIXED
        self.number.slider.setEnabled(is_fixed)
        self.number.spin.setEnabled(is_fixed)
        self.changed.emit(self.value())
