"""Rebuilds a kept run from its log: the request that runs it again, and its events."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from core.errors import OutriderError, RunLogError
from core.evidence import evidence_from_record
from core.runlog.reading import RunLog, mapping_of, number_of, text_of
from core.runlog.tally import Tally
from core.settings import (
    MAX_DRAFT_TOKENS,
    Coupling,
    Device,
    DType,
    LengthPolicy,
    RunRequest,
    SamplingParams,
    VerificationRule,
    declared,
)
from core.types import (
    UNKNOWN_ID,
    BaselineStep,
    BlockTest,
    Event,
    Finished,
    FinishReason,
    PrefillDone,
    RunStarted,
    Step,
    StepsCounted,
    StepSource,
    Summary,
    TokenKind,
)

UNREADABLE = "This run can't be replayed: its log holds a setting that this version of Outrider can't read."
CUT_OFF = "The log ends before the run did: Outrider quit during the run, or the disk was full."

COUNTS = ("num_tokens", "num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens")
RATES = (
    "draft_acceptance_rate", "block_efficiency", "cost_coefficient", "tokens_per_second", "peak_memory_mb",
    "predicted_speedup", "baseline_tokens_per_second", "measured_speedup", "expected_acceptance_rate", "target_step_ms",
)  # fmt: skip

PER_TOKEN = ("draft_probs", "target_probs", "acceptance_probs", "expected_acceptance")
TIMES = ("draft_ms", "verify_ms", "sample_ms", "total_ms", "absent_ms")


def request_to_show(log: RunLog) -> RunRequest:
    """A request for displaying this run: its own, or one with only its models and prompt if that is invalid."""
    config = log.run["config"]
    try:
        return request_from_config(config)
    except RunLogError:
        is_lossy = config.get("verification") == VerificationRule.TYPICAL
        return RunRequest(
            target=text_of(config.get("target")).strip() or "unknown",
            draft=text_of(config.get("draft")) or None,
            prompt=text_of(config.get("prompt")) or " ",
            coupling=Coupling.GUMBEL if config.get("coupling") == Coupling.GUMBEL else Coupling.REJECTION,
            verification=VerificationRule.TYPICAL if is_lossy else VerificationRule.TOKEN,
        )


def request_from_config(config: Mapping[str, Any]) -> RunRequest:
    """The request that a log's `config` was made from.

    Raises:
        RunLogError: it lacks a setting, or holds one that no run can have.
    """
    missing = [name for name in ("target", "prompt", "seed") if config.get(name) is None]
    if missing:
        raise RunLogError(f"This run can't be replayed: its log lacks {' and '.join(missing)}.")
    chat, stop = config.get("requested_chat", config.get("chat")), config.get("stop") or ()
    if not isinstance(stop, list | tuple):
        raise RunLogError(UNREADABLE)
    texts = [config["target"], config["prompt"], config.get("draft") or "", config.get("method") or "", *stop]
    texts.append(config.get("system") or "")
    if not all(isinstance(text, str) for text in texts) or not (chat is None or isinstance(chat, bool)):
        raise RunLogError(UNREADABLE)
    k = config.get("num_draft_tokens", 4)
    is_chosen = k is None or k == "auto"
    try:
        return RunRequest(
            target=config["target"],
            draft=config.get("draft") or None,
            prompt=config["prompt"],
            method=config.get("method") or "draft-model",
            method_options=dict(config.get("method_options") or {}),
            num_draft_tokens=None if is_chosen else k,
            length_policy=LengthPolicy((is_chosen and config.get("length_policy")) or LengthPolicy.AUTO),
            sampling=SamplingParams(**_known(config, declared(SamplingParams))),
            **_known(config, ("seed", "max_new_tokens")),
            chat=chat,
            coupling=Coupling(config.get("coupling") or Coupling.REJECTION),
            verification=VerificationRule(config.get("verification") or VerificationRule.TOKEN),
            stop=tuple(stop),
            # "auto" places target and draft as before; older logs hold only the outcome.
            device=Device(config.get("requested_device") or str(config.get("device") or "auto").partition(":")[0]),
            dtype=DType(config.get("requested_dtype") or config.get("dtype") or "auto"),
            baseline=bool(config.get("baseline", False)),
            # Forced tokens count as already written.
            continuation=tuple(config.get("continuation_token_ids") or ()),
            system=config.get("system") or "",
            engine=text_of((config.get("engine") or {}).get("address")),
        )
    except OutriderError as error:
        raise RunLogError(f"This run can't be replayed: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise RunLogError(UNREADABLE) from error


def _known(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: config[name] for name in names if name in config}


def events(log: RunLog) -> Iterator[Event]:
    """The run's events, as far as its log holds them.

    Steps that can't be rebuilt are left out. A log that was cut off also ends with a `Finished`, computed from its
    steps, whose error says so.
    """
    run, summary = log.run, log.summary or {}
    config = dict(run["config"])
    for name, kind in (("prompt_token_ids", list), ("continuation_token_ids", list), ("method_options", dict)):
        if name in config and not isinstance(config[name], kind):
            config[name] = kind()  # A damaged log may hold anything; others iterate over these.
    yield RunStarted(
        run_id=text_of(run.get("id")),
        started_at=text_of(run.get("started_at")),
        version=text_of(run.get("outrider_version")),
        config=config,
        environment=dict(mapping_of(run.get("environment"))),
    )
    num_read = sum(len(config.get(name) or ()) for name in ("prompt_token_ids", "continuation_token_ids"))
    prefill = PrefillDone(num_read, _number(summary.get("prefill_ms"), 0.0), number_of(summary.get("target_step_ms")))
    yield prefill
    tally = Tally()
    tally.prefill_ms, tally.target_step_ms = prefill.prefill_ms, prefill.target_step_ms
    for step in steps(log):
        tally.add(step)
        yield step
    for record in log.baseline_steps:
        emitted = record.get("emitted")
        kinds = [TokenKind.BONUS] * len(emitted) if isinstance(emitted, list) else []
        known = {"drafted": [], "num_accepted": 0, "emitted_kinds": kinds, "temperature": config.get("temperature")}
        if (plain := step_from_record({**known, **record})) is not None:
            yield BaselineStep(plain)
    added_up = tally.summary(FinishReason.CANCELLED, error=CUT_OFF)
    yield Finished(added_up if log.summary is None else summary_from_record(log.summary, added_up))


def steps(log: RunLog) -> Iterator[Step]:
    """The steps that can be rebuilt, with the counts that a server reported at the run's end."""
    rebuilt = [step for record in log.steps if (step := step_from_record(record)) is not None]
    reported: list[Any] = []
    for _, record in log.others:
        if record.get("type") == "steps_counted" and isinstance(record.get("counts"), list):
            reported = record["counts"]
    return StepsCounted(tuple(map(_counts, reported))).applied(rebuilt)


