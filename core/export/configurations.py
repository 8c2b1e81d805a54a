"""What is to be taken to production: a pair, a method, K and the sampling, and what was measured of them."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from core.drafters.registry import get_method
from core.models.catalogue import EMBEDDED, EMBEDDED_TITLES
from core.models.hub import is_hub_id
from core.models.shared_draft import serves
from core.runlog.log import RunLog
from core.runlog.replay import request as replayed
from core.types import Coupling, RunRequest, SamplingParams


class PlaceKind(StrEnum):
    """What a program has to be able to read."""

    HUB = "hub"
    FOLDER = "folder"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class Place:
    """A model, as other programs name it.

    Attributes:
        kind: a Hub id, a folder of safetensors, or a .gguf file.
        name: the id, or the absolute path.
        serves: of a draft that borrows its target's tables, that target; other programs can't load such a draft.
    """

    kind: PlaceKind
    name: str
    serves: str | None = None


def place_of(ref: str) -> Place:
    """Where the model of a reference lies. Looks at a folder's config.json, and never fails: the model may be gone."""
    if ref in EMBEDDED_TITLES:
        folder = EMBEDDED / ref
        return Place(PlaceKind.FOLDER, str(folder), serves(folder))
    path = _absolute(ref)
    if ref.lower().endswith(".gguf"):
        return Place(PlaceKind.GGUF, ref if path is None else str(path))
    try:
        if path is not None and path.is_dir():
            return Place(PlaceKind.FOLDER, str(path), serves(path))
    except (OSError, ValueError):
        pass
    return Place(PlaceKind.HUB if is_hub_id(ref) else PlaceKind.FOLDER, ref)


def _absolute(ref: str) -> Path | None:
    try:
        return Path(ref).expanduser().absolute()
    except (OSError, RuntimeError, ValueError):
        return None


DEFAULT_K = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting to serve with.

    Attributes:
        target, draft, method, method_options, sampling, max_new_tokens, coupling, chat: as in a `RunRequest`.
        num_draft_tokens: K.
        k_note: where K was not chosen by hand, how this one came about.
        run_id: of the run that it comes from; empty where it comes from the settings.
        measured_speedup: that run's, against its own baseline; None where there was none.
    """

    target: str
    draft: str | None = None
    method: str = "draft-model"
    num_draft_tokens: int = DEFAULT_K
    sampling: SamplingParams = field(default_factory=SamplingParams)
    method_options: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int = 128
    coupling: Coupling = Coupling.REJECTION
    chat: bool | None = None
    k_note: str = ""
    run_id: str = ""
    measured_speedup: float | None = None

    @property
    def verdict(self) -> str:
        """What the measurement says against serving this; empty where it says nothing against it."""
        if self.measured_speedup is None or self.measured_speedup >= 1.0:
            return ""
        return (
            f"This pair does not pay here: with K = {self.num_draft_tokens} it ran at {self.measured_speedup:.2f}× "
            "the speed of the target alone. Another machine may differ; measure there before you serve it."
        )

    def option(self, name: str) -> Any:
        """A parameter of the method, its default where none was given."""
        options = get_method(self.method).options
        return self.method_options.get(name, getattr(options(), name))


def choice_from_request(
    request: RunRequest, summary: Mapping[str, Any] | None = None, *, run_id: str = "", chat: bool | None = None
) -> Choice:
    """The choice that a request makes, with what its run measured where there is a summary.

    Raises:
        SettingsError: there is no such method.
    """
    get_method(request.method)
    summary = summary or {}
    k, note = request.num_draft_tokens, ""
    if k is None:
        k, note = _mean_block(summary)
    speedup = summary.get("measured_speedup")
    is_measured = isinstance(speedup, int | float) and not isinstance(speedup, bool)
    return Choice(
        target=request.target,
        draft=request.draft,
        method=request.method,
        num_draft_tokens=k,
        sampling=request.sampling,
        method_options=dict(request.method_options),
        max_new_tokens=request.max_new_tokens,
        coupling=request.coupling,
        chat=request.chat if chat is None else chat,
        k_note=note,
        run_id=run_id,
        measured_speedup=float(speedup) if is_measured and speedup is not None else None,
    )


def choice_from_log(log: RunLog) -> Choice:
    """The choice that a run was made with.

    Raises:
        RunLogError: the log holds settings that no run can have.
        SettingsError: it names a method that this Outrider does not know.
    """
    run_id = log.run.get("id")
    return choice_from_request(replayed(log), log.summary, run_id=run_id if isinstance(run_id, str) else "")


def _mean_block(summary: Mapping[str, Any]) -> tuple[int, str]:
    """K for a run that chose its own: what it drafted on average, where it drafted."""
    drafted, drafts = summary.get("num_draft_tokens"), summary.get("num_drafts")
    if isinstance(drafted, int) and isinstance(drafts, int) and drafts > 0 and drafted > 0:
        mean = drafted / drafts
        return max(1, round(mean)), f"K was chosen by Outrider before each step; {mean:.1f} tokens on average."
    return DEFAULT_K, f"K was left to Outrider, which chooses it before each step; {DEFAULT_K} is its usual default."


CHECKED_ON = "2026-11-22"
"""The day on which every project's sources were last looked at."""

