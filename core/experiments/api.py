"""Use a drafter from Python: one call to generate with it, one to measure its speedup, one to check that it is exact.

A drafter is any object that keeps the contract of `core.drafters.base.Drafter`, or a loaded draft model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.draft_length import DraftLength, check_draft_length, request_fields
from core.drafters.base import Drafter, DrafterSetup
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.registry import drafts_problem
from core.errors import DrafterError, PromptError, SettingsError
from core.experiments.bench import Bench
from core.experiments.bench_plan import BenchSettings, Pair, Spread, ratios
from core.experiments.check import check_drafter
from core.experiments.check_plan import DEFAULT_SAMPLES, DEFAULT_TOKENS, CheckReport, CheckRequest
from core.experiments.contenders import Outrider
from core.experiments.prompt_suites import Prompt, default_prompts, encoded, is_chat_model
from core.models.language_model import LanguageModel
from core.models.loading import check_pair, load
from core.models.prompting import encode_prompt
from core.settings import SETTINGS, Coupling, RunRequest, SamplingParams, VerificationRule, checked
from core.types import Finished, Step, Summary

Target = LanguageModel | str | os.PathLike[str]
"""A loaded model, or a reference or folder to load."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A text that was generated: its ids, the steps that wrote it, and the run's figures."""

    text: str
    ids: tuple[int, ...]
    steps: tuple[Step, ...]
    summary: Summary


@dataclass(frozen=True, slots=True)
class Measured:
    """A drafter's speed against plain decoding, over rounds that alternate between the two.

    speedup is a ratio within each round; both speeds are in tokens per second of wall-clock time, prompts included.
    """

    speedup: Spread
    tokens_per_second: Spread
    baseline_tokens_per_second: Spread
    tokens_per_forward: float | None


def generate(
    target: Target,
    drafter: Drafter | LanguageModel | None,
    prompt: str | Sequence[int],
    *,
    num_draft_tokens: DraftLength = 4,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    coupling: Coupling = Coupling.REJECTION,
    stop: Sequence[str] = (),
    chat: bool | None = None,
    verification: VerificationRule = VerificationRule.TOKEN,
) -> Generated:
    """Continue a prompt.

    Args:
        target: a loaded model, or a reference or folder to load.
        drafter: what proposes tokens; None for plain decoding.
        prompt: a text, or (N,) or (1, N) ids. `chat` applies the chat template to a text; None: if the target has one.
        num_draft_tokens: K, or the policy that chooses it.
        sampling, max_new_tokens, seed, coupling, stop: as in `core.decode.speculative`.
        verification: how blocks are tested under rejection coupling; TYPICAL is lossy.

    Raises:
        OutriderError: it can't be done, in one sentence.
    """
    _check_rule(drafter, coupling, verification)
    max_new_tokens = checked(SETTINGS["max_new_tokens"], _number(max_new_tokens))
    seed = checked(SETTINGS["seed"], _number(seed))
    controls = RunControls(_sampling(sampling), num_draft_tokens if drafter is not None else 0)
    target = _loaded(target)
    ids = encode_prompt(target, prompt, chat).ids if isinstance(prompt, str) else _ids(prompt)
    settings = {"max_new_tokens": max_new_tokens, "seed": seed, "coupling": coupling, "stop": stop}
    if drafter is None:
        events = autoregressive(target, ids, controls=controls, **settings)  # type: ignore[arg-type]
    else:
        made = _drafter(target, drafter, len(ids) + max_new_tokens)
        events = speculative(target, made, ids, controls=controls, rule=verification, **settings)  # type: ignore[arg-type]
    steps, summary = [], None
    for event in events:
        if isinstance(event, Step):
            steps.append(event)
        elif isinstance(event, Finished):
            summary = event.summary
    assert summary is not None, "decoding ends with Finished"
    return Generated(summary.text, tuple(token for step in steps for token in step.emitted), tuple(steps), summary)


def measure(
    target: Target,
    drafter: Drafter | LanguageModel,
    prompts: Iterable[str] = (),
    *,
    num_draft_tokens: int = 4,
    temperature: float = 1.0,
    max_new_tokens: int = 64,
    rounds: int = 5,
    seed: int = 0,
) -> Measured:
    """Measure how much faster a drafter is than plain decoding, as `outrider bench` does.

    Every text has `max_new_tokens` tokens, even if it would end earlier. Without prompts, it takes three presets.
    Without a temperature, it samples at 1, as `generate` and `check` do without `sampling`.

    Raises:
        OutriderError: it can't be done, in one sentence.
    """
    target = _loaded(target)
    settings = BenchSettings(
        target=target.ref, num_draft_tokens=num_draft_tokens, temperatures=(temperature,),
        max_new_tokens=_number(max_new_tokens), rounds=_number(rounds), seed=_number(seed),
    )  # fmt: skip
    pair = Pair(replace(target, eos_ids=frozenset()), None)
    given = _prompts(prompts) or default_prompts(is_chat=is_chat_model(target))
    contenders = (Outrider(pair, max_new_tokens), _Own(pair, max_new_tokens, num_draft_tokens, drafter))
    plain, own = Bench(pair, encoded(given, target), settings).results(contenders)
    speeds, baseline = own["tokens_per_second"], plain["tokens_per_second"]
    return Measured(ratios(speeds.values, baseline.values), speeds, baseline, own["tokens_per_forward"])


