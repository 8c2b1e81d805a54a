"""The run's text as tokens: the origin and fate of each, and which one is selected."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from PySide6.QtCore import QObject, QTextBoundaryFinder, Signal, Slot

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


SHOWN = str.maketrans(
    {code: chr(0x2400 + code) for code in range(32) if code not in {9, 10}}
    | {0x7F: "\u2421", 0xFFFC: "\ufffd", 0xFDD0: "\ufffd", 0xFDD1: "\ufffd"}
)
"""Control characters as symbols, one for one, so that positions in the document equal those in the text."""
ON_ONE_LINE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"})
"""Rejected drafts were never emitted, so they must not break lines."""
FIRST_JOINING = "\u0300"
"""Characters below this one never join the previous character."""
TAIL = 16
"""Characters that may belong to one grapheme, such as a family of emoji."""


def num_units(text: str) -> int:
    """Length as Qt counts it, in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def num_joined(tail: str, text: str) -> int:
    """How many characters at the start of `text` belong to a grapheme that began in `tail`."""
    finder = QTextBoundaryFinder(QTextBoundaryFinder.BoundaryType.Grapheme, tail + text)
    seam = num_units(tail)
    finder.setPosition(seam)
    if finder.isAtBoundary():
        return 0
    end = finder.toNextBoundary()
    if end < 0:
        return len(text)
    joined = text.encode("utf-16-le", "surrogatepass")[: 2 * (end - seam)]
    return len(joined.decode("utf-16-le", "replace"))


class Token(NamedTuple):
    """One emitted token.

    The probabilities are those of the drafted token at this place: the token itself if it was accepted, `replaced` if
    it was resampled; None if nothing was drafted here.
    """

    position: int
    step: int
    slot: int
    kind: TokenKind
    token_id: int
    text: str
    target_prob: float | None = None
    draft_prob: float | None = None
    acceptance_prob: float | None = None
    replaced: str | None = None

    @property
    def place(self) -> Place:
        """Its place in its step's block."""
        return Place(self.step, self.slot)


class Ghost(NamedTuple):
    """A drafted token that was not accepted: `tested` and rejected, or discarded after the rejected one."""

    step: int
    slot: int
    token_id: int
    text: str
    tested: bool
    target_prob: float
    draft_prob: float
    acceptance_prob: float

    @property
    def place(self) -> Place:
        """Its place in its step's block."""
        return Place(self.step, self.slot)


class Pending(NamedTuple):
    """A drafted token that awaits verification."""

    step: int
    slot: int
    token_id: int
    text: str


class Role(Enum):
    """The text before the tokens."""

    PROMPT = auto()
    GAP = auto()
    KEPT = auto()
    FORCED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """Text that this run did not generate."""

    role: Role
    text: str


Span = Written | Token | Ghost | Pending


class StepText(NamedTuple):
    """What one step adds to the transcript: the accepted tokens, the ghosts, then the token that follows them."""

    accepted: tuple[Token, ...]
    ghosts: tuple[Ghost, ...]
    following: tuple[Token, ...]

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The emitted text."""
        return (*self.accepted, *self.following)


class TokenStream:
    """The tokens of a run, one `StepText` per step.

    Attributes:
        gap: separates prompt and answer: a chat model's answer doesn't continue the prompt's line.
        kept, forced: if the run branched off another, that run's text and the text forced after it.
        pending: the draft that awaits verification.
    """

    def __init__(self) -> None:
        self.clear("")

    def clear(self, prompt: str, coupling: Coupling = Coupling.REJECTION) -> None:
        """Forget everything and start after a prompt."""
        self.prompt = prompt
        self.coupling = coupling
        self.gap = self.kept = self.forced = ""
        self.pending: tuple[Pending, ...] = ()
        self.steps: list[StepText] = []
        self.num_tokens = 0

    def append(self, step: Step) -> None:
        """Add a step's tokens and ghosts."""
        number = len(self.steps)
        tokens = [_token(step, number, offset) for offset in range(len(step.emitted))]
        split = next((i for i, token in enumerate(tokens) if token.kind is not TokenKind.ACCEPTED), len(tokens))
        # If the text ended within the block, the rest of the block was neither tested nor rejected.
        kept = step.num_draft_tokens if split == len(tokens) else step.num_accepted
        ghosts = tuple(_ghost(step, number, index) for index in range(kept, step.num_draft_tokens))
        self.steps.append(StepText(tuple(tokens[:split]), ghosts, tuple(tokens[split:])))
        self.pending = ()
        self.num_tokens += len(tokens)

    def draft(self, drafted: Drafted) -> None:
        """Show a block that awaits verification."""
        tokens = enumerate(zip(drafted.drafted, drafted.drafted_texts, strict=True))
        number = len(self.steps)
        self.pending = tuple(Pending(number, slot, token_id, text) for slot, (token_id, text) in tokens)

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(token.text for step in self.steps for token in step.tokens)


def _token(step: Step, number: int, offset: int) -> Token:
    kind = step.emitted_kinds[offset]
    token = (step.position + offset, number, offset, kind, step.emitted[offset], step.emitted_texts[offset])
    if kind is TokenKind.BONUS or offset >= step.num_draft_tokens:
        return Token(*token)
    probs = (step.target_probs[offset], step.draft_probs[offset], step.acceptance_probs[offset])
    return Token(*token, *probs, replaced=step.drafted_texts[offset] if kind is TokenKind.CORRECTION else None)


def _ghost(step: Step, number: int, index: int) -> Ghost:
    return Ghost(
        number,
        index,
        step.drafted[index],
        step.drafted_texts[index],
        index == step.num_accepted,
        step.target_probs[index],
        step.draft_probs[index],
        step.acceptance_probs[index],
    )
