"""The run's text as tokens that know where they came from: what the transcript shows and its tooltips say.

Named tuples, because a frame makes hundreds of them while the engine waits; a frozen dataclass takes thrice as long.
"""

from __future__ import annotations

from typing import NamedTuple

from app.view_models.selection import Place
from core.types import Coupling, Drafted, Step, TokenKind


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
