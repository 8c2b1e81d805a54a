"""Carries out run requests: loads what they name, decodes, and measures the baseline where it is wanted."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from core.controls import Cancelled, RunControls
from core.decode import Continuation, autoregressive, continue_prompt, speculative
from core.draft_shape import config_fields
from core.drafters.registry import build_drafter, get_method
from core.errors import OutOfMemoryError, OutriderError, first_line
from core.machine import ThreadGovernor, num_processors
from core.models.devices import device_name, free_memory, is_out_of_memory, release_memory, resolve_device
from core.models.language_model import LanguageModel
from core.models.loading import run_does_not_fit
from core.models.prompting import EncodedPrompt, encode_prompt
from core.models.shelf import ModelShelf, load_models
from core.rounds import TargetScorer
from core.runlog.tally import Tally
from core.types import (
    BaselineStep,
    Drafted,
    Event,
    Finished,
    FinishReason,
    Inspected,
    PrefillDone,
    RunRequest,
    RunStarted,
    StageChanged,
    Step,
    Summary,
)


def run_started(
    request: RunRequest, target: LanguageModel, prompt: EncodedPrompt, continuation: Continuation
) -> RunStarted:
    """A run's settings as they came out, and the machine and versions that it runs with."""
    started_at = datetime.now(UTC)
    sampling = request.sampling
    return RunStarted(
        run_id=f"{started_at:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}",
        started_at=started_at.isoformat(timespec="milliseconds"),
        version=_version("outrider"),
        config={
            "target": request.target,
            "draft": request.draft,
            "method": request.method,
            "method_options": asdict(get_method(request.method).options(**request.method_options)),
            "revision": target.revision,
            "device": str(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            **config_fields(request.draft_length),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": request.seed,
            "coupling": str(request.coupling),
            "max_new_tokens": request.max_new_tokens,
            "stop": list(request.stop),
            "prompt": request.prompt,
            "prompt_token_ids": prompt.ids,
            "chat": prompt.is_chat,
            "requested_device": str(request.device),
            "requested_dtype": str(request.dtype),
            "baseline": request.baseline,
            **continuation.as_config(),
        },
        environment={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": _version("transformers"),
            "platform": platform.platform(),
            "device_name": device_name(target.device),
            "threads": torch.get_num_threads(),
            "process": os.getpid(),
        },
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Models made ready for other work than a run, such as a check or a probe."""

    target: LanguageModel
    draft: LanguageModel | None
    governor: ThreadGovernor | None

    def record(self, step: Step) -> None:
        """Keep an eye on the number of threads."""
        _govern(self.governor, step)

    def look_again(self) -> None:
        """Choose the number of threads anew: work of minutes must not hang on one look at its beginning."""
        if self.governor is not None:
            self.governor.settle()


class Session:
    """Keeps models while they fit, so that the next run with them starts at once. For one thread."""

    def __init__(
        self,
        shelf: ModelShelf | None = None,
        while_loading: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """
        Args:
            shelf: what keeps the models.
            while_loading: entered while models are brought there, whatever they are wanted for: long lists of words
                are read then, in Python.
        """
        self._shelf = shelf or ModelShelf()
        self._while_loading = while_loading

    def close(self) -> None:
        """Give the models' memory back."""
        self._shelf.clear()

    def held_bytes(self, device: str = "auto") -> int:
        """What the weights of the models that are kept take on a device. Another run may have it: they make room."""
        return self._shelf.held_bytes(device_type=resolve_device(device).type)

    def load(self, request: RunRequest, controls: RunControls) -> Generator[StageChanged, None, Loaded]:
        """Bring a request's models to where a run would use them, with the threads that it would use.

        Yields:
            What is being done.

        Raises:
            OutriderError: they can't be loaded.
            Cancelled: it was asked to stop.
        """
        target, draft = yield from self._load(request, controls)
        return Loaded(target, draft, _thread_governor(target, controls))

    def run(self, request: RunRequest, controls: RunControls | None = None) -> Generator[Event, None, None]:
        """Carry out a request.

        Args:
            request: its settings.
            controls: live settings and the way to stop; made from the request if None.

        Yields:
            `StageChanged` while something is prepared, then `RunStarted`, `PrefillDone`, a `Step` each round, behind
            a `Drafted` while a person follows the single steps, an `Inspected` for each where evidence is kept, a
            `BaselineStep` each token where the baseline was asked for, and `Finished`. A failure after `RunStarted`
            ends the run with a `Finished` that names it.

        Raises:
            OutriderError: before `RunStarted`: the request can't be carried out, in one sentence.
        """
        controls = controls or RunControls.from_request(request)
        try:
            target, draft = yield from self._load(request, controls)
        except Cancelled:
            yield _stopped()
            return
        yield from self._run(request, controls, target, draft)

    def _load(
        self, request: RunRequest, controls: RunControls
    ) -> Generator[StageChanged, None, tuple[LanguageModel, LanguageModel | None]]:
        with self._while_loading():
            return (yield from load_models(self._shelf, request, controls.check_cancelled))

    def _run(
        self,
        request: RunRequest,
        controls: RunControls,
        target: LanguageModel,
        draft: LanguageModel | None,
    ) -> Generator[Event, None, None]:
        prompt = encode_prompt(target, request.prompt, request.chat)
        continuation = continue_prompt(target, prompt.ids, request)
        ids = [*prompt.ids, *continuation.ids]
        capacity = len(ids) + request.max_new_tokens
        try:
            governor = _thread_governor(target, controls)
        except Cancelled:
            yield _stopped()
            return
        drafter: Any = build_drafter(
            request.method,
            draft=draft,
            target=target,
            options=request.method_options,
            capacity=capacity,
            check_cancelled=controls.check_cancelled,
        )
        yield run_started(request, target, prompt, continuation)
        progress = _Progress()
        failure: str | None = None
        has_room = True
        try:
            summary = yield from self._decode(request, controls, target, drafter, ids, progress, governor)
        except Exception as error:
            # Whatever torch, or any architecture's code, throws amid a forward; its traceback belongs in a debugger.
            _log.debug("the run failed", exc_info=True)
            failure = _failure(error)
            has_room = not isinstance(error, OutOfMemoryError) and not is_out_of_memory(error)
        if failure is not None:
            # The error is gone by now, and with it the frames that held the caches; the drafter holds its own.
            drafter = governor = None
            release_memory()
            if not has_room:
                models = [target] if draft is None else [target, draft]
                self._shelf.drop_all_but(self._shelf.keys_of(models))
                failure = run_does_not_fit(models, capacity, free_memory(target.device))
            summary = progress.failed(failure)
        yield Finished(summary)

    def _decode(
        self,
        request: RunRequest,
        controls: RunControls,
        target: LanguageModel,
        drafter: Any,
        ids: list[int],
        progress: _Progress,
        governor: ThreadGovernor | None,
    ) -> Generator[Event, None, Summary]:
        yield StageChanged("Reading the prompt…")
        shared: dict[str, Any] = {
            "max_new_tokens": request.max_new_tokens,
            "seed": request.seed,
            "coupling": request.coupling,
            "stop": request.stop,
        }
        summary = None
        for event in speculative(target, drafter, ids, controls=controls, inspect=request.inspect, **shared):
            if isinstance(event, Finished):
                summary = event.summary
                break
            if not isinstance(event, Drafted | Inspected):
                progress.add(event)
            if isinstance(event, Step):
                _govern(governor, event)
            yield event
        assert summary is not None, "decoding ends with Finished"
        summary = replace(summary, num_threads=torch.get_num_threads())
        if not request.baseline or summary.finish_reason is FinishReason.CANCELLED:
            return summary
        yield StageChanged("Measuring the baseline…")
        # With the settings that the run ended with, should K or the temperature have been moved meanwhile.
        plainly = autoregressive(target, ids, controls=controls.plain(), **shared)
        try:
            return (yield from _with_baseline(summary, plainly, governor))
        except Exception as error:
            # The run itself is whole; what it was to be held against is not.
            _log.debug("the baseline failed", exc_info=True)
            failure = first_line(error)
        release_memory()
        return replace(summary, error=f"The run is whole, but its baseline failed: {failure}.")


class _Progress:
    """What a run has come to so far, should it fail before its own summary."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._texts: list[str] = []
        self._prefill: PrefillDone | None = None

    def add(self, event: PrefillDone | Step) -> None:
        if isinstance(event, PrefillDone):
            self._prefill = event
        else:
            self._tally.add(event)
            self._texts.append(event.emitted_text)

    def failed(self, error: str) -> Summary:
        return self._tally.summary(
            FinishReason.ERROR,
            "".join(self._texts),
            prefill_ms=self._prefill.prefill_ms if self._prefill else 0.0,
            target_step_ms=self._prefill.target_step_ms if self._prefill else None,
            peak_memory_mb=None,
            error=error,
        )


def _stopped() -> Finished:
    """The end of a run that was stopped before it started."""
    reason = FinishReason.CANCELLED
    return Finished(Tally().summary(reason, "", prefill_ms=0.0, target_step_ms=None, peak_memory_mb=None))


def _failure(error: Exception) -> str:
    if isinstance(error, OutriderError):
        return str(error)
    return f"The run failed in the model: {first_line(error)}. Try another device or precision."


def _govern(governor: ThreadGovernor | None, step: Step) -> None:
    if governor is not None:
        # A stop while threads are timed is for decoding to see, which ends the run in order.
        with contextlib.suppress(Cancelled):
            governor.record(step)


def _thread_governor(target: LanguageModel, controls: RunControls) -> ThreadGovernor | None:
    """Settles the number of threads for a run on the CPU, and tells it; None where there is no choice."""
    if target.device.type != "cpu":
        return None
    most = num_processors()
    if "OMP_NUM_THREADS" in os.environ or most == 1:
        return None
    scorer = TargetScorer(target, capacity=8)

    governor = ThreadGovernor(lambda: scorer.time_one_step(0, controls.check_cancelled), torch.set_num_threads, most)
    try:
        governor.settle()
    except Cancelled:
        raise
    except Exception:
        # A model that fails here fails in the run as well, which says so.
        torch.set_num_threads(most)
        return None
    return governor


def _with_baseline(
    summary: Summary, events: Iterator[Any], governor: ThreadGovernor | None
) -> Generator[Event, None, Summary]:
    for event in events:
        if isinstance(event, Step):
            _govern(governor, event)
            yield BaselineStep(event)
        elif isinstance(event, Finished) and event.summary.finish_reason is not FinishReason.CANCELLED:
            plain, ours = event.summary.tokens_per_second, summary.tokens_per_second
            return replace(
                summary,
                baseline_tokens_per_second=plain,
                baseline_text=event.summary.text,
                baseline_num_threads=torch.get_num_threads(),
                measured_speedup=ours / plain if ours and plain else None,
            )
    return summary
