"""Probes drafts one after the other: loads, has both models read, times, ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from core.controls import Cancelled, RunControls
from core.decode import autoregressive
from core.errors import OutOfMemoryError, OutriderError, PromptError
from core.models.catalogue import resolve
from core.models.language_model import LanguageModel
from core.models.prompting import encode_prompt
from core.probe.figures import agreement, speedup
from core.probe.places import compare_over
from core.probe.times import measure
from core.probe.types import DraftProbe, DraftProbed, ProbeDone, ProbeRequest, ProbeText
from core.types import RunRequest, StageChanged, Step

_log = logging.getLogger(__name__)

_WINDOW = 1024
"""Tokens of a text that are read in one go, at most."""

_NO_ROOM = "There is no memory left to probe this pair. Choose a smaller model, or a shorter text."

ProbeEvent = StageChanged | DraftProbed | ProbeDone


class Loader(Protocol):
    """What a probe needs of `core.session.Session`."""

    def load(self, request: RunRequest, controls: RunControls) -> Generator[StageChanged, None, Any]: ...


class Passage(NamedTuple):
    """Ids to read, the index of the first that counts, and whether those that count are the target's own."""

    ids: list[int]
    first: int
    is_own: bool


def probe(
    session: Loader, request: ProbeRequest, controls: RunControls | None = None
) -> Generator[ProbeEvent, None, None]:
    """Carry out a probe.

    Yields:
        `StageChanged` while something is prepared, a `DraftProbed` for each draft, and `ProbeDone`, also when stopped
        through `controls`. A draft that can't be used is told as its probe's problem.

    Raises:
        OutriderError: nothing can be probed, in one sentence.
    """
    controls = controls or RunControls()
    work = _Probing(session, request, controls)
    try:
        resolve(request.target)
        for draft in dict.fromkeys(request.drafts):
            found = yield from work.one(draft)
            work.done.append(found)
            yield DraftProbed(found)
    except Cancelled:
        work.is_stopped = True
    if work.error is not None and all(found.problem for found in work.done):
        raise work.error
    yield ProbeDone(rank(work.done), work.is_stopped, tuple(work.notes))


def rank(probes: Sequence[DraftProbe]) -> tuple[DraftProbe, ...]:
    """The draft with the highest expected speedup first; those with a problem last."""

    def order(found: DraftProbe) -> tuple[bool, float, float]:
        # Of drafts that don't pay, the one that comes closest.
        return bool(found.problem), -found.best_speedup, -max(found.speedup.values[1:], default=0.0)

    return tuple(sorted(probes, key=order))


