"""Carries out run requests: loads the models, decodes, and measures the baseline on request."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from core.analysis.steadiness import busy_note, speedup_interval
from core.controls import Cancelled, RunControls
from core.decode import autoregressive, speculative
from core.draft_length import config_fields, request_fields
from core.drafters.base import DrafterSetup
from core.drafters.registry import build_drafter, check_rule, get_method
from core.errors import OutriderError, PromptError, explaining_panics, first_line, is_panic
from core.models.catalogue import source_kind
from core.models.devices import device_name, free_memory, is_out_of_memory, release_memory, resolve_device
from core.models.fit import nodes_of
from core.models.language_model import LanguageModel
from core.models.placement import run_does_not_fit
from core.models.prompting import EncodedPrompt, check_prompt_length, encode_prompt
from core.models.shelf import ModelShelf, load_models
from core.runlog.log import installed, started_now
from core.runlog.tally import Tally
from core.runners.scoring import TargetScorer
from core.runners.threads import ThreadGovernor, num_processors
from core.settings import TYPICAL_FIELDS, RunRequest
from core.text import TextStream
from core.types import BaselineStep, Event, Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Step, Summary

_log = logging.getLogger(__name__)

_LINE = "\n"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The models of a request, and what chooses the number of threads, if there is a choice."""

    target: LanguageModel
    draft: LanguageModel | None
    governor: ThreadGovernor | None

    def record(self, step: Step) -> None:
        """Adapt the number of threads."""
        if self.governor is not None:
            # Decoding handles a stop during this timing.
            with contextlib.suppress(Cancelled):
                self.governor.record(step)

    def look_again(self) -> None:
        """Choose the number of threads again: long work must not depend on a single measurement at its start."""
        if self.governor is not None:
            self.governor.settle()


