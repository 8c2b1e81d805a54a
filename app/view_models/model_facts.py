"""What a details pane says of a model, as names and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.view_models.model_library import ModelLibrary
from app.view_models.model_text import UNKNOWN, age_text, bytes_text, count_text, origin_text
from core.models.catalogue import ModelEntry, ModelFormat

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
