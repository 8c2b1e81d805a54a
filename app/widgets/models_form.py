"""Which target, which draft, whether they fit together, and what they will need."""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.model_questions import ModelRole, OpenedModel, PairVerdicts
from app.view_models.model_library import ModelLibrary
from app.widgets.model_picker import ModelPicker, OpenKind
from app.widgets.models_verdict import VerdictLine


class ModelsForm(QWidget):
    """Two dropdowns and the verdict on the pair.

    Signals:
        changed: another model is chosen, or more is known about the chosen ones.
        open_requested: an `OpenKind` and a `ModelRole`.
        browse_requested: more models are wanted.
        check_requested: a target, and the drafts that should be held against it.
    """

    changed = Signal()
    open_requested = Signal(object, object)
    browse_requested = Signal()
    check_requested = Signal(str, object)

    def __init__(self, library: ModelLibrary) -> None:
        super().__init__()
        self.library = library
        self._is_draft_needed = True
        self._is_draft_free = False
        """Whether the draft may follow the target: it was not chosen by hand since."""
        self.target = ModelPicker("Target", "The model whose distribution the text is drawn from.", "targetCombo")
        self.draft = ModelPicker("Draft", "The smaller model that runs ahead and proposes tokens.", "draftCombo")
        self.verdict = VerdictLine()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for widget in (self.target, self.draft, self.verdict):
            layout.addWidget(widget)
        self.target.model_chosen.connect(self._on_target_chosen)
        self.draft.model_chosen.connect(self._on_draft_chosen)
        self.target.open_requested.connect(self._on_open_target)
        self.draft.open_requested.connect(self._on_open_draft)
        for picker in (self.target, self.draft):
            picker.browse_requested.connect(self.browse_requested)
            picker.combo.popup_hidden.connect(self.show_models)

    def set_draft_needed(self, is_needed: bool) -> None:
        """Whether the method makes use of a draft model; takes effect with `show_models`."""
        self._is_draft_needed = is_needed

    def choose(self, role: ModelRole, ref: str) -> None:
        """Choose a model of the library."""
        if role is ModelRole.TARGET:
            self.target.want(ref)
            self._follow_target(ref)
        else:
            self.draft.want(ref)
            self._is_draft_free = False
        self.show_models()
        self.changed.emit()

    @Slot()
    def show_models(self) -> None:
        """List the library's models, and ask about the pairs that nothing is known of yet."""
        library = self.library
        impossible = {ref: library.target_problem(ref) for ref in library.refs}
        self.target.show_models(library.entries, fallback=library.default_target, problems=impossible)
        target = self.target.ref
        self.target.show_problem(impossible.get(target))
        problems = {ref: library.problem(ref, target) for ref in library.refs} if self._is_draft_needed else {}
        # What can be chosen comes first; Python's sort keeps the order otherwise.
        drafts = sorted(library.entries, key=lambda entry: bool(problems.get(entry.ref)))
        self.draft.show_models(drafts, fallback=library.default_draft, problems=problems)
        self.draft.set_needed(self._is_draft_needed)
        self.draft.show_problem(problems.get(self.draft.ref))
        self.ask(target)

    def problem(self) -> str | None:
        """Why the chosen models can't work together; None if they can, or if it isn't known yet."""
        return self.library.target_problem(self.target.ref) or (
            self.library.problem(self.draft.ref, self.target.ref) if self._is_draft_needed else None
        )

    @Slot(object)
    def on_model_opened(self, opened: OpenedModel) -> None:
        """Add a model, and choose it for the role that it was opened for."""
        self.library.add(opened.entry)
        if opened.role is not None:
            self.choose(opened.role, opened.entry.ref)
        else:
            self.show_models()
            self.changed.emit()

    @Slot(object)
    def on_pairs_checked(self, verdicts: PairVerdicts) -> None:
        """Take in which drafts fit a target."""
        self.library.record(verdicts.target, verdicts.problems)
        if verdicts.target != self.target.ref:
            return
        is_known = not self.library.unchecked_drafts(verdicts.target)
        if self._is_draft_free and self.problem() and is_known:
            self.draft.want(self.library.best_draft(verdicts.target) or self.draft.wanted)
        self.show_models()
        self.changed.emit()

    def ask(self, target: str) -> None:
        """Have the drafts that nothing is known of held against a target."""
        if target and (drafts := self.library.take_questions(target)):
            # The chosen one is what is waited for.
            self.check_requested.emit(target, tuple(sorted(drafts, key=lambda ref: ref != self.draft.ref)))

    def _follow_target(self, target: str) -> None:
        self._is_draft_free = True
        if made := self.library.made_for(target):
            self.draft.want(made)

    @Slot(str)
    def _on_target_chosen(self, ref: str) -> None:
        self.choose(ModelRole.TARGET, ref)

    @Slot(str)
    def _on_draft_chosen(self, ref: str) -> None:
        self.choose(ModelRole.DRAFT, ref)

    @Slot(object)
    def _on_open_target(self, kind: OpenKind) -> None:
        self.open_requested.emit(kind, ModelRole.TARGET)

    @Slot(object)
    def _on_open_draft(self, kind: OpenKind) -> None:
        self.open_requested.emit(kind, ModelRole.DRAFT)
