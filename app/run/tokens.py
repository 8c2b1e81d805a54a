"""The run's text as tokens that know where they came from: what the transcript shows and its tooltips say.

Named tuples, because a frame makes hundreds of them while the engine waits; a frozen dataclass takes thrice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from PySide6.QtCore import QObject, QTextBoundaryFinder, Signal, Slot

from core.types import Coupling, Drafted, Step, TokenKind


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a step's block.

    Attributes:
        step: number of the step, from 0, among those that are there.
        slot: place in the block, from 0. The rejected token and the one that was drawn instead share a slot, as do
            discarded tokens and nothing; the bonus token's slot is the number of drafted tokens.
    """

    step: int
    slot: int


class Selection(QObject):
    """Says what is selected, and what the pointer is over. Setting the same again says nothing.

    Signals:
        changed: the selected `Place`, or None.
        hovered: the step under the pointer, or -1.
    """

    changed = Signal(object)
    hovered = Signal(int)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._place: Place | None = None
        self._hovered_step = -1

    @property
    def place(self) -> Place | None:
        """What is selected."""
        return self._place

    @property
    def hovered_step(self) -> int:
        """The step under the pointer, or -1."""
        return self._hovered_step

    @Slot(object)
    def select(self, place: Place | None) -> None:
        """Select a place, or nothing."""
        if place != self._place:
            self._place = place
            self.changed.emit(place)

    @Slot(int)
    def hover(self, step: int) -> None:
        """The pointer is over a step, or over none: -1."""
        if step != self._hovered_step:
            self._hovered_step = step
            self.hovered.emit(step)

    def clear(self) -> None:
        """Select and hover nothing, as when another run begins."""
        self.select(None)
        self.hover(-1)


# One character for each, so that positions in the document count as those in the text do. Line ends and tabs are left
# to the document; what would end lines or frames in some other way, or not show at all, gets a picture.
SHOWN = str.maketrans(
    {code: chr(0x2400 + code) for code in range(32) if code not in {9, 10}}
    | {0x7F: "\u2421", 0xFFFC: "\ufffd", 0xFDD0: "\ufffd", 0xFDD1: "\ufffd"}
)
"""How emitted text is shown; what is copied is the text itself."""
ON_ONE_LINE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵"})
"""Drafts that were not kept are shown on one line: text that was never emitted must not break lines."""
FIRST_JOINING = "\u0300"
"""No character before this one joins the one before it."""
TAIL = 16
"""Characters that may belong to one that is seen as a whole, such as a family of emoji."""


def num_units(text: str) -> int:
    """Length as Qt counts it, in UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def num_joined(tail: str, text: str) -> int:
    """How many characters at the start of a text belong to one that began before it."""
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

    `step` counts the steps that are there: in a damaged log their own numbers may have gaps.
    `target_prob`, `draft_prob` and `acceptance_prob` are those of the drafted token at this place: of the token
    itself where it was accepted, of `replaced` where it was resampled, None where nothing was drafted here.
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
        """Where in its step's block it stands."""
        return Place(self.step, self.slot)


class Ghost(NamedTuple):
    """A drafted token that was not kept. `tested` tells the rejected one from those discarded behind it."""

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
        """Where in its step's block it stands."""
        return Place(self.step, self.slot)


class Pending(NamedTuple):
    """A drafted token that waits for its verdict."""

    step: int
    slot: int
    token_id: int
    text: str


class StepText(NamedTuple):
    """What one step adds to the transcript: the accepted tokens, the ghosts, then the token that follows them."""

    accepted: tuple[Token, ...]
    ghosts: tuple[Ghost, ...]
    following: tuple[Token, ...]

    @property
    def tokens(self) -> tuple[Token, ...]:
        """What was emitted."""
        return (*self.accepted, *self.following)


class TokenStream:
    """Grows by one `StepText` a step; never changes what it holds.

    `gap` stands between prompt and answer on screen: an answer from a chat model doesn't continue the prompt's line.
    `kept` and `forced` stand behind it where the run branched off another: text of the run before, and what a person
    put behind that. `coupling` is how the tokens came to be kept or not. `pending` is the draft without a verdict.
    """

    def __init__(self) -> None:
        self.prompt = ""
        self.coupling = Coupling.REJECTION
        self.gap = self.kept = self.forced = ""
        self.pending: tuple[Pending, ...] = ()
        self.steps: list[StepText] = []
        self.num_tokens = 0
        self._by_position: dict[int, Token] = {}

    def clear(self, prompt: str, coupling: Coupling = Coupling.REJECTION) -> None:
        """Forget everything and start behind a prompt."""
        self.prompt = prompt
        self.coupling = coupling
        self.gap = self.kept = self.forced = ""
        self.pending = ()
        self.steps = []
        self.num_tokens = 0
        self._by_position = {}

    def append(self, step: Step) -> None:
        """Add a step's tokens and ghosts."""
        number = len(self.steps)
        tokens = [_token(step, number, offset) for offset in range(len(step.emitted))]
        split = next((i for i, token in enumerate(tokens) if token.kind is not TokenKind.ACCEPTED), len(tokens))
        # Where the text ended within the block, the rest of the block was neither tested nor rejected.
        ended_early = split == len(tokens)
        kept = step.num_draft_tokens if ended_early else step.num_accepted
        ghosts = tuple(_ghost(step, number, index) for index in range(kept, step.num_draft_tokens))
        self.steps.append(StepText(tuple(tokens[:split]), ghosts, tuple(tokens[split:])))
        self.pending = ()
        self.num_tokens += len(tokens)
        self._by_position.update((token.position, token) for token in tokens)

    def draft(self, drafted: Drafted) -> None:
        """A block waits for its verdict."""
        tokens = enumerate(zip(drafted.drafted, drafted.drafted_texts, strict=True))
        number = len(self.steps)
        self.pending = tuple(Pending(number, slot, token_id, text) for slot, (token_id, text) in tokens)

    def at(self, position: int) -> Token | None:
        """The token at an absolute position, prompt included; None where there is none."""
        return self._by_position.get(position)

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
