"""Chooses the target and the draft, and shows whether they can work together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from PySide6.QtCore import QSignalBlocker, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QPainter, QPalette, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QStyleOptionViewItem,
    QWidget,
)

from app.dialogs import OPEN_TITLES, OpenKind
from app.setup.model_library import ModelLibrary
from app.setup.model_library import describe as describe_model
from app.setup.pair import VerdictLine
from app.setup.setting_fields import problem_label, show_problem
from app.theme import scaled
from app.widgets.fields import WheelGuard, boxed, column, labelled, plain_tip
from app.widgets.title_delegate import NOTE_ROLE, SUBTITLE_ROLE, Index, TitleDelegate
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
        """Draw a model, or the separator between models and actions."""
        if not _is_separator(index):
            super().paint(painter, option, index)
            return
        painter.setPen(QApplication.palette().color(QPalette.ColorRole.AlternateBase))
        middle = option.rect.center().y()
        painter.drawLine(option.rect.left() + self.inset, middle, option.rect.right() - self.inset, middle)


def _is_separator(index: Index) -> bool:
    return bool(index.data(Qt.ItemDataRole.AccessibleDescriptionRole) == "separator")


REF_ROLE = Qt.ItemDataRole.UserRole
ACTION_ROLE = Qt.ItemDataRole.UserRole + 1
POPUP_WIDTH = 420


class ModelRole(StrEnum):
    """The role that a model is chosen for."""

    TARGET = "target"
    DRAFT = "draft"


BROWSE = "browse"
BROWSE_TITLE = "Get more models…"


class ModelCombo(QComboBox):
    """A dropdown with a wide list, which must not change while open; `popup_hidden` is emitted once it has closed."""

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
        """Close the list; it may change once the choice has been emitted."""
        super().hidePopup()
        QTimer.singleShot(0, self, self._on_hidden)

    @Slot()
    def _on_hidden(self) -> None:
        self.is_open = False
        self.popup_hidden.emit()


class ModelPicker(QWidget):
    """A dropdown of models; any problem with the choice is shown below it.

    Signals:
        model_chosen: its `ModelRole`, and the reference that the user chose.
        open_requested: an `OpenKind` and its role; the choice doesn't change.
        browse_requested: the user wants more models; the choice doesn't change.
    """

    model_chosen = Signal(object, str)
    open_requested = Signal(object, object)
    browse_requested = Signal()

    def __init__(self, role: ModelRole, help_text: str) -> None:
        super().__init__()
        self._role, self._help = role, help_text
        self._ref = self._wanted = ""
        self._shown: tuple[tuple[ModelEntry, ...], dict[str, str | None]] | None = None
        self.combo = ModelCombo()
        self.combo.setObjectName(f"{role.value}Combo")
        self.combo.setMinimumContentsLength(12)
        self.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.combo.setMaxVisibleItems(16)
        self._items = QStandardItemModel(self.combo)
        self.combo.setModel(self._items)
        self.problem_label = problem_label(f"{role.value}Problem")
        boxed(column(labelled(role.value.capitalize(), self.combo, help_text), self.problem_label, spacing=4), self)
        WheelGuard(self).watch(self.combo)
        self.combo.activated.connect(self._on_activated)

    @property
    def ref(self) -> str:
        """The chosen model's reference; empty if there is none to choose."""
        return self._ref

    @property
    def wanted(self) -> str:
        """The reference requested last, even if its model is not available now."""
        return self._wanted

    def want(self, ref: str) -> None:
        """Choose this model whenever it is in the list; takes effect with `show_models`."""
        self._wanted = ref

    def show_models(
        self, entries: Sequence[ModelEntry], *, fallback: str, problems: Mapping[str, str | None] | None = None
    ) -> None:
        """List the models; one with a problem can't be chosen and shows why. `fallback` replaces a missing choice."""
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
        self.combo.setToolTip(plain_tip(describe_model(chosen) if chosen is not None else self._help))

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
                self.open_requested.emit(OpenKind(action), self._role)
        elif ref and ref != self._ref:
            self._ref = self._wanted = ref
            self.model_chosen.emit(self._role, ref)


def _model_item(entry: ModelEntry, problem: str | None) -> QStandardItem:
    item = _plain_item(entry.title if problem is None else f"{entry.title} (doesn't fit)", enabled=problem is None)
    item.setData(entry.ref, REF_ROLE)
    item.setData(bytes_text(entry.size_bytes), NOTE_ROLE)
    item.setData(problem or "", SUBTITLE_ROLE)
    item.setToolTip(plain_tip(problem or describe_model(entry)))
    item.setData(item.text() if problem is None else f"{item.text()}: {problem}", Qt.ItemDataRole.AccessibleTextRole)
    return item


