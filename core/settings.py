"""The run settings: each is declared once, with its default, range, label and help.

They are the fields of `SamplingParams` and `RunRequest`; those of a drafting method are the fields of its options.
Form, command-line flag, settings file, validation and the search for runs are made from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import Enum, StrEnum
from typing import Any

from core.errors import SettingsError

MAX_SEED = 2**63 - 1
MAX_DRAFT_TOKENS = 64
"""The most nodes of a tree, or tokens of a block; `verify` has no limit."""
LONGEST_CHAIN = 16
"""The most tokens in a row that the window offers, theory shows, and the engine chooses by itself."""
MAX_TEMPERATURE = 10.0
"""Far above any useful value; a larger one is assumed to be a typo."""


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


class VerificationRule(StrEnum):
    """How a drafted block is tested under rejection coupling."""

    TOKEN = "token"
    """Token by token, in chains and trees (Leviathan et al., 2211.17192; SpecInfer, 2305.09781)."""
    BLOCK = "block"
    """Chains as a whole (Sun et al., 2403.10444): exact, and accepts at least as many tokens on average."""
    TYPICAL = "typical"
    """What the target finds likely enough (Medusa, 2401.10774). Lossy: the distribution is not the target's."""


TYPICAL_FLOOR, TYPICAL_SHARE = 0.09, 0.3
"""Medusa's epsilon and delta: in typical acceptance a token passes above epsilon, or above delta exp(-entropy)."""

SAME_TEXT = "Same text for any draft and K"
"""The window's name of Gumbel coupling."""

LOSSY = "Lossy: typical acceptance doesn't keep the target's distribution."
"""Shown wherever such a run is displayed or exported; its log says `"verification": "typical", "lossy": true`."""


TYPICAL_FIELDS = {"typical_floor": TYPICAL_FLOOR, "typical_share": TYPICAL_SHARE}
"""What such a log's config holds of its threshold; older logs, some of which had another one, don't."""


def is_lossy(config: Mapping[str, Any]) -> bool:
    """Whether a log's config is that of a run whose text doesn't follow the target's distribution."""
    return config.get("verification") == VerificationRule.TYPICAL and config.get("num_draft_tokens") != 0


def rule_text(config: Mapping[str, Any]) -> str:
    """The rule of verification in a table, "token" or "typical (lossy)"; older logs always used token."""
    return f"{config.get('verification') or VerificationRule.TOKEN}{' (lossy)' if is_lossy(config) else ''}"


class Device(StrEnum):
    """Where models run. `Device("cuda:1")` is the second GPU."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"

    @classmethod
    def _missing_(cls, value: object) -> Device | None:
        if not isinstance(value, str) or not re.fullmatch(r"cuda:\d{1,3}", value, re.ASCII):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        return member


class DType(StrEnum):
    """The number format of the weights. `DType("bf16")` and the like work, too."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @classmethod
    def _missing_(cls, value: object) -> DType | None:
        return {"fp32": cls.FLOAT32, "bf16": cls.BFLOAT16, "fp16": cls.FLOAT16}.get(str(value))


def setting(default: Any, *, label: str, help: str = "", **more: Any) -> Any:
    """A field that declares a setting.

    Args:
        default: its default value, whose type is the setting's.
        label: its name in the window and in messages.
        help: text of the tooltip and of `--help`.
        more: min, max, step: of a number. above: it must be greater than min, not equal. off: the number that
            switches it off. subject: its name at the beginning of a sentence, if not the label. is_optional: it may be
            None. titles: the name of each value, for a choice. aliases: its other names in the run search.
            flags: its other names on the command line. user_default: that of flags and the window, if different from
            a log's; window_default, window_max: the window's. metavar: of its flag.
    """
    return field(default=default, metadata={"label": label, "help": help, **more})


def declared(kind: type) -> dict[str, Field[Any]]:
    """The settings that a dataclass declares, by name."""
    return {item.name: item for item in fields(kind) if "label" in item.metadata}


def validate(settings: Any) -> None:
    """Check each declared setting of a dataclass instance.

    Raises:
        SettingsError: one is out of range; the message names the range.
    """
    for name, item in declared(type(settings)).items():
        checked(item, getattr(settings, name))


