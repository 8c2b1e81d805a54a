"""Measures contenders alternately, round by round, at each temperature, and builds the result document."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from operator import add
from typing import TYPE_CHECKING, Any

import torch

from core.analysis.near_ties import lead
from core.analysis.steadiness import BUSY, unsteadiness
from core.errors import PromptError, first_line
from core.experiments.bench_plan import (
    ASSISTED,
    GENERATE,
    PEERS,
    PLAIN,
    BenchSettings,
    Contender,
    Pair,
    Timed,
    num_equal,
    ratios,
    spread,
    turn_order,
)
from core.experiments.contenders import PACKAGE, Outrider
from core.experiments.llama_cpp import LlamaCpp, find_build
from core.experiments.prompt_suites import Prompt
from core.runlog.log import installed
from core.runlog.tally import Tally
from core.runners.base import Runner, prefill
from core.runners.threads import threads
from core.runners.timing import Stopwatch
from core.types import Step

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

SCHEMA = "outrider.bench/1"
_REPEATS = 7
_log = logging.getLogger(__name__)

Record = dict[str, Any]


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


class Bench:
    """Measures contenders with one pair, on prompts whose ids are known.

    absent and failed: who did not run, at all or at some temperatures, and why.

    on_progress is called with what is running, and how many of all runs are done.

    Raises:
        PromptError: a prompt leaves no room for the new tokens and a block after them.
    """

    def __init__(
        self,
        pair: Pair,
        prompts: Sequence[Prompt],
        settings: BenchSettings,
        on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    ) -> None:
        self.pair, self.prompts, self.settings = pair, prompts, settings
        self.absent: dict[str, str] = {}
        self.failed: dict[tuple[str, float], str] = {}
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._llama_cpp = None if settings.llama_cpp is None else find_build(settings.llama_cpp).version()
        self._on_progress = on_progress
        self._done = self._total = 0
        for prompt in prompts:
            needed = len(prompt.ids) + settings.max_new_tokens + settings.num_draft_tokens + 1
            if needed > pair.target.context_length:
                raise PromptError(
                    f"The prompt {prompt.name!r} and {settings.max_new_tokens} new tokens need {needed:,} positions, "
                    f"but {pair.target.ref} has {pair.target.context_length:,}. Shorten the prompt, or ask for fewer "
                    "tokens."
                )

    def results(self, contenders: Sequence[Contender]) -> list[Record]:
        """A record of each contender at each temperature: one warm-up round, then the measured ones. Ends servers.

        Raises:
            OutriderError: our own engine can't run this; a peer that fails becomes absent instead.
        """
        settings = self.settings
        num_greedy = sum(temperature == 0 for temperature in settings.temperatures)  # Each writes a reference first.
        num_rounds = (settings.rounds + 1) * len(settings.temperatures)
        self._total = len(self.prompts) * (len(contenders) * num_rounds + num_greedy)
        with threads(settings.threads), contextlib.ExitStack() as stack:
            for contender in contenders:
                if isinstance(contender, LlamaCpp):
                    stack.callback(contender.close)
            return [record for at in settings.temperatures for record in self._compare(at, contenders)]

    def _compare(self, temperature: float, contenders: Sequence[Contender]) -> list[Record]:
        # At temperature 0 only one text is right.
        reference = None if temperature > 0 else [self._plain_text(prompt) for prompt in self.prompts]
        present = [Observations(contender) for contender in contenders]
        for index in range(len(self.prompts)):
            for seen in list(present):
                self._report(f"Warming up at temperature {temperature:g}")
                if not self._warm_up(seen, temperature, index):
                    present.remove(seen)
        for turn in range(self.settings.rounds):
            for seen in present:
                seen.rounds.append([])
            for index, prompt in enumerate(self.prompts):
                for seen in [present[at] for at in turn_order(len(present), turn * len(self.prompts) + index)]:
                    self._report(f"Round {turn + 1} of {self.settings.rounds} at temperature {temperature:g}")
                    timed = self._run(seen.contender, temperature, turn + 1, index)
                    if timed is None:
                        present.remove(seen)
                        continue
                    seen.rounds[-1].append(timed)
                    self._note_overhead(seen, timed.steps, prompt)
        return self.records(present, temperature, reference)

    def _warm_up(self, seen: Observations, temperature: float, index: int) -> bool:
        """The warm-up run: it fills caches and compiles, and its forwards are counted. False if a peer failed."""
        is_peer = seen.contender.name in PEERS
        with counted(self.pair.target.model) if is_peer else contextlib.nullcontext(list[int]()) as widths:
            timed = self._run(seen.contender, temperature, 0, index)
        if timed is None:
            return False
        if timed.num_forwards is None:
            timed = replace(timed, num_forwards=len(widths), longest_draft=max(widths[1:], default=1) - 1)
        seen.warm_ups.append(timed)
        return True

    def _run(self, contender: Contender, temperature: float, turn: int, index: int) -> Timed | None:
        """One run. None where a peer fails, which is then left out; if our own engine fails, so does the bench."""
        seed = self.settings.seed + turn * len(self.prompts) + index
        try:
            timed = contender.run(self.prompts[index].ids, temperature=temperature, seed=seed)
        except Exception as error:
            if contender.name not in PEERS:
                raise
            _log.debug("%s failed", contender.name, exc_info=True)
            self.failed[contender.name, temperature] = f"It failed: {first_line(error)}."
            return None
        self._done += 1
        return timed

    def _note_overhead(self, seen: Observations, steps: Sequence[Step], prompt: Prompt) -> None:
        """Time the bare forwards right after the run they are compared with."""
        contender, whole = seen.contender, steps[:-1]  # The last one may be cut.
        length = Tally(whole).usual_length
        usual = [step for step in whole if step.num_draft_tokens == length]
        if not isinstance(contender, Outrider) or contender.drafter is None or not usual:
            return
        middle = usual[len(usual) // 2].position - 1
        capacity = len(prompt.ids) + self.settings.max_new_tokens
        drafting = getattr(contender.drafter, "_runner", None)
        # It takes a forward for each level, not for each of K nodes.
        is_tree = getattr(contender.drafter, "proposes_trees", False)
        bare_ms, cost = time_bare(self.pair.target, drafting, 1 if is_tree else length, middle, capacity)
        if not is_tree:
            seen.overheads.append(statistics.median(step.total_ms for step in usual) / bare_ms - 1.0)
        if cost is not None:
            seen.costs.append(cost)

    def _plain_text(self, prompt: Prompt) -> tuple[int, ...]:
        self._report(f"Writing the reference for {PLAIN} decoding")
        text = Outrider(self.pair, self.settings.max_new_tokens).run(prompt.ids, temperature=0.0, seed=0).ids
        self._done += 1
        return text

    def _report(self, what: str) -> None:
        self._on_progress(what, self._done, self._total)

    # --- Results ---

    def records(
        self, present: Sequence[Observations], temperature: float, reference: Sequence[Sequence[int]] | None = None
    ) -> list[Record]:
        """A record of each contender; reference is plain decoding's ids by prompt, where only one text is right.

        tokens_per_second is in wall-clock time, reading the prompt included, over all prompts of a round;
        step_tokens_per_second of our own steps alone, as in a run's summary. overhead is step / (K draft forwards + one
        scoring forward) - 1. notes say what makes its results different in kind from the others'. Figures without
        values are None, others a `Spread`.
        """
        speeds = {seen.contender.name: seen.speeds for seen in present}
        records = []
        for seen in present:
            name, own = seen.contender.name, seen.speeds
            # The forwards of peers are counted outside the rounds, in which that would take time.
            counted = [run for runs in seen.rounds for run in runs if run.num_forwards] or seen.warm_ups
            num_forwards = sum(run.num_forwards or 0 for run in counted)
            num_tokens = sum(len(run.ids) for run in counted)
            records.append(
                {
                    "temperature": temperature,
                    "name": name,
                    "title": seen.contender.title,
                    "is_ours": name not in PEERS,
                    "tokens_per_second": spread(own),
                    "step_tokens_per_second": spread(seen.step_speeds) if seen.step_speeds else None,
                    "ratio_to_generate": ratios(own, speeds[GENERATE]) if GENERATE in speeds else None,
                    "ratio_to_assisted": ratios(own, speeds[ASSISTED]) if ASSISTED in speeds else None,
                    "tokens_per_forward": num_tokens / num_forwards if num_forwards else None,
                    "overhead": spread(seen.overheads) if seen.overheads else None,
                    "cost_coefficient": spread(seen.costs) if seen.costs else None,
                    "peak_memory_mb": None,
                    "needed_memory_mb": None,
                    "unsteadiness": _median_unsteadiness(seen),
                    "notes": list(self._notes(seen, reference)),
                }
            )
        return records

    def _notes(self, seen: Observations, reference: Sequence[Sequence[int]] | None) -> Iterator[str]:
        """Another length, longer drafts, or another text where only one is right."""
        wanted, k = self.settings.max_new_tokens, seen.contender.num_draft_tokens
        by_prompt = list(zip(seen.warm_ups, *seen.rounds, strict=True))
        lengths = {len(run.ids) for runs in by_prompt for run in runs} - {wanted}
        longest = max((run.longest_draft or 0 for run in seen.warm_ups), default=0)
        if lengths:
            yield f"writes {' or '.join(map(str, sorted(lengths)))} tokens instead of {wanted}"
        if k and longest > k:
            yield f"drafts up to {longest} tokens per step although K is {k}"
        elif k is None and seen.contender.name in PEERS:
            yield f"chooses its own K, here up to {longest}"
        for prompt, right, runs in zip(self.prompts, reference or (), by_prompt, strict=False):
            shared = [(num_equal(run.ids, right), run.ids) for run in runs]
            at, ids = next(((at, ids) for at, ids in shared if at < min(len(ids), len(right))), (0, None))
            if ids is not None:
                tokens, capacity = (right[at], ids[at]), len(prompt.ids) + wanted
                logits = lead(self.pair.target, [*prompt.ids, *right[:at]], tokens, capacity=capacity)
                yield (
                    f"a different greedy text after {prompt.name!r}, from token {at + 1} of {len(right)}, where the "
                    f"target prefers its own token by {logits:.2g} in logits"
                )

    def document(self, results: Sequence[Record]) -> Record:
        """All results, with the settings in force, the machine and the versions; `to_json` writes it."""
        from core.models.devices import device_name

        target, draft = self.pair.target, self.pair.draft
        config = asdict(self.settings) | {
            "llama_cpp": self._llama_cpp is not None,
            "draft": draft.ref if draft is not None else None,
            "device": str(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            "revision": target.revision,
            "prompts": [{"name": item.name, "text": item.text, "num_tokens": len(item.ids)} for item in self.prompts],
        }
        environment = {
            "outrider": installed("outrider"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": installed("transformers"),
            "flashspec": installed(PACKAGE),
            "llama_cpp": self._llama_cpp,
            "platform": platform.platform(),
            "device_name": device_name(target.device),
            "threads": self.settings.threads or torch.get_num_threads(),
        }
        missing = {item: list(self.settings.temperatures) for item in self.absent.items()}
        for (name, temperature), reason in self.failed.items():
            missing.setdefault((name, reason), []).append(temperature)
        return {
            "schema": SCHEMA,
            "started_at": self.started_at,
            "config": config,
            "environment": environment,
            "was_busy": any((row["unsteadiness"] or 0.0) > BUSY for row in results),
            "results": list(results),
            "absent": [{"name": name, "reason": reason, "temperatures": at} for (name, reason), at in missing.items()],
        }


def _median_unsteadiness(seen: Observations) -> float | None:
    """The median spread of our own equal steps' times, see `core.analysis.steadiness`: in a run, or, where every run is
    too short to tell, in all runs of a prompt."""
    single = [run.steps for runs in seen.rounds for run in runs]
    # By position, so that steps grow slower evenly, as in a run.
    pooled = [
        sorted((step for run in runs for step in run.steps), key=lambda step: step.position)
        for runs in zip(*seen.rounds, strict=False)
    ]
    for parts in (single, pooled):
        spreads = [unsteadiness(Tally(part)) for part in parts]
        known = [spread for spread in spreads if spread is not None]
        if known:
            return statistics.median(known)
    return None


def to_json(document: Record) -> str:
    """The document, with `"schema": "outrider.bench/1"`."""
    return json.dumps(document, indent=2, ensure_ascii=False, default=asdict) + "\n"
