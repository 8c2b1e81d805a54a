"""A run's request as what the controls hold, so that they show what is replayed."""

from __future__ import annotations

from dataclasses import replace

from app.settings import MAX_NEW_TOKENS, MAX_UI_TEMPERATURE, ChatTemplate, RunSettings
from core.drafters.methods import METHODS
from core.types import LengthPolicy, RunRequest


def settings_of(request: RunRequest, current: RunSettings) -> RunSettings:
    """The settings of a request; where a control can't hold a value, the nearest, or what it holds now."""
    k = request.num_draft_tokens
    sampling = request.sampling
    is_known = request.method in METHODS
    options = {**current.method_options, request.method: dict(request.method_options)}
    return replace(
        current,
        target=request.target,
        draft=request.draft or current.draft,
        method=request.method if is_known else current.method,
        method_options=options if is_known else current.method_options,
        num_draft_tokens=current.num_draft_tokens if k is None else k,
        length_policy=request.length_policy if k is None else LengthPolicy.FIXED,
        temperature=min(sampling.temperature, MAX_UI_TEMPERATURE),
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=request.seed,
        coupling=request.coupling,
        max_new_tokens=min(request.max_new_tokens, MAX_NEW_TOKENS),
        chat={None: ChatTemplate.AUTO, True: ChatTemplate.ON, False: ChatTemplate.OFF}[request.chat],
        device=request.device,
        dtype=request.dtype,
        baseline=request.baseline,
        prompt=request.prompt,
    )
