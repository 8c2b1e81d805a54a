"""A kept run brought back: its events as they came."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from core.errors import OutriderError, RunLogError
from core.evidence import evidence_from_record
from core.runlog.log import Record, RunLog
from core.runlog.tally import Tally
from core.types import (
    BaselineStep,
    Coupling,
    Device,
    DType,
    Event,
    Finished,
    FinishReason,
    LengthPolicy,
    PrefillDone,
    RunRequest,
    RunStarted,
    SamplingParams,
    Step,
    Summary,
    TokenKind,
)

UNREADABLE = "This run can't be replayed: its log holds a setting that this Outrider can't read."


def request(log: RunLog) -> RunRequest:
    """The request that this run carried out, as the log has it.

    Raises:
        RunLogError: the log lacks what it takes, or holds a setting that no run can have, in one sentence.
    """
    return request_from_config(log.run["config"])


def request_to_show(log: RunLog) -> RunRequest:
    """A request to show this run with: its own, or, where that can't be carried out, its models and prompt alone."""
    config = log.run["config"]

    def text(name: str) -> str:
        value = config.get(name)
        return value if isinstance(value, str) else ""

    try:
        return request(log)
    except RunLogError:
        return RunRequest(
            target=text("target").strip() or "unknown",
            draft=text("draft") or None,
            prompt=text("prompt") or " ",
            coupling=Coupling.GUMBEL if config.get("coupling") == Coupling.GUMBEL else Coupling.REJECTION,
        )


