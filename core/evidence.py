"""What the two models said at a place of a block: kept with its step, written to the log and read back from it.

Imports no torch, so that the window can show a saved run without the engine; `core.capture` makes these.
"""

from __future__ import annotations

import math
import pickle
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

MAX_LISTED = 64
"""Most tokens that a place lists; the others are one sum, so that a long run stays small."""

LEAST_LISTED = 1e-6
"""A token that neither law gives this much is not listed, unless it was drafted or drawn."""

Probs = Sequence[float]
"""Probabilities, four bytes each: `array("f")`, which holds what the models gave to the last bit."""


@dataclass(frozen=True, slots=True)
class PositionEvidence:
    """The laws at one place of a block, exact over the full vocabulary: the likeliest tokens, and the rest as sums.

    Attributes:
        ids, texts: the listed tokens, by their larger probability from the top. The drafted token, and the one that
            was drawn here, are always among them. Texts are for display, and cut short.
        target_probs: of the listed tokens, after temperature and filters.
        draft_probs: likewise; None where nothing was drafted: the bonus token's place, and plain steps.
        target_tail, draft_tail: the mass of all tokens that are not listed.
        target_entropy, draft_entropy: in nats.
        residual_mass: sum of max(0, target - draft): the total variation distance of the two laws, and the chance
            that a token drafted here is rejected.
        residual_probs, residual_tail: of the normalised residual, where a token was drawn from it; None elsewhere.
    """

    ids: Sequence[int]
    texts: tuple[str, ...]
    target_probs: Probs
    target_tail: float
    target_entropy: float
    draft_probs: Probs | None = None
    draft_tail: float | None = None
    draft_entropy: float | None = None
    residual_mass: float | None = None
    residual_probs: Probs | None = None
    residual_tail: float | None = None

    @property
    def expected_acceptance(self) -> float | None:
        """1 - TV: the chance that a token drafted here is accepted; None where nothing was drafted."""
        return None if self.residual_mass is None else 1.0 - self.residual_mass

    def __len__(self) -> int:
        return len(self.ids)


class PackedEvidence(Sequence[PositionEvidence]):
    """A block's places in one piece of memory, and unpacked again for who looks at them: 25 microseconds.

    As objects a long run's places are hundreds of thousands, which Python's garbage collector walks over while the
    window stands still, and take twice the memory.
    """

    __slots__ = ("_count", "_packed")

    def __init__(self, places: Sequence[PositionEvidence]) -> None:
        self._count = len(places)
        self._packed = pickle.dumps(tuple(places), pickle.HIGHEST_PROTOCOL)

    def _unpacked(self) -> tuple[PositionEvidence, ...]:
        # Not a file's bytes, which nobody should unpickle, but this object's own.
        places: tuple[PositionEvidence, ...] = pickle.loads(self._packed)
        return places

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> PositionEvidence: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PositionEvidence, ...]: ...
    def __getitem__(self, index: int | slice) -> PositionEvidence | tuple[PositionEvidence, ...]:
        return self._unpacked()[index]

    def __iter__(self) -> Iterator[PositionEvidence]:
        return iter(self._unpacked())

    def __eq__(self, other: object) -> bool:
        return self._unpacked() == tuple(other) if isinstance(other, tuple | PackedEvidence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as its places, whose numbers are arrays


def packed(places: Sequence[PositionEvidence]) -> Sequence[PositionEvidence]:
    """The same places, packed; none as they are."""
    return PackedEvidence(places) if places and not isinstance(places, PackedEvidence) else places


def to_record(evidence: PositionEvidence) -> dict[str, Any]:
    """Ready for JSON, numbers to six significant digits."""
    record: dict[str, Any] = {
        "ids": list(evidence.ids),
        "texts": list(evidence.texts),
        "target_probs": _short(evidence.target_probs),
        "target_tail": _digits(evidence.target_tail),
        "target_entropy": _digits(evidence.target_entropy),
    }
    if evidence.draft_probs is not None:
        record["draft_probs"] = _short(evidence.draft_probs)
        for name in ("draft_tail", "draft_entropy", "residual_mass"):
            record[name] = _digits(getattr(evidence, name))
    if evidence.residual_probs is not None:
        record["residual_probs"] = _short(evidence.residual_probs)
        record["residual_tail"] = _digits(evidence.residual_tail)
    return record


def packed_from_record(record: Mapping[str, Any]) -> Sequence[PositionEvidence]:
    """As `evidence_from_record`, packed: for who reads the log of a whole run."""
    return packed(evidence_from_record(record))


def evidence_from_record(record: Mapping[str, Any]) -> Sequence[PositionEvidence]:
    """The evidence of a log's line; empty where it has none, or where any of it is damaged.

    The places of a block count from its front, so that one that can't be read would move all the others.
    """
    places = record.get("evidence")
    if isinstance(places, PackedEvidence):
        return places
    if not isinstance(places, list):
        return ()
    try:
        return tuple(map(_from_record, places))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return ()


def _from_record(record: Mapping[str, Any]) -> PositionEvidence:
    ids, texts = array("i", record["ids"]), tuple(map(_text, record["texts"]))
    if not len(ids) == len(texts) <= MAX_LISTED:
        raise ValueError("ids and texts don't fit")
    if any(token < 0 for token in ids):
        raise ValueError("an id is negative")
    has_draft = record.get("draft_probs") is not None
    has_residual = record.get("residual_probs") is not None
    return PositionEvidence(
        ids=ids,
        texts=texts,
        target_probs=_probs(record["target_probs"], len(ids)),
        target_tail=_number(record["target_tail"], 1.0),
        target_entropy=_number(record["target_entropy"]),
        draft_probs=_probs(record["draft_probs"], len(ids)) if has_draft else None,
        draft_tail=_number(record["draft_tail"], 1.0) if has_draft else None,
        draft_entropy=_number(record["draft_entropy"]) if has_draft else None,
        residual_mass=_number(record["residual_mass"], 1.0) if has_draft else None,
        residual_probs=_probs(record["residual_probs"], len(ids)) if has_residual else None,
        residual_tail=_number(record["residual_tail"], 1.0) if has_residual else None,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _probs(values: Any, count: int) -> Probs:
    if not isinstance(values, list) or len(values) != count:
        raise ValueError("not a probability for each id")
    return array("f", [_number(value, 1.0) for value in values])


def _number(value: Any, most: float = math.inf) -> float:
    # Sums of thousands of float32 are 1 only to within their rounding.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= most + 1e-3:
        raise ValueError("not a number in its range")
    return float(value)


def _short(values: Iterable[float]) -> list[float]:
    return [_digits(value) for value in values]


def _digits(value: float | None) -> float:
    return float(f"{value or 0.0:.6g}")
