"""Carries out a run request on a server, with the events of `core.session.Session`."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from core.controls import Cancelled, RunControls
from core.engines.adapters import stream_chunks
from core.engines.client import Client
from core.engines.metrics import Snapshot, difference, read_metrics
from core.engines.server import Product, Server
from core.engines.steps import Chunk, Reported, StepMaker, align, shows_speed
from core.errors import ServerBusyError, ServerError, SettingsError
from core.runlog.log import started_now
from core.runlog.tally import Tally
from core.settings import Coupling, RunRequest, VerificationRule
from core.types import (
    Event,
    Finished,
    FinishReason,
    PrefillDone,
    RunStarted,
    StageChanged,
    Step,
    StepsCounted,
    StepSource,
    Summary,
)

MOST_TRIES, MOST_WAIT_S, USUAL_WAIT_S = 3, 30.0, 2.0
"""How often a busy server is asked, the longest wait for it, and the wait if it doesn't say."""
_Item = TypeVar("_Item")
_Counted = tuple[int, int, int, tuple[int, ...]]
"""Drafts, drafted and accepted tokens, and how many were accepted at each position, by the server's counters."""


class ServerSession:
    """Runs requests on a server. For one thread at a time; several sessions may use one `Server`."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def close(self) -> None:
        """Nothing is kept between runs; for symmetry with `Session`."""

    def run(self, request: RunRequest, controls: RunControls | None = None) -> Generator[Event, None, None]:
        """Carry out a request.

        Closing the generator, or stopping the run through `controls`, ends the request on the server.

        Yields:
            `StageChanged` while the server is waited for, then `RunStarted`, `PrefillDone` with the first token, a
            `Step` for each step as far as the server shows them, a `StepsCounted` if it reports more about them at the
            end, and `Finished`. A failure after `RunStarted` ends the run with a `Finished` that names it.

        Raises:
            ServerError, SettingsError: before `RunStarted`, if the request can't be carried out.
        """
        check_request(request, self.server)
        controls = controls or RunControls.from_request(request)
        with self.server.client() as client, self.server.client() as observer:
            yield from _Run(self.server.for_model(request.target), request, controls, client, observer).events()


def retrying(
    ask: Callable[[], Iterator[_Item]], check_cancelled: Callable[[], None], tries: int = MOST_TRIES
) -> Iterator[_Item | StageChanged]:
    """What a server answers; while it is busy, it is asked again after a wait."""
    for attempt in range(1, tries + 1):
        try:
            yield from ask()
            return
        except ServerBusyError as error:  # Only ever in place of an answer.
            wait_s = USUAL_WAIT_S if error.retry_after is None else error.retry_after
            if attempt == tries or wait_s > MOST_WAIT_S:
                raise
            yield StageChanged(f"The server is busy; trying again in {math.ceil(wait_s)} s…")
            until = time.monotonic() + wait_s
            while (left := until - time.monotonic()) > 0:
                check_cancelled()
                time.sleep(min(0.1, left))


def check_request(request: RunRequest, server: Server) -> None:
    """Refuse what a server can't do.

    Raises:
        SettingsError: a setting that only this machine knows.
        ServerError: the server doesn't have the model.
    """
    name = server.product.shown
    refused = {
        "Gumbel coupling": request.coupling is Coupling.GUMBEL,
        "a verification rule": request.verification is not VerificationRule.TOKEN,
        "the evidence of each step": request.inspect,
        "a branch off another run": bool(request.continuation or request.forced or request.forced_text),
        "a plain baseline in the same run": request.baseline,
    }
    for what, is_wanted in refused.items():
        if is_wanted:
            raise SettingsError(f"A server can't be asked for {what}; leave it out, or run on this machine.")
    if request.system and request.chat is False:
        raise SettingsError(f"{name} takes a system prompt only with the chat template.")
    server.model(request.target)


class _Run:
    def __init__(
        self, server: Server, request: RunRequest, controls: RunControls, client: Client, observer: Client
    ) -> None:
        self._server, self._request, self._controls = server, request, controls
        self._client, self._observer = client, observer
        self._maker = StepMaker(server.speculation, request.sampling.temperature)
        self._num_prompt = self._num_tokens = self._surplus = 0
        self._prefill_ms = 0.0
        self._has_started = False
        self._reported: Reported | None = None
        self._reason: FinishReason | None = None

    def events(self) -> Generator[Event, None, None]:
        before: Snapshot | None = None
        error: str | None = None
        try:
            before = self._metrics()
            yield from self._stream()
        except Cancelled:
            self._reason = FinishReason.CANCELLED
        except ServerError as problem:
            if not self._has_started:
                raise
            error, self._reason = str(problem), FinishReason.ERROR
        if self._reason is None:
            # A connection may end without a word.
            error = f"{self._server.address} ended the text without saying why. Check its log."
            self._reason = FinishReason.ERROR
        is_whole = self._reason not in {FinishReason.CANCELLED, FinishReason.ERROR}
        counted = self._counted_since(before) if before is not None and is_whole else None
        counts = self._counts(counted)
        if counts.counts and any(step.source is not StepSource.SERVER for step in self._maker.steps):
            yield counts
        yield Finished(self._summary(counts, counted, error))

    def _stream(self) -> Iterator[Event]:
        yield StageChanged(f"Waiting for {self._server.product.shown}…")
        yield from retrying(self._answer, self._controls.check_cancelled)

    def _answer(self) -> Iterator[Event]:
        chunks = stream_chunks(self._client, self._server, self._request, self._controls.check_cancelled)
        with contextlib.closing(chunks):
            for chunk in chunks:
                self._num_prompt = chunk.num_prompt_tokens or self._num_prompt
                if not self._has_started:
                    yield run_started(self._server, self._request, chunk.prompt_ids)
                    self._has_started = True
                if chunk.tokens:
                    yield from self._tokens(chunk)
                self._reported = chunk.reported or self._reported
                self._reason = chunk.finish or self._reason
                self._surplus = chunk.surplus or self._surplus

    def _tokens(self, chunk: Chunk) -> Iterator[Event]:
        if not self._maker.steps:
            self._prefill_ms = (chunk.arrived - self._client.began) * 1e3
            yield PrefillDone(self._num_prompt, self._prefill_ms, None)
        # Waiting here holds nobody up: the stream is read, and timed, by its own thread.
        self._controls.wait_for_step()
        step = self._maker.step(chunk, self._num_prompt + self._num_tokens)
        self._num_tokens += len(step.emitted)
        yield step
        if self._num_tokens > self._request.max_new_tokens + 1:
            raise ServerError(f"{self._server.address} sends more tokens than it was asked for; the run was ended.")

    # --- The end ------------------------------------------------------------------------------------------------

    def _counts(self, counted: _Counted | None) -> StepsCounted:
        """The server's counts of each step, where they came only at the end."""
        sums = Reported(*counted[:3]) if counted is not None else self._reported
        if sums is None or self._reason is FinishReason.ERROR:
            return StepsCounted(())
        sizes = [len(step.emitted) for step in self._maker.steps]
        if sums.drafts == sums.draft_tokens == 0:
            return StepsCounted(tuple(((0, 0),) * size for size in sizes))
        counts = align(sizes, sums.per_step)
        is_guess_wrong = self._server.speculation.drafts_always and self._has_plain_steps(sums)
        return StepsCounted((None,) * len(sizes) if is_guess_wrong and not counts else counts)

    def _has_plain_steps(self, sums: Reported) -> bool:
        """Whether some steps behind the prompt's surely drafted nothing."""
        if sums.drafts is None or sums.accepted_tokens is None:
            return False
        return self._least_steps(sums.accepted_tokens) > sums.drafts + 1

    def _least_steps(self, num_accepted: int) -> int:
        """A piece of the stream holds at least one step, and a step adds one token to those that it accepted."""
        return max(len(self._maker.steps), self._num_tokens - num_accepted)

    def _metrics(self) -> Snapshot | None:
        if self._server.metrics is None:
            return None
        with contextlib.suppress(ServerError):
            page = self._server.query(self._request.target)
            found: Snapshot | None = self._observer.watched(
                lambda: read_metrics(self._observer, page), self._controls.check_cancelled
            )
            return found
        return None

    def _summary(self, counts: StepsCounted, counted: _Counted | None, error: str | None) -> Summary:
        steps = list(counts.applied(self._maker.steps))
        tally = Tally(steps)
        tally.prefill_ms = self._prefill_ms
        summary = tally.summary(self._reason or FinishReason.ERROR, error=error)
        # As on this machine, a stop text that began in earlier steps is cut only here.
        summary = replace(summary, text=summary.text[: len(summary.text) - self._surplus])
        waits = [step.total_ms for step in self._maker.steps[1:]]
        if not shows_speed(len(waits), sum(waits)):
            summary = replace(summary, tokens_per_second=None)
        sources = {step.source for step in steps}
        source = StepSource.SERVER if sources <= {StepSource.SERVER} else StepSource.CHUNKS
        # A server's sums include what a stop text cut off within a step; the steps don't.
        reported = None if self._reason is FinishReason.STOP and source is StepSource.SERVER else self._reported
        if reported is not None and reported.draft_tokens is not None and reported.accepted_tokens is not None:
            drafts = summary.num_drafts if reported.drafts is None else reported.drafts
            positions = per_position(reported.per_step) if reported.per_step else summary.num_accepted_tokens_per_pos
            if sources == {StepSource.SERVER, StepSource.TEXT} and reported.drafts is None:
                return _with_hidden(summary, steps, reported.draft_tokens, reported.accepted_tokens)
            if source is not StepSource.SERVER:
                # A piece of the stream may hold several steps: only the drafts, and the prompt's step, are counted.
                has_plain = self._has_plain_steps(reported)
                is_known = self._server.speculation.drafts_always and reported.drafts is not None and not has_plain
                if is_known or has_plain:
                    num_steps = drafts + 1 if is_known else self._least_steps(reported.accepted_tokens)
                    efficiency = summary.num_tokens / num_steps
                else:
                    num_steps, efficiency = summary.num_steps, None
                summary = replace(summary, num_steps=num_steps, block_efficiency=efficiency)
                source = StepSource.SERVER if is_known or reported.per_step else StepSource.CHUNKS
            return _with_counts(summary, source, drafts, reported.draft_tokens, reported.accepted_tokens, positions)
        if source is StepSource.SERVER:
            return replace(summary, source=source)
        if counted is not None:
            return _with_counts(summary, StepSource.CHUNKS, *counted)
        if StepSource.TEXT in sources:
            known = StepSource.CHUNKS if StepSource.SERVER in sources else StepSource.TEXT
            return replace(summary, source=known, block_efficiency=None)
        return replace(summary, source=StepSource.CHUNKS)

    def _counted_since(self, before: Snapshot) -> _Counted | None:
        """Counts of this text by the server's counters; None if it reported them, or if others used it meanwhile."""
        if self._reported is not None or all(step.source is StepSource.SERVER for step in self._maker.steps):
            return None
        after = None
        with contextlib.suppress(Cancelled):  # The text is complete.
            after = self._metrics()
        grown = difference(before, after) if after is not None else None
        if grown is None or grown.drafts is None or grown.draft_tokens is None or grown.accepted_tokens is None:
            return None
        if grown.generated_tokens != self._num_tokens or grown.requests not in {None, 1.0}:
            return None
        positions = tuple(map(int, grown.accepted_per_position))
        return int(grown.drafts), int(grown.draft_tokens), int(grown.accepted_tokens), positions


