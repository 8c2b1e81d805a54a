"""A dropdown of models, with their sizes and why some can't be chosen; for a draft, of the other methods, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from PySide6.QtCore import QSignalBlocker, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QPainter, QPalette, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QApplication, QComboBox, QStyleOptionViewItem, QWidget

from app.setup.model_library import model_text, titles_of
from app.theme import scaled
from app.widgets.fields import boxed, column, guard_wheel, labelled, plain_tip, set_flag
from app.widgets.title_delegate import NOTE_ROLE, SUBTITLE_ROLE, Index, TitleDelegate
from core.drafters.registry import Method, get_method
from core.models.catalogue import ModelEntry
from core.text import bytes_text

LINE_HEIGHT, REASON_HEIGHT, SEPARATOR_HEIGHT = 28, 18, 9


class ModelItemDelegate(TitleDelegate):
    """A model in a dropdown: title and size, and below them why it can't be chosen, if so."""

    inset = 8

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """One line, or two."""
        width = super().sizeHint(option, index).width()
        if _is_separator(index):
            return QSize(width, SEPARATOR_HEIGHT)
        return QSize(width, scaled(LINE_HEIGHT + (REASON_HEIGHT if index.data(SUBTITLE_ROLE) else 0)))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Draw a model, or the separator before the last entry."""
        if not _is_separator(index):
            super().paint(painter, option, index)
            return
        painter.setPen(QApplication.palette().color(QPalette.ColorRole.AlternateBase))
        middle = option.rect.center().y()
        painter.drawLine(option.rect.left() + self.inset, middle, option.rect.right() - self.inset, middle)


def _is_separator(index: Index) -> bool:
    return bool(index.data(Qt.ItemDataRole.AccessibleDescriptionRole) == "separator")


REF_ROLE = Qt.ItemDataRole.UserRole
METHOD_ROLE = Qt.ItemDataRole.UserRole + 1
POPUP_WIDTH = 420


class ModelRole(StrEnum):
    """The role that a model is chosen for."""

    TARGET = "target"
    DRAFT = "draft"


TITLES = {ModelRole.TARGET: "Target", ModelRole.DRAFT: "Drafts from"}
BROWSE_TITLE = "More models…"
DRAFT_MODEL = "draft-model"
"""The method whose choices are the models themselves."""


class ModelCombo(QComboBox):
    """A dropdown with a wide list, which must not change while open; `popup_hidden` is emitted once it has closed."""

    popup_hidden = Signal()

    def __init__(self, object_name: str) -> None:
        super().__init__()
        self.is_open = False
        self.setObjectName(object_name)
        self.setSizeAdjustPolicy(self.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setItemDelegate(ModelItemDelegate(self))
        guard_wheel(self)

    def showPopup(self) -> None:
        """Open the list, with room for reasons."""
        self.is_open = True
        self.view().setMinimumWidth(max(self.width(), scaled(POPUP_WIDTH)))
        super().showPopup()

    def hidePopup(self) -> None:
        """Close the list; it may change once the choice has been emitted."""
        super().hidePopup()
        QTimer.singleShot(0, self, self._on_hidden)

    @Slot()
    def _on_hidden(self) -> None:
        self.is_open = False
        self.popup_hidden.emit()


class ModelPicker(QWidget):
    """A dropdown of models, and for a draft of the other methods, too.

    Signals:
        model_chosen: its `ModelRole`, and the reference that was chosen.
        method_chosen: the name of the method that was chosen.
        browse_requested: the user wants more models; the choice doesn't change.

    Attributes:
        ref: the chosen model's reference; empty if there is none to choose.
        wanted: the reference of the model to choose whenever it is in the list; takes effect with `show_models`.
    """

    model_chosen = Signal(object, str)
    method_chosen = Signal(str)
    browse_requested = Signal()

    def __init__(self, role: ModelRole, help_text: str) -> None:
        super().__init__()
        self._role, self._help = role, help_text
        self.ref = self.wanted = ""
        self._method = DRAFT_MODEL
        self._is_served = False
        self._shown: object = None
        self.combo = ModelCombo(f"{role.value}Combo")
        self.combo.setMinimumContentsLength(12)
        self.combo.setMaxVisibleItems(16)
        self._items = QStandardItemModel(self.combo)
        self.combo.setModel(self._items)
        boxed(column(labelled(TITLES[role], self.combo, help_text)), self)
        self.combo.currentIndexChanged.connect(self._on_chosen)
        self.combo.activated.connect(self._on_activated)

    def show_models(
        self,
        entries: Sequence[ModelEntry],
        *,
        fallback: str,
        problems: Mapping[str, str | None],
        methods: Sequence[Method] = (),
        method: str = DRAFT_MODEL,
    ) -> None:
        """List the models, then the methods; what has a problem can't be chosen and shows why.

        Args:
            fallback: replaces a missing choice.
            problems: why a model can't be chosen, by reference.
            methods: those that are offered beside the models.
            method: the chosen one.
        """
        self._is_served = False
        self.ref = self.wanted if self.wanted in [entry.ref for entry in entries] else fallback
        self._method = method
        chosen = next((entry for entry in entries if entry.ref == self.ref), None)
        titles = titles_of(entries)
        # Plain texts, which can be compared with those shown.
        models = [(entry, problems.get(entry.ref)) for entry in entries]
        others = [
            (
                item,
                f"{item.title} · {titles[chosen.ref]}" if item.needs_draft_model and chosen is not None else item.title,
            )
            for item in methods
        ]
        shown = (models, others, problems.get(self.ref))
        if shown != self._shown and not self.combo.is_open:
            self._shown = shown
            with QSignalBlocker(self.combo):
                self._items.clear()
                for entry, problem in models:
                    self._items.appendRow(_model_item(entry, titles[entry.ref], problem))
                if not models:
                    self._items.appendRow(_plain_item("No model here yet", enabled=False))
                for item, title in others:
                    problem = problems.get(self.ref) if item.needs_draft_model else None
                    self._items.appendRow(_item(title, problem, item.summary, METHOD_ROLE, item.name))
                self.combo.insertSeparator(self._items.rowCount())
                self._items.appendRow(_plain_item(BROWSE_TITLE))
        self._show_choice()
        is_method = method != DRAFT_MODEL
        tip = get_method(method).summary if is_method else model_text(chosen) if chosen is not None else self._help
        self.combo.setToolTip(plain_tip(tip))
        self.combo.setAccessibleDescription(self._help)

    def show_served(self, names: Sequence[str], chosen: str, help_text: str) -> None:
        """List what a server has in place of this machine's models, which stay wanted."""
        self._is_served, self._shown, self._method = True, None, DRAFT_MODEL
        self.ref = chosen if chosen in names else next(iter(names), "")
        with QSignalBlocker(self.combo):
            self._items.clear()
            for name in names:
                item = _plain_item(name)
                item.setData(name, REF_ROLE)
                self._items.appendRow(item)
        self._show_choice()
        self.combo.setToolTip(plain_tip(help_text))
        self.combo.setAccessibleDescription(help_text)
        self.show_problem(None)

    def show_problem(self, problem: str | None) -> None:
        """Mark a choice that can't be run; the reason stands beside Run."""
        set_flag(self.combo, "invalid", bool(problem))

    def _show_choice(self) -> None:
        is_model = self._method == DRAFT_MODEL
        found = self.combo.findData(*((self.ref, REF_ROLE) if is_model else (self._method, METHOD_ROLE)))
        with QSignalBlocker(self.combo):
            self.combo.setCurrentIndex(max(0, found))

    @Slot(int)
    def _on_chosen(self, index: int) -> None:
        item = self._items.item(index)
        ref, method = (item.data(role) for role in (REF_ROLE, METHOD_ROLE)) if item is not None else ("", "")
        if method:
            self._method = method
            self.method_chosen.emit(method)
        elif ref:
            self.ref = ref
            self.wanted = self.wanted if self._is_served else ref
            self._method = DRAFT_MODEL
            self.model_chosen.emit(self._role, ref)
        elif not self.combo.is_open:  # Else `activated` follows, of the item that is current then.
            self._show_choice()

    @Slot(int)
    def _on_activated(self, index: int) -> None:
        if index == self.combo.count() - 1 and not self._is_served:
            self._show_choice()
            self.browse_requested.emit()


def _model_item(entry: ModelEntry, title: str, problem: str | None) -> QStandardItem:
    item = _item(title, problem, model_text(entry), REF_ROLE, entry.ref)
    item.setData(bytes_text(entry.size_bytes), NOTE_ROLE)
    return item


def _item(title: str, problem: str | None, tip: str, role: int, value: str) -> QStandardItem:
    item = _plain_item(title if problem is None else f"{title} (not compatible)", enabled=problem is None)
    item.setData(value, role)
    item.setData(problem or "", SUBTITLE_ROLE)
    item.setToolTip(plain_tip(problem or tip))
    item.setData(item.text() if problem is None else f"{item.text()}: {problem}", Qt.ItemDataRole.AccessibleTextRole)
    return item


def _plain_item(text: str, *, enabled: bool = True) -> QStandardItem:
    item = QStandardItem(text)
    item.setEnabled(enabled)
    item.setEditable(False)
    return item
