"""All that is known of one model, and what can be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QFormLayout,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.setup.model_library import UNKNOWN, ModelLibrary, age_text, bytes_text, count_text, kind_text, origin_text
from app.setup.models_form import ModelRole
from app.tools.models.get import OFFLINE
from app.widgets.fields import card, describe, set_flag, text_label
from app.widgets.labels import ElidedLabel
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin

if TYPE_CHECKING:
    from core.models.details import ModelDetails


_SHORT_COMMIT = 12


def facts(entry: ModelEntry, details: ModelDetails | None) -> list[tuple[str, str]]:
    """Name and value, in the order of their weight for a choice."""
    found = [] if details is None else _facts_of_details(details)
    found.append(("Size on disk", bytes_text(entry.size_bytes)))
    found.append(("Format", "GGUF" if entry.format is ModelFormat.GGUF else "safetensors"))
    found.append(("Origin", origin_text(entry)))
    if entry.revision:
        found.append(("Revision", entry.revision[:_SHORT_COMMIT]))
    if entry.last_used is not None:
        found.append(("Last used", age_text(entry.last_used)))
    return found


def _facts_of_details(details: ModelDetails) -> list[tuple[str, str]]:
    shape = f"{details.num_layers} × {details.hidden_size:,}" if details.num_layers else UNKNOWN
    context = f"{details.context_length:,} tokens" if details.context_length else UNKNOWN
    vocabulary = f"{details.vocab_size:,} tokens"
    if details.draft_vocabulary_size is not None:
        vocabulary = f"drafts from {details.draft_vocabulary_size:,} of {vocabulary}"
    return [
        ("Parameters", count_text(details.num_parameters)),
        ("Precision", details.precision),
        ("Context", context),
        ("Vocabulary", vocabulary),
        ("Chat template", "Yes" if details.has_chat_template else "None"),
        ("Architecture", details.architecture),
        ("Layers × width", shape),
    ]


def drafts_text(library: ModelLibrary, entry: ModelEntry) -> str:
    """Which drafts go with a model as the target: those that are here, then those of the catalogue."""
    if reason := library.target_problem(entry.ref):
        return reason
    made = library.made_for(entry.ref)
    here = sorted(library.fitting_drafts(entry.ref), key=lambda draft: draft.ref != made)
    lines = [draft.title for draft in here]
    suggested = library.suggested_drafts(entry.ref)
    lines += [f"{ref.rpartition('/')[2]} (not here yet)" for ref in suggested if library.entry(ref) is None]
    if lines:
        return "\n".join(lines)
    return "Checking…" if library.unchecked_drafts(entry.ref) else "None here. Prompt lookup needs none."


_REMOVABLE = {ModelOrigin.HUB, ModelOrigin.KEPT}
AGAIN_HELP = "Checks every file against the Hub, and downloads those that are damaged"
NOT_OURS = "Only models in the Hub cache, and those that Outrider keeps itself, are deleted from here."


class ModelDetailsPane(QWidget):
    """A card about the selected model.

    Signals:
        use_requested: a `ModelRole` and a reference.
        again_requested: a damaged model's reference, to be got again.
        removal_requested, folder_requested: a reference.
    """

    use_requested = Signal(object, str)
    again_requested = Signal(str)
    removal_requested = Signal(str)
    folder_requested = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._ref = ""
        self.title = ElidedLabel("", "title")
        self.title.setObjectName("detailsTitle")
        self.badge = text_label("", "badge")
        self.name = _selectable(text_label("", "hint"), "detailsRef")
        self.facts = QFormLayout()
        self.problem = text_label("", "problem")
        self.problem.setObjectName("detailsProblem")
        self.again = QPushButton("Get again")
        self.again.setObjectName("getAgainButton")
        self.again.setAutoDefault(False)
        self.set_offline(False)
        self.drafts = _selectable(text_label("", "plain"), "detailsDrafts")
        self.path = _selectable(text_label("", "path"), "detailsPath")
        self.copy = QToolButton()
        self.copy.setText("Copy path")
        self.copy.setObjectName("copyPathButton")
        self.copy.setProperty("role", "quiet")
        self.use_target = QPushButton("Use as target")
        self.use_target.setObjectName("useTargetButton")
        self.use_draft = QPushButton("Use as draft")
        self.use_draft.setObjectName("useDraftButton")
        self.folder = QPushButton("Show in folder")
        self.folder.setObjectName("showFolderButton")
        self.delete = QPushButton("Delete…")
        self.delete.setObjectName("deleteModelButton")
        self.delete.setProperty("role", "danger")
        self._lay_out()
        self.use_target.clicked.connect(self._on_use_target)
        self.use_draft.clicked.connect(self._on_use_draft)
        self.again.clicked.connect(self._on_again)
        self.folder.clicked.connect(self._on_folder)
        self.delete.clicked.connect(self._on_delete)
        self.copy.clicked.connect(self._on_copy)
        describe(self.copy, "Copy the path")

    def _lay_out(self) -> None:
        frame, outer = card()
        head = QHBoxLayout()
        head.setSpacing(8)
        head.addWidget(self.title)
        head.addWidget(self.badge)
        head.addStretch(1)
        self.facts.setHorizontalSpacing(16)
        self.facts.setVerticalSpacing(6)
        self.facts.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        self.facts.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.ExpandingFieldsGrow)
        path_head = QHBoxLayout()
        path_head.addWidget(text_label("Where", "field"))
        path_head.addStretch(1)
        path_head.addWidget(self.copy)
        self._body = QWidget()
        self._body.setObjectName("detailsBody")
        inner = QVBoxLayout(self._body)
        inner.setContentsMargins(0, 0, 8, 0)
        inner.setSpacing(6)
        for label in (self.problem, self.drafts, self.path, self.name):
            label.setWordWrap(True)
        inner.addWidget(self.problem)
        inner.addWidget(self.again, 0, Qt.AlignmentFlag.AlignLeft)
        inner.addLayout(self.facts)
        inner.addSpacing(8)
        inner.addWidget(text_label("Drafts that suit it", "field"))
        inner.addWidget(self.drafts)
        inner.addSpacing(8)
        inner.addLayout(path_head)
        inner.addWidget(self.path)
        inner.addStretch(1)
        scroll = QScrollArea()
        scroll.setObjectName("detailsScroll")
        scroll.setWidget(self._body)
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        buttons = QGridLayout()
        buttons.setSpacing(8)
        for index, button in enumerate((self.use_target, self.use_draft, self.folder, self.delete)):
            button.setAutoDefault(False)
            buttons.addWidget(button, index // 2, index % 2)
        outer.addLayout(head)
        outer.addWidget(self.name)
        outer.addSpacing(4)
        outer.addWidget(scroll, 1)
        outer.addLayout(buttons)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)

    @property
    def ref(self) -> str:
        """The model that is shown; empty if none is."""
        return self._ref

    def show_model(self, library: ModelLibrary, ref: str) -> None:
        """Show one of the library's models."""
        entry = library.entry(ref)
        self._ref = ref if entry is not None else ""
        self._body.setVisible(entry is not None)
        for button in (self.use_target, self.use_draft, self.folder, self.delete):
            button.setEnabled(entry is not None)
        if entry is None:
            self.title.setText("No model selected")
            self.badge.hide()
            self.name.hide()
            return
        problem = library.details_problem(ref)
        badge = "Damaged" if problem else kind_text(entry, library.details(ref))
        self.title.setText(entry.title)
        self.badge.setText(badge)
        set_flag(self.badge, "kind", badge.lower())
        self.badge.setVisible(bool(badge))
        self.name.setText(ref)
        self.name.setVisible(ref not in {entry.title, str(entry.path)})
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))
        self.again.setVisible(bool(problem) and entry.origin in _REMOVABLE)
        self._show_facts(facts(entry, library.details(ref)))
        self.drafts.setText(drafts_text(library, entry))
        self.path.setText(str(entry.path))
        reason = library.target_problem(ref) or ""
        self.use_target.setEnabled(not reason)
        self.use_target.setToolTip(reason)
        self.delete.setEnabled(entry.origin in _REMOVABLE)
        self.delete.setToolTip("" if entry.origin in _REMOVABLE else NOT_OURS)

    def set_offline(self, is_offline: bool) -> None:
        """Whether the network is to be left alone."""
        self.again.setEnabled(not is_offline)
        describe(self.again, "Get this model again", OFFLINE if is_offline else AGAIN_HELP)

    def _show_facts(self, shown: list[tuple[str, str]]) -> None:
        while self.facts.rowCount() > len(shown):
            self.facts.removeRow(self.facts.rowCount() - 1)
        for row, (name, value) in enumerate(shown):
            if row == self.facts.rowCount():
                field = text_label("", "plain")
                field.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
                self.facts.addRow(text_label("", "field"), field)
            for place, text in ((QFormLayout.ItemRole.LabelRole, name), (QFormLayout.ItemRole.FieldRole, value)):
                item = self.facts.itemAt(row, place)
                label = item.widget() if item is not None else None
                if isinstance(label, QLabel):
                    label.setText(text)

    @Slot()
    def _on_use_target(self) -> None:
        self.use_requested.emit(ModelRole.TARGET, self._ref)

    @Slot()
    def _on_use_draft(self) -> None:
        self.use_requested.emit(ModelRole.DRAFT, self._ref)

    @Slot()
    def _on_again(self) -> None:
        self.again_requested.emit(self._ref)

    @Slot()
    def _on_folder(self) -> None:
        self.folder_requested.emit(self._ref)

    @Slot()
    def _on_delete(self) -> None:
        self.removal_requested.emit(self._ref)

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.path.text())


def _selectable(label: QLabel, name: str) -> QLabel:
    label.setObjectName(name)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(
        Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
    )
    return label
