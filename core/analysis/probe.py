"""Which of the models that are here may draft for a target."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.analysis.expectation import Curve, Estimate
from core.errors import ModelNotFoundError, SettingsError
from core.models.catalogue import ModelEntry, local_models, resolve
from core.models.fit import pair_problem
from core.models.suggestions import suggested_drafts
from core.types import Device, DType, SamplingParams

SCHEMA = "outrider.probe/1"
DEFAULT_PLACES = 2000
MAX_PLACES = 100_000


@dataclass(frozen=True, slots=True)
class ProbeText:
    """A text that both models read.

    Attributes:
        name: what a report calls it.
        prompt: as it is typed; with a continuation, nothing of it counts but as what stands before.
        continuation: what stands behind the prompt; its places alone count where it is not empty.
        prompt_ids, continuation_ids: the target's ids of either, where they are known already, as from a log.
        is_own: whether the continuation was drawn from the target with the probe's own sampling.
        is_raw: whether the text is read as it is, also where the target has a chat template.
    """

    name: str
    prompt: str = ""
    continuation: str = ""
    prompt_ids: tuple[int, ...] = ()
    continuation_ids: tuple[int, ...] = ()
    is_own: bool = False
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A probe's settings.

    Attributes:
        target: reference of the target.
        drafts: references of the drafts, at least one.
        texts: at least one.
        sampling: what both laws go through.
        generate: tokens that the target writes behind each prompt first, which then are all that counts; 0 for none.
        most_places: most places that are looked at, over all texts.
        chat: as `RunRequest` takes it.

    Raises:
        SettingsError: a value outside its range.
    """

    target: str
    drafts: tuple[str, ...]
    texts: tuple[ProbeText, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    generate: int = 0
    seed: int = 0
    most_places: int = DEFAULT_PLACES
    chat: bool | None = None
    device: Device = Device.AUTO
    dtype: DType = DType.AUTO

    def __post_init__(self) -> None:
        if not self.target.strip():
            raise SettingsError("Choose a target model.")
        if not self.drafts or not all(draft.strip() for draft in self.drafts):
            raise SettingsError("Name at least one draft to probe.")
        if not self.texts:
            raise SettingsError("There is no text to probe on.")
        if self.generate < 0:
            raise SettingsError(f"The number of tokens to generate must be 0 or more, not {self.generate}.")
        if not 1 <= self.most_places <= MAX_PLACES:
            raise SettingsError(f"The number of places must be from 1 to {MAX_PLACES:,}, not {self.most_places:,}.")


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two laws agree, over the places of the texts.

    Attributes:
        num_places: how many.
        acceptance: mean of sum(min(p, q)): expected acceptance of a block's first token, with its 95 % interval.
        survival: for i = 1 to 16, the share of blocks whose first i tokens are all accepted, to be expected.
        tokens: tau(K) = 1 + the sum of the first K of these.
        is_own_text: whether `survival` is the estimate that holds for the target's own text; else the chain estimate.
        top_1: share of places where both laws have the same likeliest token.
        kl_target_draft, kl_draft_target: mean divergences in nats, where they are finite; None where they never are.
        num_infinite: places where the first of them is infinite: the draft excludes what the target may say.
        target_entropy, draft_entropy: means, in nats.
    """

    num_places: int
    acceptance: Estimate
    survival: tuple[float, ...]
    tokens: Curve
    is_own_text: bool
    top_1: float
    kl_target_draft: float | None
    kl_draft_target: float | None
    num_infinite: int
    target_entropy: float
    draft_entropy: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What was timed here, in milliseconds; medians.

    Attributes:
        target_step_ms: the target's forward over one position.
        draft_step_ms: one drafted token, drawing it included.
        verify_ms: (positions, milliseconds) of the target's forwards over several.
    """

    target_step_ms: float
    draft_step_ms: float
    verify_ms: tuple[tuple[int, float], ...]

    @property
    def cost(self) -> float:
        """c, one draft step's time / one target step's."""
        return self.draft_step_ms / self.target_step_ms


@dataclass(frozen=True, slots=True)
class DraftProbe:
    """One draft's answer; with a problem, nothing else.

    Attributes:
        verify: v(K+1) for K from 0 to 16.
        speedup: tau(K) / (K c + v(K+1)). Its interval is that of the text alone: times are taken as they are.
        seconds: what the probe of this draft took, without loading.
    """

    draft: str
    problem: str = ""
    agreement: Agreement | None = None
    costs: Costs | None = None
    verify: Curve = field(default_factory=lambda: Curve(()))
    speedup: Curve = field(default_factory=lambda: Curve(()))
    seconds: float = 0.0

    @property
    def best_k(self) -> int:
        """The K that pays most; 0 says: don't speculate."""
        return self.speedup.best if self.speedup.values else 0

    @property
    def best_speedup(self) -> float:
        """What it is expected to bring; 1 for no speculation."""
        return self.speedup.values[self.best_k] if self.speedup.values else 0.0


@dataclass(frozen=True, slots=True)
class DraftProbed:
    """A draft is done."""

    probe: DraftProbe


@dataclass(frozen=True, slots=True)
class ProbeDone:
    """Last event of a probe.

    Attributes:
        probes: the best draft first, those with a problem last.
        is_stopped: whether it was stopped before all of them were probed.
        notes: what else is to be known, a sentence each.
    """

    probes: tuple[DraftProbe, ...]
    is_stopped: bool = False
    notes: tuple[str, ...] = ()


def verdict(probes: tuple[DraftProbe, ...]) -> str:
    """What to do, in one sentence."""
    best = next((probe for probe in probes if not probe.problem), None)
    if best is None:
        return "None of these drafts could be probed."
    if not best.best_k:
        every = f"{best.draft} is" if len(probes) == 1 else "none of these drafts is"
        return f"Don't speculate here: {every} expected to beat plain decoding at any K from 1 to 16."
    found = best.speedup.at(best.best_k)
    interval = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"Take {best.draft} with K = {best.best_k}: {found.value:.2f}× is expected{interval}."


MOST = 8
"""Drafts that are probed where none are named."""


def drafts_here(target_ref: str) -> tuple[str, ...]:
    """References of drafts for a target: those made or suggested for it first, then the smallest.

    Reads tokenizer files, so not for the window's thread. A draft is smaller than its target and means the same text
    by the same ids.

    Raises:
        ModelNotFoundError, ModelUnreadableError: there is no such target.
        ModelNotFoundError: there is no draft here for it.
    """
    target = resolve(target_ref)
    suggested = suggested_drafts(target.ref)
    fitting = [entry for entry in local_models() if _may_draft(entry, target)]

    def order(entry: ModelEntry) -> tuple[bool, int, int]:
        place = suggested.index(entry.ref) if entry.ref in suggested else len(suggested)
        return entry.serves is None, place, entry.size_bytes

    found = tuple(entry.ref for entry in sorted(fitting, key=order))[:MOST]
    if not found:
        hint = f" Get one: `outrider models get {suggested[0]}`." if suggested else " Name one, or get one."
        raise ModelNotFoundError(f"There is no draft here for {target.title}.{hint}")
    return found


def _may_draft(entry: ModelEntry, target: ModelEntry) -> bool:
    is_smaller = entry.path != target.path and entry.size_bytes < target.size_bytes
    return is_smaller and pair_problem(entry.ref, target.ref) is None
