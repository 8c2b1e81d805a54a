"""Medians with their spread, and comparisons of runs: pure functions."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psutil

from core.drafters.registry import METHODS
from core.errors import OutriderError, SettingsError
from core.experiments.prompt_suites import Prompt
from core.types import MAX_DRAFT_TOKENS, Device, DType, SamplingParams, Step

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


GENERATE, ASSISTED, FLASHSPEC, FLASHSPEC_AUTO = "generate", "assisted", "flashspec", "flashspec-auto"
RIVALS = (GENERATE, ASSISTED, FLASHSPEC, FLASHSPEC_AUTO)
PLAIN, AUTO = "plain", "auto"

_WORDS = {"yes": True, "no": False}


def known_names() -> tuple[str, ...]:
    """Every contender without options, in the order of the table."""
    return (*RIVALS, PLAIN, *METHODS, AUTO)


def default_names() -> tuple[str, ...]:
    """Who takes part where nobody is named: each method at its defaults, and with each of its switches turned."""
    variants = [
        f"{name}:{item.name.replace('_', '-')}={'no' if item.default else 'yes'}"
        for name, method in METHODS.items()
        for item in fields(method.options)
        if isinstance(item.default, bool)
    ]
    names = list(known_names())
    for variant in variants:
        names.insert(names.index(variant.partition(":")[0]) + 1, variant)
    return tuple(names)


def split_name(name: str) -> tuple[str, dict[str, Any]]:
    """A contender's name without options, and the options.

    Raises:
        SettingsError: no such contender, or options that it does not know or can't have.
    """
    base, *parts = name.split(":")
    if base not in known_names():
        raise SettingsError(f"There is no contender {base!r}. Choose from: {', '.join(known_names())}.")
    if parts and base not in METHODS:
        raise SettingsError(f"The contender {base} has no options; leave out what stands behind the colon.")
    options = dict(_option(base, part) for part in parts)
    if options:
        METHODS[base].options(**options)  # Refuses values out of range.
    return base, options


def _option(base: str, part: str) -> tuple[str, Any]:
    key, _, text = part.partition("=")
    defaults: dict[str, Any] = {item.name: item.default for item in fields(METHODS[base].options)}
    name = key.strip().replace("-", "_")
    if name not in defaults:
        known = ", ".join(item.replace("_", "-") for item in defaults) or "none"
        raise SettingsError(f"The method {base} has no option {key!r}. It has: {known}.")
    default = defaults[name]
    try:
        return name, _WORDS[text.lower()] if isinstance(default, bool) else type(default)(text)
    except (KeyError, ValueError, TypeError):
        kind = "yes or no" if isinstance(default, bool) else "a number"
        raise SettingsError(f"The option {key} of {base} is {kind}, not {text!r}.") from None


__all__ = ["Absence", "BenchSettings", "Contender", "NotApplicableError", "Pair", "Prompt", "Timed"]


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What is compared, and how.

    Attributes:
        target: reference of the target.
        draft: reference of the draft; None for none, or for a truncated one.
        draft_layers: make the draft of the target's own first layers; None: don't.
        num_draft_tokens: K, the same for everyone who can be told.
        temperatures: each is a comparison of its own.
        max_new_tokens: tokens that every run writes; nobody may end earlier.
        rounds: repetitions that count; one more, before them, does not.
        seed: of the first run; every run of a round has its own, the same for all contenders.
        device, dtype: where, and in which precision.
        threads: processor threads for everyone; None: as many as there are cores.
        only: contenders that take part, by name; empty for all.

    Raises:
        SettingsError: a value out of range, or a contender that there is not.
    """

    target: str
    draft: str | None = None
    draft_layers: int | None = None
    num_draft_tokens: int = 4
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_new_tokens: int = 64
    rounds: int = 5
    seed: int = 0
    device: Device = Device.AUTO
    dtype: DType = DType.AUTO
    threads: int | None = None
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(
            1 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS,
            f"K, the number of draft tokens, must be from 1 to {MAX_DRAFT_TOKENS}, not {self.num_draft_tokens}.",
        )
        _check(self.max_new_tokens >= 1, f"The number of new tokens must be 1 or more, not {self.max_new_tokens}.")
        _check(self.rounds >= 1, f"The number of rounds must be 1 or more, not {self.rounds}.")
        _check(0 <= self.seed < 2**31, f"The seed must be from 0 to 2^31 - 1, not {self.seed}.")
        _check(bool(self.temperatures), "Name at least one temperature.")
        _check(self.threads is None or self.threads >= 1, f"Threads must be 1 or more, not {self.threads}.")
        _check(
            self.draft is None or self.draft_layers is None,
            "A draft is either named or made of the target's first layers; leave one of the two out.",
        )
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)
        for name in self.only:
            split_name(name)


def _check(holds: bool, sentence: str) -> None:
    if not holds:
        raise SettingsError(sentence)


@dataclass(frozen=True, slots=True)
class Pair:
    """The models of a bench. The target's list of ends is empty, so that every text gets its full length."""

    target: LanguageModel
    draft: LanguageModel | None


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of a contender, from the prompt's ids to the last new one.

    Attributes:
        ids: what was added to the prompt.
        seconds: wall clock around the whole call, the prompt's reading included.
        num_forwards: the target's forwards but those that only read the prompt; None where the contender can't tell.
        longest_draft: most tokens that it drafted in a step; None where it can't tell.
        steps: our own engine's account of itself.
    """

    ids: tuple[int, ...]
    seconds: float
    num_forwards: int | None = None
    longest_draft: int | None = None
    steps: tuple[Step, ...] = ()


class Contender(Protocol):
    """An engine that continues a prompt. What it needs beside the models is made ready when it is built."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def title(self) -> str:
        """What the table calls it."""
        ...

    @property
    def num_draft_tokens(self) -> int | None:
        """K, where it is held to one; 0 where it drafts nothing, None where it chooses."""
        ...

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        """Continue a prompt by the number of tokens that was set when it was built. The models stay as they were."""
        ...


