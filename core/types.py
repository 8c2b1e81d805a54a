"""The engine's types: settings, drafts, verification results and the events of a run.

Nothing here imports torch, so the window can use these types before the engine is loaded. What crosses threads
(settings in, events out) is frozen and holds only CPU scalars, strings, tuples and enums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from core.errors import SettingsError
from core.settings import MAX_SEED, check, declared, setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from core.evidence import PositionEvidence

MAX_DRAFT_TOKENS = 16
"""Longest block that the window and the command line offer; `verify` has no limit."""

MAX_TEMPERATURE = 10.0
"""Far above any useful value; a larger one is assumed to be a typo."""


class TokenKind(StrEnum):
    """Where an emitted token came from."""

    ACCEPTED = "accepted"
    """Drafted, tested and kept."""
    CORRECTION = "correction"
    """Drawn from the residual after a rejection. On screen: resampled."""
    BONUS = "bonus"
    """Drawn from the target after a fully accepted block; also every token of plain decoding (K = 0)."""


class Coupling(StrEnum):
    """How the randomness of draft and target is shared."""

    REJECTION = "rejection"
    GUMBEL = "gumbel"


class LengthPolicy(StrEnum):
    """How the number of tokens drafted in a step is chosen."""

    FIXED = "fixed"
    """The K that the user set, in every step."""
    AUTO = "auto"
    """The engine chooses before each step, from measured step times and recent acceptance; K may be 0."""
    ADAPTIVE = "adaptive"
    """Like AUTO, but a block ends early where the draft is unsure of its tokens."""


class FinishReason(StrEnum):
    LENGTH = "length"
    EOS = "eos"
    STOP = "stop"
    CANCELLED = "cancelled"
    ERROR = "error"


class TargetFeature(StrEnum):
    """What a drafter may ask the target to return besides its logits."""

    HIDDEN_STATES = "hidden_states"


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


class DType(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise SettingsError(sentence)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become a distribution. Filters apply in this order; 0, 1 and 0 switch them off.

    Raises:
        SettingsError: for a value outside its range, with a sentence that names the range.
    """

    temperature: float = setting(
        1.0,
        label="Temperature",
        help="0 always takes the most likely token; 1 leaves the model's distribution as it is.",
        min=0.0,
        max=MAX_TEMPERATURE,
        step=0.05,
        window_max=2.0,
        window_default=0.8,
        aliases=("t", "temp"),
        metavar="T",
    )
    top_k: int = setting(
        0,
        label="Top-k",
        help="Keep only the k most likely tokens; 0 keeps all.",
        min=0,
        off=0,
        window_max=1_000_000,
    )
    top_p: float = setting(
        1.0,
        label="Top-p",
        help="Keep only the most likely tokens whose probabilities add up to this; 1 keeps all.",
        min=0.0,
        above=True,
        max=1.0,
        step=0.05,
        off=1.0,
        metavar="P",
    )
    min_p: float = setting(
        0.0,
        label="Min-p",
        help="Keep only tokens whose probability is at least this fraction of the largest; 0 keeps all.",
        min=0.0,
        max=1.0,
        step=0.05,
        off=0.0,
        metavar="P",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_unfiltered(self) -> bool:
        return self.top_k == 0 and self.top_p == 1.0 and self.min_p == 0.0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run's settings: a snapshot taken when Run is pressed.

    `draft` is None for methods that need no second model. `chat` None applies the chat template if the target's
    tokenizer has one. `num_draft_tokens` None lets `length_policy` choose K, which may be 0; with a K, the policy is
    ignored. `inspect` keeps the evidence of each step, outside all timing.

    A run may branch off another: `continuation` holds ids already written after the prompt, `forced` ids that the user
    added after those, and `forced_text` the same as text, for the target's tokenizer to encode. `max_new_tokens`, the
    summary and all figures count new tokens only.

    Raises:
        SettingsError: for a value outside its range.
    """

    target: str
    draft: str | None
    prompt: str
    method: str = "draft-model"
    method_options: Mapping[str, Any] = field(default_factory=dict)
    num_draft_tokens: int | None = setting(
        4,
        label="K, draft tokens",
        help="How many tokens are drafted before the target verifies them in one forward pass.",
        subject="K, the number of draft tokens,",
        min=1,
        max=MAX_DRAFT_TOKENS,
        is_optional=True,
        aliases=("k",),
    )
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = setting(
        0,
        label="Seed",
        help="The same seed and settings give the same text. When the engine chooses K, the text also depends on this "
        "machine's timing, unless the coupling is gumbel (in the window: Reproducible) or the temperature is 0.",
        subject="The seed",
        min=0,
        max=MAX_SEED,
    )
    coupling: Coupling = setting(
        Coupling.REJECTION,
        label="Coupling",
        help="How draft and target share randomness. With gumbel, a seed gives the text of plain sampling, whatever "
        "the draft and K, at the cost of a little acceptance.",
        titles={Coupling.REJECTION: "Rejection", Coupling.GUMBEL: "Gumbel (reproducible)"},
    )
    max_new_tokens: int = setting(
        128,
        label="New tokens",
        help="The run ends after this many tokens, or earlier.",
        subject="The number of new tokens",
        min=1,
        step=16,
        window_max=32768,
        aliases=("n",),
    )
    stop: tuple[str, ...] = ()
    chat: bool | None = setting(
        None,
        label="Chat template",
        help="Format the prompt with the target's chat template. Auto: if the target has one.",
    )
    device: Device = setting(
        Device.AUTO,
        label="Device",
        help="Where the models run. Auto: the fastest available.",
        titles={Device.AUTO: "Auto", Device.CPU: "CPU", Device.CUDA: "CUDA", Device.MPS: "MPS"},
    )
    dtype: DType = setting(
        DType.AUTO,
        label="Number format",
        help="The number format of the weights. Auto: what suits the device.",
        titles={dtype: "Auto" if dtype is DType.AUTO else str(dtype) for dtype in DType},
    )
    baseline: bool = setting(
        False,
        label="Measure the baseline",
        help="After the run, run the target alone with the same settings and token limit, and report the speedup.",
        window_default=True,
    )
    inspect: bool = setting(
        False,
        label="Keep the evidence",
        help="Also log the evidence of each step, which the Inspector shows.",
    )
    continuation: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    forced_text: str = ""
    length_policy: LengthPolicy = setting(
        LengthPolicy.AUTO,
        label="How K is chosen",
        help="Fixed: the K you set, in every step.\n"
        "Auto: the engine chooses before each step, from measured forward times and recent acceptance; 0 (plain "
        "decoding) where drafting doesn't pay.\n"
        "Adaptive: like Auto, but a block ends early where the draft is unsure of its own tokens.",
        titles={LengthPolicy.FIXED: "Fixed", LengthPolicy.AUTO: "Auto", LengthPolicy.ADAPTIVE: "Adaptive"},
    )

    def __post_init__(self) -> None:
        _require(bool(self.target.strip()), "Choose a target model.")
        _require(bool(self.prompt), "The prompt is empty. Write a few words for the model to continue.")
        check(self)
        _require(
            self.num_draft_tokens is not None or self.length_policy is not LengthPolicy.FIXED,
            "A fixed draft length needs a K.",
        )
        _require(all(self.stop), "A stop text is empty. Remove it, or write the text to stop at.")
        kept = (*self.continuation, *self.forced)
        _require(all(_is_int(token) and token >= 0 for token in kept), "The tokens to continue from must be ids.")

    @property
    def draft_length(self) -> int | LengthPolicy:
        """K, or the policy that chooses it."""
        return self.length_policy if self.num_draft_tokens is None else self.num_draft_tokens


SETTINGS = {**declared(RunRequest), **declared(SamplingParams)}
"""Every declared setting of a run, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A block of proposed tokens; a chain is a degenerate tree.

    Attributes:
        tokens: (N,) int64, proposed ids.
        parents: (N,) int64, index of each token's parent within the block; -1 for the block's root.
        probs: (N, V) float32, the distribution that each token was drawn from; None where the drafter proposes
            without a distribution (a one-hot at each token).
    """

    tokens: Tensor
    parents: Tensor
    probs: Tensor | None

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class DraftContext:
    """What a drafter sees when it proposes.

    Attributes:
        ids: committed ids, prompt included; the last one has not been seen by the target yet.
        num_draft_tokens: K, the longest block wanted; fewer, or none, may be proposed.
        sampling: the target's own parameters, which apply to the draft's distribution as well.
        generator: source of randomness for this run; unused if `gumbel` is given.
        gumbel: absolute position -> (V,) noise if the run is Gumbel-coupled; else None.
        vocab_size: V, the number of ids that may be emitted.
        check_cancelled: raises to abandon the step; call it before each forward.
        features: what `Drafter.needs` asked for, by name, for the positions that the last step kept.
        keep_drafting: if not None, a drafter that draws token by token calls it after each token with the draft's
            probability of that token (at temperature 0, its probability at 1). False ends the block after that token.
            A drafter without such probabilities ignores it.
    """

    ids: Sequence[int]
    num_draft_tokens: int
    sampling: SamplingParams
    generator: torch.Generator | None
    vocab_size: int
    check_cancelled: Callable[[], None]
    gumbel: Callable[[int], Tensor] | None = None
    features: Mapping[TargetFeature, Tensor] = field(default_factory=dict)
    keep_drafting: Callable[[float], bool] | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of testing one block.

    Attributes:
        num_accepted: how many of the K drafted tokens were accepted.
        next_token: the id that follows them.
        next_kind: CORRECTION after a rejection, BONUS after a full block.
        acceptance_probs: min(1, target / draft probability) of each drafted token, tested or not.
        uniforms: the draw u that each drafted token was tested with; empty if the coupling draws none.
        next_uniform: the draw that selected `next_token`; None if there is none.
    """

    num_accepted: int
    next_token: int
    next_kind: TokenKind
    acceptance_probs: tuple[float, ...] = ()
    uniforms: tuple[float, ...] = ()
    next_uniform: float | None = None


# --- Events -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageChanged:
    """The engine is busy with something the user waits for, such as loading a model."""

    text: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """First event of a run: the run log's first line, ready for JSON."""

    run_id: str
    started_at: str
    version: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prompt is in the caches. Times in milliseconds.

    `target_step_ms` is the median of a few one-position forwards of the target, timed here; it is the unit of the
    cost coefficient and of the verify cost. None in plain decoding, where every step is such a forward.
    """

    num_prompt_tokens: int
    prefill_ms: float
    target_step_ms: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """One draft-verify round, with the run log's field names.

    Sequences over the drafted block have length `num_draft_tokens`; those over the emitted tokens have length
    `num_accepted` + 1, or less if the text ended within the block.

    Attributes:
        index: number of the step, from 0.
        position: absolute position of the first emitted token, prompt included.
        num_draft_tokens: tokens drafted in this step, up to the end of the text; 0 is a plain step.
        temperature: in force for this step.
        drafted, drafted_texts: the block; texts are for display.
        draft_probs, target_probs: probability of each drafted id under the two models, after the filters.
        acceptance_probs: min(1, p / q) of each drafted id.
        expected_acceptance: sum over the vocabulary of min(p, q), by drafted position.
        uniforms: the draw that each drafted token was tested with.
        num_accepted: drafted tokens that were accepted, up to the end of the text.
        emitted, emitted_kinds, emitted_texts: what was added to the text.
        draft_ms, verify_ms, sample_ms: drafting; the target's forward; filters, verification and the next token.
        total_ms: the whole step, without the capture of evidence.
        next_uniform: the draw that took the last emitted token from the residual or the target; None if the text ended
            before it, or if the coupling draws none.
        evidence: the distributions at each drafted position and at the bonus token's, if requested. During a run they
            follow the step as `Inspected`.
    """

    index: int
    position: int
    num_draft_tokens: int
    temperature: float
    drafted: tuple[int, ...]
    drafted_texts: tuple[str, ...]
    draft_probs: tuple[float, ...]
    target_probs: tuple[float, ...]
    acceptance_probs: tuple[float, ...]
    expected_acceptance: tuple[float, ...]
    uniforms: tuple[float, ...]
    num_accepted: int
    emitted: tuple[int, ...]
    emitted_kinds: tuple[TokenKind, ...]
    emitted_texts: tuple[str, ...]
    draft_ms: float
    verify_ms: float
    sample_ms: float
    total_ms: float
    next_uniform: float | None = None
    evidence: Sequence[PositionEvidence] = ()

    @property
    def emitted_text(self) -> str:
        return "".join(self.emitted_texts)


@dataclass(frozen=True, slots=True)
class Drafted:
    """A block that awaits verification; fields as in `Step`. Sent only while the user follows single steps."""

    index: int
    position: int
    drafted: tuple[int, ...]
    drafted_texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspected:
    """The evidence of an earlier step: sent while the run is paused, at its end, or at once while it is inspected."""

    index: int
    evidence: Sequence[PositionEvidence]


@dataclass(frozen=True, slots=True)
class BaselineStep:
    """One token of the plain baseline, which follows the speculative run it is compared with."""

    step: Step


@dataclass(frozen=True, slots=True)
class Summary:
    """Results of a run. Rates cover decoding only; the prefill is reported separately.

    Attributes:
        num_drafts: steps in which at least one token was drafted.
        num_accepted_tokens_per_pos: how often the drafted token at each position of the block was accepted.
        draft_acceptance_rate: accepted / drafted; None if nothing was drafted.
        block_efficiency: tokens emitted per target forward.
        cost_coefficient: one draft step's time / one target step's time.
        tokens_per_second: num_tokens / the sum of the steps' total_ms.
        predicted_speedup: tau / (K c + v(K+1)) from this run's measured alpha, c and v.
        measured_speedup: tokens_per_second / baseline_tokens_per_second; None if the baseline did not run.
        expected_acceptance_rate: the accepted / drafted expected under rejection coupling.
        num_threads, baseline_num_threads: CPU threads in use at the end of each.
        error: what went wrong: in the baseline, unless the finish reason is ERROR.
        target_step_ms: time of the target's one-position forward, as in `PrefillDone`.
    """

    finish_reason: FinishReason
    text: str
    num_tokens: int
    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    draft_acceptance_rate: float | None
    block_efficiency: float | None
    cost_coefficient: float | None
    tokens_per_second: float | None
    prefill_ms: float
    peak_memory_mb: float | None
    predicted_speedup: float | None
    baseline_tokens_per_second: float | None = None
    baseline_text: str | None = None
    num_threads: int | None = None
    baseline_num_threads: int | None = None
    measured_speedup: float | None = None
    error: str | None = None
    expected_acceptance_rate: float | None = None
    target_step_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a run, also of one that was stopped before it started."""

    summary: Summary


Event = StageChanged | RunStarted | PrefillDone | Drafted | Step | Inspected | BaselineStep | Finished
