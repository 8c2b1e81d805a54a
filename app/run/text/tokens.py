"""The run's text as tokens: the fate of each, and which one is selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from PySide6.QtCore import QObject, Signal, Slot

from core.settings import Coupling
from core.types import Drafted, Step, TokenKind


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a step's block.

    Attributes:
        step: index in the run's list of steps.
        slot: index in the block. A rejected token and the one drawn in its place share a slot; the bonus token's slot
            is the number of drafted tokens.
    """

    step: int
    slot: int


class Selection(QObject):
    """The selected place and the step under the pointer, shared by text, plots and inspector.

    Signals:
        changed: the selected `Place`, or None.
        hovered: the step under the pointer, or -1.
    """

    changed = Signal(object)
    hovered = Signal(int)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.place: Place | None = None
        self.hovered_step = -1

    @Slot(object)
    def select(self, place: Place | None) -> None:
        """Select a place, or nothing."""
        if place != self.place:
            self.place = place
            self.changed.emit(place)

    @Slot(int)
    def hover(self, step: int) -> None:
        """Point at a step, or at none: -1."""
        if step != self.hovered_step:
            self.hovered_step = step
            self.hovered.emit(step)

    def clear(self) -> None:
        """Select nothing and point at nothing, for example when another run begins."""
        self.select(None)
        self.hover(-1)


class Fate(StrEnum):
    """What a piece of the text is, in the words shown on screen."""

    PROMPT = "prompt"
    GAP = "gap"
    """Separates prompt and answer: a chat model's answer doesn't continue the prompt's line."""
    KEPT = "kept"
    FORCED = "forced"
    ACCEPTED = "accepted"
    RESAMPLED = "resampled"
    BONUS = "bonus"
    PLAIN = "plain"
    """Of a step in which nothing was drafted: the target's own token, as in plain decoding."""
    REJECTED = "rejected"
    UNTESTED = "not tested"
    DRAFTED = "drafted"
    FORK = "fork"
    """Before a token of a tree's path: the number of other candidates for its position."""
    STRIP = "strip"
    """Empty lines below a step, in which the paths of its tree are drawn."""


EMITTED = {TokenKind.ACCEPTED: Fate.ACCEPTED, TokenKind.CORRECTION: Fate.RESAMPLED, TokenKind.BONUS: Fate.BONUS}
KINDS: dict[Fate, TokenKind | None] = {fate: kind for kind, fate in EMITTED.items()} | {Fate.PLAIN: None}
"""What was added to the text, with the kind that the log gives it; plain steps have no style of their own."""
GHOSTS = frozenset({Fate.REJECTED, Fate.UNTESTED})
"""Drafted tokens that were not accepted."""
NOT_COPIED = GHOSTS | {Fate.DRAFTED, Fate.FORK, Fate.STRIP}

FATE_HELP = {
    Fate.KEPT: "From the run this one branched off.",
    Fate.FORCED: "Inserted by you; the generated text continues it.",
    Fate.ACCEPTED: "Drafted, tested and accepted.",
    Fate.RESAMPLED: "Drawn in place of the rejected token.",
    Fate.BONUS: "Drawn from the target itself, after a fully accepted block.",
    Fate.PLAIN: "Nothing was drafted: the target's own token, as in plain decoding.",
    Fate.REJECTED: "Drafted, tested and rejected.",
    Fate.UNTESTED: "Drafted, and never tested: a token before it was rejected, or another candidate accepted. It "
    "counts as drafted, not as rejected.",
    Fate.DRAFTED: "Drafted, and not yet verified by the target.",
}
CHOICE_HELP = {
    Fate.ACCEPTED: "The {}: drafted, tested and accepted.",
    Fate.RESAMPLED: "The {}, in place of the rejected one.",
    Fate.BONUS: "The {}, after a fully accepted block.",
    Fate.PLAIN: "The {}, as in plain decoding: nothing was drafted.",
    Fate.REJECTED: "Not the {}: drafted, tested and rejected.",
}
"""Where the target's choice decides: at temperature 0, and under shared noise."""


