"""The words of the bench: its settings, who takes part, and what one run of a contender came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from core.bench.names import split_name
from core.errors import OutriderError, SettingsError
from core.prompt_suites import Prompt
from core.types import MAX_DRAFT_TOKENS, Device, DType, SamplingParams, Step

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

__all__ = ["Absence", "BenchSettings", "Contender", "NotApplicableError", "Pair", "Prompt", "Timed"]


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What is compared, and how.

    Attributes:
        target: reference of the target.
        draft: reference of the draft; None for none, or for a truncated one.
        draft_layers: make the draft of the target's own first layers; None: don't.
        num_draft_tokens: K, the same for everyone who can be told.
        temperatures: each is a comparison of its own.
        max_new_tokens: tokens that every run writes; nobody may end earlier.
        rounds: repetitions that count; one more, before them, does not.
        seed: of the first run; every run of a round has its own, the same for all contenders.
        device, dtype: where, and in which precision.
        threads: processor threads for everyone; None: as many as there are cores.
        only: contenders that take part, by name; empty for all.

    Raises:
        SettingsError: a value out of range, or a contender that there is not.
    """

    target: str
    draft: str | None = None
    draft_layers: int | None = None
    num_draft_tokens: int = 4
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = 64
    rounds: int = 5
    seed: int = 0
    device: Device = Device.AUTO
    dtype: DType = DType.AUTO
    threads: int | None = None
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(
            1 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS,
            f"K, the number of draft tokens, must be from 1 to {MAX_DRAFT_TOKENS}, not {self.num_draft_tokens}.",
        )
        _check(self.max_new_tokens >= 1, f"The number of new tokens must be 1 or more, not {self.max_new_tokens}.")
        _check(self.rounds >= 1, f"The number of rounds must be 1 or more, not {self.rounds}.")
        _check(0 <= self.seed < 2**31, f"The seed must be from 0 to 2^31 - 1, not {self.seed}.")
        _check(bool(self.temperatures), "Name at least one temperature.")
        _check(self.threads is None or self.threads >= 1, f"Threads must be 1 or more, not {self.threads}.")
        _check(
            self.draft is None or self.draft_layers is None,
            "A draft is either named or made of the target's first layers; leave one of the two out.",
        )
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)
        for name in self.only:
            split_name(name)


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise SettingsError(sentence)


@dataclass(frozen=True, slots=True)
class Pair:
    """The models of a bench. The target's list of ends is empty, so that every text gets its full length."""

    target: LanguageModel
    draft: LanguageModel | None


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of a contender, from the prompt's ids to the last new one.

    Attributes:
        ids: what was added to the prompt.
        seconds: wall clock around the whole call, the prompt's reading included.
        num_forwards: the target's forwards but those that only read the prompt; None where the contender can't tell.
        longest_draft: most tokens that it drafted in a step; None where it can't tell.
        steps: our own engine's account of itself.
    """

    ids: tuple[int, ...]
    seconds: float
    num_forwards: int | None = None
    longest_draft: int | None = None
    steps: tuple[Step, ...] = ()


class Contender(Protocol):
    """An engine that continues a prompt. What it needs beside the models is made ready when it is built."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def title(self) -> str:
        """What the table calls it."""
        ...

    @property
    def num_draft_tokens(self) -> int | None:
        """K, where it is held to one; 0 where it drafts nothing, None where it chooses."""
        ...

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        """Continue a prompt by the number of tokens that was set when it was built. The models stay as they were."""
        ...


class NotApplicableError(OutriderError):
    """A contender can't take part with these models; says why."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A contender that does not take part, and why."""

    name: str
    reason: str
