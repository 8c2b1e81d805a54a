"""Evidence: the two models' distributions at each position of a block, in memory and in a log.

Imports no torch, so the window can show a saved run without the engine; `core.verify.backlog` computes evidence.
"""

from __future__ import annotations

import math
import pickle
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

MAX_LISTED = 64
"""Most tokens listed at a position; the others are one sum, so that a long run stays small."""

Probs = Sequence[float]
"""Probabilities as `array("f")`, which holds the models' float32 exactly."""

PARTS = ("target", "draft", "residual", "raw", "raw_draft")
"""The distributions at a position, in the order of `core.verify.backlog`'s table; each has `…_probs` and a `…_tail`."""


@dataclass(frozen=True, slots=True)
class PositionEvidence:
    """The distributions at one position of a block: the most likely tokens, and the rest of the vocabulary as sums.

    Attributes:
        ids, texts: the listed tokens, in descending order of their larger probability. They always include the drafted
            token and the one drawn here; at the first of several candidates, also the others. Texts are for display,
            and shortened.
        target_probs: of the listed tokens, after temperature and filters; in a tree what earlier siblings
            leave, if draws decide.
        draft_probs: likewise; None if nothing was drafted: at the bonus token and in plain steps.
        target_tail, draft_tail: the mass of all tokens that are not listed.
        target_entropy, draft_entropy: in nats.
        residual_mass: sum of max(0, target - draft): their total variation distance, and the probability that a token
            drafted here is rejected.
        residual_probs, residual_tail: of the normalised residual, if a token was drawn from it; else None.
        raw_probs, raw_tail: at temperature 0 the target's at temperature 1, without filters; else None.
        raw_draft_probs, raw_draft_tail: likewise the draft's, if its drafter has them.
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
    raw_probs: Probs | None = None
    raw_tail: float | None = None
    raw_draft_probs: Probs | None = None
    raw_draft_tail: float | None = None

    def __len__(self) -> int:
        return len(self.ids)


class PackedEvidence(Sequence[PositionEvidence]):
    """A block's positions, each unpacked on access: a long run has hundreds of thousands, of several objects each."""

    __slots__ = ("_packed",)

    def __init__(self, positions: Sequence[PositionEvidence]) -> None:
        self._packed = tuple(pickle.dumps(position, pickle.HIGHEST_PROTOCOL) for position in positions)

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: Any) -> Any:
        # Safe to unpickle: the object's own bytes, not a file's.
        chosen = self._packed[index]
        return tuple(map(pickle.loads, chosen)) if isinstance(index, slice) else pickle.loads(chosen)

    def __iter__(self) -> Iterator[PositionEvidence]:
        return map(pickle.loads, self._packed)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, tuple | PackedEvidence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like its positions, which hold arrays


def packed(positions: Sequence[PositionEvidence]) -> Sequence[PositionEvidence]:
    """The same positions, packed; an empty sequence as it is."""
    return PackedEvidence(positions) if positions and not isinstance(positions, PackedEvidence) else positions


# --- In a log ---------------------------------------------------------------------------------------------------


def to_record(evidence: PositionEvidence) -> dict[str, Any]:
    """A JSON-ready record, numbers to six significant digits."""
    record: dict[str, Any] = {}
    for item in fields(evidence):
        value = getattr(evidence, item.name)
        if isinstance(value, int | float):
            record[item.name] = _digits(value)
        elif value is not None:
            is_number = item.name.endswith("_probs")
            record[item.name] = [_digits(each) for each in value] if is_number else list(value)
    return record


def evidence_from_record(record: Mapping[str, Any]) -> Sequence[PositionEvidence]:
    """The evidence of a log line; empty if it has none, or if any of it is damaged."""
    positions = record.get("evidence")
    if isinstance(positions, PackedEvidence):
        return positions
    if not isinstance(positions, list):
        return ()
    try:
        return tuple(map(_from_record, positions))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return ()


def _from_record(record: Mapping[str, Any]) -> PositionEvidence:
    ids, texts = array("i", record["ids"]), tuple(record["texts"])
    if not len(ids) == len(texts) <= MAX_LISTED or not all(isinstance(text, str) for text in texts):
        raise ValueError("ids and texts don't fit")
    if any(token < 0 for token in ids):
        raise ValueError("an id is negative")
    found: dict[str, Any] = {"target_entropy": _number(record["target_entropy"])}
    for part in PARTS:
        if part == "target" or record.get(f"{part}_probs") is not None:
            found[f"{part}_probs"] = _probs(record[f"{part}_probs"], len(ids))
            found[f"{part}_tail"] = _number(record[f"{part}_tail"], 1.0)
    if "draft_probs" in found:
        found["draft_entropy"] = _number(record["draft_entropy"])
        found["residual_mass"] = _number(record["residual_mass"], 1.0)
    return PositionEvidence(ids=ids, texts=texts, **found)


def _probs(values: Any, count: int) -> Probs:
    if not isinstance(values, list) or len(values) != count:
        raise ValueError("not a probability for each id")
    return array("f", [_number(value, 1.0) for value in values])


def _number(value: Any, most: float = math.inf) -> float:
    # Sums of thousands of float32 are 1 only to within rounding.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= most + 1e-3:
        raise ValueError("not a number in its range")
    return float(value)


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
