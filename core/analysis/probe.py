"""A probe's request and result: which local model should draft for a target, and at which K.

`core.analysis.run_probe` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from core.analysis.expectation import Curve, Estimate
from core.analysis.steadiness import covers_one
from core.errors import ModelNotFoundError, RunLogError
from core.models.catalogue import ModelEntry, resolve, suggested_drafts
from core.models.fit import fitting_drafts
from core.runlog.reading import RunLog, ids_of
from core.runlog.replay import request_from_config, steps
from core.settings import LONGEST_CHAIN, Device, DType, SamplingParams, is_lossy, setting, validate
from core.types import UNKNOWN_ID

SCHEMA = "outrider.probe/1"
DEFAULT_POSITIONS = 2000
MAX_POSITIONS = 100_000
MOST_DRAFTS = 8
"""Number of drafts probed by default."""


@dataclass(frozen=True, slots=True)
class ProbeText:
    """A text that both models read: a prompt, and a continuation; if there is one, only the continuation counts.

    The ids are those of the target, where they are known, as from a log. is_own: the continuation was sampled from the
    target with the probe's own sampling. is_raw: no chat template is applied.
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
    """A probe's settings. With generate > 0, the target first writes that many tokens, and only these count.

    Raises:
        SettingsError: a value outside its range.
    """

    target: str
    drafts: tuple[str, ...]
    texts: tuple[ProbeText, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    generate: int = setting(0, label="The number of tokens to generate", min=0)
    seed: int = 0
    max_positions: int = setting(DEFAULT_POSITIONS, label="The number of positions", min=1, max=MAX_POSITIONS)
    chat: bool | None = None
    device: Device = Device.AUTO
    dtype: DType = DType.AUTO
    system: str = ""

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two distributions agree, over num_places positions of the texts; divergences and entropies are means in nats.

    Attributes:
        acceptance: mean of sum(min(p, q)): expected acceptance of a block's first token.
        survival: for i = 1 to 16, the share of blocks whose first i tokens are expected to be accepted.
        tokens: tau(K) = 1 + the sum of the first K of these.
        is_own_text: whether `survival` is the estimate for the target's own text; else the chain estimate.
        num_infinite: positions that the mean of KL(p||q) leaves out: the draft excludes what the target allows.
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
    """Median times in milliseconds: of one position of the target, one drafted token, (positions, time) of several,
    and of drafting one level of a tree; None if that was not timed."""

    target_step_ms: float
    draft_step_ms: float
    verify_ms: tuple[tuple[int, float], ...]
    level_ms: float | None = None

    @property
    def cost(self) -> float:
        """c, one draft step's time / one target step's."""
        return self.draft_step_ms / self.target_step_ms


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree's shape: its nodes, the most of them in a row and the most children of one; the tokens per forward that it
    is expected to give, and its speedup, tokens / (depth x time of a level + v(nodes + 1))."""

    num_nodes: int
    depth: int
    branching: int
    tokens: float
    speedup: float

    @property
    def text(self) -> str:
        """In words."""
        return f"K = {self.num_nodes}, depth {self.depth}, branching {self.branching}"


@dataclass(frozen=True, slots=True)
class DraftProbe:
    """One draft's result, with v(K+1) and tau(K) / (K c + v(K+1)) for K from 0 to 16; with a problem, nothing else.

    shapes: the fastest tree of each depth, the fastest first; of distinct candidates, at temperature 0 of the best.
    """

    draft: str
    problem: str = ""
    agreement: Agreement | None = None
    costs: Costs | None = None
    verify: Curve = field(default_factory=lambda: Curve(()))
    speedup: Curve = field(default_factory=lambda: Curve(()))
    seconds: float = 0.0
    shapes: tuple[Shape, ...] = ()

    @property
    def best_k(self) -> int:
        """The best K; 0 means: don't speculate."""
        return self.speedup.best if self.speedup.values else 0

    @property
    def best_speedup(self) -> float:
        """The speedup expected at that K; 1 for no speculation."""
        return self.speedup.values[self.best_k] if self.speedup.values else 0.0

    @property
    def faster_tree(self) -> Shape | None:
        """The fastest tree, if it is expected to be faster than any chain and than plain decoding."""
        best = next(iter(self.shapes), None)
        return best if best is not None and best.speedup > max(1.0, self.best_speedup) else None


@dataclass(frozen=True, slots=True)
class ProbeDone:
    """Last event of a probe: the best draft first, those with a problem last; and notes, a sentence each."""

    probes: tuple[DraftProbe, ...]
    is_stopped: bool = False
    notes: tuple[str, ...] = ()


def verdict(probes: tuple[DraftProbe, ...]) -> str:
    """What to do, in one sentence; in another, whether a tree is expected to be faster than any chain."""
    best = next((probe for probe in probes if not probe.problem), None)
    if best is None:
        return "None of these drafts could be probed."
    trees = [
        (shape.speedup, f"a tree of {probe.draft} with {shape.text}: {shape.speedup:.2f}×")
        for probe in probes
        if (shape := probe.faster_tree) is not None and shape.speedup > best.best_speedup
    ]
    _, tree = max(trees, default=(0.0, ""))
    if not best.best_k:
        if tree:
            return f"No chain is expected to beat plain decoding; use {tree} is predicted."
        every = f"{best.draft} isn't" if len(probes) == 1 else "none of these drafts is"
        return f"Don't speculate here: {every} expected to beat plain decoding at any K from 1 to 16."
    found = best.speedup.at(best.best_k)
    use, interval = "Use", ""
    if found.low is not None and found.high is not None:
        interval = f" ({found.low:.2f} to {found.high:.2f})"
        use = "Not sure it pays to use" if covers_one((found.low, found.high)) else use
    more = f" Faster still, {tree}." if tree else ""
    largest = ", the largest tried" if best.best_k == LONGEST_CHAIN else ""
    return f"{use} {best.draft} with K = {best.best_k}{largest}: {found.value:.2f}× is predicted{interval}.{more}"


def drafts_here(target_ref: str) -> tuple[str, ...]:
    """Local models that may draft for a target: those made or suggested for it first, then the smallest.

    Reads tokenizer files, so not for the window's thread.

    Raises:
        ModelNotFoundError, ModelUnreadableError: there is no such target, or no draft for it.
    """
    target = resolve(target_ref)
    suggested = suggested_drafts(target.ref)

    def rank(entry: ModelEntry) -> tuple[bool, int]:
        order = suggested.index(entry.ref) if entry.ref in suggested else len(suggested)
        return entry.serves is None, order

    if not (fitting := fitting_drafts(target)):
        hint = f" Get one: `outrider models get {suggested[0]}`." if suggested else " Name one, or get one."
        raise ModelNotFoundError(f"There is no draft here for {target.title}.{hint}")
    return tuple(entry.ref for entry in sorted(fitting, key=rank))[:MOST_DRAFTS]


def probe_text(log: RunLog, target: str, sampling: SamplingParams) -> ProbeText:
    """The text of a logged run. It is the target's own where target and sampling were those of the run throughout, the
    run was not lossy, and no step is missing.

    Raises:
        RunLogError: the run wrote nothing.
    """
    config = log.run["config"]
    rebuilt = list(steps(log))
    written = tuple(token for step in rebuilt for token in step.emitted)
    if not written:
        raise RunLogError("This run generated no text to probe.")
    before = (*ids_of(config.get("prompt_token_ids")), *ids_of(config.get("continuation_token_ids")))
    if target != config.get("target") or not before or UNKNOWN_ID in written:
        text = "".join(step.emitted_text for step in rebuilt)
        return ProbeText("the run's text", prompt=str(config.get("prompt") or ""), continuation=text)
    is_own = not is_lossy(config) and sampling == request_from_config(config).sampling
    is_own = is_own and all(step.temperature == sampling.temperature for step in rebuilt)
    # A damaged log may lack steps, and the target didn't sample what follows from what is left before it.
    places = accumulate((len(step.emitted) for step in rebuilt), initial=len(before))
    is_own = is_own and all(step.position == place for step, place in zip(rebuilt, places, strict=False))
    return ProbeText("the run's text", prompt_ids=before, continuation_ids=written, is_own=is_own)