def check(
    target: Target,
    drafter: Drafter | LanguageModel,
    prompts: Iterable[str] = (),
    *,
    num_draft_tokens: DraftLength = 4,
    sampling: SamplingParams | None = None,
    seed: int = 0,
    coupling: Coupling = Coupling.REJECTION,
    verification: VerificationRule = VerificationRule.TOKEN,
    num_samples: int = DEFAULT_SAMPLES,
    num_tokens: int = DEFAULT_TOKENS,
) -> CheckReport:
    """Check that a drafter gives exactly what its target alone would, as `outrider check` does.

    `core.experiments.check_report.report_text` puts the report in words. Without prompts, the presets are used.

    Raises:
        OutriderError: it can't be done, in one sentence.
    """
    target = _loaded(target)
    run = RunRequest(
        target=target.ref, draft=None, prompt="any", method=type(drafter).__name__,
        **request_fields(check_draft_length(num_draft_tokens)),
        sampling=_sampling(sampling), seed=_number(seed), coupling=coupling, verification=verification,
    )  # fmt: skip
    _check_rule(drafter, run.coupling, run.verification)
    sizes = {"num_samples": _number(num_samples), "num_tokens": _number(num_tokens)}
    request = CheckRequest(run, tuple(_prompts(prompts)), **sizes)
    return check_drafter(target, lambda capacity: _drafter(target, drafter, capacity), request)


def _loaded(target: Target) -> LanguageModel:
    if isinstance(target, str | os.PathLike):
        return load(os.fspath(target))
    if not isinstance(target, LanguageModel):
        raise SettingsError(f"The target must be a loaded model or a reference to one, not {type(target).__name__}.")
    return target


def _number(value: Any) -> Any:
    """A setting's value, which may be NumPy's integer."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def _sampling(sampling: SamplingParams | None) -> SamplingParams:
    if not isinstance(sampling, SamplingParams | None):
        raise SettingsError(f"The sampling must be SamplingParams(…), not {type(sampling).__name__}.")
    return sampling or SamplingParams()


def _ids(prompt: Any) -> list[int]:
    """The ids of a prompt; a tensor may hold them as one row, as tokenizers return it."""
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(ids, Iterable) or isinstance(ids, bytes):
        raise PromptError(f"The prompt must be a text or ids, not {type(prompt).__name__}.")
    ids = list(ids)
    return ids[0] if len(ids) == 1 and isinstance(ids[0], list) else ids


def _check_rule(drafter: Any, coupling: Coupling, rule: VerificationRule) -> None:
    """Raise SettingsError for a rule that can't test what a drafter proposes, or that there isn't."""
    checked(SETTINGS["verification"], rule)
    if drafter is None:
        return  # Plain decoding tests nothing.
    are_trees = getattr(drafter, "proposes_trees", False)
    if problem := drafts_problem(type(drafter).__name__, coupling, rule, are_trees=are_trees):
        raise SettingsError(problem)


def _prompts(texts: Iterable[str]) -> list[Prompt]:
    texts = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if not all(isinstance(text, str) for text in texts):
        raise PromptError("The prompts must be texts.")
    return [Prompt(f"prompt {number}", text) for number, text in enumerate(texts, 1)]


def _drafter(target: LanguageModel, drafter: Drafter | LanguageModel, capacity: int) -> Drafter:
    if isinstance(drafter, LanguageModel):
        check_pair(drafter, target)
        return DraftModelDrafter(DrafterSetup(target, drafter, capacity))
    if isinstance(drafter, type):
        raise DrafterError(f"{drafter.__name__} is not a drafter. Create an instance first: {drafter.__name__}(…).")
    if not isinstance(drafter, Drafter):
        raise DrafterError(f"{type(drafter).__name__} is not a drafter. It needs start, propose and observe.")
    return drafter


class _Own(Outrider):
    """A contender that decodes with a given drafter."""

    def __init__(
        self, pair: Pair, max_new_tokens: int, num_draft_tokens: int, drafter: Drafter | LanguageModel
    ) -> None:
        super().__init__(pair, max_new_tokens, num_draft_tokens)
        self._given = drafter
        self.method = self.name = self.title = type(drafter).__name__
        self.drafter = self._build(1)  # Raises here if it does not apply.

    def _build(self, num_prompt_tokens: int) -> Drafter:
        return _drafter(self._pair.target, self._given, num_prompt_tokens + self._max_new_tokens)
