"""Probes drafts one after the other: loads, has both models read, times, ranks."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from core.analysis.expectation import Curve, Estimate
from core.analysis.probe import Agreement, Costs, DraftProbe, DraftProbed, ProbeDone, ProbeRequest, ProbeText
from core.analysis.theory import KS, SEED, Array, resampled, verify_over_k
from core.controls import Cancelled, RunControls
from core.decode import autoregressive
from core.drafters.draft_model import DraftModelDrafter
from core.errors import GenerationError, OutOfMemoryError, OutriderError, PromptError, RunLogError
from core.models.catalogue import resolve
from core.models.language_model import LanguageModel
from core.models.prompting import encode_prompt
from core.rounds import prefill
from core.runlog.log import RunLog
from core.runlog.replay import events, request_from_config
from core.runners.base import Runner
from core.runners.timing import Stopwatch
from core.sampling import probabilities
from core.types import DraftContext, RunRequest, SamplingParams, StageChanged, Step, TokenKind, Verification

_MOST_LOGITS = 4_194_304
"""Logits of one model that are held at once: 16 MB of float32."""

_MOST_ROWS = 256


@dataclass(frozen=True, slots=True)
class Places:
    """Figures of the places of one text, in order, (m,) each. p is the target's law, q the draft's.

    Attributes:
        overlap: sum(min(p, q)) = 1 - TV.
        kept: min(1, q / p) of the token that the text has there.
        kl_target_draft, kl_draft_target: in nats; infinite where one law excludes what the other may say.
        target_entropy, draft_entropy: in nats.
        same_top: 1 where both have the same likeliest token.
    """

    overlap: Array
    kept: Array
    kl_target_draft: Array
    kl_draft_target: Array
    target_entropy: Array
    draft_entropy: Array
    same_top: Array

    def __len__(self) -> int:
        return len(self.overlap)


def compare_over(
    target: LanguageModel,
    draft: LanguageModel,
    ids: Sequence[int],
    first: int,
    sampling: SamplingParams,
    check_cancelled: Callable[[], None] = lambda: None,
    *,
    most_rows: int = _MOST_ROWS,
) -> Places:
    """Both models' laws of the tokens `ids[first:]`, each given all the tokens before it.

    Args:
        ids: at least two, no more than both contexts hold.
        first: index of the first token that counts, 1 or more.
        sampling: what both laws go through, as in a run.
        check_cancelled: raises to give up.
        most_rows: places at a time, at most.
    """
    size = max(1, min(most_rows, _MOST_LOGITS // max(1, target.vocab_size)))
    # The draft's own head and products, as when it drafts.
    runners = target.runner(len(ids)), draft.runner(len(ids), drafting=True, quantise=True)
    readable = next((at for at, token in enumerate(ids) if token >= draft.vocab_size), len(ids))
    pieces = []
    with torch.inference_mode():
        for runner in runners:
            prefill(runner, ids[: min(first - 1, readable)], check_cancelled)
        for start in range(first - 1, len(ids) - 1, size):
            check_cancelled()
            stop = min(start + size, len(ids) - 1)
            target_logits = _logits(runners[0], ids[start:stop])[:, : target.vocab_size]
            tokens = torch.tensor(ids[start + 1 : stop + 1])
            if stop > readable:
                # An id that is not in its table ends what a draft can read; the target goes on alone.
                pieces.append(_unread(len(tokens)))
                continue
            limit = min(target.vocab_size, draft.vocab_size) if draft.draft_ids is None else len(draft.draft_ids)
            draft_logits = _logits(runners[1], ids[start:stop])[:, :limit]
            pieces.append(
                compare(probabilities(target_logits, sampling), probabilities(draft_logits, sampling), tokens,
                        draft.draft_ids)
            )  # fmt: skip
    return joined(pieces)


def _logits(runner: Runner, ids: Sequence[int]) -> Tensor:
    return runner.forward(torch.tensor(ids), num_logits=len(ids)).logits


def compare(target_probs: Tensor, draft_probs: Tensor, tokens: Tensor, draft_ids: Tensor | None = None) -> Places:
    """Compare laws.

    Args:
        target_probs: (n, V).
        draft_probs: (n, R), of `draft_ids`, or of the first R ids where that is None; all others have probability 0.
        tokens: (n,) ids that the text has there.
        draft_ids: (R,).

    Raises:
        GenerationError: laws that hold NaN.
    """
    device = target_probs.device
    draft_probs, tokens = draft_probs.to(device), tokens.to(device).unsqueeze(1)
    columns = torch.arange(draft_probs.shape[1]) if draft_ids is None else draft_ids
    columns = columns.to(device)
    shared = target_probs[:, : len(columns)] if draft_ids is None else target_probs[:, columns]
    target_entropy, draft_entropy = _entropy(target_probs), _entropy(draft_probs)
    outside = target_probs.sum(-1) - shared.sum(-1) > 1e-6
    cross = -torch.where(shared > 0, shared * draft_probs.log(), 0.0).sum(-1)
    reverse = -torch.where(draft_probs > 0, draft_probs * shared.log(), 0.0).sum(-1)
    p = target_probs.gather(1, tokens).squeeze(1)
    # Where in the draft's columns the text's token stands; q is 0 where it stands nowhere.
    q = torch.where(columns == tokens, draft_probs, 0.0).sum(-1)
    found = {
        "overlap": torch.minimum(shared, draft_probs).sum(-1).clamp(max=1.0),
        "kept": torch.where(p > 0, (q / p).clamp(max=1.0), 0.0),
        "kl_target_draft": torch.where(outside, torch.inf, cross - target_entropy).clamp(min=0.0),
        "kl_draft_target": (reverse - draft_entropy).clamp(min=0.0),
        "target_entropy": target_entropy,
        "draft_entropy": draft_entropy,
        "same_top": (target_probs.argmax(-1) == columns[draft_probs.argmax(-1)]).float(),
    }
    table = torch.stack(list(found.values())).cpu().double().numpy()
    if not np.isfinite(table[0]).all():
        raise GenerationError("A model returned numbers that can't be compared (NaN). Try float32.")
    return Places(*table)


def _entropy(probs: Tensor) -> Tensor:
    """(n,) in nats."""
    return -torch.where(probs > 0, probs * probs.log(), 0.0).sum(-1)


def _unread(count: int) -> Places:
    nothing, never = np.zeros(count), np.full(count, np.inf)
    return Places(nothing, nothing, never, never, nothing, nothing, nothing)


def joined(pieces: Sequence[Places]) -> Places:
    """Pieces of one text behind each other."""
    names = [item.name for item in fields(Places)]
    return Places(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in names))


LONGEST = len(KS) - 1
_LONGEST_BLOCK, _SHORTEST_BLOCK = 16, 4
"""Neighbouring places are alike, so that they are resampled together: as many as leave 16 blocks, within these."""

_LEAST_BLOCKS = 8
"""Fewer blocks would show too little of how texts differ, and promise too narrow an interval."""
_LEVEL = (2.5, 97.5)


def survivals(places: Places, *, is_own_text: bool) -> Array:
    """(m, 16) for a block that starts at each place: the chance that its first i tokens are accepted; NaN past the end.

    The tokens of a block stand behind drafted tokens, whereas the text is what it is. Two estimates:

    is_own_text: the text was drawn from the target's own law p. The chance that i tokens in a row are accepted is
    the sum over all rows x of the product of min(p(x_j), q(x_j)), which is the mean, over texts that are drawn from
    p, of the product of min(1, q / p): exact, whatever the draft. The last factor's own mean, sum(min(p, q)), stands
    in its place, which varies less.

    else: the product of sum(min(p, q)) along the text, the chain estimate. It takes the draft to be as good behind its
    own tokens as behind the text's.
    """
    count = len(places)
    earlier = places.kept if is_own_text else places.overlap
    table = np.full((count, LONGEST), np.nan)
    chain = np.ones(count)
    for index in range(min(LONGEST, count)):
        left = count - index
        table[:left, index] = chain[:left] * places.overlap[index:]
        chain[:left] *= earlier[index:]
    return table


def agreement(texts: Sequence[Places], *, is_own_text: bool, num_resamples: int = 500) -> Agreement:
    """Put the places of several texts together."""
    table = np.concatenate([survivals(places, is_own_text=is_own_text) for places in texts])
    overlap = np.concatenate([places.overlap for places in texts])
    blocks = _blocks(texts, table)
    survival = _survival(*(part.sum(0, keepdims=True) for part in blocks))
    drawn = _resampled_survival(blocks, num_resamples)
    first, tokens = Estimate(float(overlap.mean())), _tokens(survival)
    curve = Curve(tuple(tokens[0].tolist()))
    if drawn is not None:
        low, high = np.percentile(drawn[:, 0], _LEVEL)
        first = Estimate(first.value, float(low), float(high))
        bounds = np.percentile(_tokens(drawn), _LEVEL, axis=0)
        curve = Curve(curve.values, *(tuple(bound.tolist()) for bound in bounds))

    def mean(name: str) -> float:
        return float(np.concatenate([getattr(places, name) for places in texts]).mean())

    divergences = [np.concatenate([getattr(places, name) for places in texts])
                   for name in ("kl_target_draft", "kl_draft_target")]  # fmt: skip
    finite = [values[np.isfinite(values)] for values in divergences]
    return Agreement(
        num_places=len(overlap),
        acceptance=first,
        survival=tuple(survival[0].tolist()),
        tokens=curve,
        is_own_text=is_own_text,
        top_1=mean("same_top"),
        kl_target_draft=float(finite[0].mean()) if finite[0].size else None,
        kl_draft_target=float(finite[1].mean()) if finite[1].size else None,
        num_infinite=int(np.isinf(divergences[0]).sum()),
        target_entropy=mean("target_entropy"),
        draft_entropy=mean("draft_entropy"),
    )


def speedup(found: Agreement, costs: Costs) -> tuple[Curve, Curve]:
    """v(K+1), and tau(K) / (K c + v(K+1)) with the interval of tau, for K from 0 to 16."""
    lengths = [positions - 1 for positions, _ in costs.verify_ms]
    measured = np.array([[milliseconds / costs.target_step_ms for _, milliseconds in costs.verify_ms]])
    verify = verify_over_k(lengths, measured)[0]
    spent = KS * costs.cost + verify
    tokens = found.tokens
    parts = [
        tuple((np.array(part) / spent).tolist()) if part else () for part in (tokens.values, tokens.low, tokens.high)
    ]
    return Curve(tuple(verify.tolist())), Curve(*parts)


def _blocks(texts: Sequence[Places], table: Array) -> tuple[Array, Array]:
    """(b, 16) sums over each block of neighbouring starts, and how many starts are in them."""
    block = min(_LONGEST_BLOCK, max(_SHORTEST_BLOCK, len(table) // 16))
    starts: list[int] = []
    at = 0
    for places in texts:
        starts += range(at, at + len(places), block)
        at += len(places)
    is_there = ~np.isnan(table)
    filled = np.where(is_there, table, 0.0)
    return np.add.reduceat(filled, starts), np.add.reduceat(is_there.astype(np.float64), starts)


def _survival(sums: Array, counts: Array) -> Array:
    """(n, 16) shares, never rising; beyond the longest run of places, as if none were accepted."""
    shares = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    return np.minimum.accumulate(shares, 1)


def _resampled_survival(blocks: tuple[Array, Array], num_resamples: int) -> Array | None:
    sums, counts = blocks
    if len(sums) < _LEAST_BLOCKS or not num_resamples:
        return None
    rng = np.random.default_rng(SEED)
    pieces = [_survival(weights @ sums, weights @ counts) for weights in resampled(len(sums), rng, num_resamples)]
    return np.concatenate(pieces)


def _tokens(survival: Array) -> Array:
    """(n, 17) tau(K) of (n, 16)."""
    return 1.0 + np.concatenate((np.zeros((len(survival), 1)), survival.cumsum(1)), 1)


POSITIONS = (2, 3, 5, 9, 17)
"""How many positions are scored at once: blocks of 1, 2, 4, 8 and 16 tokens."""

_DRAFTED = 4
_ROUNDS, _LEAST_ROUNDS = 7, 3
_SECONDS = 3.0
"""After so long no further round is begun."""


@torch.inference_mode()
def measure(
    target: LanguageModel,
    draft: LanguageModel,
    ids: Sequence[int],
    sampling: SamplingParams,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Costs:
    """Time both models behind a text, of which as much is read as leaves room for the longest block.

    Each round takes every forward once, so that what slows the machine down for a while weighs on all of them; the
    first one, in which caches fill and graphs are captured, does not count.

    Raises:
        GenerationError: the draft proposes nothing here.
    """
    room = min(target.context_length, draft.context_length)
    ids = list(ids[: max(1, room - POSITIONS[-1])])
    runner = target.runner(len(ids) + POSITIONS[-1])
    prefill(runner, ids[:-1], check_cancelled)
    drafter = DraftModelDrafter(draft, capacity=len(ids) + _DRAFTED + 1, check_cancelled=check_cancelled)
    drafter.start(torch.tensor(ids))
    context = DraftContext(
        ids=ids,
        num_draft_tokens=_DRAFTED,
        sampling=sampling,
        generator=torch.Generator().manual_seed(0),
        vocab_size=target.vocab_size,
        check_cancelled=check_cancelled,
    )
    widths = [1, *(width for width in POSITIONS if len(ids) - 1 + width <= runner.capacity)]
    laps: dict[int, list[float]] = {width: [] for width in widths}
    drafting: list[float] = []
    began = time.perf_counter()
    for index in range(_ROUNDS + 1):
        if index > _LEAST_ROUNDS and time.perf_counter() - began > _SECONDS:
            break
        for width in widths:
            check_cancelled()
            block = torch.tensor((ids[-1:] * width)[:width], device=target.device)
            watch = Stopwatch(target.device)
            runner.forward(block, num_logits=width)
            laps[width].append(watch.lap())
            runner.rewind(len(ids) - 1)
        watch = Stopwatch(draft.device)
        drafted = len(drafter.propose(context))
        if not drafted:
            raise GenerationError(f"{draft.ref} drafts nothing behind this text. Choose another text or draft.")
        drafting.append(watch.lap() / drafted)
        drafter.observe(Verification(num_accepted=0, next_token=ids[-1], next_kind=TokenKind.CORRECTION))
    medians = {width: statistics.median(times[1:]) for width, times in laps.items()}
    return Costs(
        target_step_ms=medians[1],
        draft_step_ms=statistics.median(drafting[1:]),
        verify_ms=tuple((width, medians[width]) for width in widths[1:]),
    )


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
