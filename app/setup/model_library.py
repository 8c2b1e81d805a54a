"""The models that can be chosen, and what is known about them, as text: a view model without Qt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, ModelEntry, ModelFormat, ModelOrigin, suggested_drafts
from core.models.fit import MemoryForecast, PairVerdict, smaller_drafts
from core.models.folder.details import ModelDetails
from core.models.remote.hub import DownloadProgress
from core.text import bytes_of_text, bytes_text, duration_text

UNKNOWN = "–"
ORIGINS = {
    ModelOrigin.EMBEDDED: "Ships with Outrider",
    ModelOrigin.HUB: "Hub cache",
    ModelOrigin.KEPT: "Kept by Outrider",
    ModelOrigin.FOLDER: "Folder",
    ModelOrigin.GGUF: ".gguf file",
}
REMOVABLE = {ModelOrigin.HUB, ModelOrigin.KEPT}
_SCANNED = {ModelOrigin.EMBEDDED, *REMOVABLE}
"""Origins that a scan finds; other models were opened by the user."""


def parameters_text(count: int) -> str:
    """A number of parameters: 16.5 M, 1.70 B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size * 0.9995:
            value = count / size
            return f"{value:#.3g}".rstrip(".") + f" {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
    return str(count)


def progress_text(progress: DownloadProgress) -> str:
    """Bytes, rate and time left, as far as known; of another stage than downloading its name."""
    if not progress.is_receiving or not (progress.done_bytes or progress.total_bytes):
        return progress.stage
    done, total = progress.done_bytes, progress.total_bytes
    parts = [bytes_of_text(done, total) if total else bytes_text(done)]
    if progress.bytes_per_second:
        parts.append(f"{bytes_text(round(progress.bytes_per_second))}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration_text(progress.seconds_left)} left")
    return " · ".join(parts)


def kind_text(entry: ModelEntry, details: ModelDetails | None) -> str:
    """The badge: what a model was trained for; empty until its files have been read."""
    if entry.serves:
        return "Drafter"
    if details is None:
        return ""
    return "Instruct" if details.is_instruct else "Base"


def model_text(entry: ModelEntry) -> str:
    """A model in one line, for a tooltip."""
    kind = {ModelFormat.SAFETENSORS: "safetensors", ModelFormat.GGUF: "GGUF"}[entry.format]
    place = "ships with Outrider" if entry.embedded else str(entry.path)
    return f"{entry.title}: {kind}, {bytes_text(entry.size_bytes)}, {place}"


def titles_of(entries: Iterable[ModelEntry]) -> dict[str, str]:
    """What a list calls each model, by reference: its title, or its reference where several share a title."""
    entries = tuple(entries)
    shared = Counter(entry.title for entry in entries)
    return {entry.ref: entry.title if shared[entry.title] == 1 else entry.ref for entry in entries}


def memory_text(memory: MemoryForecast) -> str:
    """Whether a pair fits: "Memory: needs 1.9 of 22 GB free"."""
    if memory.available_bytes is None:
        return f"Needs {bytes_text(memory.total_bytes)}"
    if memory.fits:
        return f"Memory: needs {bytes_of_text(memory.total_bytes, memory.available_bytes)} free"
    needed, free = bytes_text(memory.total_bytes), bytes_text(memory.available_bytes)
    return f"Too large for memory: needs {needed}, and {free} is free"