class Session:
    """Keeps models in memory while they fit, so that the next run with them starts at once. For one thread."""

    def __init__(self, while_loading: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> None:
        """`while_loading` is entered while models are loaded."""
        self._shelf = ModelShelf()
        self._while_loading = while_loading

    def close(self) -> None:
        """Free the models' memory."""
        self._shelf.clear()

    def drop(self, ref: str) -> None:
        """Free a model's memory, and its files, which Windows deletes only then."""
        self._shelf.drop(ref)

    def held_bytes(self, device: str = "auto") -> int:
        """Size of the weights kept on a device; they are freed if another run needs the memory."""
        return self._shelf.held_bytes(device_type=resolve_device(device).type)

    def load(self, request: RunRequest, controls: RunControls) -> Generator[StageChanged, None, Loaded]:
        """Load a request's models as a run would, with the same number of threads.

        Yields:
            The current stage.

        Raises:
            OutriderError: the models can't be loaded.
            Cancelled: loading was asked to stop.
        """
        target, draft = yield from self._load(request, controls)
        return Loaded(target, draft, _thread_governor(target, controls))

    def run(self, request: RunRequest, controls: RunControls | None = None) -> Generator[Event, None, None]:
        """Carry out a request.

        Args:
            request: its settings.
            controls: live settings and the way to stop; made from the request if None.

        Yields:
            `StageChanged` while the run is prepared, then `RunStarted`, the events of `speculative`, a `BaselineStep`
            for each token of the baseline if requested, and `Finished`. A failure after `RunStarted` ends the run with
            a `Finished` that names it.

        Raises:
            OutriderError: before `RunStarted`, if the request can't be carried out.
        """
        controls = controls or RunControls.from_request(request)
        try:
            target, draft = yield from self._load(request, controls)
            prompt = encode_prompt(
                target, request.prompt, request.chat, request.system, max_new_tokens=request.max_new_tokens
            )
            continuation = continue_prompt(target, prompt.ids, request)
            loaded = Loaded(target, draft, _thread_governor(target, controls))
            ids = [*prompt.ids, *continuation.ids]
            capacity = len(ids) + request.max_new_tokens
            setup = DrafterSetup(target, draft, capacity, controls.check_cancelled)
            is_plain = request.num_draft_tokens == 0
            drafter: Any = None if is_plain else build_drafter(request.method, setup, request.method_options)
        except Cancelled:
            yield Finished(Tally().summary(FinishReason.CANCELLED))
            return
        # K and temperature may have been changed while the models were loaded; a run without a draft stays one.
        now, length = replace(request, sampling=controls.sampling), controls.num_draft_tokens
        now = now if 0 in (length, request.draft_length) else replace(now, **request_fields(length))
        yield run_started(now, loaded, prompt, continuation)
        tally, baseline = Tally(), Tally()  # In case the run fails before its own summary.
        failure: str | None = None
        has_room = True
        try:
            written = continuation.kept_text + continuation.forced_text
            summary = yield from self._decode(request, controls, loaded, drafter, ids, written, tally, baseline)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            # A forward may raise anything; the traceback is for debugging only.
            _log.debug("the run failed", exc_info=True)
            if isinstance(error, OutriderError):
                failure = str(error)
            else:
                failure = f"The run failed in the model: {first_line(error)}. Try another device or precision."
            has_room = not is_out_of_memory(error)
        if failure is not None:
            # The error and the frames that held the caches are gone by now; the drafter still holds its own.
            del drafter, loaded
            release_memory()
            if not has_room:
                models = [target] if draft is None else [target, draft]
                nodes = nodes_of(request.method, request.num_draft_tokens)
                self._shelf.drop_all_but(self._shelf.keys_of(models))
                failure = run_does_not_fit(models, capacity, free_memory(target.device), nodes)
            summary = tally.summary(FinishReason.ERROR, error=failure)
        yield Finished(replace(summary, was_busy=bool(busy_note(tally, baseline, summary))))

    def _load(
        self, request: RunRequest, controls: RunControls
    ) -> Generator[StageChanged, None, tuple[LanguageModel, LanguageModel | None]]:
        check_rule(request)
        with self._while_loading():
            return (yield from load_models(self._shelf, request, controls.check_cancelled))

    def _decode(
        self,
        request: RunRequest,
        controls: RunControls,
        loaded: Loaded,
        drafter: Any,
        ids: list[int],
        written: str,
        tally: Tally,
        baseline: Tally,
    ) -> Generator[Event, None, Summary]:
        yield StageChanged("Reading the prompt…")
        shared: dict[str, Any] = {
            "max_new_tokens": request.max_new_tokens,
            "seed": request.seed,
            "coupling": request.coupling,
            "stop": request.stop,
            "written": written,
        }
        summary, sampling = None, controls.sampling
        asked: dict[str, Any] = {"controls": controls, "inspect": request.inspect, "rule": request.verification}
        for event in speculative(loaded.target, drafter, ids, **asked, **shared):
            if isinstance(event, Finished):
                summary = event.summary
                break
            if isinstance(event, PrefillDone):
                tally.prefill_ms, tally.target_step_ms = event.prefill_ms, event.target_step_ms
            if isinstance(event, Step):
                tally.add(event)
                loaded.record(event)
                sampling = replace(sampling, temperature=event.temperature)
            yield event
        assert summary is not None, "decoding ends with Finished"
        summary = replace(summary, num_threads=torch.get_num_threads(), was_stepped=controls.was_stepped)
        if not request.baseline or summary.finish_reason is FinishReason.CANCELLED:
            return summary
        yield StageChanged("Measuring the baseline…")
        # With the last step's temperature, in case it was changed.
        plainly = autoregressive(loaded.target, ids, controls=controls.sharing_stop(sampling, 0), **shared)
        try:
            return (yield from _with_baseline(summary, tally, baseline, plainly, loaded))
        except Exception as error:
            # The run itself is complete; only its baseline is not.
            _log.debug("the baseline failed", exc_info=True)
            failure = first_line(error)
        release_memory()
        return replace(summary, error=f"The run is complete, but its baseline failed: {failure}.")


def _with_baseline(
    summary: Summary, tally: Tally, baseline: Tally, events: Iterator[Any], loaded: Loaded
) -> Generator[Event, None, Summary]:
    for event in events:
        if isinstance(event, Step):
            baseline.add(event)
            loaded.record(event)
            yield BaselineStep(event)
        elif isinstance(event, Finished) and event.summary.finish_reason is not FinishReason.CANCELLED:
            plain, ours = event.summary.tokens_per_second, summary.tokens_per_second
            speedup = ours / plain if ours and plain and not summary.was_stepped else None
            cost, predicted = tally.forecast(baseline.verify_ms / baseline.tokens if baseline.tokens else None)
            return replace(
                summary,
                cost_coefficient=cost or summary.cost_coefficient,
                predicted_speedup=predicted or summary.predicted_speedup,
                baseline_tokens_per_second=plain,
                baseline_text=event.summary.text,
                baseline_num_threads=torch.get_num_threads(),
                measured_speedup=speedup,
                measured_speedup_interval=speedup_interval(tally, baseline) if speedup else None,
            )
    return summary


def _thread_governor(target: LanguageModel, controls: RunControls) -> ThreadGovernor | None:
    """Chooses the number of threads for a run on the CPU; None if there is no choice."""
    most = num_processors()
    if target.device.type != "cpu" or "OMP_NUM_THREADS" in os.environ or most == 1:
        return None
    scorer = TargetScorer(target, limit=8)
    governor = ThreadGovernor(lambda: scorer.time_one_step(0, controls.check_cancelled), torch.set_num_threads, most)
    try:
        governor.settle()
    except Cancelled:
        raise
    except Exception:
        # A model that fails here also fails in the run, which reports it.
        torch.set_num_threads(most)
        return None
    return governor


# --- Start of a run -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Continuation:
    """Ids that count as already generated, and their text: `kept_text` of the run before, then `forced_text`."""

    ids: tuple[int, ...] = ()
    kept_text: str = ""
    forced_text: str = ""


def continue_prompt(target: LanguageModel, prompt_ids: Sequence[int], request: RunRequest) -> Continuation:
    """The checked ids after the prompt, and their text. A partial character at the end is left to the next token.

    Raises:
        PromptError: an id that the target doesn't have, a forced token that ends the text, or no room left.
    """
    forced = request.forced or _ids_of(request.forced_text, target.tokenizer, [*prompt_ids, *request.continuation])
    ids = (*request.continuation, *forced)
    if not ids:
        return Continuation()
    if any(token >= target.vocab_size for token in ids):
        raise PromptError("The target lacks a token to continue from. Branch from a run of the same target.")
    if target.eos_ids.intersection(ids):
        raise PromptError("That token ends the text, so nothing can follow it. Force another one.")
    check_prompt_length(len(prompt_ids) + len(ids), target)
    stream = TextStream(target.tokenizer, prompt_ids)
    kept_text = "".join([stream.push(token) for token in request.continuation])
    return Continuation(ids, kept_text, "".join([stream.push(token) for token in forced]))


def _ids_of(text: str, tokenizer: Any, before: Sequence[int]) -> tuple[int, ...]:
    """A typed text as tokens that decode to the same text after the existing ids."""
    if not text:
        return ()

    def encode(text: str) -> list[int]:
        with explaining_panics("The target's tokenizer"):
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    # Some tokenizers add a space at the start of a text, so the text is also tried after a line end.
    text = text.encode("utf-8", "replace").decode("utf-8")
    alone, line, behind = encode(text), encode(_LINE), encode(_LINE + text)
    ways = [alone, behind[len(line) :]] if behind[: len(line)] == line else [alone]
    for ids in ways:
        stream = TextStream(tokenizer, before)
        if "".join([stream.push(token) for token in ids]) == text:
            return tuple(ids)
    return tuple(alone)


def run_started(request: RunRequest, loaded: Loaded, prompt: EncodedPrompt, continuation: Continuation) -> RunStarted:
    """A run's resolved settings, its machine and its software versions."""
    target = loaded.target
    config = {
        "target": request.target,
        "draft": request.draft,
        "method": request.method,
        "method_options": asdict(get_method(request.method).parse(request.method_options)),
        "revision": target.revision,
        "device": str(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
        **config_fields(request.draft_length),
        **asdict(request.sampling),
        "seed": request.seed,
        "coupling": str(request.coupling),
        "verification": str(request.verification),
        **({"lossy": True, **TYPICAL_FIELDS} if request.is_lossy else {}),
        "max_new_tokens": request.max_new_tokens,
        "stop": list(request.stop),
        "prompt": request.prompt,
        "prompt_token_ids": prompt.ids,
        "chat": prompt.is_chat,
        "requested_chat": request.chat,
        "requested_device": str(request.device),
        "requested_dtype": str(request.dtype),
        "baseline": request.baseline,
    }
    # Elsewhere, a relative path looks like a Hub id.
    for role, ref in (("target", request.target), ("draft", request.draft)):
        if ref and (kind := source_kind(ref)):
            config[f"{role}_source"] = kind
    if request.system:
        config["system"] = request.system
    if continuation.ids:
        config |= {
            "continuation_token_ids": list(continuation.ids),
            "continuation_text": continuation.kept_text,
            "forced_text": continuation.forced_text,
        }
    return started_now(
        config,
        torch=torch.__version__,
        transformers=installed("transformers") or "unknown",
        device_name=device_name(target.device),
        # The governor's choice varies between equal runs; what it may use doesn't.
        threads=torch.get_num_threads() if loaded.governor is None else num_processors(),
    )