def damage_note(log: RunLog) -> str:
    """A sentence if steps of the log can't be rebuilt; else empty."""
    lost = sum(step_from_record({**record, "evidence": None}) is None for record in log.steps)
    return f"{lost:,} of the log's {len(log.steps):,} steps are damaged and were left out." if lost else ""


def _counts(found: Any) -> tuple[tuple[int, int], ...] | None:
    """Drafted and accepted of the steps that a server sent at once; none if no step can have them, None if unknown."""
    if found is None:
        return None
    # A log may also hold the pair of a single step.
    pairs = [found] if isinstance(found, list) and all(isinstance(value, int) for value in found) else found
    try:
        counts = tuple((_whole(drafted), _whole(accepted)) for drafted, accepted in pairs)
    except (TypeError, ValueError):
        return ()
    return counts if all(0 <= accepted <= drafted <= MAX_DRAFT_TOKENS for drafted, accepted in counts) else ()


def step_from_record(record: Mapping[str, Any]) -> Step | None:
    """A step from its record; None if no run could have written it. Missing numbers are NaN, missing texts empty."""
    try:
        source = StepSource(record["source"]) if record.get("source") else None
        drafted, emitted = (_ids(record[name], source) for name in ("drafted", "emitted"))
        kinds = tuple(TokenKind(kind) for kind in record["emitted_kinds"])
        index, position, accepted = (_whole(record[name]) for name in ("index", "position", "num_accepted"))
    except (KeyError, TypeError, ValueError):
        return None
    if not emitted or len(kinds) != len(emitted) or not 0 <= accepted <= min(len(drafted), len(emitted)):
        return None
    parents, path = _tree(record, len(drafted))
    if parents and len(path) != accepted:
        return None
    emitted_texts = _texts(record.get("emitted_texts"), len(emitted))
    if not any(emitted_texts):
        emitted_texts = (text_of(record.get("emitted_text")), *emitted_texts[1:])
    size = len(drafted)
    figures: dict[str, Any] = {name: _numbers(record.get(name), size) for name in PER_TOKEN}
    figures |= {name: _number(record.get(name), 0.0 if source is None else math.nan) for name in TIMES}
    figures["absent_ms"] = _number(record.get("absent_ms"), 0.0)
    block = _block(record, size)
    if any(math.isnan(test.residual) for test in block):
        # An older log has these figures of token verification.
        figures["acceptance_probs"] = tuple(test.weight for test in block[1:])
        figures["expected_acceptance"] = (math.nan,) * size
    return Step(
        index=index,
        position=position,
        num_draft_tokens=size,
        temperature=_number(record.get("temperature")),
        drafted=drafted,
        drafted_texts=_texts(record.get("drafted_texts"), size, known=emitted_texts[:accepted]),
        uniforms=_numbers(record["uniforms"], size) if record.get("uniforms") else (),
        num_accepted=accepted,
        emitted=emitted,
        emitted_kinds=kinds,
        emitted_texts=emitted_texts,
        **figures,
        next_uniform=number_of(record.get("next_uniform")),
        evidence=evidence_from_record(record),
        parents=parents,
        accepted_path=path,
        block=block,
        source=source,
        draft_length=_draft_length(record.get("draft_length")),
    )