def verdict_text(verdict: PairVerdict, measured_cost: float | None = None) -> tuple[str, str]:
    """Expected cost and memory of a pair, in a line each, and their tooltip.

    Args:
        measured_cost: the cost that a run of the pair measured, which is shown in place of the expected one.
    """
    parts, lines = [], []
    if (memory := verdict.memory) is not None:
        parts.append(memory_text(memory))
        sizes = {"Weights": memory.weights_bytes, "Caches": memory.cache_bytes, "Working memory": memory.working_bytes}
        lines += [f"{name}: {bytes_text(size)}" for name, size in sizes.items()]
        if memory.available_bytes is not None:
            lines.append(f"Free on the device: {bytes_text(memory.available_bytes)}")
    cost, source = verdict.cost_coefficient, "estimated"
    if measured_cost is not None:
        cost, source = measured_cost, "as\u00a0last\u00a0measured"
    if cost is not None:
        is_too_large = memory is not None and memory.fits is False  # Which comes first.
        parts.insert(1 if is_too_large else 0, f"Draft step: {cost:.2f} of a target step, {source}")
        lines.append("The cost c: one draft step's time / one target step's time.")
        if measured_cost is not None:
            lines.append("Measured in this pair's last run that also measured a baseline.")
    if verdict.cost_coefficient is not None:
        lines.append(f"From the numbers of parameters, {verdict.cost_coefficient:.2f} is expected.")
    return "\n".join(parts), "\n".join(lines)


