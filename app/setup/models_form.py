"""Chooses the target and what it drafts from, and shows what is known about the pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from PySide6.QtCore import QSignalBlocker, QSize, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QPainter, QPalette, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QApplication, QComboBox, QStyleOptionViewItem, QWidget

from app.setup.model_library import ModelLibrary
from app.setup.model_library import describe as describe_model
from app.setup.pair import VerdictLine
from app.theme import scaled
from app.widgets.fields import boxed, column, guard_wheel, labelled, plain_tip, set_flag
from app.widgets.title_delegate import NOTE_ROLE, SUBTITLE_ROLE, Index, TitleDelegate
from core.drafters.registry import METHODS, Method, get_method
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
        # Plain texts, which can be compared with those shown.
        models = [(entry, problems.get(entry.ref)) for entry in entries]
        others = [
            (item, f"{item.title} · {chosen.title}" if item.needs_draft_model and chosen is not None else item.title)
            for item in methods
        ]
        shown = (models, others, problems.get(self.ref))
        if shown != self._shown and not self.combo.is_open:
            self._shown = shown
            with QSignalBlocker(self.combo):
                self._items.clear()
                for entry, problem in models:
                    self._items.appendRow(_model_item(entry, problem))
                if not models:
                    self._items.appendRow(_plain_item("No model here yet", enabled=False))
                for item, title in others:
                    problem = problems.get(self.ref) if item.needs_draft_model else None
                    self._items.appendRow(_item(title, problem, item.summary, METHOD_ROLE, item.name))
                self.combo.insertSeparator(self._items.rowCount())
                self._items.appendRow(_plain_item(BROWSE_TITLE))
        self._show_choice()
        is_method = method != DRAFT_MODEL
        tip = get_method(method).summary if is_method else describe_model(chosen) if chosen is not None else self._help
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


def _model_item(entry: ModelEntry, problem: str | None) -> QStandardItem:
    item = _item(entry.title, problem, describe_model(entry), REF_ROLE, entry.ref)
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


class ModelsForm(QWidget):
    """The target, what it drafts from, and the verdict on the pair.

    Signals:
        changed: another model was chosen, or more is known about the chosen ones.
        method_chosen: the name of a drafting method; `DRAFT_MODEL` if a model was chosen.
        draft_chosen: the draft of a pair that was chosen, by its reference; not of one that is restored.
        browse_requested: the user wants more models.
        check_requested: a target, and the drafts to compare with it.

    Attributes:
        method: the chosen drafting method; takes effect with `show_models`.
        served_model: the model that was chosen on a server.
    """

    changed = Signal()
    method_chosen = Signal(str)
    draft_chosen = Signal(str)
    browse_requested = Signal()
    check_requested = Signal(str, object)

    def __init__(self, library: ModelLibrary) -> None:
        super().__init__()
        self.library = library
        self.method = get_method(DRAFT_MODEL)
        self._served: tuple[str, ...] | None = None
        self._drafting = ""
        self.served_model = ""
        self._is_draft_free = False
        """Whether the draft may follow the target: it was not chosen by hand since the target was."""
        self.target = ModelPicker(ModelRole.TARGET, "The model whose distribution the text is drawn from.")
        self.draft = ModelPicker(
            ModelRole.DRAFT,
            "What runs ahead and proposes tokens: a smaller model, a tree of its candidates, or a method.",
        )
        self.verdict = VerdictLine()
        boxed(column(self.target, self.draft, self.verdict), self)
        for picker in (self.target, self.draft):
            picker.model_chosen.connect(self.choose)
            picker.browse_requested.connect(self.browse_requested)
            picker.combo.popup_hidden.connect(self.show_models)
        self.draft.method_chosen.connect(self.method_chosen)

    def set_served(self, names: Sequence[str] | None, drafting: str = "") -> None:
        """Offer a server's models, whose drafting a sentence describes; None offers this machine's again."""
        self._served, self._drafting = None if names is None else tuple(names), drafting
        self.draft.combo.setEnabled(names is None)
        self.verdict.setVisible(names is None)  # Even empty, it would keep its height.
        self.show_models()

    @Slot(object, str)
    def choose(self, role: ModelRole, ref: str) -> None:
        """Choose a model from the library. A draft that is chosen drafts by itself, not in a tree."""
        if self._served is not None and ref in self._served and role is ModelRole.TARGET:
            self.served_model = ref
            self.changed.emit()
            return
        if role is ModelRole.TARGET:
            self.target.wanted = ref
            self._is_draft_free = True
            if made := self.library.made_for(ref):
                self.draft.wanted = made
        else:
            self.draft.wanted = ref
            self._is_draft_free = False
            self.method_chosen.emit(DRAFT_MODEL)
        self.show_models()
        if self._served is None:
            self.draft_chosen.emit(self.draft.ref)
        self.changed.emit()

    @Slot()
    def show_models(self) -> None:
        """List the library's models, and request checks of the unknown pairs; or list a server's models."""
        if self._served is not None:
            self.target.show_served(self._served, self.served_model, "The model on the server that writes the text.")
            self.draft.show_served(("The server's own",), "", self._drafting)
            return
        library = self.library
        problems = {ref: library.target_problem(ref) for ref in library.refs}
        # A drafter that borrows its target's tables is only listed if it was chosen by a log or settings, to say so.
        targets = [entry for entry in library.entries if not problems[entry.ref] or entry.ref == self.target.wanted]
        self.target.show_models(targets, fallback=library.default_target, problems=problems)
        target = self.target.ref
        problems = {ref: library.problem(ref, target) for ref in library.refs}
        # Models that can be chosen come first; Python's sort is stable.
        drafts = sorted(library.entries, key=lambda entry: bool(problems.get(entry.ref)))
        others = [method for method in METHODS.values() if method.name != DRAFT_MODEL]
        self.draft.show_models(
            drafts, fallback=library.default_draft, problems=problems, methods=others, method=self.method.name
        )
        self.target.show_problem(library.target_problem(target))
        self.draft.show_problem(self.problem())
        self.ask(target)

    def problem(self) -> str | None:
        """Why the chosen models can't work together; None if they can, or if it isn't known yet."""
        return self.library.target_problem(self.target.ref) or (
            self.library.problem(self.draft.ref, self.target.ref) if self.method.needs_draft_model else None
        )

    def add_model(self, entry: ModelEntry) -> None:
        """Add a model that was opened."""
        self.library.add(entry)
        self.show_models()
        self.changed.emit()

    def take_problems(self, target: str, problems: Mapping[str, str | None]) -> None:
        """Store which drafts fit a target: by reference, a sentence that says why not, or None."""
        self.library.record(target, problems)
        if target != self.target.ref:
            return
        is_known = not self.library.unchecked_drafts(target)
        if self._is_draft_free and self.problem() and is_known:
            self.draft.wanted = self.library.best_draft(target) or self.draft.wanted
            self.draft_chosen.emit(self.draft.wanted)
        self.show_models()
        self.changed.emit()

    def ask(self, target: str) -> None:
        """Request a check of the drafts that have not been compared with a target, if the model can be one."""
        if target and not self.library.target_problem(target) and (drafts := self.library.take_questions(target)):
            # The chosen one first.
            self.check_requested.emit(target, tuple(sorted(drafts, key=lambda ref: ref != self.draft.ref)))