def checked(item: Field[Any], value: Any) -> Any:
    """A setting's value; of a choice that is named by its text, the member.

    Raises:
        SettingsError: it is out of range; the message names the range.
    """
    if not is_valid(item, value):
        subject = item.metadata.get("subject", item.metadata["label"])
        raise SettingsError(f"{subject} must be {_range(item)}, not {value!r}.")
    return type(item.default)(value) if isinstance(item.default, Enum) and value is not None else value


def is_valid(item: Field[Any], value: Any, *, in_window: bool = False) -> bool:
    """Whether a setting may have a value.

    Args:
        in_window: apply the window's range, which may be smaller.
    """
    default, rules = item.default, item.metadata
    if value is None:
        return default is None or bool(rules.get("is_optional"))
    if isinstance(default, Enum):
        return isinstance(value, type(default)) or value in list(type(default))
    if not isinstance(default, int | float) or isinstance(default, bool):
        return default is None or isinstance(value, type(default))
    if isinstance(value, bool) or not isinstance(value, int if isinstance(default, int) else int | float):
        return False
    low, high = rules.get("min", -math.inf), rules.get("max", math.inf)
    if in_window:
        high = rules.get("window_max", high)
    try:
        is_finite = math.isfinite(value)
    except OverflowError:  # An integer too large for a float.
        return False
    return is_finite and low <= value <= high and not (rules.get("above") and value == low)


def _range(item: Field[Any]) -> str:
    rules = item.metadata
    if isinstance(item.default, Enum):
        return f"one of {', '.join(map(str, type(item.default)))}"
    if not isinstance(item.default, int | float) or isinstance(item.default, bool):
        return "on or off" if isinstance(item.default, bool) else "text"
    noun = "a whole number" if isinstance(item.default, int) else "a number"
    low, high = (_bound(item, key) for key in ("min", "max"))
    if not high:
        return f"{noun}, {low} or more"
    return f"{noun} above {low} and up to {high}" if rules.get("above") else f"{noun} from {low} to {high}"


def _bound(item: Field[Any], key: str) -> str:
    bound = item.metadata.get(key)
    if bound is None:
        return ""
    text = "2^63 - 1" if bound == MAX_SEED else f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
    return f"{text} (off)" if bound == item.metadata.get("off") else text


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise SettingsError(sentence)