def _plain_item(text: str, *, enabled: bool = True) -> QStandardItem:
    item = QStandardItem(text)
    item.setEnabled(enabled)
    item.setEditable(False)
    return item


class ModelsForm(QWidget):
    """The dropdowns for target and draft, and the verdict on the pair.

    Signals:
        changed: another model was chosen, or more is known about the chosen ones.
        draft_chosen: the draft of a pair that was chosen, by its reference; not of one that is restored.
        open_requested: an `OpenKind` and a `ModelRole`.
        browse_requested: the user wants more models.
        check_requested: a target, and the drafts to compare with it.
    """

    changed = Signal()
    draft_chosen = Signal(str)
    open_requested = Signal(object, object)
    browse_requested = Signal()
    check_requested = Signal(str, object)

    def __init__(self, library: ModelLibrary) -> None:
        super().__init__()
        self.library = library
        self._is_draft_needed = True
        self._is_draft_free = False
        """Whether the draft may follow the target: it was not chosen by hand since the target was."""
        self.target = ModelPicker(ModelRole.TARGET, "The model whose distribution the text is drawn from.")
        self.draft = ModelPicker(ModelRole.DRAFT, "The smaller model that runs ahead and proposes tokens.")
        self.verdict = VerdictLine()
        boxed(column(self.target, self.draft, self.verdict), self)
        for picker in (self.target, self.draft):
            picker.model_chosen.connect(self.choose)
            picker.open_requested.connect(self.open_requested)
            picker.browse_requested.connect(self.browse_requested)
            picker.combo.popup_hidden.connect(self.show_models)

    def set_draft_needed(self, is_needed: bool) -> None:
        """Whether the method uses a draft model; takes effect with `show_models`."""
        self._is_draft_needed = is_needed

    @Slot(object, str)
    def choose(self, role: ModelRole, ref: str) -> None:
        """Choose a model from the library."""
        if role is ModelRole.TARGET:
            self.target.want(ref)
            self._is_draft_free = True
            if made := self.library.made_for(ref):
                self.draft.want(made)
        else:
            self.draft.want(ref)
            self._is_draft_free = False
        self.show_models()
        self.draft_chosen.emit(self.draft.ref)
        self.changed.emit()

    @Slot()
    def show_models(self) -> None:
        """List the library's models, and request checks of the unknown pairs."""
        library = self.library
        impossible = {ref: library.target_problem(ref) for ref in library.refs}
        self.target.show_models(library.entries, fallback=library.default_target, problems=impossible)
        target = self.target.ref
        show_problem(self.target.problem_label, impossible.get(target))
        problems = {ref: library.problem(ref, target) for ref in library.refs} if self._is_draft_needed else {}
        # Models that can be chosen come first; Python's sort is stable.
        drafts = sorted(library.entries, key=lambda entry: bool(problems.get(entry.ref)))
        self.draft.show_models(drafts, fallback=library.default_draft, problems=problems)
        self.draft.setEnabled(self._is_draft_needed)
        show_problem(self.draft.problem_label, problems.get(self.draft.ref))
        self.ask(target)

    def problem(self) -> str | None:
        """Why the chosen models can't work together; None if they can, or if it isn't known yet."""
        return self.library.target_problem(self.target.ref) or (
            self.library.problem(self.draft.ref, self.target.ref) if self._is_draft_needed else None
        )

    def open_model(self, entry: ModelEntry, role: ModelRole | None) -> None:
        """Add a model, and choose it for the role that it was opened for; None if it is from an earlier session."""
        self.library.add(entry)
        if role is not None:
            self.choose(role, entry.ref)
        else:
            self.show_models()
            self.changed.emit()

    def take_problems(self, target: str, problems: Mapping[str, str | None]) -> None:
        """Store which drafts fit a target: by reference, a sentence that says why not, or None."""
        self.library.record(target, problems)
        if target != self.target.ref:
            return
        is_known = not self.library.unchecked_drafts(target)
        if self._is_draft_free and self.problem() and is_known:
            self.draft.want(self.library.best_draft(target) or self.draft.wanted)
            self.draft_chosen.emit(self.draft.wanted)
        self.show_models()
        self.changed.emit()

    def ask(self, target: str) -> None:
        """Request a check of the drafts that have not been compared with a target."""
        if target and (drafts := self.library.take_questions(target)):
            # The chosen one first.
            self.check_requested.emit(target, tuple(sorted(drafts, key=lambda ref: ref != self.draft.ref)))