class ModelLibrary:
    """Embedded models first, then those that a scan found, then those opened by the user, in order."""

    def __init__(self, embedded: Iterable[ModelEntry] = ()) -> None:
        self._entries: dict[str, ModelEntry] = {entry.ref: entry for entry in embedded}
        self._details: dict[str, ModelDetails | str] = {}
        self._problems: dict[tuple[str, str], str | None] = {}
        self._asked: set[tuple[str, str]] = set()
        self._gone: frozenset[str] = frozenset()
        self._states: Mapping[str, object] = {}

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
        """The first model that can be a target; empty if there is none."""
        return next((entry.ref for entry in self._entries.values() if not entry.serves), "")

    @property
    def default_draft(self) -> str:
        """The smallest model that ships with Outrider; else the smallest of all."""
        able = [entry for entry in self._entries.values() if not entry.serves]
        able = [entry for entry in able if entry.embedded] or able
        return min(able, key=lambda entry: entry.size_bytes).ref if able else ""

    def entry(self, ref: str) -> ModelEntry | None:
        """A model by its reference."""
        return self._entries.get(ref)

    def in_titles(self, text: str) -> str:
        """A text with references replaced by titles; models that share a title keep their references."""
        titles = {ref: title for ref, title in titles_of(self.entries).items() if ref != title}
        if not titles:
            return text
        # Longest first, since one may be a prefix of another; whole references only, not parts of a path.
        known = "|".join(re.escape(ref) for ref in sorted(titles, key=len, reverse=True))
        return re.sub(rf"(?<![\w./-])(?:{known})(?![\w/-]|\.\w)", lambda found: titles[found[0]], text)

    # --- Local models ---

    def add(self, entry: ModelEntry) -> None:
        """Add a model, or replace it and discard what was known about it and its pairs."""
        self._entries[entry.ref] = entry
        self._forget({entry.ref})

    @property
    def opened(self) -> tuple[str, ...]:
        """The references of the models that the user opened, which a scan must look for by name."""
        return (*(ref for ref, entry in self._entries.items() if entry.origin not in _SCANNED), *sorted(self._gone))

    def take_scan(
        self, found: Sequence[ModelEntry], gone: Collection[str] = (), states: Mapping[str, object] | None = None
    ) -> None:
        """Apply the result of a scan: remove models that are gone, keep the other opened ones, and forget what changed.

        Args:
            gone: the opened models that are not there now; their disk may come back.
            states: what tells whether the files of the opened models changed, such as when they were trained again.
        """
        before, opened, known = self._entries, self.opened, self._states
        self._entries, self._gone, self._states = {entry.ref: entry for entry in found}, frozenset(gone), states or {}
        for ref in opened:
            if ref not in gone and ref in before:
                self._entries.setdefault(ref, before[ref])
        changed = {ref for ref, entry in before.items() if _files(entry) != _files(self._entries.get(ref))}
        self._forget(changed | {ref for ref, state in self._states.items() if known.get(ref) != state})

    def record_details(self, details: Mapping[str, ModelDetails | str]) -> None:
        """Store models' details, or why they can't be read."""
        self._details.update(details)

    def details(self, ref: str) -> ModelDetails | None:
        """A model's details; None if unknown."""
        found = self._details.get(ref)
        return None if isinstance(found, str) else found

    def details_problem(self, ref: str) -> str:
        """Why a model's details can't be read; empty if they can, or have not been read yet."""
        found = self._details.get(ref)
        return found if isinstance(found, str) else ""

    def undescribed(self) -> tuple[ModelEntry, ...]:
        """The models whose details have not been read yet."""
        return tuple(entry for entry in self._entries.values() if entry.ref not in self._details)

    # --- Pairs ---

    def record(self, target: str, problems: Mapping[str, str | None]) -> None:
        """Store which drafts fit a target."""
        found = {(draft, target): problem for draft, problem in problems.items()}
        self._problems.update(found)
        self._asked -= found.keys()

    def problem(self, draft: str, target: str) -> str | None:
        """Why two models can't work together; None if they can, or if that is unknown."""
        return self._problems.get((draft, target))

    def target_problem(self, ref: str) -> str | None:
        """Why a model can't be a target at all; None if it can."""
        entry = self._entries.get(ref)
        if entry is None or not entry.serves:
            return None
        borrowed = f"the embedding and output head of {entry.serves}"
        return f"{entry.title} only drafts: it borrows {borrowed}. Choose it as a draft."

    def unchecked_drafts(self, target: str) -> tuple[str, ...]:
        """The drafts that have not been compared with a target yet."""
        return tuple(ref for ref in self._entries if (ref, target) not in self._problems)

    def take_questions(self, target: str) -> tuple[str, ...]:
        """The unchecked drafts that no check was requested for yet; marks them as requested."""
        drafts = tuple(ref for ref in self.unchecked_drafts(target) if (ref, target) not in self._asked)
        self._asked |= {(draft, target) for draft in drafts}
        return drafts

    def made_for(self, target: str) -> str:
        """The draft made for a target, or known to suit it best; empty if there is none on this computer."""
        for entry in self._entries.values():
            if entry.serves == target:
                return entry.ref
        known = (DEFAULT_DRAFT,) if target == DEFAULT_TARGET else suggested_drafts(target)
        return next((ref for ref in known if ref in self._entries), "")

    def best_draft(self, target: str) -> str:
        """The draft to offer with a target: the one made for it, else the smallest that fits; empty if none does."""
        made = self.made_for(target)
        if made and not self._problems.get((made, target)):
            return made
        fitting = self.fitting_drafts(target)
        return fitting[0].ref if fitting else ""

    def fitting_drafts(self, target: str) -> list[ModelEntry]:
        """The smaller models that are known to fit a target, smallest first."""
        aim = self._entries.get(target)
        if aim is None:
            return []
        known = (entry for ref, entry in self._entries.items() if self._problems.get((ref, target), "unknown") is None)
        return smaller_drafts(aim, known, lambda entry: self.details(entry.ref))

    def drafts_text(self, target: str) -> str:
        """Which drafts suit a model as the target: those on this computer, then those in the catalogue."""
        if reason := self.target_problem(target):
            return reason
        made = self.made_for(target)
        lines = [draft.title for draft in sorted(self.fitting_drafts(target), key=lambda draft: draft.ref != made)]
        missing = [ref for ref in suggested_drafts(target) if ref not in self._entries]
        lines += [f"{ref.rpartition('/')[2]} (not downloaded)" for ref in missing]
        if lines:
            return "\n".join(lines)
        return "Checking…" if self.unchecked_drafts(target) else "None here. Prompt lookup doesn't need one."

    def _forget(self, refs: set[str]) -> None:
        self._problems = {pair: problem for pair, problem in self._problems.items() if not refs & set(pair)}
        self._asked = {pair for pair in self._asked if not refs & set(pair)}
        self._details = {ref: details for ref, details in self._details.items() if ref not in refs}


def _files(entry: ModelEntry | None) -> tuple[object, ...] | None:
    return None if entry is None else (entry.path, entry.size_bytes, entry.revision)