class _Probing:
    def __init__(self, session: Loader, request: ProbeRequest, controls: RunControls) -> None:
        self._session, self._request, self._controls = session, request, controls
        self._passages: list[Passage] | None = None
        self.done: list[DraftProbe] = []
        self.notes: list[str] = []
        self.error: OutriderError | None = None
        self.is_stopped = False

    def one(self, draft_ref: str) -> Generator[StageChanged, None, DraftProbe]:
        """Probe a draft."""
        request = self._request
        run = RunRequest(
            target=request.target,
            draft=draft_ref,
            prompt="probe",
            sampling=request.sampling,
            device=request.device,
            dtype=request.dtype,
        )
        try:
            loaded = yield from self._session.load(run, self._controls)
            if self._passages is None:
                self._passages = yield from self._prepare(loaded.target)
            return (yield from self._probe(draft_ref, loaded.target, loaded.draft))
        except PromptError:
            raise
        except OutriderError as error:
            self.error = self.error or error
            return DraftProbe(draft_ref, problem=str(error))
        except (torch.OutOfMemoryError, MemoryError) as error:
            self.error = self.error or OutOfMemoryError(_NO_ROOM)
            _log.debug("no room for the probe of %s: %s", draft_ref, error)
            return DraftProbe(draft_ref, problem=_NO_ROOM)

    def _probe(
        self, draft_ref: str, target: LanguageModel, draft: LanguageModel
    ) -> Generator[StageChanged, None, DraftProbe]:
        request, check = self._request, self._controls.check_cancelled
        yield StageChanged(f"Comparing {draft_ref} with the target…")
        began = time.perf_counter()
        assert self._passages is not None
        passages = [_cut(passage, draft.context_length) for passage in self._passages]
        passages = [passage for passage in passages if len(passage.ids) > passage.first]
        if not passages:
            return DraftProbe(draft_ref, problem=f"The texts are longer than the context of {draft_ref}.")
        places = [
            compare_over(target, draft, passage.ids, passage.first, request.sampling, check) for passage in passages
        ]
        found = agreement(places, is_own_text=all(passage.is_own for passage in passages))
        yield StageChanged(f"Timing {draft_ref} and the target…")
        costs = measure(target, draft, passages[0].ids, request.sampling, check)
        verify, expected = speedup(found, costs)
        return DraftProbe(draft_ref, "", found, costs, verify, expected, time.perf_counter() - began)

    def _prepare(self, target: LanguageModel) -> Generator[StageChanged, None, list[Passage]]:
        """The texts as ids, continued where that is wanted, cut to as many places as are wanted."""
        request = self._request
        passages, left = [], request.most_places
        for index, text in enumerate(request.texts):
            if left <= 0:
                self.notes.append(f"Only the first {request.most_places:,} places are looked at.")
                break
            if request.generate and not _has_continuation(text):
                yield StageChanged(f"The target writes text {index + 1} of {len(request.texts)}…")
                passage = self._generated(target, text)
            else:
                passage = _passage(target, text, request.chat)
            if not len(passage.ids) > passage.first:
                continue
            if (surplus := len(passage.ids) - passage.first - left) > 0:
                self.notes.append(f"Of {text.name}, the last {surplus:,} places are left out.")
                passage = _cut(passage, passage.first + left)
            left -= len(passage.ids) - passage.first
            if len(passage.ids) > target.context_length and passage.first > 1:
                passage = _cut(passage, target.context_length)
            passages += _windows(passage, min(target.context_length, _WINDOW)) if passage.first == 1 else [passage]
        if not passages:
            raise PromptError("The text is too short to probe on: it takes two tokens at least.")
        return passages

    def _generated(self, target: LanguageModel, text: ProbeText) -> Passage:
        request = self._request
        ids = _prompt_ids(target, text, request.chat)
        events = autoregressive(
            target,
            ids,
            sampling=request.sampling,
            max_new_tokens=request.generate,
            seed=request.seed,
        )
        written: list[int] = []
        for event in events:
            self._controls.check_cancelled()
            if isinstance(event, Step):
                written += event.emitted
        return Passage([*ids, *written], len(ids), True)


def _has_continuation(text: ProbeText) -> bool:
    return bool(text.continuation or text.continuation_ids)


def _prompt_ids(target: LanguageModel, text: ProbeText, chat: bool | None) -> list[int]:
    if text.prompt_ids:
        return list(text.prompt_ids)
    return encode_prompt(target, text.prompt, False if text.is_raw else chat).ids if text.prompt else []


def _passage(target: LanguageModel, text: ProbeText, chat: bool | None) -> Passage:
    if not _has_continuation(text):
        ids = list(text.prompt_ids) or _raw_ids(target, text.prompt) if text.is_raw else _prompt_ids(target, text, chat)
        return Passage(ids, 1, False)
    before = _prompt_ids(target, text, chat)
    after = list(text.continuation_ids) or _raw_ids(target, text.continuation)
    return Passage([*before, *after], max(1, len(before)), text.is_own)


def _raw_ids(target: LanguageModel, text: str) -> list[int]:
    """A text as it is, of any length."""
    return list(target.tokenizer(text.encode("utf-8", "replace").decode("utf-8"))["input_ids"])


def _windows(passage: Passage, size: int) -> list[Passage]:
    """A text of any length in pieces that are read apart, each but the first from the last token of the one before."""
    ids = passage.ids
    pieces = [ids[start : start + size] for start in range(0, max(1, len(ids) - 1), size - 1)]
    return [passage._replace(ids=piece) for piece in pieces if len(piece) > 1]


def _cut(passage: Passage, limit: int) -> Passage:
    return passage._replace(ids=passage.ids[:limit])