def request_from_config(config: Mapping[str, Any]) -> RunRequest:
    """The request of which a log's `config` was made; see `request`."""
    missing = [name for name in ("target", "prompt", "seed") if config.get(name) is None]
    if missing:
        raise RunLogError(f"This run can't be replayed: its log lacks {' and '.join(missing)}.")
    sampling = SamplingParams()
    chat, stop = config.get("chat"), config.get("stop") or ()
    if not isinstance(stop, list | tuple):
        raise RunLogError(UNREADABLE)
    texts = [config["target"], config["prompt"], config.get("draft") or "", config.get("method") or "", *stop]
    if not all(isinstance(text, str) for text in texts) or not (chat is None or isinstance(chat, bool)):
        raise RunLogError(UNREADABLE)
    try:
        k = config.get("num_draft_tokens", 4)
        return RunRequest(
            target=config["target"],
            draft=config.get("draft") or None,
            prompt=config["prompt"],
            method=config.get("method") or "draft-model",
            method_options=dict(config.get("method_options") or {}),
            num_draft_tokens=None if k in {"auto", None} else k,
            # Logs from before there was a choice have none.
            length_policy=_length_policy(config) if k in {"auto", None} else LengthPolicy.AUTO,
            sampling=SamplingParams(
                config.get("temperature", sampling.temperature),
                config.get("top_k", sampling.top_k),
                config.get("top_p", sampling.top_p),
                config.get("min_p", sampling.min_p),
            ),
            seed=config["seed"],
            coupling=Coupling(config.get("coupling") or Coupling.REJECTION),
            max_new_tokens=config.get("max_new_tokens", 128),
            stop=tuple(stop),
            chat=chat,
            device=_device(config),
            dtype=_dtype(config),
            baseline=bool(config.get("baseline", False)),
            # A token that was forced is one more that was already written.
            continuation=tuple(config.get("continuation_token_ids") or ()),
        )
    except OutriderError as error:
        raise RunLogError(f"This run can't be replayed: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise RunLogError(UNREADABLE) from error


def _length_policy(config: Mapping[str, Any]) -> LengthPolicy:
    return LengthPolicy(config.get("length_policy") or LengthPolicy.AUTO)


def _device(config: Mapping[str, Any]) -> Device:
    # What was asked for, where the log has it: with "auto", target and draft are placed as they were then.
    asked = config.get("requested_device") or str(config.get("device") or "auto").partition(":")[0]
    return Device(asked)


def _dtype(config: Mapping[str, Any]) -> DType:
    return DType(config.get("requested_dtype") or config.get("dtype") or "auto")


CUT_OFF = "The log ends before the run did: Outrider ended in the middle of it, or the disk was full."


def events(log: RunLog) -> Iterator[Event]:
    """The run's events, as far as its log tells them.

    A step that can't be rebuilt is left out, and what a step lacks for display only is left empty. A log that was cut
    off ends with a `Finished` as well, added up from its steps, whose error says so.
    """
    yield _started(log.run)
    summary = log.summary or {}
    config = log.run["config"]
    read = [config.get(name) for name in ("prompt_token_ids", "continuation_token_ids")]
    prefill = PrefillDone(
        sum(len(ids) for ids in read if isinstance(ids, list)),
        _number(summary.get("prefill_ms"), 0.0),
        _optional_number(summary.get("target_step_ms")),
    )
    yield prefill
    tally, texts = Tally(), []
    for record in log.steps:
        if (step := step_from_record(record)) is not None:
            tally.add(step)
            texts.append(step.emitted_text)
            yield step
    for record in log.baseline_steps:
        if (step := _plain_step(record, log.run["config"])) is not None:
            yield BaselineStep(step)
    added_up = tally.summary(
        FinishReason.CANCELLED,
        "".join(texts),
        prefill_ms=prefill.prefill_ms,
        target_step_ms=prefill.target_step_ms,
        peak_memory_mb=None,
        error=CUT_OFF,
    )
    yield Finished(added_up if log.summary is None else _summary(log.summary, added_up))


def _started(run: Record) -> RunStarted:
    environment = run.get("environment")
    return RunStarted(
        run_id=_text(run.get("id")),
        started_at=_text(run.get("started_at")),
        version=_text(run.get("outrider_version")),
        config=_config(run["config"]),
        environment=dict(environment) if isinstance(environment, dict) else {},
    )


def _config(written: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, those that are gone through item by item as what they must be: a damaged log may have another."""
    config = dict(written)
    for name, kind in (("prompt_token_ids", list), ("continuation_token_ids", list), ("method_options", dict)):
        if name in config and not isinstance(config[name], kind):
            config[name] = kind()
    return config


def step_from_record(record: Mapping[str, Any]) -> Step | None:
    """A step from its line; None where the line is not one that a run could have written."""
    try:
        drafted = tuple(_whole(token) for token in record["drafted"])
        emitted = tuple(_whole(token) for token in record["emitted"])
        kinds = tuple(TokenKind(kind) for kind in record["emitted_kinds"])
        index, position, accepted = (_whole(record[name]) for name in ("index", "position", "num_accepted"))
    except (KeyError, TypeError, ValueError):
        return None
    if not emitted or len(kinds) != len(emitted) or not 0 <= accepted <= min(len(drafted), len(emitted)):
        return None
    emitted_texts = _texts(record.get("emitted_texts"), len(emitted))
    if not any(emitted_texts):
        emitted_texts = (_text(record.get("emitted_text")), *emitted_texts[1:])
    size = len(drafted)
    return Step(
        index=index,
        position=position,
        num_draft_tokens=size,
        temperature=_number(record.get("temperature")),
        drafted=drafted,
        drafted_texts=_texts(record.get("drafted_texts"), size, known=emitted_texts[:accepted]),
        draft_probs=_numbers(record.get("draft_probs"), size),
        target_probs=_numbers(record.get("target_probs"), size),
        acceptance_probs=_numbers(record.get("acceptance_probs"), size),
        expected_acceptance=_numbers(record.get("expected_acceptance"), size),
        # The Gumbel coupling draws none.
        uniforms=_numbers(record["uniforms"], size) if record.get("uniforms") else (),
        num_accepted=accepted,
        emitted=emitted,
        emitted_kinds=kinds,
        emitted_texts=emitted_texts,
        draft_ms=_number(record.get("draft_ms"), 0.0),
        verify_ms=_number(record.get("verify_ms"), 0.0),
        sample_ms=_number(record.get("sample_ms"), 0.0),
        total_ms=_number(record.get("total_ms"), 0.0),
        next_uniform=_optional_number(record.get("next_uniform")),
        evidence=evidence_from_record(record),
    )


def _plain_step(record: Record, config: Mapping[str, Any]) -> Step | None:
    """A step of the baseline, of which the log has only what is not the same for all."""
    emitted = record.get("emitted")
    kinds = [TokenKind.BONUS] * len(emitted) if isinstance(emitted, list) else []
    known = {"drafted": [], "num_accepted": 0, "emitted_kinds": kinds, "temperature": config.get("temperature")}
    return step_from_record({**known, **record})


def _summary(record: Record, added_up: Summary) -> Summary:
    """The log's own summary; what it lacks is added up from the steps."""

    def whole(name: str, default: int) -> int:
        value = record.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def number(name: str) -> float | None:
        return _optional_number(record.get(name))

    def text(name: str) -> str | None:
        value = record.get(name)
        return value if isinstance(value, str) else None

    def threads(name: str) -> int | None:
        return whole(name, 0) or None

    try:
        reason = FinishReason(record.get("finish_reason", ""))
    except ValueError:
        reason = FinishReason.CANCELLED
    per_position = record.get("num_accepted_tokens_per_pos")
    written = text("text")
    return Summary(
        finish_reason=reason,
        text=added_up.text if written is None else written,
        num_tokens=whole("num_tokens", added_up.num_tokens),
        num_steps=whole("num_steps", added_up.num_steps),
        num_drafts=whole("num_drafts", added_up.num_drafts),
        num_draft_tokens=whole("num_draft_tokens", added_up.num_draft_tokens),
        num_accepted_tokens=whole("num_accepted_tokens", added_up.num_accepted_tokens),
        num_accepted_tokens_per_pos=(
            tuple(count for count in per_position if isinstance(count, int))
            if isinstance(per_position, list)
            else added_up.num_accepted_tokens_per_pos
        ),
        draft_acceptance_rate=number("draft_acceptance_rate"),
        block_efficiency=number("block_efficiency"),
        cost_coefficient=number("cost_coefficient"),
        tokens_per_second=number("tokens_per_second"),
        prefill_ms=_number(record.get("prefill_ms"), 0.0),
        peak_memory_mb=number("peak_memory_mb"),
        predicted_speedup=number("predicted_speedup"),
        baseline_tokens_per_second=number("baseline_tokens_per_second"),
        baseline_text=text("baseline_text"),
        num_threads=threads("num_threads"),
        baseline_num_threads=threads("baseline_num_threads"),
        measured_speedup=number("measured_speedup"),
        error=text("error"),
        expected_acceptance_rate=number("expected_acceptance_rate"),
        target_step_ms=number("target_step_ms"),
    )


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _optional_number(value: Any) -> float | None:
    number = _number(value)
    return None if math.isnan(number) else number


def _number(value: Any, default: float = math.nan) -> float:
    # The log says null where the run had NaN.
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return default
    return float(value) if is_number else default


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    found = [_number(value) for value in values[:count]] if isinstance(values, list) else []
    return (*found, *(math.nan,) * (count - len(found)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(values: Any, count: int, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    found = tuple(_text(value) for value in values[:count]) if isinstance(values, list) else known
    return (*found, *("",) * (count - len(found)))
