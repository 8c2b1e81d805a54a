"""The models that can be chosen, and which of them can work together."""

from __future__ import annotations

from collections.abc import Iterable

from core.models.catalogue import ModelEntry, ModelFormat


class ModelLibrary:
    """Embedded models first, then the opened ones in the order they came."""

    def __init__(self, embedded: Iterable[ModelEntry] = ()) -> None:
        self._entries: dict[str, ModelEntry] = {entry.ref: entry for entry in embedded}
        self._problems: dict[tuple[str, str], str | None] = {}

    @property
    def entries(self) -> tuple[ModelEntry, ...]:
        """All models."""
        return tuple(self._entries.values())

    @property
    def refs(self) -> tuple[str, ...]:
        """The references of all models."""
        return tuple(self._entries)

    @property
    def default_target(self) -> str:
        """The first model; empty if there is none."""
        return next(iter(self._entries), "")

    @property
    def default_draft(self) -> str:
        """The smallest model, since a draft pays by being quick; empty if there is none."""
        return min(self._entries.values(), key=lambda entry: entry.size_bytes).ref if self._entries else ""

    def add(self, entry: ModelEntry) -> None:
        """Add a model, or replace it; what was known about its pairs is asked again."""
        self._entries[entry.ref] = entry
        self._problems = {pair: problem for pair, problem in self._problems.items() if entry.ref not in pair}

    def record(self, target: str, problems: dict[str, str | None]) -> None:
        """Keep what was found out about a target's drafts."""
        self._problems.update({(draft, target): problem for draft, problem in problems.items()})

    def problem(self, draft: str, target: str) -> str | None:
        """Why two models can't work together; None if they can, or if it isn't known yet."""
        return self._problems.get((draft, target))

    def unchecked_drafts(self, target: str) -> tuple[str, ...]:
        """The drafts that have not been held against a target yet."""
        return tuple(ref for ref in self._entries if (ref, target) not in self._problems)


def describe(entry: ModelEntry) -> str:
    """A model in one line, for a tooltip."""
    kind = {ModelFormat.SAFETENSORS: "safetensors", ModelFormat.GGUF: "GGUF"}[entry.format]
    origin = "ships with Outrider" if entry.embedded else str(entry.path)
    return f"{entry.title}: {kind}, {entry.size_bytes / 1e6:,.0f} MB, {origin}"