def _draft_length(value: Any) -> int | LengthPolicy | None:
    if value in (LengthPolicy.AUTO, LengthPolicy.ADAPTIVE):
        return LengthPolicy(value)
    return value if type(value) is int and 0 <= value <= MAX_DRAFT_TOKENS else None


def _ids(values: Any, source: StepSource | None) -> tuple[int, ...]:
    """The ids of a step; a server's may hold null."""
    return tuple(UNKNOWN_ID if source and token is None else _whole(token) for token in values)


def _tree(record: Mapping[str, Any], count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A tree's parents and accepted path; both empty for a chain, or where they are damaged."""
    # An older log leaves out a path of which nothing was accepted.
    parents, path = record.get("parents"), record.get("accepted_path", None if record["num_accepted"] else [])
    if not isinstance(parents, list) or not isinstance(path, list) or len(parents) != count:
        return (), ()
    if not all(type(parent) is int and -1 <= parent < node for node, parent in enumerate(parents)):
        return (), ()
    if not all(type(node) is int and 0 <= node < count for node in path):
        return (), ()
    if any(parents[node] != before for before, node in itertools.pairwise([-1, *path])):
        return (), ()
    return tuple(parents), tuple(path)


def _block(record: Mapping[str, Any], count: int) -> tuple[BlockTest, ...]:
    """The tests of block verification, one more than tokens; none where they are damaged. Older logs lack residuals."""
    tests = record.get("block")
    if not isinstance(tests, list) or not all(isinstance(test, list) and len(test) in {2, 3} for test in tests):
        return ()
    found = tuple(BlockTest(*map(_number, (*test, None)[:3])) for test in tests[: count + 1])
    return found if len(found) == count + 1 else ()


def summary_from_record(record: Mapping[str, Any], added_up: Summary) -> Summary:
    """A run's own summary; missing counts are those of `added_up`, which was computed from the steps."""

    def of_kind(name: str, kind: type, default: Any = None) -> Any:
        value = record.get(name)
        return value if type(value) is kind else default  # True is no count.

    try:
        reason = FinishReason(record.get("finish_reason", ""))
    except ValueError:
        reason = FinishReason.CANCELLED
    per_position = of_kind("num_accepted_tokens_per_pos", list, added_up.num_accepted_tokens_per_pos)
    counts: dict[str, Any] = {name: of_kind(name, int, getattr(added_up, name)) for name in COUNTS}
    rates: dict[str, Any] = {name: number_of(record.get(name)) for name in RATES}
    return Summary(
        finish_reason=reason,
        text=of_kind("text", str, added_up.text),
        **counts,
        num_accepted_tokens_per_pos=tuple(count for count in per_position if isinstance(count, int)),
        **rates,
        prefill_ms=_number(record.get("prefill_ms"), 0.0),
        measured_speedup_interval=interval_of(record),
        was_busy=of_kind("was_busy", bool),
        baseline_text=of_kind("baseline_text", str),
        num_threads=of_kind("num_threads", int) or None,
        baseline_num_threads=of_kind("baseline_num_threads", int) or None,
        error=of_kind("error", str),
        source=StepSource(record["source"]) if record.get("source") in list(StepSource) else None,
        was_stepped=record.get("was_stepped") is True,
    )


def interval_of(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval of a summary's measured speedup; None where it has none."""
    found = record.get("measured_speedup_interval")
    bounds = [number_of(bound) for bound in found] if isinstance(found, list) else []
    return (bounds[0], bounds[1]) if len(bounds) == 2 and bounds[0] is not None and bounds[1] is not None else None


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _number(value: Any, default: float = math.nan) -> float:
    number = number_of(value)
    return default if number is None else number


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    found = [_number(value) for value in values[:count]] if isinstance(values, list) else []
    return (*found, *(math.nan,) * (count - len(found)))


def _texts(values: Any, count: int, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    found = tuple(text_of(value) for value in values[:count]) if isinstance(values, list) else known
    return (*found, *("",) * (count - len(found)))
