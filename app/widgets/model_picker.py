"""Choosing a model: the ones that are here, and a way to open or get another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from PySide6.QtCore import QSignalBlocker, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QComboBox, QVBoxLayout, QWidget

from app.theme import scaled
from app.view_models.model_text import bytes_text
from app.view_models.model_text import describe as describe_model
from app.widgets.fields import WheelGuard, labelled, text_label
from app.widgets.model_items import NOTE_ROLE, REASON_ROLE, ModelItemDelegate
from core.models.catalogue import ModelEntry

REF_ROLE = Qt.ItemDataRole.UserRole
ACTION_ROLE = Qt.ItemDataRole.UserRole + 1
POPUP_WIDTH = 420


class OpenKind(StrEnum):
    """What is opened: safetensors live in a folder, GGUF is a file."""

    FOLDER = "folder"
    GGUF = "gguf"


OPEN_TITLES = {OpenKind.FOLDER: "Open model folder…", OpenKind.GGUF: "Open .gguf file…"}
BROWSE = "browse"
BROWSE_TITLE = "Get more models…"


class ModelCombo(QComboBox):
    """A dropdown whose list is wider than itself, and stays as it is while it is open.

    Signals:
        popup_hidden: the list is closed again.
    """

    popup_hidden = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False
        self.setItemDelegate(ModelItemDelegate(self))

    def showPopup(self) -> None:
        """Open the list, with room for reasons."""
        self.is_open = True
        self.view().setMinimumWidth(max(self.width(), scaled(POPUP_WIDTH)))
        super().showPopup()

    def hidePopup(self) -> None:
        """Close the list; what it shows may change as soon as the choice has been told."""
        super().hidePopup()
        QTimer.singleShot(0, self, self._on_hidden)

    @Slot()
    def _on_hidden(self) -> None:
        self.is_open = False
        self.popup_hidden.emit()


class ModelPicker(QWidget):
    """A dropdown of models, with what is wrong with the choice beneath it.

    Signals:
        model_chosen: the reference that a person chose.
        open_requested: an `OpenKind`; the choice stays as it was.
        browse_requested: more models are wanted; the choice stays as it was.
    """

    model_chosen = Signal(str)
    open_requested = Signal(object)
    browse_requested = Signal()

    def __init__(self, title: str, help_text: str, object_name: str) -> None:
        super().__init__()
        self._ref = ""
        self._wanted = ""
        self._help = help_text
        self._shown: tuple[tuple[ModelEntry, ...], dict[str, str | None]] | None = None
        self.combo = ModelCombo()
        self.combo.setObjectName(object_name)
        self.combo.setMinimumContentsLength(12)
        self.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.combo.setMaxVisibleItems(16)
        self._items = QStandardItemModel(self.combo)
        self.combo.setModel(self._items)
        self.problem_label = text_label("", "problem")
        self.problem_label.setObjectName(object_name.replace("Combo", "Problem"))
        self.problem_label.setWordWrap(True)
        self.problem_label.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(labelled(title, self.combo, help_text))
        layout.addWidget(self.problem_label)
        self._guard = WheelGuard(self)
        self._guard.watch(self.combo)
        self.combo.activated.connect(self._on_activated)

    @property
    def ref(self) -> str:
        """The chosen model's reference; empty if there is none to choose."""
        return self._ref

    @property
    def wanted(self) -> str:
        """The reference that was asked for last, although its model may not be here just now."""
        return self._wanted

    def want(self, ref: str) -> None:
        """Choose this model as soon as, and as long as, it is in the list; takes effect with `show_models`."""
        self._wanted = ref

    def show_models(
        self, entries: Sequence[ModelEntry], *, fallback: str, problems: Mapping[str, str | None] | None = None
    ) -> None:
        """List the models; one with a problem can't be chosen and says why. Without the wanted one: `fallback`."""
        problems = dict(problems or {})
        refs = [entry.ref for entry in entries]
        self._ref = self._wanted if self._wanted in refs else fallback
        shown = (tuple(entries), problems)
        if shown != self._shown and not self.combo.is_open:
            self._shown = shown
            self._fill(entries, problems)
        with QSignalBlocker(self.combo):
            self._show_choice()
        chosen = next((entry for entry in entries if entry.ref == self._ref), None)
        self.combo.setToolTip(describe_model(chosen) if chosen is not None else self._help)

    def show_problem(self, sentence: str | None) -> None:
        """Say what is wrong with the choice; None takes it away."""
        self.problem_label.setText(sentence or "")
        self.problem_label.setVisible(bool(sentence))

    def set_needed(self, is_needed: bool) -> None:
        """Whether the method makes use of this model at all."""
        self.setEnabled(is_needed)

    def _fill(self, entries: Sequence[ModelEntry], problems: Mapping[str, str | None]) -> None:
        with QSignalBlocker(self.combo):
            self._items.clear()
            for entry in entries:
                self._items.appendRow(_model_item(entry, problems.get(entry.ref)))
            if not entries:
                self._items.appendRow(_plain_item("No model here yet", enabled=False))
            self.combo.insertSeparator(self._items.rowCount())
            for action, title in (*OPEN_TITLES.items(), (BROWSE, BROWSE_TITLE)):
                item = _plain_item(title)
                item.setData(str(action), ACTION_ROLE)
                self._items.appendRow(item)

    def _show_choice(self) -> None:
        index = self.combo.findData(self._ref, REF_ROLE)
        self.combo.setCurrentIndex(max(0, index))

    @Slot(int)
    def _on_activated(self, index: int) -> None:
        item = self._items.item(index)
        action, ref = item.data(ACTION_ROLE), item.data(REF_ROLE)
        if action:
            with QSignalBlocker(self.combo):
                self._show_choice()
            if action == BROWSE:
                self.browse_requested.emit()
            else:
                self.open_requested.emit(OpenKind(action))
        elif ref and ref != self._ref:
            self._ref = self._wanted = ref
            self.model_chosen.emit(ref)


def _model_item(entry: ModelEntry, problem: str | None) -> QStandardItem:
    item = _plain_item(entry.title if problem is None else f"{entry.title} (doesn't fit)", enabled=problem is None)
    item.setData(entry.ref, REF_ROLE)
    item.setData(bytes_text(entry.size_bytes), NOTE_ROLE)
    item.setData(problem or "", REASON_ROLE)
    item.setToolTip(problem or describe_model(entry))
    item.setData(item.text() if problem is None else f"{item.text()}: {problem}", Qt.ItemDataRole.AccessibleTextRole)
    return item


def _plain_item(text: str, *, enabled: bool = True) -> QStandardItem:
    item = QStandardItem(text)
    item.setEnabled(enabled)
    item.setEditable(False)
    return item
