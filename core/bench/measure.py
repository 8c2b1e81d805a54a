"""Runs the contenders in turn and keeps what every run came to."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from core.bench.forwards import counted
from core.bench.names import PLAIN, RIVALS
from core.bench.ours import Speculative
from core.bench.overhead import overhead, runner_of, time_bare, usual_steps
from core.bench.statistics import order
from core.bench.types import Absence, BenchSettings, Contender, Pair, Prompt, Timed
from core.decode import autoregressive
from core.errors import PromptError, first_line
from core.types import SamplingParams, Step

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""What goes on, how many runs are done, and how many there will be."""


@dataclass(slots=True)
class Observations:
    """All that was seen of one contender at one temperature.

    Attributes:
        contender: who.
        seconds, tokens: of all prompts together, by round.
        step_seconds: what our own engine's steps sum up to, by round; empty of others.
        forwards, forward_tokens: the target's, and the tokens they gave, in the round that does not count.
        longest_draft: most tokens drafted in a step.
        overheads: by run; empty where there is no such figure.
        costs: c of the bare forwards, by run; empty where no model drafts.
        texts: every run's ids, by prompt.
    """

    contender: Contender
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    forwards: int = 0
    forward_tokens: int = 0
    longest_draft: int = 0
    overheads: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    texts: defaultdict[int, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def speeds(self) -> list[float]:
        """Tokens per second, by round."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]


@dataclass(slots=True)
class Comparison:
    """One temperature's contest.

    Attributes:
        temperature: in force.
        observations: by contender, in the order of the table.
        reference: plain decoding's ids for each prompt; None above temperature 0, where every engine has its own.
        failed: those that fell out, and why.
    """

    temperature: float
    observations: dict[str, Observations]
    reference: list[tuple[int, ...]] | None
    failed: list[Absence] = field(default_factory=list)


def measure(
    pair: Pair,
    contenders: Sequence[Contender],
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    on_progress: Progress = lambda what, done, total: None,
) -> list[Comparison]:
    """A comparison at each temperature: one round that does not count, then those that do.

    Raises:
        PromptError: a prompt that leaves too little room in the context.
        OutriderError: our own engine can't run this; a rival that fails is noted instead.
    """
    check_lengths(pair, prompts, settings)
    conductor = _Conductor(pair, prompts, settings, on_progress, len(contenders))
    with threads(settings.threads):
        return [conductor.compare(temperature, contenders) for temperature in settings.temperatures]


def check_lengths(pair: Pair, prompts: Sequence[Prompt], settings: BenchSettings) -> None:
    """Raises:
    PromptError: a prompt leaves no room for the new tokens and a block behind them.
    """
    for prompt in prompts:
        needed = len(prompt.ids) + settings.max_new_tokens + settings.num_draft_tokens + 1
        if needed > pair.target.context_length:
            raise PromptError(
                f"The prompt {prompt.name!r} and {settings.max_new_tokens} new tokens need {needed:,} positions, but "
                f"{pair.target.ref} has {pair.target.context_length:,}. Shorten the prompt, or ask for fewer tokens."
            )


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Put a number of threads in force for everyone within the block; None leaves it."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Conductor:
    """Keeps the order and the seeds, and notes what comes of each run."""

    def __init__(
        self,
        pair: Pair,
        prompts: Sequence[Prompt],
        settings: BenchSettings,
        on_progress: Progress,
        num_contenders: int,
    ) -> None:
        self._pair = pair
        self._prompts = prompts
        self._settings = settings
        self._on_progress = on_progress
        self._done = 0
        self._total = num_contenders * len(prompts) * (settings.rounds + 1) * len(settings.temperatures)

    def compare(self, temperature: float, contenders: Sequence[Contender]) -> Comparison:
        observations = {contender.name: Observations(contender) for contender in contenders}
        comparison = Comparison(temperature, observations, self._reference(temperature))
        for index in range(len(self._prompts)):
            for seen in list(observations.values()):
                self._tell(f"Warming up at temperature {temperature:g}")
                self._warm_up(comparison, seen, index)
        for turn in range(self._settings.rounds):
            self._round(comparison, turn)
        return comparison

    def _warm_up(self, comparison: Comparison, seen: Observations, index: int) -> None:
        """The run that does not count: it fills caches, compiles, and is looked at where looking costs time."""
        name = seen.contender.name
        if name not in comparison.observations:
            return
        try:
            with counted(self._pair.target.model) if name in RIVALS else contextlib.nullcontext() as forwards:
                timed = self._run(seen.contender, comparison.temperature, 0, index)
        except Exception as error:
            if name not in RIVALS:
                raise
            _log.debug("%s failed", name, exc_info=True)
            del comparison.observations[name]
            comparison.failed.append(Absence(name, f"It failed: {first_line(error)}."))
            return
        count = timed.num_forwards if timed.num_forwards is not None else len(forwards.widths) if forwards else 0
        longest = timed.longest_draft
        if longest is None and forwards:
            longest = max(forwards.widths[1:], default=1) - 1
        seen.forwards += count
        seen.forward_tokens += len(timed.ids)
        seen.longest_draft = max(seen.longest_draft, longest or 0)
        seen.texts[index].append(timed.ids)

    def _round(self, comparison: Comparison, turn: int) -> None:
        present = list(comparison.observations.values())
        seconds = dict.fromkeys(comparison.observations, 0.0)
        step_seconds, tokens = dict(seconds), dict.fromkeys(seconds, 0)
        for index in range(len(self._prompts)):
            for place in order(len(present), turn * len(self._prompts) + index):
                seen = present[place]
                name = seen.contender.name
                self._tell(f"Round {turn + 1} of {self._settings.rounds} at temperature {comparison.temperature:g}")
                timed = self._run(seen.contender, comparison.temperature, turn + 1, index)
                seconds[name] += timed.seconds
                tokens[name] += len(timed.ids)
                step_seconds[name] += sum(step.total_ms for step in timed.steps) / 1e3
                seen.texts[index].append(timed.ids)
                self._note_overhead(seen, timed.steps, self._prompts[index])
        for name, seen in comparison.observations.items():
            seen.seconds.append(seconds[name])
            seen.tokens.append(tokens[name])
            if step_seconds[name]:
                seen.step_seconds.append(step_seconds[name])

    def _run(self, contender: Contender, temperature: float, turn: int, index: int) -> Timed:
        seed = self._settings.seed + turn * len(self._prompts) + index
        timed = contender.run(self._prompts[index].ids, temperature=temperature, seed=seed)
        self._done += 1
        return timed

    def _note_overhead(self, seen: Observations, steps: Sequence[Step], prompt: Prompt) -> None:
        """Time the bare forwards beside the run that they are held against, while the machine is as it was."""
        contender = seen.contender
        usual = usual_steps(steps)
        if not isinstance(contender, Speculative) or not usual:
            return
        middle = usual[len(usual) // 2].position - 1
        capacity = len(prompt.ids) + self._settings.max_new_tokens
        drafting = runner_of(contender.drafter)
        bare = time_bare(self._pair.target, drafting, usual[0].num_draft_tokens, middle, capacity)
        seen.overheads.append(overhead([step.total_ms for step in usual], bare.step_ms))
        if bare.cost_coefficient is not None:
            seen.costs.append(bare.cost_coefficient)

    def _reference(self, temperature: float) -> list[tuple[int, ...]] | None:
        """What the target itself says, where there is but one answer."""
        if temperature > 0:
            return None
        texts = []
        for prompt in self._prompts:
            self._tell(f"Writing the reference for {PLAIN} decoding")
            events = autoregressive(
                self._pair.target,
                prompt.ids,
                sampling=SamplingParams(temperature=0.0),
                max_new_tokens=self._settings.max_new_tokens,
            )
            texts.append(tuple(token for event in events if isinstance(event, Step) for token in event.emitted))
        return texts

    def _tell(self, what: str) -> None:
        self._on_progress(what, self._done, self._total)
