"""A bench as a JSON document."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from core.decode import autoregressive, speculative
from core.drafters.registry import METHODS, get_method
from core.errors import PairMismatchError, PromptError, SettingsError, first_line
from core.experiments.bench import (
    ASSISTED,
    AUTO,
    FLASHSPEC,
    FLASHSPEC_AUTO,
    GENERATE,
    PLAIN,
    RIVALS,
    Absence,
    BenchSettings,
    Contender,
    Memory,
    NotApplicableError,
    Pair,
    Prompt,
    Spread,
    Timed,
    default_names,
    first_difference,
    order,
    ratios,
    split_name,
    spread,
)
from core.experiments.rivals import PACKAGE, Assisted, FlashSpec, Generate, truncated_draft
from core.models.fit import pair_problem
from core.models.loading import check_pair, load
from core.models.prompting import encode_prompt
from core.rounds import prefill
from core.runners.base import Runner
from core.runners.timing import Stopwatch
from core.types import SamplingParams, Step

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


@dataclass(slots=True)
class Forwards:
    """The number of positions of each forward, in order."""

    widths: list[int] = field(default_factory=list)


@contextlib.contextmanager
def counted(module: Any) -> Iterator[Forwards]:
    """Count a transformers module's forwards within the block. A hook costs time: not where it is measured."""
    forwards = Forwards()

    def note(_module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named.get("input_ids")
        if ids is None and arguments:
            ids = arguments[0]
        if ids is None:
            ids = named["inputs_embeds"][..., 0]
        forwards.widths.append(int(ids.shape[-1]))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield forwards
    finally:
        handle.remove()


_REPEATS = 7


def usual_steps(steps: Sequence[Step]) -> list[Step]:
    """The steps of the draft length that comes up most, drafting ones before plain ones.

    The last is left out, since the end of the text cuts it.
    """
    counted = Counter(step.num_draft_tokens for step in steps[:-1])
    if not counted:
        return []
    usual = max(counted, key=lambda k: (k > 0, counted[k], k))
    return [step for step in steps[:-1] if step.num_draft_tokens == usual]


def overhead(step_ms: Sequence[float], bare_ms: float) -> float:
    """Median step / bare forwards - 1.

    Raises:
        ValueError: no steps, or no time.
    """
    if not step_ms or bare_ms <= 0:
        raise ValueError("An overhead needs steps, and forwards that take time.")
    return statistics.median(step_ms) / bare_ms - 1.0


def runner_of(drafter: Any) -> Runner | None:
    """The runner that a drafter's last run left behind, its kernels and its cache; None where it runs no model."""
    found: Runner | None = getattr(drafter, "runner", None) or getattr(drafter, "_runner", None)
    return found


class BareTimes(NamedTuple):
    """Medians of bare forwards.

    Attributes:
        step_ms: of K one-position forwards of the draft and a (K + 1)-position one of the target.
        cost_coefficient: a one-position forward of the draft / one of the target; None where no model drafts.
    """

    step_ms: float
    cost_coefficient: float | None


def time_bare(
    target: LanguageModel, drafting: Runner | None, num_draft_tokens: int, length: int, capacity: int
) -> BareTimes:
    """Time the forwards of a step, draft and target in turn as in a run.

    Args:
        target: which scores.
        drafting: the draft's runner after a run, of which only a place in its cache is used; None where none drafts.
        num_draft_tokens: K.
        length: positions in the caches before the step.
        capacity: of the target's cache.
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
    # The first of each warms up.
    step_ms = statistics.median(map(add, drafts[1:], scores[1:]))
    has_draft = drafting is not None and num_draft_tokens > 0
    ratio = statistics.median(drafts[1:]) / num_draft_tokens / statistics.median(plains[1:]) if has_draft else None
    return BareTimes(step_ms, ratio)


def load_pair(settings: BenchSettings, on_stage: Callable[[str], None] = lambda text: None) -> Pair:
    """Load the models that the settings name.

    Raises:
        OutriderError: one can't be loaded, or they don't go together.
    """
    if settings.draft is not None and (problem := pair_problem(settings.draft, settings.target)) is not None:
        raise PairMismatchError(problem)
    on_stage(f"Loading {settings.target}…")
    target = load(settings.target, settings.device, settings.dtype)
    draft: LanguageModel | None = None
    if settings.draft_layers is not None:
        draft = truncated_draft(target, settings.draft_layers)
    elif settings.draft is not None:
        on_stage(f"Loading {settings.draft}…")
        draft = load(settings.draft, settings.device, settings.dtype, target=target)
        check_pair(draft, target)
    return Pair(replace(target, eos_ids=frozenset()), draft)


def encode_prompts(target: LanguageModel, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with their ids, in the target's chat template where it has one.

    Raises:
        PromptError: one is empty, or too long.
    """
    return [replace(prompt, ids=tuple(encode_prompt(target, prompt.text).ids)) for prompt in prompts]


class Plain:
    """One token a forward."""

    name = PLAIN
    title = "plain decoding"
    num_draft_tokens: int | None = 0

    def __init__(self, pair: Pair, max_new_tokens: int) -> None:
        self._pair = pair
        self._max_new_tokens = max_new_tokens

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        def decode() -> Iterator[Any]:
            sampling = SamplingParams(temperature=temperature)
            return autoregressive(
                self._pair.target, prompt_ids, sampling=sampling, max_new_tokens=self._max_new_tokens, seed=seed
            )

        return _timed(self._pair, decode)


class Speculative:
    """A drafting method, with its options at their defaults unless some are named."""

    def __init__(
        self,
        pair: Pair,
        max_new_tokens: int,
        num_draft_tokens: int | None,
        method: str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            pair: with a draft, where the method needs one.
            max_new_tokens: to be written.
            num_draft_tokens: K; None lets the engine choose it before each step.
            method: of the registry.
            options: of the method.
        """
        self._options = dict(options or {})
        words = [f"{name.replace('_', '-')}={_word(value)}" for name, value in self._options.items()]
        title = ", ".join([get_method(method).title.lower(), *words])
        self.name = ":".join([method, *words]) if num_draft_tokens is not None else AUTO
        self.title = title if num_draft_tokens is not None else f"{title}, K auto"
        self.num_draft_tokens = num_draft_tokens
        self.method = method
        self._pair = pair
        self._max_new_tokens = max_new_tokens
        self.drafter = self._build(1)  # What does not apply says so here.

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        drafter = self.drafter = self._build(len(prompt_ids))

        def decode() -> Iterator[Any]:
            return speculative(
                self._pair.target,
                drafter,
                prompt_ids,
                num_draft_tokens=self.num_draft_tokens,
                sampling=SamplingParams(temperature=temperature),
                max_new_tokens=self._max_new_tokens,
                seed=seed,
            )

        return _timed(self._pair, decode)

    def _build(self, num_prompt_tokens: int) -> Any:
        from core.drafters.registry import build_drafter

        capacity = num_prompt_tokens + self._max_new_tokens
        return build_drafter(
            self.method, draft=self._pair.draft, target=self._pair.target, options=self._options, capacity=capacity
        )


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _timed(pair: Pair, decode: Callable[[], Iterator[Any]]) -> Timed:
    watch = Stopwatch(pair.target.device)
    steps = tuple(event for event in decode() if isinstance(event, Step))
    seconds = watch.lap() / 1e3
    return Timed(
        tuple(token for step in steps for token in step.emitted),
        seconds,
        num_forwards=len(steps),
        longest_draft=max((step.num_draft_tokens for step in steps), default=0),
        steps=steps,
    )


def line_up(pair: Pair, settings: BenchSettings) -> tuple[list[Contender], list[Absence]]:
    """The contenders that can run with this pair, and those that can't.

    Raises:
        SettingsError: one that was asked for by name can't take part.
    """
    present: list[Contender] = []
    absent: list[Absence] = []
    for name in settings.only or default_names():
        try:
            present.append(build(name, pair, settings))
        except (NotApplicableError, SettingsError) as error:
            if settings.only:
                raise SettingsError(f"The contender {name} can't take part: {error}") from error
            absent.append(Absence(name, str(error)))
    return present, absent


def build(name: str, pair: Pair, settings: BenchSettings) -> Contender:
    """One contender.

    Raises:
        NotApplicableError, SettingsError: it can't run with these models, or here.
    """
    base, options = split_name(name)
    length, k = settings.max_new_tokens, settings.num_draft_tokens
    made: dict[str, Callable[[], Contender]] = {
        GENERATE: lambda: Generate(pair, length),
        ASSISTED: lambda: Assisted(pair, length, k),
        FLASHSPEC: lambda: FlashSpec(pair, length, k),
        FLASHSPEC_AUTO: lambda: FlashSpec(pair, length, None),
        PLAIN: lambda: Plain(pair, length),
        AUTO: lambda: Speculative(pair, length, None, "draft-model" if pair.draft is not None else "prompt-lookup"),
    }
    return made[base]() if base in made else Speculative(pair, length, k, base, options)


def needs_draft(name: str) -> bool:
    """Whether a contender has no use for a target alone. With `auto`, the draft is used where there is one."""
    base, _ = split_name(name)
    return base not in {GENERATE, PLAIN} and (base not in METHODS or METHODS[base].needs_draft_model)


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


Margin = Callable[[int, int, int, int], float]
"""(prompt, index of the token, reference's id, other id) -> by how much the target prefers the first, in logits."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one temperature.

    Attributes:
        temperature, name, title: which.
        is_ours: Outrider's own engine.
        tokens_per_second: wall clock, the prompt's reading included, over all prompts of a round.
        step_tokens_per_second: of our own steps alone, as a run's summary counts them.
        ratio_to_generate, ratio_to_assisted: in the same round; None where that contender did not run.
        tokens_per_forward: of the target, forwards that only read the prompt apart.
        overhead: step / (K draft forwards + one scoring forward) - 1.
        cost_coefficient: one draft step / one of the target, bare forwards both; None where no model drafts.
        peak_memory_mb: of a process of its own, beyond what the libraries take; None if it was not measured.
        needed_memory_mb: weights and caches of that run.
        notes: sentences on what makes its figures another thing than the others'.
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


def with_memory(row: Row, memory: Memory | None) -> Row:
    """The row with what its contender's own process took."""
    return row if memory is None else replace(row, peak_memory_mb=memory.peak_mb, needed_memory_mb=memory.needed_mb)


def rows(
    comparison: Comparison, prompts: Sequence[Prompt], settings: BenchSettings, margin: Margin | None = None
) -> list[Row]:
    """The table of one temperature."""
    speeds = {name: seen.speeds for name, seen in comparison.observations.items()}
    table = []
    for name, seen in comparison.observations.items():
        steps = [tokens / seconds for tokens, seconds in zip(seen.tokens, seen.step_seconds, strict=False)]
        table.append(
            Row(
                temperature=comparison.temperature,
                name=name,
                title=seen.contender.title,
                is_ours=name not in RIVALS,
                tokens_per_second=spread(speeds[name]),
                step_tokens_per_second=spread(steps) if steps else None,
                ratio_to_generate=ratios(speeds[name], speeds[GENERATE]) if GENERATE in speeds else None,
                ratio_to_assisted=ratios(speeds[name], speeds[ASSISTED]) if ASSISTED in speeds else None,
                tokens_per_forward=seen.forward_tokens / seen.forwards if seen.forwards else None,
                overhead=spread(seen.overheads) if seen.overheads else None,
                cost_coefficient=spread(seen.costs) if seen.costs else None,
                peak_memory_mb=None,
                needed_memory_mb=None,
                notes=tuple(notes(seen, comparison.reference, prompts, settings, margin)),
            )
        )
    return table


def notes(
    seen: Observations,
    reference: Sequence[Sequence[int]] | None,
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    margin: Margin | None = None,
) -> Iterator[str]:
    """What a contender did that the others did not: another length, other drafts, another text where one is right."""
    wanted = settings.max_new_tokens
    lengths = {len(ids) for texts in seen.texts.values() for ids in texts} - {wanted}
    if lengths:
        yield f"writes {' or '.join(map(str, sorted(lengths)))} tokens where {wanted} were asked for"
    k = seen.contender.num_draft_tokens
    if k and seen.longest_draft > k:
        yield f"drafts up to {seen.longest_draft} tokens a step where K is {k}"
    elif k is None and seen.contender.name in RIVALS:
        yield f"chooses its own K, here up to {seen.longest_draft}"
    if reference is not None:
        yield from _differences(seen, reference, prompts, margin)


def _differences(
    seen: Observations, reference: Sequence[Sequence[int]], prompts: Sequence[Prompt], margin: Margin | None
) -> Iterator[str]:
    for index, texts in sorted(seen.texts.items()):
        right = reference[index]
        for ids in texts:
            at = first_difference(ids, right)
            if at is None or (ids == tuple(right[: len(ids)]) and len(ids) != len(right)):
                continue
            sentence = f"another greedy text after {prompts[index].name!r}, from token {at + 1} of {len(right)}"
            if margin is not None and at < min(len(ids), len(right)):
                logits = margin(index, at, right[at], ids[at])
                sentence += f", where the target prefers its own by {logits:.2g} in logits"
            yield sentence
            break


def margin_of(pair: Pair, prompts: Sequence[Prompt], reference: Sequence[Sequence[int]]) -> Margin:
    """A function that looks up the target's logits for two ids at one place of a reference text."""

    def margin(index: int, at: int, right: int, other: int) -> float:
        import torch

        ids = [*prompts[index].ids, *reference[index][:at]]
        runner = pair.target.runner(len(ids))
        prefill(runner, ids[:-1], lambda: None)
        logits = runner.forward(torch.tensor(ids[-1:]), num_logits=1).logits[0].float()
        return float(logits[right] - logits[other])

    return margin


SCHEMA = "outrider.bench/1"


@dataclass(frozen=True, slots=True)
class Report:
    """All that a bench has to tell."""

    started_at: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: Sequence[Row]
    absent: Sequence[Absence]


def now() -> str:
    """This moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def config_of(settings: BenchSettings, pair: Pair, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The settings as they came out."""
    config = asdict(settings) | {
        "draft": pair.draft.ref if pair.draft is not None else None,
        "device": str(pair.target.device),
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "revision": pair.target.revision,
        "prompts": [{"name": item.name, "text": item.text, "num_tokens": len(item.ids)} for item in prompts],
    }
    return config | {"temperatures": list(settings.temperatures), "only": list(settings.only)}


def environment_of(pair: Pair, settings: BenchSettings) -> dict[str, Any]:
    """The machine and the versions that it ran with."""
    import torch

    from core.models.devices import device_name

    return {
        "outrider": _version("outrider"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "flashspec": _version(PACKAGE),
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
        "absent": [asdict(absence) for absence in report.absent],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