def fate_help(fate: Fate, coupling: Coupling = Coupling.REJECTION, *, is_greedy: bool = False) -> str:
    """What a fate means, in a sentence; empty for the prompt."""
    if fate in CHOICE_HELP and (is_greedy or coupling is Coupling.GUMBEL):
        choice = "target's most likely token" if is_greedy else "target's own draw under the shared noise"
        return CHOICE_HELP[fate].format(choice)
    return FATE_HELP.get(fate, "")


class Span(NamedTuple):
    """A piece of the text: one token of a step's block, or, with `step` -1, text that this run did not generate."""

    fate: Fate
    text: str
    step: int = -1
    slot: int = -1
    token_id: int = -1

    @property
    def place(self) -> Place:
        """Its place in its step's block."""
        return Place(self.step, self.slot)


def emitted_spans(step: Step, number: int) -> list[Span]:
    """The tokens that a step, by its index in the run's list, added to the text."""
    added = zip(step.slots, step.emitted_kinds, step.emitted_texts, step.emitted, strict=False)
    return [
        Span(EMITTED[kind] if step.drafted else Fate.PLAIN, text, number, slot, token)
        for slot, kind, text, token in added
    ]


def drafted_spans(step: Step, number: int) -> list[Span]:
    """The tokens that a step, by its index in the run's list, drafted."""
    texts = zip(step.drafted_texts, step.drafted, strict=True)
    return [Span(fate_of(step, slot), text, number, slot, token) for slot, (text, token) in enumerate(texts)]


def block(step: Step, number: int) -> tuple[Span, ...]:
    """A step's tokens: the accepted ones, the drafted ones that were not accepted, then the one that the target added.

    Args:
        number: index in the run's list of steps.
    """
    tokens = emitted_spans(step, number)
    split = next((slot for slot, span in enumerate(tokens) if span.fate is not Fate.ACCEPTED), len(tokens))
    ghosts = [span for span in drafted_spans(step, number) if span.slot not in step.path]
    return (*tokens[:split], *ghosts, *tokens[split:])


def num_alternatives(parents: Sequence[int], path: Sequence[int], depth: int) -> int:
    """How many other candidates a tree had for a position on its path."""
    before = path[depth - 1] if depth else -1
    return max(0, parents.count(before) - (depth < len(path)))


def first_path(parents: Sequence[int]) -> list[int]:
    """The nodes of a tree's most promising path: the first of each node's children."""
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (path[-1] if path else -1):
            path.append(node)
    return path


def fate_of(step: Step, slot: int) -> Fate:
    """The fate of the drafted token at a slot, or of the target's own token after them."""
    if slot >= len(step.drafted):
        return Fate.BONUS if step.drafted else Fate.PLAIN
    if slot in step.path:
        return Fate.ACCEPTED
    return Fate.REJECTED if slot in step.tested else Fate.UNTESTED


def depth_of(step: Step, slot: int) -> int:
    """How many tokens of the block stand before a place."""
    return step.depths[slot] if slot < len(step.drafted) else step.num_accepted


def is_corrected(step: Step) -> bool:
    """Whether a token was rejected and another drawn in its place."""
    return step.emitted_kinds[-1:] == (TokenKind.CORRECTION,)


@dataclass(slots=True)
class TokenStream:
    """A run's text.

    Attributes:
        kept, forced: if the run branched off another, that run's text and the text forced after it.
        steps: all steps so far; grows during a run. At its end, others without the beginning of a stop text.
        pending: the draft that awaits verification.
        pending_parents: of a tree that does, as in `Drafted`.
        inspected: steps whose evidence has arrived, in that order.
    """

    prompt: str = ""
    gap: str = ""
    kept: str = ""
    forced: str = ""
    coupling: Coupling = Coupling.REJECTION
    steps: Sequence[Step] = field(default_factory=list)
    pending: tuple[Span, ...] = ()
    pending_parents: tuple[int, ...] = ()
    inspected: list[int] = field(default_factory=list)

    def draft(self, drafted: Drafted) -> None:
        """Show a block that awaits verification."""
        tokens = enumerate(zip(drafted.drafted_texts, drafted.drafted, strict=True))
        number, self.pending_parents = len(self.steps), drafted.parents
        self.pending = tuple(Span(Fate.DRAFTED, text, number, slot, token) for slot, (text, token) in tokens)


def num_units(text: str) -> int:
    """Length as Qt counts it, in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
