"""Measures contenders in turn, round by round, at each temperature, and builds the result document."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from operator import add
from typing import TYPE_CHECKING, Any

import torch

from core.decode import autoregressive
from core.errors import PromptError, first_line
from core.experiments.bench import (
    ASSISTED,
    GENERATE,
    PEERS,
    PLAIN,
    BenchSettings,
    Spread,
    num_equal,
    ratios,
    spread,
    turn_order,
)
from core.experiments.bench_memory import Memory
from core.experiments.contenders import PACKAGE, Contender, Outrider, Pair, Timed, threads
from core.experiments.prompt_suites import Prompt
from core.models.prompting import encode_prompt
from core.runners.base import Runner, prefill
from core.runners.timing import Stopwatch
from core.settings import SamplingParams
from core.types import Step

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

SCHEMA = "outrider.bench/1"
_REPEATS = 7
_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""What is running, and how many of all runs are done."""


# --- Forwards ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def counted(module: Any) -> Iterator[list[int]]:
    """The number of positions of each forward of a transformers module. The hook costs time: not while timing."""
    widths: list[int] = []

    def note(_module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named.get("input_ids")
        if ids is None:
            ids = arguments[0] if arguments else named["inputs_embeds"][..., 0]
        widths.append(int(ids.shape[-1]))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield widths
    finally:
        handle.remove()


def usual_steps(steps: Sequence[Step]) -> list[Step]:
    """The steps of the commonest draft length, drafting ones before plain ones, without the last, which may be cut."""
    lengths = Counter(step.num_draft_tokens for step in steps[:-1])
    usual = max(lengths, key=lambda k: (k > 0, lengths[k], k), default=0)
    return [step for step in steps[:-1] if step.num_draft_tokens == usual]


def time_bare(
    target: LanguageModel, drafting: Runner | None, num_draft_tokens: int, length: int, capacity: int
) -> tuple[float, float | None]:
    """Time the bare forwards of a step at `length` positions, draft and target in turn as in a run; medians.

    Returns:
        Milliseconds of K one-position forwards of the draft and a (K + 1)-position one of the target; and c, a
        one-position forward of the draft / one of the target, or None where no model drafts.
    """
    length = max(1, min(length, capacity - num_draft_tokens - 1))
    scoring = target.runner(capacity)
    prefill(scoring, [token % target.vocab_size for token in range(length)], lambda: None)
    start = min(length, drafting.length, drafting.capacity - num_draft_tokens) if drafting is not None else 0
    block = torch.zeros(num_draft_tokens + 1, dtype=torch.int64, device=target.device)
    watch = Stopwatch(target.device)
    drafts, scores, plains = [], [], []
    with torch.inference_mode():
        for _ in range(_REPEATS + 1):
            watch.lap()
            if drafting is not None:
                drafting.rewind(start)
                for _ in range(num_draft_tokens):
                    drafting.forward(block[:1], num_logits=1)
            drafts.append(watch.lap())
            scoring.forward(block, num_logits=num_draft_tokens + 1)
            scores.append(watch.lap())
            scoring.rewind(length)
            scoring.forward(block[:1], num_logits=1)
            plains.append(watch.lap())
            scoring.rewind(length)
    # The first run of each is a warm-up.
    step_ms = statistics.median(map(add, drafts[1:], scores[1:]))
    if drafting is None or not num_draft_tokens:
        return step_ms, None
    return step_ms, statistics.median(drafts[1:]) / num_draft_tokens / statistics.median(plains[1:])


# --- Rounds -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Observations:
    """All observations of one contender at one temperature.

    rounds hold a run for each prompt, warm_ups those that don't count, with the target's forwards. By run: overheads
    (median step / bare forwards - 1), and costs (c of the bare forwards).
    """

    contender: Contender
    warm_ups: list[Timed] = field(default_factory=list)
    rounds: list[list[Timed]] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    @property
    def speeds(self) -> list[float]:
        """Tokens per second, by round."""
        return [sum(len(run.ids) for run in runs) / sum(run.seconds for run in runs) for runs in self.rounds]

    @property
    def step_speeds(self) -> list[float]:
        """The same by the times of our own steps; empty for others."""
        steps = [[step for run in runs for step in run.steps] for runs in self.rounds]
        return [sum(len(s.emitted) for s in part) / sum(s.total_ms for s in part) * 1e3 for part in steps if part]


@dataclass(slots=True)
class Comparison:
    """One temperature: observations by contender, plain decoding's ids by prompt where only one text is right, and the
    peers that failed, with the reason.
    """

    temperature: float
    observations: dict[str, Observations]
    reference: list[tuple[int, ...]] | None
    failed: dict[str, str] = field(default_factory=dict)


def encode_prompts(target: LanguageModel, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with their ids, in the target's chat template where it has one.

    Raises:
        PromptError: one is empty, or too long.
    """
    return [replace(prompt, ids=tuple(encode_prompt(target, prompt.text).ids)) for prompt in prompts]


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


def measure(
    pair: Pair,
    contenders: Sequence[Contender],
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    on_progress: Progress = lambda what, done, total: None,
) -> list[Comparison]:
    """A comparison at each temperature: one warm-up round, then the measured ones.

    Raises:
        PromptError: a prompt that leaves too little room in the context.
        OutriderError: our own engine can't run this; a peer that fails is reported in the comparison instead.
    """
    check_lengths(pair, prompts, settings)
    with threads(settings.threads):
        bench = _Bench(pair, prompts, settings, on_progress, len(contenders))
        return [bench.compare(temperature, contenders) for temperature in settings.temperatures]


class _Bench:
    def __init__(
        self, pair: Pair, prompts: Sequence[Prompt], settings: BenchSettings, on_progress: Progress, num_contenders: int
    ) -> None:
        self._pair, self._prompts, self._settings = pair, prompts, settings
        self._on_progress = on_progress
        self._done = 0
        self._total = num_contenders * len(prompts) * (settings.rounds + 1) * len(settings.temperatures)

    def compare(self, temperature: float, contenders: Sequence[Contender]) -> Comparison:
        observations = {contender.name: Observations(contender) for contender in contenders}
        comparison = Comparison(temperature, observations, self._reference(temperature))
        for index in range(len(self._prompts)):
            for seen in list(observations.values()):
                self._report(f"Warming up at temperature {temperature:g}")
                self._warm_up(comparison, seen, index)
        present = list(observations.values())
        for turn in range(self._settings.rounds):
            for seen in present:
                seen.rounds.append([])
            for index, prompt in enumerate(self._prompts):
                for seen in (present[at] for at in turn_order(len(present), turn * len(self._prompts) + index)):
                    self._report(f"Round {turn + 1} of {self._settings.rounds} at temperature {temperature:g}")
                    timed = self._run(seen.contender, temperature, turn + 1, index)
                    seen.rounds[-1].append(timed)
                    self._note_overhead(seen, timed.steps, prompt)
        return comparison

    def _warm_up(self, comparison: Comparison, seen: Observations, index: int) -> None:
        """The warm-up run: it fills caches and compiles, and its forwards are counted."""
        name = seen.contender.name
        is_peer = name in PEERS
        widths: list[int] = []
        try:
            with contextlib.ExitStack() as stack:
                if is_peer:
                    widths = stack.enter_context(counted(self._pair.target.model))
                timed = self._run(seen.contender, comparison.temperature, 0, index)
        except Exception as error:
            if not is_peer:
                raise
            _log.debug("%s failed", name, exc_info=True)
            del comparison.observations[name]
            comparison.failed[name] = f"It failed: {first_line(error)}."
            return
        if timed.num_forwards is None:
            timed = replace(timed, num_forwards=len(widths), longest_draft=max(widths[1:], default=1) - 1)
        seen.warm_ups.append(timed)

    def _run(self, contender: Contender, temperature: float, turn: int, index: int) -> Timed:
        seed = self._settings.seed + turn * len(self._prompts) + index
        timed = contender.run(self._prompts[index].ids, temperature=temperature, seed=seed)
        self._done += 1
        return timed

    def _note_overhead(self, seen: Observations, steps: Sequence[Step], prompt: Prompt) -> None:
        """Time the bare forwards right after the run they are compared with."""
        contender, usual = seen.contender, usual_steps(steps)
        if not isinstance(contender, Outrider) or contender.drafter is None or not usual:
            return
        middle = usual[len(usual) // 2].position - 1
        capacity = len(prompt.ids) + self._settings.max_new_tokens
        drafting = getattr(contender.drafter, "runner", None) or getattr(contender.drafter, "_runner", None)
        bare_ms, cost = time_bare(self._pair.target, drafting, usual[0].num_draft_tokens, middle, capacity)
        seen.overheads.append(statistics.median(step.total_ms for step in usual) / bare_ms - 1.0)
        if cost is not None:
            seen.costs.append(cost)

    def _reference(self, temperature: float) -> list[tuple[int, ...]] | None:
        if temperature > 0:
            return None
        texts = []
        for prompt in self._prompts:
            self._report(f"Writing the reference for {PLAIN} decoding")
            events = autoregressive(
                self._pair.target,
                prompt.ids,
                sampling=SamplingParams(temperature=0.0),
                max_new_tokens=self._settings.max_new_tokens,
            )
            texts.append(tuple(token for event in events if isinstance(event, Step) for token in event.emitted))
        return texts

    def _report(self, what: str) -> None:
        self._on_progress(what, self._done, self._total)


# --- Results ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one temperature.

    Attributes:
        tokens_per_second: wall-clock time, reading the prompt included, over all prompts of a round.
        step_tokens_per_second: of our own steps alone, as in a run's summary.
        ratio_to_generate, ratio_to_assisted: in the same round; None where that contender did not run.
        overhead: step / (K draft forwards + one scoring forward) - 1.
        peak_memory_mb: of a process of its own, beyond what the libraries take; needed_memory_mb: weights and caches.
        notes: sentences on what makes its results different in kind from the others'.
    """

    temperature: float
    name: str
    title: str
    is_ours: bool
    tokens_per_second: Spread
    step_tokens_per_second: Spread | None
    ratio_to_generate: Spread | None
    ratio_to_assisted: Spread | None
    tokens_per_forward: float | None
    overhead: Spread | None
    cost_coefficient: Spread | None
    peak_memory_mb: float | None
    needed_memory_mb: float | None
    notes: tuple[str, ...]


def rows(
    comparison: Comparison,
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    memory: Mapping[str, Memory | None] | None = None,
) -> list[Row]:
    """The table of one temperature."""
    speeds = {name: seen.speeds for name, seen in comparison.observations.items()}

    def ratio(name: str, other: str) -> Spread | None:
        return ratios(speeds[name], speeds[other]) if other in speeds else None

    table = []
    for name, seen in comparison.observations.items():
        num_forwards = sum(run.num_forwards or 0 for run in seen.warm_ups)
        num_tokens = sum(len(run.ids) for run in seen.warm_ups)
        used = (memory or {}).get(name)
        table.append(
            Row(
                temperature=comparison.temperature,
                name=name,
                title=seen.contender.title,
                is_ours=name not in PEERS,
                tokens_per_second=spread(speeds[name]),
                step_tokens_per_second=spread(seen.step_speeds) if seen.step_speeds else None,
                ratio_to_generate=ratio(name, GENERATE),
                ratio_to_assisted=ratio(name, ASSISTED),
                tokens_per_forward=num_tokens / num_forwards if num_forwards else None,
                overhead=spread(seen.overheads) if seen.overheads else None,
                cost_coefficient=spread(seen.costs) if seen.costs else None,
                peak_memory_mb=used.peak_mb if used else None,
                needed_memory_mb=used.needed_mb if used else None,
                notes=tuple(_notes(seen, comparison.reference, pair, prompts, settings)),
            )
        )
    return table


def _notes(
    seen: Observations,
    reference: Sequence[Sequence[int]] | None,
    pair: Pair,
    prompts: Sequence[Prompt],
    settings: BenchSettings,
) -> Iterator[str]:
    """Another length, longer drafts, or another text where only one is right."""
    wanted, k = settings.max_new_tokens, seen.contender.num_draft_tokens
    by_prompt = list(zip(seen.warm_ups, *seen.rounds, strict=True))
    lengths = {len(run.ids) for runs in by_prompt for run in runs} - {wanted}
    longest = max((run.longest_draft or 0 for run in seen.warm_ups), default=0)
    if lengths:
        yield f"writes {' or '.join(map(str, sorted(lengths)))} tokens where {wanted} were asked for"
    if k and longest > k:
        yield f"drafts up to {longest} tokens a step where K is {k}"
    elif k is None and seen.contender.name in PEERS:
        yield f"chooses its own K, here up to {longest}"
    for prompt, right, runs in zip(prompts, reference or (), by_prompt, strict=False):
        shared = [(num_equal(run.ids, right), run.ids) for run in runs]
        at, ids = next(((at, ids) for at, ids in shared if at < min(len(ids), len(right))), (0, None))
        if ids is not None:
            logits = _margin(pair, [*prompt.ids, *right[:at]], right[at], ids[at])
            yield (
                f"another greedy text after {prompt.name!r}, from token {at + 1} of {len(right)}, where the target "
                f"prefers its own by {logits:.2g} in logits"
            )


def _margin(pair: Pair, ids: Sequence[int], right: int, other: int) -> float:
    """How strongly the target prefers one id to another after a text, in logits."""
    runner = pair.target.runner(len(ids))
    prefill(runner, ids[:-1], lambda: None)
    logits = runner.forward(torch.tensor(ids[-1:]), num_logits=1).logits[0].float()
    return float(logits[right] - logits[other])


@dataclass(frozen=True, slots=True)
class Report:
    """All results of a bench. absent: the contenders that did not run, and why."""

    started_at: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: Sequence[Row]
    absent: Mapping[str, str]


def now() -> str:
    """The current time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def config_of(settings: BenchSettings, pair: Pair, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The settings in force."""
    return asdict(settings) | {
        "draft": pair.draft.ref if pair.draft is not None else None,
        "device": str(pair.target.device),
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "revision": pair.target.revision,
        "prompts": [{"name": item.name, "text": item.text, "num_tokens": len(item.ids)} for item in prompts],
    }


def environment_of(pair: Pair, settings: BenchSettings) -> dict[str, Any]:
    """The machine and the versions."""
    from core.models.devices import device_name

    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return {
        "outrider": installed("outrider"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": installed("transformers"),
        "flashspec": installed(PACKAGE),
        "platform": platform.platform(),
        "device_name": device_name(pair.target.device),
        "threads": settings.threads or torch.get_num_threads(),
    }


def to_json(report: Report) -> str:
    """The document, with `"schema": "outrider.bench/1"`."""
    document = {
        "schema": SCHEMA,
        "started_at": report.started_at,
        "config": dict(report.config),
        "environment": dict(report.environment),
        "results": [asdict(row) for row in report.rows],
        "absent": [{"name": name, "reason": reason} for name, reason in report.absent.items()],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
