"""Asks a server many things at once, and reads what its answers hold."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from core.controls import Cancelled, RunControls
from core.engines.adapters import stream_chunks
from core.engines.client import Client
from core.engines.server import Server
from core.engines.session import MOST_TRIES, retrying
from core.engines.steps import Chunk, Reported, StepMaker, Token, align, shows_speed
from core.errors import ServerError, ServerRefusedError, SettingsError
from core.settings import RunRequest
from core.types import UNKNOWN_ID, StepsCounted, StepSource


@dataclass(frozen=True, slots=True)
class Answer:
    """A request's chunks."""

    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> list[Token]:
        return [token for chunk in self.chunks for token in chunk.tokens]

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens' ids, up to the first that isn't reported."""
        ids = [token.id for token in self.tokens]
        return tuple(ids[: ids.index(UNKNOWN_ID)] if UNKNOWN_ID in ids else ids)

    @property
    def is_known(self) -> bool:
        """Whether all ids are reported."""
        return len(self.ids) == len(self.tokens)

    @property
    def reported(self) -> Reported | None:
        """What the server reported about drafting at the end."""
        return next((chunk.reported for chunk in reversed(self.chunks) if chunk.reported), None)

    @property
    def ms_per_token(self) -> float | None:
        """From the first tokens to the last ones; None where these came in few pieces, or at once."""
        chunks = [chunk for chunk in self.chunks if chunk.tokens]
        later = sum(len(chunk.tokens) for chunk in chunks[1:])
        waited_ms = (chunks[-1].arrived - chunks[0].arrived) * 1e3 if chunks else 0.0
        return waited_ms / later if shows_speed(len(chunks) - 1, waited_ms) else None

    def name_at(self, place: int) -> str:
        """A token's name, or else its text; empty past the end."""
        return next((token.name or token.text for token in self.tokens[place : place + 1]), "")

    def lead(self, place: int, other: str) -> float | None:
        """How far a token leads another one of that name, in logprobs; None if the server doesn't report it."""
        token = self.tokens[place]
        found = [logprob for name, logprob in token.top if name == other]
        # Halves of characters may share a name.
        lead = token.logprob - found[0] if len(found) == 1 and other != token.name else math.nan
        return lead if math.isfinite(lead) else None

    def tested(self, server: Server, temperature: float) -> dict[int, bool]:
        """The places at which a drafted token was tested, and whether it was accepted, as far as the server reports it.

        Given the text before it, each was accepted with the probability that the pair has there, whatever came before.
        """
        maker = StepMaker(server.speculation, temperature)
        steps = [maker.step(chunk, 0) for chunk in self.chunks if chunk.tokens]
        if self.reported and self.reported.per_step:
            steps = [replace(step, source=StepSource.TEXT) for step in steps]
            counts = align([len(step.emitted) for step in steps], self.reported.per_step)
            steps = list(StepsCounted(counts).applied(steps))
        found: dict[int, bool] = {}
        place = 0
        for step in steps:
            # A step inferred from the stream may be cut by the text's end, or several in one piece.
            if step.source is StepSource.SERVER:
                reached = range(min(step.num_accepted + 1, step.num_draft_tokens, len(step.emitted)))
                found |= {place + index: index < step.num_accepted for index in reached}
            place += len(step.emitted)
        return found


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to many requests, in the requests' order, and the time in which every worker was busy."""

    answers: tuple[Answer, ...]
    began: float
    full_until: float


def ask_all(
    server: Server,
    requests: Sequence[RunRequest],
    concurrency: int,
    controls: RunControls,
    *,
    top_logprobs: int = 0,
    tries: int = MOST_TRIES,
) -> Answers:
    """Send requests, `concurrency` at a time, each worker on its own connection; the first failure ends them all.

    Args:
        tries: how often a request is sent to a server that is busy.

    Raises:
        ServerError: the first failure.
        Cancelled: the controls asked to stop.
    """
    failed = threading.Event()
    waiting = iter(list(enumerate(requests)))  # Each worker takes the next one; Python's lock lets only one at a time.
    found: list[Answer | None] = [None] * len(requests)

    def check_cancelled() -> None:
        controls.check_cancelled()
        if failed.is_set():
            raise Cancelled

    def work(client: Client) -> float:
        try:
            for index, request in waiting:
                ask = functools.partial(stream_chunks, client, server, request, check_cancelled, top_logprobs)
                events = retrying(ask, check_cancelled, tries)
                found[index] = Answer(_checked(server, tuple(item for item in events if isinstance(item, Chunk))))
            return time.perf_counter()
        except BaseException:
            failed.set()
            raise

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(min(concurrency, len(requests)))]
        pool = stack.enter_context(ThreadPoolExecutor(len(clients), "outrider-load"))
        began = time.perf_counter()
        futures = [pool.submit(work, client) for client in clients]
        errors = [error for future in futures if (error := future.exception()) is not None]
    # Those that were ended by the failure of another one say only that.
    for error in sorted(errors, key=lambda error: isinstance(error, Cancelled)):
        raise error
    ends = [future.result() for future in futures]
    return Answers(tuple(answer for answer in found if answer is not None), began, min(ends))


def _checked(server: Server, chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
    """An answer that ends as it should, and reports how many tokens came when."""
    if not any(chunk.finish for chunk in chunks):
        raise ServerError(f"{server.address} ended a text without saying why. Check its log.")
    # A piece of several tokens has their number, also where a character hides their steps.
    if any(len(chunk.tokens) == 1 and not chunk.is_step for chunk in chunks):
        raise ServerRefusedError(
            f"{server.address} doesn't report how many tokens it sends. Use a newer version of it."
        )
    return chunks


def refuse_drafting(baseline: Server | None) -> None:
    """Refuse a baseline that drafts.

    Raises:
        SettingsError: it does.
    """
    if baseline is not None and baseline.speculation.is_on:
        how = baseline.speculation.text
        raise SettingsError(f"The baseline at {baseline.address} {how}; start it without speculation.")
