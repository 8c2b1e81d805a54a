"""The models that can be chosen, and which of them can work together."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.models import hub
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, ModelEntry, ModelFormat, ModelOrigin, local_models
from core.models.suggestions import Suggestion

if TYPE_CHECKING:
    from core.models.details import ModelDetails
    from core.models.downloads import DownloadProgress
    from core.models.fit import MemoryForecast, PairVerdict


UNKNOWN = "–"
ORIGINS = {
    ModelOrigin.EMBEDDED: "Ships with Outrider",
    ModelOrigin.HUB: "Hub cache",
    ModelOrigin.KEPT: "Kept by Outrider",
    ModelOrigin.FOLDER: "Folder",
    ModelOrigin.GGUF: ".gguf file",
}
_UNITS = ("B", "KB", "MB", "GB", "TB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def bytes_text(count: int) -> str:
    """A size with its unit: 86 MB, 3.4 GB."""
    value, unit = _scaled(count)
    return f"{value} {unit}"


def bytes_of_text(done: int, total: int) -> str:
    """A part of a size; the unit is said once where it is the same: 312 of 724 MB."""
    _, unit = _scaled(total)
    value, done_unit = _scaled(done)
    return f"{value if done_unit == unit else f'{value} {done_unit}'} of {bytes_text(total)}"


def _scaled(count: int) -> tuple[str, str]:
    size, unit = float(max(0, count)), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return (f"{size:.1f}" if unit > 1 and size < 99.95 else f"{size:.0f}"), _UNITS[unit]


def count_text(count: int) -> str:
    """A number of parameters: 16.5 M, 1.7 B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size * 0.9995:
            value = count / size
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
    return str(count)


def duration_text(seconds: float) -> str:
    """A time that is left, as exactly as anyone can know it."""
    if seconds < _MINUTE - 0.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 10 * _MINUTE - 2.5:
        whole = round(seconds / 5) * 5
        return f"{whole // _MINUTE} min {whole % _MINUTE} s" if whole % _MINUTE else f"{whole // _MINUTE} min"
    if seconds < _HOUR - _MINUTE / 2:
        return f"{round(seconds / _MINUTE)} min"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // 60} h {minutes % 60} min"


