"""A kept run as a text to probe on: its prompt, and what its target wrote behind it."""

from __future__ import annotations

from typing import Any

from core.errors import RunLogError
from core.probe.types import ProbeText
from core.replay import events
from core.rerun import request_from_config
from core.trace import RunLog
from core.types import SamplingParams, Step


def sampling_of(log: RunLog) -> SamplingParams:
    """What the run's laws went through.

    Raises:
        RunLogError: the log does not say.
    """
    return request_from_config(log.run["config"]).sampling


def probe_text(log: RunLog, target: str, sampling: SamplingParams) -> ProbeText:
    """The run's text. It is the target's own where target and sampling are those of the run, all along.

    Raises:
        RunLogError: the run wrote nothing.
    """
    config = log.run["config"]
    steps = [event for event in events(log) if isinstance(event, Step)]
    written = tuple(token for step in steps for token in step.emitted)
    if not written:
        raise RunLogError("This run wrote no text to probe on.")
    before = (*_ids(config.get("prompt_token_ids")), *_ids(config.get("continuation_token_ids")))
    if target != config.get("target") or not before:
        text = "".join(step.emitted_text for step in steps)
        return ProbeText("the run's text", prompt=str(config.get("prompt") or ""), continuation=text)
    is_own = sampling == sampling_of(log) and all(step.temperature == sampling.temperature for step in steps)
    return ProbeText("the run's text", prompt_ids=before, continuation_ids=written, is_own=is_own)


def _ids(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or not all(type(value) is int and value >= 0 for value in values):
        return ()
    return tuple(values)
