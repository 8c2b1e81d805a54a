"""Sizes, counts, times and verdicts of models as a person reads them. Bytes are counted in thousands, as disks are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin

if TYPE_CHECKING:
    from core.models.compatibility import PairVerdict
    from core.models.details import ModelDetails
    from core.models.downloads import DownloadProgress
    from core.models.memory import MemoryForecast

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
