"""The card about the selected model: everything known about it, and the actions on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFormLayout, QWidget

from app.setup.model_library import ORIGINS, REMOVABLE, UNKNOWN, ModelLibrary, kind_text, parameters_text
from app.setup.model_picker import ModelRole
from app.tools.models.suggestions import OFFLINE
from app.widgets.fields import (
    boxed,
    card,
    column,
    describe,
    grid,
    plain_tip,
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
from core.models.folder.details import ModelDetails
from core.models.remote import hub
from core.text import bytes_text

if TYPE_CHECKING:
    from app.tools.models.models import Models

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
            ("Parameters", parameters_text(details.num_parameters)),
            ("Stored as", details.precision),
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
    return found


class ModelDetailsPane(QWidget):
    """A card about the selected model."""

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._form = models.form
        self.ref = ""
        """Reference of the shown model; empty if there is none."""
        self.title = ElidedLabel("", "title", name="detailsTitle")
        self.badge = text_label("", "badge")
        self.name = wrapped_label("detailsRef", "hint")
        self.facts = QFormLayout()
        self._shown: list[tuple[str, str]] = []
        self.facts.setHorizontalSpacing(16)
        self.facts.setVerticalSpacing(6)
        self.facts.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        self.facts.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.ExpandingFieldsGrow)
        self.problem = wrapped_label("detailsProblem", "problem")
        self.drafts = wrapped_label("detailsDrafts", "plain")
        self.path = wrapped_label("detailsPath", "path")
        form, downloads = models.form, models.downloads
        self.again = push_button("Download again", "getAgainButton", "", lambda: downloads.get(self.ref, restart=True))
        self.again.setEnabled(not hub.is_offline())
        describe(self.again, "Download this model again", OFFLINE if hub.is_offline() else AGAIN_HELP)
        self.copy = quiet_button("Copy path", "copyPathButton", "Copy the path", "", self._on_copy, role="link")
        target, draft = ModelRole.TARGET, ModelRole.DRAFT
        self.use_target = push_button("Use as target", "useTargetButton", "", lambda: form.choose(target, self.ref))
        self.use_draft = push_button("Use as draft", "useDraftButton", "", lambda: form.choose(draft, self.ref))
        self.folder = push_button("Show in folder", "showFolderButton", "", lambda: models.show_folder(self.ref))
        self.delete = push_button("Delete…", "deleteModelButton", "", lambda: models.remove(self.ref))
        self.delete.setProperty("role", "danger")
        self._buttons = (self.use_target, self.use_draft, self.folder, self.delete)
        self._lay_out()

    def _lay_out(self) -> None:
        inner = column(self.problem, self.again, self.facts, spacing=6)
        inner.setAlignment(self.again, Qt.AlignmentFlag.AlignLeft)
        inner.addSpacing(8)
        inner.addWidget(text_label("Compatible drafts", "field"))
        inner.addWidget(self.drafts)
        inner.addSpacing(8)
        inner.addLayout(row(text_label("Location", "field"), None, self.copy))
        inner.addWidget(self.path)
        inner.addStretch(1)
        self._body = boxed(inner)
        inner.setContentsMargins(0, 0, 8, 0)
        buttons = grid(across=8, down=8)
        for index, button in enumerate(self._buttons):
            buttons.addWidget(button, index // 2, index % 2)
        head = row(self.title, self.badge, None)
        frame, _ = card(head, self.name, (scrolled(self._body, "detailsScroll"), 1), buttons)
        boxed(column(frame), self)

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
        has_draft = self._form.method.needs_draft_model
        for button, reason in {
            self.use_target: "Already the target." if ref == self._form.target.ref else library.target_problem(ref),
            self.use_draft: "Already the draft." if has_draft and ref == self._form.draft.ref else "",
        }.items():
            button.setEnabled(not reason)
            button.setToolTip(plain_tip(reason or ""))
        self.delete.setEnabled(is_removable)
        self.delete.setToolTip("" if is_removable else NOT_OURS)

    def _show_facts(self, shown: list[tuple[str, str]]) -> None:
        if shown == self._shown:
            return
        self._shown = shown
        while self.facts.rowCount():
            self.facts.removeRow(0)
        for name, text in shown:
            value = text_label(text, "plain")
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            self.facts.addRow(text_label(name, "field"), value)

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.path.text())
