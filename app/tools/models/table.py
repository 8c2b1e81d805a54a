"""The rows of the models on this computer, with kind and size."""

from __future__ import annotations

from app.setup.model_library import ORIGINS, UNKNOWN, ModelLibrary, count_text, describe, kind_text
from app.widgets.rows import Column, Row
from core.models.catalogue import ModelEntry, ModelOrigin
from core.text import bytes_text

COLUMNS = (
    Column("Model", width=240),
    Column("Parameters", width=90, is_figure=True, rank=1),
    Column("Precision", width=84, rank=2),
    Column("Context", width=78, is_figure=True, rank=3),
    Column("Vocabulary", width=90, is_figure=True, rank=4),
    Column("Size", width=84, is_figure=True),
)


def model_row(library: ModelLibrary, entry: ModelEntry, role: str) -> Row[ModelEntry]:
    """What is known about a model, with dashes for what is unknown, and its role in the next run, if any."""
    details, problem = library.details(entry.ref), library.details_problem(entry.ref)
    parameters, context, vocabulary, precision = 0, 0, 0, UNKNOWN
    if details is not None:
        parameters, context = details.num_parameters, details.context_length or 0
        vocabulary, precision = details.vocab_size, details.precision
    texts = (
        entry.title,
        UNKNOWN if details is None else count_text(parameters),
        precision,
        f"{context:,}" if context else UNKNOWN,
        f"{vocabulary:,}" if vocabulary else UNKNOWN,
        bytes_text(entry.size_bytes),
    )
    kind, size = kind_text(entry, details), entry.size_bytes
    return Row(
        item=entry,
        key=entry.ref,
        texts=texts,
        tip=problem or describe(entry),
        sort_keys=(entry.title.lower(), parameters, precision, context, vocabulary, size),
        subtitle=_subtitle(entry, role),
        badge="Damaged" if problem else kind,
        words=" ".join((entry.ref, kind, *texts, ORIGINS[entry.origin])).casefold(),
    )


def _subtitle(entry: ModelEntry, role: str) -> str:
    """A model's role, its owner or folder, and its only target or its origin."""
    is_own = entry.origin in {ModelOrigin.FOLDER, ModelOrigin.GGUF}
    owner = str(entry.path.parent) if is_own else entry.ref.rpartition("/")[0]
    # What a drafter is for says more than its origin, and both don't fit.
    last = f"For {entry.serves.rpartition('/')[2]}" if entry.serves else ORIGINS[entry.origin]
    return " · ".join(filter(None, (role, owner, last)))