def _with_hidden(summary: Summary, steps: Sequence[Step], drafted: int, accepted: int) -> Summary:
    """A summary with the server's sums, where a character hides which of them belong to which step."""
    known = [step for step in steps if step.source is StepSource.SERVER]
    # Each forward of the target adds one token to those that were accepted.
    num_steps = max(len(steps), summary.num_tokens - accepted)
    lengths = [step.num_draft_tokens for step in known]
    num_hidden, hidden = num_steps - len(known), drafted - sum(lengths)
    # How many of these drafted is certain only if all drafted the most.
    is_certain = hidden == num_hidden * max(lengths)
    drafts = sum(map(bool, lengths)) + num_hidden if is_certain else 0
    summary = replace(summary, num_steps=num_steps, block_efficiency=summary.num_tokens / num_steps)
    return _with_counts(summary, StepSource.SERVER, drafts, drafted, accepted, ())


def _with_counts(
    summary: Summary, source: StepSource, drafts: int, drafted: int, accepted: int, positions: tuple[int, ...]
) -> Summary:
    return replace(
        summary,
        source=source,
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        num_accepted_tokens_per_pos=positions,
        draft_acceptance_rate=accepted / drafted if drafted else None,
    )


def per_position(per_step: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """How often a drafted token was accepted at each position, from 0."""
    accepted = Counter(position for _, count in per_step for position in range(count))
    return tuple(accepted[position] for position in range(max(drafted for drafted, _ in per_step)))


def run_started(server: Server, request: RunRequest, prompt_ids: tuple[int, ...] | None) -> RunStarted:
    """A run's settings as far as a server takes or reports them; the others are absent."""
    speculation = server.speculation
    engine: dict[str, Any] = {
        "product": str(server.product),
        "version": server.version,
        "address": server.address.url,
    }
    if speculation.method is not None:
        engine["method"] = speculation.method
    config: dict[str, Any] = {
        "engine": engine,
        "target": server.model(request.target),
        **asdict(request.sampling),
        "seed": request.seed,
        "max_new_tokens": request.max_new_tokens,
        "stop": list(request.stop),
        "prompt": request.prompt,
    }
    if speculation.is_on is False or speculation.num_draft_tokens is not None:
        config["num_draft_tokens"] = 0 if speculation.is_on is False else speculation.num_draft_tokens
    if prompt_ids is not None:
        config["prompt_token_ids"] = list(prompt_ids)
    if request.chat is not None:
        config["chat"] = request.chat
    if request.system:
        config["system"] = request.system
    return started_now(config)


def advice(config: Mapping[str, Any], summary: Summary, sources: Collection[StepSource | None] = ()) -> str:
    """What a run on a server doesn't show, and what would make the server report it; empty if it reports all.

    Args:
        sources: those of the run's steps.
    """
    engine, source = config.get("engine"), summary.source
    product = engine.get("product") if isinstance(engine, dict) else None
    if product == Product.LLAMA_SERVER and StepSource.SERVER in sources and StepSource.TEXT in sources:
        return "Where a character spans several steps, llama-server doesn't show their counts."
    if product is None or source in {None, StepSource.SERVER}:
        return ""
    if product == Product.VLLM and summary.finish_reason in {FinishReason.CANCELLED, FinishReason.ERROR}:
        known = "The steps are inferred" if source is StepSource.CHUNKS else "Only the text is shown"
        return f"{known}: vLLM reports each step's counts only at the end of a text."
    flags = {
        Product.VLLM: "Started with --per-request-spec-decode-metrics detailed, vLLM reports each step's counts.",
        Product.SGLANG: "SGLang reports more without the chat template, and if it was started with --enable-metrics.",
        Product.LLAMA_SERVER: "A newer llama-server reports each step's counts.",
    }
    known = (
        "The steps are inferred from the stream."
        if source is StepSource.CHUNKS
        else "This server reports nothing about drafting, so only the text is shown."
    )
    return f"{known} {flags[product]}" if product in flags else known
