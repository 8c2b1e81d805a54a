"""The card about the selected model: everything known about it, and the actions on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFormLayout, QGridLayout, QLabel, QVBoxLayout, QWidget

from app.setup.model_library import (
    ORIGINS,
    REMOVABLE,
    UNKNOWN,
    ModelLibrary,
    age_text,
    bytes_text,
    count_text,
    kind_text,
)
from app.setup.models_form import ModelRole
from app.tools.models.suggestions import OFFLINE
from app.widgets.fields import (
    card,
    describe,
    push_button,
    quiet_button,
    row,
    scrolled,
    set_flag,
    text_label,
    wrapped_label,
)
from app.widgets.labels import ElidedLabel
from core.models.catalogue import ModelEntry, ModelFormat

if TYPE_CHECKING:
    from core.models.details import ModelDetails

AGAIN_HELP = "Check every file against the Hub, and download damaged ones again"
NOT_OURS = "Only models in the Hub cache and those kept by Outrider can be deleted here."
_SHORT_COMMIT = 12


def facts(entry: ModelEntry, details: ModelDetails | None) -> list[tuple[str, str]]:
    """Names and values, starting with those that matter most for choosing a model."""
    found: list[tuple[str, str]] = []
    if details is not None:
        vocabulary = f"{details.vocab_size:,} tokens"
        if details.draft_vocabulary_size is not None:
            vocabulary = f"drafts from {details.draft_vocabulary_size:,} of {vocabulary}"
        shape = f"{details.num_layers} × {details.hidden_size:,}" if details.num_layers else UNKNOWN
        found += [
            ("Parameters", count_text(details.num_parameters)),
            ("Precision", details.precision),
            ("Context", f"{details.context_length:,} tokens" if details.context_length else UNKNOWN),
            ("Vocabulary", vocabulary),
            ("Chat template", "Yes" if details.has_chat_template else "None"),
            ("Architecture", details.architecture),
            ("Layers × width", shape),
        ]
    found += [
        ("Size on disk", bytes_text(entry.size_bytes)),
        ("Format", "GGUF" if entry.format is ModelFormat.GGUF else "safetensors"),
        ("Origin", ORIGINS[entry.origin]),
    ]
    if entry.revision:
        found.append(("Revision", entry.revision[:_SHORT_COMMIT]))
    if entry.last_used is not None:
        found.append(("Last used", age_text(entry.last_used)))
    return found


class ModelDetailsPane(QWidget):
    """A card about the selected model.

    Signals:
        use_requested: a `ModelRole` and a reference.
        again_requested: the reference of a damaged model, to download it again.
        removal_requested, folder_requested: a reference.
    """

    use_requested = Signal(object, str)
    again_requested = Signal(str)
    removal_requested = Signal(str)
    folder_requested = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.ref = ""
        """Reference of the shown model; empty if there is none."""
        self.title = ElidedLabel("", "title")
        self.title.setObjectName("detailsTitle")
        self.badge = text_label("", "badge")
        self.name = wrapped_label("detailsRef", "hint")
        self.facts = QFormLayout()
        self.facts.setHorizontalSpacing(16)
        self.facts.setVerticalSpacing(6)
        self.facts.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        self.facts.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.ExpandingFieldsGrow)
        self.problem = wrapped_label("detailsProblem", "problem")
        self.again = push_button("Get again", "getAgainButton", "")
        self.drafts = wrapped_label("detailsDrafts", "plain")
        self.path = wrapped_label("detailsPath", "path")
        self.copy = quiet_button("Copy path", "copyPathButton", "Copy the path", "")
        self.use_target = push_button("Use as target", "useTargetButton", "")
        self.use_draft = push_button("Use as draft", "useDraftButton", "")
        self.folder = push_button("Show in folder", "showFolderButton", "")
        self.delete = push_button("Delete…", "deleteModelButton", "")
        self.delete.setProperty("role", "danger")
        self._buttons = (self.use_target, self.use_draft, self.folder, self.delete)
        self.set_offline(False)
        self._lay_out()
        self.use_target.clicked.connect(lambda: self.use_requested.emit(ModelRole.TARGET, self.ref))
        self.use_draft.clicked.connect(lambda: self.use_requested.emit(ModelRole.DRAFT, self.ref))
        self.again.clicked.connect(lambda: self.again_requested.emit(self.ref))
        self.folder.clicked.connect(lambda: self.folder_requested.emit(self.ref))
        self.delete.clicked.connect(lambda: self.removal_requested.emit(self.ref))
        self.copy.clicked.connect(self._on_copy)

    def _lay_out(self) -> None:
        self._body = QWidget()
        self._body.setObjectName("detailsBody")
        inner = QVBoxLayout(self._body)
        inner.setContentsMargins(0, 0, 8, 0)
        inner.setSpacing(6)
        inner.addWidget(self.problem)
        inner.addWidget(self.again, 0, Qt.AlignmentFlag.AlignLeft)
        inner.addLayout(self.facts)
        inner.addSpacing(8)
        inner.addWidget(text_label("Drafts that suit it", "field"))
        inner.addWidget(self.drafts)
        inner.addSpacing(8)
        inner.addLayout(row(text_label("Where", "field"), None, self.copy))
        inner.addWidget(self.path)
        inner.addStretch(1)
        buttons = QGridLayout()
        buttons.setSpacing(8)
        for index, button in enumerate(self._buttons):
            buttons.addWidget(button, index // 2, index % 2)
        frame, _ = card(
            row(self.title, self.badge, None), self.name, (scrolled(self._body, "detailsScroll"), 1), buttons
        )
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)

    def show_model(self, library: ModelLibrary, ref: str) -> None:
        """Show a model from the library."""
        entry = library.entry(ref)
        self.ref = ref if entry is not None else ""
        self._body.setVisible(entry is not None)
        for button in self._buttons:
            button.setEnabled(entry is not None)
        if entry is None:
            self.title.setText("No model selected")
            self.badge.hide()
            self.name.hide()
            return
        problem, details = library.details_problem(ref), library.details(ref)
        badge = "Damaged" if problem else kind_text(entry, details)
        self.title.setText(entry.title)
        self.badge.setText(badge)
        set_flag(self.badge, "kind", badge.lower())
        self.badge.setVisible(bool(badge))
        self.name.setText(ref)
        self.name.setVisible(ref not in {entry.title, str(entry.path)})
        self.problem.setText(problem)
        self.problem.setVisible(bool(problem))
        is_removable = entry.origin in REMOVABLE
        self.again.setVisible(bool(problem) and is_removable)
        self._show_facts(facts(entry, details))
        self.drafts.setText(library.drafts_text(ref))
        self.path.setText(str(entry.path))
        reason = library.target_problem(ref) or ""
        self.use_target.setEnabled(not reason)
        self.use_target.setToolTip(reason)
        self.delete.setEnabled(is_removable)
        self.delete.setToolTip("" if is_removable else NOT_OURS)

    def set_offline(self, is_offline: bool) -> None:
        """Whether offline mode is on."""
        self.again.setEnabled(not is_offline)
        describe(self.again, "Get this model again", OFFLINE if is_offline else AGAIN_HELP)

    def _show_facts(self, shown: list[tuple[str, str]]) -> None:
        while self.facts.rowCount() > len(shown):
            self.facts.removeRow(self.facts.rowCount() - 1)
        for index, texts in enumerate(shown):
            if index == self.facts.rowCount():
                field = text_label("", "plain")
                field.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
                self.facts.addRow(text_label("", "field"), field)
            for place, text in zip(
                (QFormLayout.ItemRole.LabelRole, QFormLayout.ItemRole.FieldRole), texts, strict=True
            ):
                item = self.facts.itemAt(index, place)
                label = item.widget() if item is not None else None
                if isinstance(label, QLabel):
                    label.setText(text)

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.path.text())