def age_text(moment: float | None, now: float | None = None) -> str:
    """How long ago, in days or months; a dash where it isn't known."""
    if moment is None:
        return UNKNOWN
    days = int(((time.time() if now is None else now) - moment) // _DAY)
    if days <= 0:
        return "Today"
    if days == 1:
        return "Yesterday"
    if days < 60:
        return f"{days} days ago"
    return f"{days // 30} months ago" if days < 730 else f"{days // 365} years ago"


def progress_text(progress: DownloadProgress) -> str:
    """Bytes, rate and time left, as far as they are known."""
    if not (progress.done_bytes or progress.total_bytes):
        return progress.stage
    if progress.total_bytes:
        parts = [bytes_of_text(progress.done_bytes, progress.total_bytes)]
    else:
        parts = [bytes_text(progress.done_bytes)]
    if progress.bytes_per_second:
        parts.append(f"{bytes_text(round(progress.bytes_per_second))}/s")
    if progress.seconds_left is not None:
        parts.append(f"{duration_text(progress.seconds_left)} left")
    return " · ".join(parts)


def kind_text(entry: ModelEntry, details: ModelDetails | None) -> str:
    """The badge: what a model was trained to do; empty until its files were read."""
    if entry.serves:
        return "Drafter"
    if details is None:
        return ""
    return "Instruct" if details.is_instruct else "Base"


def origin_text(entry: ModelEntry) -> str:
    """Where a model comes from, in two or three words."""
    return ORIGINS[entry.origin]


def describe(entry: ModelEntry) -> str:
    """A model in one line, for a tooltip."""
    kind = {ModelFormat.SAFETENSORS: "safetensors", ModelFormat.GGUF: "GGUF"}[entry.format]
    place = "ships with Outrider" if entry.embedded else str(entry.path)
    return f"{entry.title}: {kind}, {bytes_text(entry.size_bytes)}, {place}"


def memory_text(memory: MemoryForecast) -> str:
    """Whether a pair fits: Fits: 1.9 of 22 GB."""
    if memory.available_bytes is None:
        return f"Needs {bytes_text(memory.total_bytes)}"
    amount = bytes_of_text(memory.total_bytes, memory.available_bytes)
    return f"{'Fits' if memory.fits else 'Too large'}: {amount}"


def memory_parts(memory: MemoryForecast) -> str:
    """The forecast by part, for a tooltip."""
    lines = [
        f"Weights: {bytes_text(memory.weights_bytes)}",
        f"Caches: {bytes_text(memory.cache_bytes)}",
        f"Working memory: {bytes_text(memory.working_bytes)}",
    ]
    if memory.available_bytes is not None:
        lines.append(f"Free on the device: {bytes_text(memory.available_bytes)}")
    return "\n".join(lines)


def verdict_text(verdict: PairVerdict) -> str:
    """Memory and expected cost of a pair in one line."""
    parts = [memory_text(verdict.memory)] if verdict.memory is not None else []
    if verdict.cost_coefficient is not None:
        parts.append(f"expected cost c ≈ {verdict.cost_coefficient:.2f}")
    return " · ".join(parts)


def verdict_help(verdict: PairVerdict) -> str:
    """What the line of a verdict stands on, for its tooltip."""
    parts = [memory_parts(verdict.memory)] if verdict.memory is not None else []
    if verdict.cost_coefficient is not None:
        parts.append("c: one draft step's time / one target step's time, expected from the numbers of parameters.")
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class FoundModels:
    """The models on this computer, the folder of downloads, and its disk's free bytes (None: unknown)."""

    entries: tuple[ModelEntry, ...]
    folder: Path
    free_bytes: int | None


def find_models() -> FoundModels:
    """Look for models on this computer. Reads files."""
    folder = hub.cache_folder()
    free = None
    # A disk that isn't there hides nothing of the models elsewhere.
    with contextlib.suppress(OSError, StopIteration):
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
    return FoundModels(local_models(), folder, free)


_SCANNED = {ModelOrigin.EMBEDDED, ModelOrigin.KEPT, ModelOrigin.HUB}
"""Where a scan finds models by itself; others are here because they were opened."""


class ModelLibrary:
    """Embedded models first, then those that a scan found, then the opened ones in the order they came."""

    def __init__(self, embedded: Iterable[ModelEntry] = (), suggestions: Sequence[Suggestion] = ()) -> None:
        self._entries: dict[str, ModelEntry] = {entry.ref: entry for entry in embedded}
        self._details: dict[str, ModelDetails | str] = {}
        self._problems: dict[tuple[str, str], str | None] = {}
        self._asked: set[tuple[str, str]] = set()
        self.suggestions = tuple(suggestions)

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
        """The first model that can be one; empty if there is none."""
        return next((entry.ref for entry in self._entries.values() if not entry.serves), "")

    @property
    def default_draft(self) -> str:
        """The smallest model of those that ship with Outrider, since a draft pays by being quick; else of all."""
        able = [entry for entry in self._entries.values() if not entry.serves]
        able = [entry for entry in able if entry.embedded] or able
        return min(able, key=lambda entry: entry.size_bytes).ref if able else ""

    def entry(self, ref: str) -> ModelEntry | None:
        """A model by its reference."""
        return self._entries.get(ref)

    def in_titles(self, text: str) -> str:
        """A text with its models called by their titles; where two share one, by their references as before."""
        shared = Counter(entry.title for entry in self._entries.values())
        titles = {
            entry.ref: entry.title
            for entry in self._entries.values()
            if entry.ref != entry.title and shared[entry.title] == 1
        }
        if not titles:
            return text
        # The longest first, since one may begin as another does; and whole ones alone, no parts of a path.
        known = "|".join(re.escape(ref) for ref in sorted(titles, key=len, reverse=True))
        return re.sub(rf"(?<![\w./-])(?:{known})(?![\w/-]|\.\w)", lambda found: titles[found[0]], text)

    def add(self, entry: ModelEntry) -> None:
        """Add a model, or replace it; what was known about it and its pairs is asked again."""
        self._entries[entry.ref] = entry
        self._forget({entry.ref})

    def take_scan(self, found: Sequence[ModelEntry]) -> None:
        """Take in what a scan found: models that are gone leave, those that were opened stay."""
        before = self._entries
        opened = [entry for entry in before.values() if entry.origin not in _SCANNED]
        self._entries = {entry.ref: entry for entry in (*found, *opened)}
        self._forget(
            {ref for ref, entry in before.items() if ref not in self._entries or _is_other(entry, self._entries[ref])}
        )

    def record(self, target: str, problems: Mapping[str, str | None]) -> None:
        """Keep what was found out about a target's drafts."""
        found = {(draft, target): problem for draft, problem in problems.items()}
        self._problems.update(found)
        self._asked -= found.keys()

    def record_details(self, details: Mapping[str, ModelDetails | str]) -> None:
        """Keep what models are like, or why that can't be read."""
        self._details.update(details)

    def details(self, ref: str) -> ModelDetails | None:
        """What a model is like; None if it isn't known."""
        found = self._details.get(ref)
        return None if isinstance(found, str) else found

    def details_problem(self, ref: str) -> str:
        """Why a model's details can't be read; empty if they can, or weren't yet."""
        found = self._details.get(ref)
        return found if isinstance(found, str) else ""

    def undescribed(self) -> tuple[ModelEntry, ...]:
        """The models whose details were not read yet."""
        return tuple(entry for entry in self._entries.values() if entry.ref not in self._details)

    def problem(self, draft: str, target: str) -> str | None:
        """Why two models can't work together; None if they can, or if it isn't known yet."""
        return self._problems.get((draft, target))

    def target_problem(self, ref: str) -> str | None:
        """Why a model can't be a target at all; None if it can."""
        entry = self._entries.get(ref)
        if entry is None or not entry.serves:
            return None
        return f"{entry.title} only drafts: it borrows the tables of {entry.serves}. Choose it as a draft."

    def unchecked_drafts(self, target: str) -> tuple[str, ...]:
        """The drafts that have not been held against a target yet."""
        return tuple(ref for ref in self._entries if (ref, target) not in self._problems)

    def take_questions(self, target: str) -> tuple[str, ...]:
        """The drafts that nothing is known of and nobody asked about yet; from now on they are asked about."""
        drafts = tuple(ref for ref in self.unchecked_drafts(target) if (ref, target) not in self._asked)
        self._asked |= {(draft, target) for draft in drafts}
        return drafts

    def made_for(self, target: str) -> str:
        """The draft that was made for a target, or is known to suit it best; empty if none of those is here."""
        for entry in self._entries.values():
            if entry.serves == target:
                return entry.ref
        known = (DEFAULT_DRAFT,) if target == DEFAULT_TARGET else self.suggested_drafts(target)
        return next((ref for ref in known if ref in self._entries), "")

    def suggested_drafts(self, target: str) -> tuple[str, ...]:
        """The references of drafts that the catalogue names for a target, the best first."""
        return next((item.drafts for item in self.suggestions if item.ref == target), ())

    def best_draft(self, target: str) -> str:
        """The draft to offer with a target: the one made for it, or else the smallest that fits; empty if none does."""
        made = self.made_for(target)
        if made and not self._problems.get((made, target)):
            return made
        fitting = self.fitting_drafts(target)
        return min(fitting, key=lambda entry: entry.size_bytes).ref if fitting else ""

    def fitting_drafts(self, target: str) -> tuple[ModelEntry, ...]:
        """The smaller models that are known to fit a target."""
        aim = self._entries.get(target)
        if aim is None:
            return ()
        return tuple(
            entry
            for entry in self._entries.values()
            if entry.ref != target
            and entry.size_bytes < aim.size_bytes
            and self._problems.get((entry.ref, target), "unknown") is None
        )

    def _forget(self, refs: set[str]) -> None:
        self._problems = {pair: problem for pair, problem in self._problems.items() if not refs & set(pair)}
        self._asked = {pair for pair in self._asked if not refs & set(pair)}
        self._details = {ref: details for ref, details in self._details.items() if ref not in refs}


def _is_other(before: ModelEntry, now: ModelEntry) -> bool:
    return (before.path, before.size_bytes, before.revision) != (now.path, now.size_bytes, now.revision)