class NotApplicableError(OutriderError):
    """A contender can't take part with these models; says why."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A contender that does not take part, and why."""

    name: str
    reason: str


_PROCESS = Path("/proc/self")
_DONT_NEED = 4
"""Linux's MADV_DONTNEED: what is in the file anyway leaves this process's memory, and comes back when it is read."""
_WEIGHTS = ".safetensors"


def forget_peak() -> None:
    """Let the highest mark start anew, where the system can; else it is that of the whole process."""
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def drop_read_weights() -> None:
    """Send away the pages of weight files that are mapped.

    Loading reads all of a file through such pages, and they stay although the weights were copied from them.
    """
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for mapping in _weight_mappings():
            if not mapping.num_written:  # Those pages would be lost.
                advise(mapping.start, mapping.size, _DONT_NEED)


def private_mb() -> float:
    """Memory of its own that the process holds now, in MB of 10^6 bytes."""
    return _status("RssAnon") or float(psutil.Process().memory_info().rss) / 1e6


def peak_mb() -> float | None:
    """Its own memory at the highest mark, and the pages of weight files in use; None where the system can't tell.

    Pages of files are taken to be as many at the mark as they are now, which holds for the second of two equal runs.
    """
    highest, files = _status("VmHWM"), _status("RssFile")
    if highest is None or files is None:
        return None
    return highest - files + sum(mapping.num_resident for mapping in _weight_mappings()) / 1e6


def _status(key: str) -> float | None:
    with contextlib.suppress(OSError):
        found = re.search(rf"^{key}:\s+(\d+) kB", (_PROCESS / "status").read_text("utf-8", "replace"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024 / 1e6
    return None


class _Mapping(NamedTuple):
    """A mapped file: where, and how many bytes of it are in memory, and were written to by this process."""

    start: int
    size: int
    num_resident: int
    num_written: int


def _weight_mappings() -> list[_Mapping]:
    return mappings_in((_PROCESS / "smaps").read_text("utf-8", "replace")) if (_PROCESS / "smaps").exists() else []


def mappings_in(smaps: str) -> list[_Mapping]:
    """The weight files in the text of /proc/self/smaps."""
    found: list[_Mapping] = []
    is_weights = False
    for line in smaps.splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_weights = line.endswith(_WEIGHTS)
            if is_weights:
                start, end = int(head[1], 16), int(head[2], 16)
                found.append(_Mapping(start, end - start, 0, 0))
        elif is_weights and (count := re.match(r"(Rss|Anonymous):\s+(\d+) kB", line)):
            field = "num_resident" if count[1] == "Rss" else "num_written"
            found[-1] = found[-1]._replace(**{field: int(count[2]) * 1024})
    return found


_TIMEOUT_S = 900


class Memory(NamedTuple):
    """What a contender's run took, in MB of 10^6 bytes.

    Attributes:
        peak_mb: at its highest mark.
        needed_mb: both models' weights in the run's precision, int8 copies included, and both caches at the run's end.
    """

    peak_mb: float
    needed_mb: float


def memory_of(name: str, settings: BenchSettings, prompt_ids: Sequence[int]) -> Memory | None:
    """The memory of one run of a contender; None where it could not be had.

    On CUDA what torch allocated there; else the process's own memory and the weight files' pages that it reads, less
    what it was before any model was loaded.
    """
    question = {"name": name, "settings": asdict(settings), "prompt_ids": list(prompt_ids)}
    command = [sys.executable, "-m", "core.experiments.bench_memory_child"]
    try:
        done = subprocess.run(
            command, input=json.dumps(question), capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        answer: Any = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return Memory(float(answer["peak_mb"]), float(answer["needed_mb"]))


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and how far the values lie from it."""

    median: float
    quartiles: tuple[float, float]
    extremes: tuple[float, float]
    values: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread:
    """Median, first and third quartile (interpolated between the values), least and greatest.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("No values, no median.")
    if len(values) == 1:
        low = high = values[0]
    else:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), (low, high), (min(values), max(values)), tuple(values))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """What a median lies within, so often at least, whatever the values' distribution; all of them where few are there.

    Between two of the values in order: as many lie beyond as of that many coins show heads too rarely to be expected.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("No values, no median.")
    ordered, count = sorted(values), len(values)
    beyond, outcomes = 0, 1
    while 2 * outcomes <= (1.0 - confidence) * 2**count:
        beyond += 1
        outcomes += math.comb(count, beyond)
    return ordered[max(0, beyond - 1)], ordered[min(count - 1, count - beyond)]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Round by round ours / theirs, so that what slows the machine down for a while weighs on both.

    Raises:
        ValueError: none, or not as many of the one as of the other.
    """
    return spread([our / their for our, their in zip(ours, theirs, strict=True)])


def first_difference(ids: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token in which two texts differ, the end of the shorter one included; None if they don't."""
    pairs = zip_longest(ids, reference)
    return next((index for index, (left, right) in enumerate(pairs) if left != right), None)


def order(count: int, turn: int) -> list[int]:
    """In which order `count` contenders run in their `turn`-th turn.

    Everyone starts equally often, and every other turn goes backwards, so that neither a machine that grows slower
    nor what the one before leaves in the caches favours anyone.
    """
    start = turn // 2 % count if count else 0
    forwards = [(start + index) % count for index in range(count)]
    return forwards[::-1] if turn % 2 else forwards