WIDTH = 100


def comment(*paragraphs: str) -> str:
    """Lines that begin with #; no text can break out of them."""
    lines: list[str] = []
    for paragraph in paragraphs:
        # textwrap takes every line end for a space, so that what a reference holds stays in the comment.
        lines += textwrap.wrap(_plain(paragraph), WIDTH - 2, subsequent_indent="  ", break_on_hyphens=False) or [""]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def command(*words: Iterable[str]) -> str:
    """A command of a POSIX shell, a group of words a line."""
    return " \\\n    ".join(shlex.join(_plain(word) for word in group) for group in words if group) + "\n"


def as_json(values: Mapping[str, Any]) -> str:
    """One line of JSON, to be quoted as a word."""
    return json.dumps(values, ensure_ascii=False)


def python(value: Any) -> str:
    """A literal in Python."""
    return repr(value)


def number(value: float) -> str:
    """Without a needless fraction: 1, 0.8."""
    return f"{value:g}"


def head(title: str, choice: Choice) -> list[str]:
    """The first comments of each configuration: what it is of."""
    draft = f" with {choice.draft}" if choice.draft else ""
    sampling = choice.sampling
    law = "greedy" if sampling.is_greedy else f"temperature {number(sampling.temperature)}"
    for name, value, off in (("top-k", sampling.top_k, 0), ("top-p", sampling.top_p, 1), ("min-p", sampling.min_p, 0)):
        if value != off and not sampling.is_greedy:
            law += f", {name} {number(value)}"
    origin = f"Outrider's run {choice.run_id}" if choice.run_id else "Outrider's settings"
    lines = [
        f"{title}: {choice.target}{draft}, {choice.method}, K = {choice.num_draft_tokens}, {law}.",
        f"From {origin}." + (f" {choice.k_note}" if choice.k_note else ""),
    ]
    if choice.measured_speedup is not None:
        lines.append(
            choice.verdict
            or f"Measured there: {choice.measured_speedup:.2f}× the target alone, by Outrider's engine; not a promise."
        )
    return lines


def checked(sources: Iterable[str]) -> str:
    """Which sources the flags were looked up in, and when."""
    return f"Checked on {CHECKED_ON} against " + "; ".join(sources) + "."


def _plain(text: str) -> str:
    """Without the characters that end a line or a string in some shell."""
    return "".join(character if character.isprintable() else " " for character in text)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to serve a choice.

    Attributes:
        sources: files of the project that the flags were looked up in.
        program: the command or program; empty where there is none.
        notes: what differs from Outrider.
        problem: why the engine can't do it; empty where it can.
    """

    sources: tuple[str, ...]
    program: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""


def places(choice: Choice) -> tuple[Place, Place | None]:
    """Where target and draft lie."""
    return place_of(choice.target), place_of(choice.draft) if choice.draft else None


def common_problem(choice: Choice, title: str) -> str:
    """What no other engine can do; empty where nothing stands against it."""
    if choice.method == "self-draft":
        return (
            f"{title} has no counterpart of Outrider's self-draft, which drafts with an int8 copy of the target; "
            "choose a draft model or prompt lookup instead."
        )
    if choice.method not in {"draft-model", "prompt-lookup"}:
        return f"Outrider knows no counterpart of its method {choice.method} in {title}."
    if get_method(choice.method).needs_draft_model and not choice.draft:
        return "No draft model is chosen; name one, or choose prompt lookup."
    draft = place_of(choice.draft) if choice.draft else None
    if draft is not None and draft.serves:
        return (
            f"The draft borrows the tables of {draft.serves}, which only Outrider reads: {title} needs a draft that is "
            "a model of its own, with embedding, head and tokenizer."
        )
    return ""


def coupling_note(choice: Choice) -> tuple[str, ...]:
    """That shared noise is Outrider's own."""
    if choice.coupling is not Coupling.GUMBEL:
        return ()
    return ("The shared noise of Outrider's reproducible coupling does not exist here: a seed gives another text.",)


DRAWN_AND_COMPARED = (
    "At temperatures above 0 the target draws its own token at each place, and a drafted token is kept where it equals "
    "that draw. The law is the target's all the same, but fewer drafts are kept than by Outrider's rejection sampling: "
    "expect less acceptance than measured."
)
