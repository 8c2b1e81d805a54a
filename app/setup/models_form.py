"""Chooses the target and what it drafts from, and shows what is known about the pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QWidget

from app.setup.model_library import ModelLibrary
from app.setup.model_picker import DRAFT_MODEL, ModelPicker, ModelRole
from app.setup.pair import VerdictLine
from app.widgets.fields import boxed, column
from core.drafters.registry import METHODS, get_method
from core.models.catalogue import ModelEntry


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
        is_draft_free: whether the draft may follow the target: it was not chosen by hand since the target was.
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
        self.is_draft_free = False
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
            self.is_draft_free = True
            if made := self.library.made_for(ref):
                self.draft.wanted = made
        else:
            self.draft.wanted = ref
            self.is_draft_free = False
            self.method_chosen.emit(DRAFT_MODEL)
        self.show_models()
        if self._served is None:
            self.draft_chosen.emit(self.draft.ref)
        self.changed.emit()

    @Slot()
    def show_models(self) -> None:
        """List the library's models, ask about unknown pairs, and move a free draft; or list a server's models."""
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
        if self.is_draft_free and self.problem() and not library.unchecked_drafts(target):
            best = library.best_draft(target)
            if best not in ("", self.draft.ref):
                self.draft.wanted = best
                self.show_models()
                self.draft_chosen.emit(best)

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
        if target == self.target.ref:
            self.show_models()
            self.changed.emit()

    def ask(self, target: str) -> None:
        """Request a check of the drafts that have not been compared with a target, if the model can be one."""
        if target and not self.library.target_problem(target) and (drafts := self.library.take_questions(target)):
            # The chosen one first.
            self.check_requested.emit(target, tuple(sorted(drafts, key=lambda ref: ref != self.draft.ref)))
