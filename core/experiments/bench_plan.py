"""What a bench compares: contenders and settings, and the medians and ratios of its rounds.

`core.experiments.contenders` and `llama_cpp` run one engine, `bench` measures all of them in turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from core.drafters.registry import METHODS, split_options
from core.errors import OutriderError, SettingsError
from core.settings import MAX_DRAFT_TOKENS, Device, DType, SamplingParams, VerificationRule, setting, validate

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel
    from core.types import Step

GENERATE, ASSISTED, FLASHSPEC, FLASHSPEC_AUTO = "generate", "assisted", "flashspec", "flashspec-auto"
LLAMA_CPP, LLAMA_CPP_DRAFT = "llama.cpp", "llama.cpp-draft"
PEERS = (GENERATE, ASSISTED, FLASHSPEC, FLASHSPEC_AUTO, LLAMA_CPP, LLAMA_CPP_DRAFT)
"""Other engines."""
PLAIN, AUTO = "plain", "auto"


def known_names() -> tuple[str, ...]:
    """Every contender without options, in the order of the table."""
    return (*PEERS, PLAIN, *METHODS, AUTO)


def default_names() -> tuple[str, ...]:
    """The default contenders: each method at its defaults, and with each of its switches flipped."""
    names: list[str] = []
    for name in known_names():
        options = fields(METHODS[name].options) if name in METHODS else ()
        switches = [item for item in options if isinstance(item.default, bool)]
        names += [name, *(option_text(name, {item.name: not item.default}) for item in switches)]
    return tuple(names)


def option_text(name: str, options: Mapping[str, Any], separator: str = ":") -> str:
    """A method with its options, as the command line takes them: prompt-lookup:max-ngram=5."""

    def word(value: Any) -> str:
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)

    return separator.join([name, *(f"{key.replace('_', '-')}={word(value)}" for key, value in options.items())])


def split_name(name: str) -> tuple[str, dict[str, Any]]:
    """A contender's name without options, and the options.

    Raises:
        SettingsError: no such contender, or options that it does not know or can't have.
    """
    base, parts = split_options(name)
    if base not in known_names():
        raise SettingsError(f"There is no contender {base!r}. Choose from: {', '.join(known_names())}.")
    if parts and base not in METHODS:
        raise SettingsError(f"The contender {base} has no options; leave out what follows the colon.")
    options = dict(_option(base, part) for part in parts)
    if options:
        METHODS[base].parse(options)  # Refuses values out of range.
    return base, options


def takes_draft(name: str) -> bool:
    """Whether a contender drafts with a draft model, if there is one.

    Raises:
        SettingsError: as for `split_name`.
    """
    base, _ = split_name(name)
    return METHODS[base].needs_draft_model if base in METHODS else base not in {GENERATE, PLAIN, LLAMA_CPP}


def _option(base: str, part: str) -> tuple[str, Any]:
    key, _, text = part.partition("=")
    defaults: dict[str, Any] = {item.name: item.default for item in fields(METHODS[base].options)}
    name = key.strip().replace("-", "_")
    if name not in defaults:
        known = ", ".join(item.replace("_", "-") for item in defaults) or "none"
        raise SettingsError(f"The method {base} has no option {key!r}. It has: {known}.")
    default = defaults[name]
    try:
        return name, {"yes": True, "no": False}[text.lower()] if isinstance(default, bool) else type(default)(text)
    except (KeyError, ValueError, TypeError):
        kind = "yes or no" if isinstance(default, bool) else "a number"
        if isinstance(default, Enum):
            kind = f"one of {', '.join(map(str, type(default)))}"
        raise SettingsError(f"The option {key} of {base} must be {kind}, not {text!r}.") from None


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What is compared, and how. Each temperature is compared separately, after a warm-up round.

    draft_layers makes the draft from the target's first layers. Every run of a round has its own seed, the same for
    all contenders. verification is that of Outrider's methods. only names the contenders; empty for all. llama_cpp: a
    build of it, a folder or its server.

    Raises:
        SettingsError: a value out of range, or an unknown contender.
    """

    target: str
    draft: str | None = None
    draft_layers: int | None = None
    num_draft_tokens: int = setting(4, label="K, the number of draft tokens,", min=1, max=MAX_DRAFT_TOKENS)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = setting(64, label="The number of new tokens", min=1)
    rounds: int = setting(5, label="The number of rounds", min=1)
    seed: int = setting(0, label="The seed", min=0, max=2**31 - 1)
    verification: VerificationRule = VerificationRule.TOKEN
    device: Device = Device.AUTO
    dtype: DType = DType.AUTO
    threads: int | None = None
    only: tuple[str, ...] = ()
    llama_cpp: str | None = None

    def __post_init__(self) -> None:
        validate(self)
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)
        for name in self.only:
            split_name(name)


class NotApplicableError(OutriderError):
    """A contender can't take part with these models; says why."""


NO_DRAFT = "There is no draft model; name one with --draft, or use --draft-layers."


@dataclass(frozen=True, slots=True)
class Pair:
    """The models of a bench. The target has no end tokens, so that every text gets its full length."""

    target: LanguageModel
    draft: LanguageModel | None


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of a contender, from the prompt's ids to the last new one, in wall-clock seconds.

    num_forwards (of the target, without those that only read the prompt) and longest_draft are None if the contender
    doesn't report them; steps are those of Outrider's own engine.
    """

    ids: tuple[int, ...]
    seconds: float
    num_forwards: int | None = None
    longest_draft: int | None = None
    steps: tuple[Step, ...] = ()


class Contender(Protocol):
    """An engine that continues a prompt by a fixed number of tokens.

    num_draft_tokens is K if it is fixed, 0 if nothing is drafted, None if the engine chooses.
    """

    name: str
    title: str
    num_draft_tokens: int | None

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        """Continue a prompt. The models stay as they were."""
        ...


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and the spread of the values around it."""

    median: float
    quartiles: tuple[float, float]
    extremes: tuple[float, float]
    values: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread:
    """Median, interpolated quartiles, minimum and maximum of at least one value."""
    low = high = values[0]
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), (low, high), (min(values), max(values)), tuple(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours / theirs, round by round, so that a slow moment of the machine affects both."""
    return spread([our / their for our, their in zip(ours, theirs, strict=True)])


def num_equal(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of the common prefix of two texts, in tokens."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def turn_order(count: int, turn: int) -> list[int]:
    """The order in which `count` contenders run in their `turn`-th turn.

    Each starts equally often, and every other turn is reversed, so that neither a machine that slows down nor the
    caches left by the contender before favour anyone.
    """
    start = turn // 2 % count if count else 0
    forwards = [(start + index) % count for index in range(count)]
    return forwards[::-1] if turn % 2 else forwards
