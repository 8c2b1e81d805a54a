"""How much is generated, where, and whether the baseline is measured beside it."""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QCheckBox, QGridLayout, QSpinBox, QWidget

from app.settings import MAX_NEW_TOKENS, ChatTemplate
from app.widgets.fields import EnumCombo, WheelGuard, describe, labelled
from core.types import Device, DType


class RunForm(QWidget):
    """Length, chat template, device, number format, baseline."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.length = QSpinBox()
        self.length.setObjectName("lengthSpin")
        self.length.setRange(1, MAX_NEW_TOKENS)
        self.length.setSingleStep(16)
        self.chat = EnumCombo({ChatTemplate.AUTO: "Auto", ChatTemplate.ON: "On", ChatTemplate.OFF: "Off"}, "chatCombo")
        self.device = EnumCombo(
            {Device.AUTO: "Auto", Device.CPU: "CPU", Device.CUDA: "CUDA", Device.MPS: "MPS"}, "deviceCombo"
        )
        self.dtype = EnumCombo(
            {DType.AUTO: "Auto", DType.FLOAT32: "float32", DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16"},
            "dtypeCombo",
        )
        self.baseline = QCheckBox("Measure the baseline")
        self.baseline.setObjectName("baselineCheck")
        describe(
            self.baseline,
            "Measure the baseline",
            "The target alone, with the same settings and the same limit of new tokens, after the run.",
        )
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(labelled("New tokens", self.length, "The run ends after this many, or earlier."), 0, 0)
        chat_help = "Put the prompt through the target's chat template. Auto: if the target has one."
        layout.addWidget(labelled("Chat template", self.chat, chat_help), 0, 1)
        layout.addWidget(labelled("Device", self.device, "Where the models run. Auto: the fastest there is."), 1, 0)
        dtype_help = "The number format of the weights. Auto: what suits the device."
        layout.addWidget(labelled("Number format", self.dtype, dtype_help), 1, 1)
        layout.addWidget(self.baseline, 2, 0, 1, 2)
        layout.setColumnStretch(0, 1)
        layout.setColumnStretch(1, 1)
        self._guard = WheelGuard(self)
        self._guard.watch(self.length, self.chat, self.device, self.dtype)
        self.length.valueChanged.connect(self._on_changed)
        for combo in (self.chat, self.device, self.dtype):
            combo.currentIndexChanged.connect(self._on_changed)
        self.baseline.toggled.connect(self._on_changed)

    @Slot()
    def _on_changed(self) -> None:
        self.changed.emit()
