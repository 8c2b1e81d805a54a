"""Carries a check out, on the path that a run takes: the same models, drafter, forwards and verification."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace

from core.check.identity import Setting, compare_texts
from core.check.law import judge_law
from core.check.notes import notes_on
from core.check.types import CheckFinished, CheckProgress, CheckReport, CheckRequest, Comparison, IdentityResult
from core.collector import only_new_objects
from core.controls import Cancelled, RunControls
from core.draft_length import length_of
from core.drafters.base import Drafter
from core.drafters.registry import build_drafter
from core.models.language_model import LanguageModel
from core.models.prompting import encode_prompt
from core.prompt_suites import PRESETS, Prompt, default_prompts, read_prompts
from core.session import Loaded, Session
from core.types import Coupling, StageChanged

CheckEvent = StageChanged | CheckProgress | CheckFinished


def check(session: Session, request: CheckRequest, controls: RunControls) -> Generator[CheckEvent, None, None]:
    """Check whether a pair and its settings give exactly what the target alone would.

    Args:
        session: that the models are kept by.
        request: what to check.
        controls: the way to stop; sampling and K are taken from the request.

    Yields:
        `StageChanged` while models are loaded, `CheckProgress`, and `CheckFinished`, also when it was stopped.

    Raises:
        OutriderError: it can't be checked, in one sentence.
    """
    try:
        loaded = yield from session.load(request.run, controls)
        with only_new_objects():
            report = yield from _checked(request, loaded, controls)
        yield CheckFinished(report)
    except Cancelled:
        yield CheckFinished(None)


def _checked(
    request: CheckRequest, loaded: Loaded, controls: RunControls
) -> Generator[CheckProgress, None, CheckReport]:
    begun = time.monotonic()
    setting = _setting(request, loaded, controls)
    identities = yield from _compared(request, setting)
    law = None
    if not request.run.sampling.is_greedy:
        law = yield from judge_law(setting)
    return CheckReport(
        request=replace(request, prompts=tuple(replace(prompt, ids=()) for prompt in setting.prompts)),
        device=str(loaded.target.device),
        dtype=str(loaded.target.dtype).removeprefix("torch."),
        identities=identities,
        law=law,
        notes=notes_on(request.run, str(loaded.target.dtype), law),
        seconds=time.monotonic() - begun,
    )


def _compared(request: CheckRequest, setting: Setting) -> Generator[CheckProgress, None, tuple[IdentityResult, ...]]:
    found = [(yield from compare_texts(setting, Comparison.GREEDY))]
    if request.run.coupling is Coupling.GUMBEL and not request.run.sampling.is_greedy:
        found.append((yield from compare_texts(setting, Comparison.GUMBEL)))
    if request.with_transformers:
        found.append((yield from compare_texts(setting, Comparison.TRANSFORMERS)))
    return tuple(found)


def _setting(request: CheckRequest, loaded: Loaded, controls: RunControls) -> Setting:
    run, target = request.run, loaded.target
    own = controls.sharing_stop(run.sampling, length_of(run))

    def make_drafter(capacity: int) -> Drafter:
        return build_drafter(
            run.method,
            draft=loaded.draft,
            target=target,
            options=run.method_options,
            capacity=capacity,
            check_cancelled=own.check_cancelled,
        )

    prompts = request.prompts or usual_prompts(target)
    encoded = [replace(item, ids=tuple(encode_prompt(target, item.text, run.chat).ids)) for item in prompts]
    return Setting(request, loaded, tuple(encoded), own, make_drafter)


def usual_prompts(target: LanguageModel) -> tuple[Prompt, ...]:
    """The presets, those ahead that suit the target: the law is sampled behind the first ones."""
    first = default_prompts(is_chat=bool(getattr(target.tokenizer, "chat_template", None)))
    return (*first, *(prompt for prompt in read_prompts(PRESETS) if prompt not in first))