def stop_texts(stop: str | Iterable[str]) -> tuple[str, ...]:
    """Texts to stop at; a single one may be given as it is.

    Raises:
        SettingsError: one is empty or no text.
    """
    _require(isinstance(stop, Iterable), "The stop texts must be texts.")
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    _require(all(isinstance(text, str) for text in texts), "A stop text must be a text.")
    _require(all(texts), "A stop text is empty. Remove it, or write the text to stop at.")
    return texts


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
        user_default=0.7,
        window_max=2.0,
        aliases=("t", "temp"),
        flags=("--temp",),
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
        validate(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_unfiltered(self) -> bool:
        return self.top_k == 0 and self.top_p == 1.0 and self.min_p == 0.0

    @property
    def text(self) -> str:
        """The temperature, and the filters that are on: temperature 0.8, top-k 40."""
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top-k {self.top_k}"] if self.top_k else []
        parts += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"min-p {self.min_p:g}"] if self.min_p else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run's settings: a snapshot taken when Run is pressed.

    `draft` is None for methods that need no second model. `chat` None applies the chat template if the target's
    tokenizer has one, and `system` is the system prompt in it. `num_draft_tokens` is K, and 0 is plain decoding; with
    None, `length_policy` chooses K, which may be 0. A policy passed as `num_draft_tokens` becomes the `length_policy`.
    `inspect` keeps the evidence of each step, outside all timing.

    A run may branch off another: `continuation` holds ids already written after the prompt, `forced` ids that the user
    added after those, and `forced_text` the same as text, for the target's tokenizer to encode. `max_new_tokens`, the
    summary and all figures count new tokens only.

    `engine` is the address of the server that runs it, without credentials; empty for this machine. `target` is then
    a model's name there.

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
        min=0,
        max=MAX_DRAFT_TOKENS,
        is_optional=True,
        aliases=("k",),
    )
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = setting(
        0,
        label="Seed",
        help="The same seed and settings give the same text. When the engine chooses K, or whether to draft in int8, "
        f"the text also depends on this machine's timing, except with Gumbel coupling (in the window: {SAME_TEXT}) or "
        "at temperature 0.",
        subject="The seed",
        min=0,
        max=MAX_SEED,
    )
    coupling: Coupling = setting(
        Coupling.REJECTION,
        label="Coupling",
        help="How draft and target share randomness. With gumbel, a seed produces the text of plain sampling, whatever "
        "the draft and K, at the cost of a little acceptance.",
        titles={Coupling.REJECTION: "Rejection", Coupling.GUMBEL: "Gumbel (same text for any draft and K)"},
    )
    verification: VerificationRule = setting(
        VerificationRule.TOKEN,
        label="Verification",
        help="How drafted tokens are tested. token: each by itself. block: a chain as a whole, which on average "
        "accepts at least as many. typical: whatever the target finds likely enough; this is lossy: the text no longer "
        "follows the target's distribution. Neither block nor typical works with Gumbel coupling (in the window: "
        f"{SAME_TEXT}).",
        titles={
            VerificationRule.TOKEN: "By token",
            VerificationRule.BLOCK: "Block",
            VerificationRule.TYPICAL: "Typical (lossy)",
        },
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
        flags=("-n", "--max-tokens"),
    )
    stop: tuple[str, ...] = ()
    chat: bool | None = setting(
        None,
        label="Chat template",
        help="Format the prompt with the target's chat template. Auto: if the target has one.",
        titles={None: "Auto", True: "On", False: "Off"},
    )
    device: Device = setting(
        Device.AUTO,
        label="Device",
        help="Where the models run; cuda:1 is the second GPU. Auto: the fastest available.",
        titles={Device.AUTO: "Auto", Device.CPU: "CPU", Device.CUDA: "CUDA", Device.MPS: "MPS"},
    )
    dtype: DType = setting(
        DType.AUTO,
        label="Precision",
        help="The precision of the weights. Auto: what suits the device.",
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
        window_default=LengthPolicy.FIXED,
        titles={LengthPolicy.FIXED: "Fixed", LengthPolicy.AUTO: "Auto", LengthPolicy.ADAPTIVE: "Adaptive"},
    )
    system: str = setting(
        "",
        label="System prompt",
        help="The system prompt in the chat template; empty for none.",
        placeholder="none",
    )
    engine: str = ""

    def __post_init__(self) -> None:
        _require(bool(self.target.strip()), "Choose a target model.")
        _require(bool(self.prompt), "The prompt is empty. Write a few words for the model to continue.")
        if isinstance(self.num_draft_tokens, str) and self.num_draft_tokens in list(LengthPolicy):
            object.__setattr__(self, "length_policy", self.num_draft_tokens)
            object.__setattr__(self, "num_draft_tokens", None)
        for name, item in declared(RunRequest).items():
            object.__setattr__(self, name, checked(item, getattr(self, name)))
        _require(
            self.num_draft_tokens is not None or self.length_policy is not LengthPolicy.FIXED,
            "A fixed draft length needs a K.",
        )
        object.__setattr__(self, "stop", stop_texts(self.stop))
        kept = (*self.continuation, *self.forced)
        _require(all(type(token) is int and token >= 0 for token in kept), "The tokens to continue from must be ids.")

    @property
    def is_lossy(self) -> bool:
        """Whether the text doesn't follow the target's distribution."""
        return self.verification is VerificationRule.TYPICAL and self.num_draft_tokens != 0

    @property
    def draft_length(self) -> int | LengthPolicy:
        """K, or the policy that chooses it."""
        return self.length_policy if self.num_draft_tokens is None else self.num_draft_tokens


SETTINGS = {**declared(RunRequest), **declared(SamplingParams)}
"""Every declared setting of a run, by name."""


def user_default(name: str, *, in_window: bool = False) -> Any:
    """A setting's value where a user chooses none, in the terminal or in the window."""
    rules = SETTINGS[name].metadata
    value = rules.get("user_default", SETTINGS[name].default)
    return rules.get("window_default", value) if in_window else value
