"""The settings to deploy: a pair, a method, K and the sampling, with their measurements."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path, PureWindowsPath
from statistics import fmean
from typing import Any

from core.analysis.steadiness import covers_one, interval_text
from core.draft_length import lengths_of
from core.drafters.registry import METHODS, get_method
from core.errors import SettingsError
from core.export.run_data import named, run_data
from core.models.catalogue import EMBEDDED, EMBEDDED_TITLES, SUGGESTIONS, kept_folder
from core.models.remote import hub
from core.models.shared_draft import serves
from core.runlog.reading import RunLog, text_of
from core.runlog.replay import request_from_config
from core.settings import DType, RunRequest
from core.types import Step

DEFAULT_K = 4
MOVED = "The temperature was changed during the run, which began with "


class SourceKind(StrEnum):
    """The kind of a model's source, which the other program must be able to read."""

    HUB = "hub"
    FOLDER = "folder"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model, as other programs name it.

    Attributes:
        kind: a Hub id, a folder of safetensors, or a .gguf file.
        name: the id, or the absolute path.
        serves: the target whose tables the draft borrows, so that other programs can't load it.
        note: what to put in place of the name, if it stands for a model that isn't here.
    """

    kind: SourceKind
    name: str
    serves: str | None = None
    note: str = ""


def source_of(ref: str) -> ModelSource:
    """The source of a model. Never fails: the model may no longer exist."""
    if ref in EMBEDDED_TITLES:
        return ModelSource(SourceKind.FOLDER, str(EMBEDDED / ref), serves(EMBEDDED / ref))
    return _local_source(ref) or ModelSource(SourceKind.HUB if hub.is_hub_id(ref) else SourceKind.FOLDER, ref)


def _local_source(ref: str) -> ModelSource | None:
    """A .gguf file, there or not, or a folder that is there."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        path = Path(ref).expanduser().absolute()
        if ref.lower().endswith(".gguf"):
            return ModelSource(SourceKind.GGUF, str(path))
        if path.is_dir():
            return ModelSource(SourceKind.FOLDER, str(path), serves(path))
    return None


def sources_from_config(config: Mapping[str, Any]) -> tuple[ModelSource, ModelSource | None]:
    """Target and draft of a log's `config`; a placeholder for a model that isn't known to be on the Hub nor here."""
    draft = config.get("draft")
    target = _logged_source(
        str(config["target"]), config.get("target_source"), has_revision=bool(config.get("revision"))
    )
    return target, _logged_source(str(draft), config.get("draft_source")) if draft else None


def _logged_source(ref: str, kind: Any, *, has_revision: bool = False) -> ModelSource:
    if kind == "hub" or has_revision:
        return ModelSource(SourceKind.HUB, ref)
    if kind in (None, "embedded") and ref in EMBEDDED_TITLES:
        return source_of(ref)
    found = _local_source(ref)
    if found is not None and os.path.exists(found.name):
        return found
    if named(ref) != ref:  # An absolute path is no Hub id anywhere.
        return found or ModelSource(SourceKind.FOLDER, ref)
    if kind is None and _is_known_on_hub(ref):
        return ModelSource(SourceKind.HUB, ref)
    name = PureWindowsPath(ref).name
    place = f"/path/to/{name if name.strip('.') else 'model'}"
    if found is not None:
        return ModelSource(SourceKind.GGUF, place, note=f"{place}: this model was a local file; put its path here.")
    unsure = f"the log doesn't say whether {ref} was a local folder or on the Hub; put its path or Hub id here."
    note = "this model was a local folder; put its path here." if kind else unsure
    return ModelSource(SourceKind.FOLDER, place, note=f"{place}: {note}")


def _is_known_on_hub(ref: str) -> bool:
    """Whether a name that an older log doesn't explain is that of a downloaded or suggested model."""
    is_suggested = any(ref == suggestion.ref for suggestion in SUGGESTIONS)
    return is_suggested or (hub.is_hub_id(ref) and (bool(hub.revisions(ref)) or kept_folder(ref).is_dir()))


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings to serve with: a request with a fixed K.

    Attributes:
        k_note: where K comes from, if the user didn't set it, and whether the temperature was changed.
        run_id: the run that the choice comes from; empty if it comes from the settings.
        measured_speedup: that run's, against its own baseline; None if there was none.
        dtype: the precision that it was measured in, or that was asked for; empty if unknown.
        interval: the bounds of the speedup's 95 % interval; None if there is none.
        is_short: whether there is no such interval because the run or its baseline has too few steps.
        was_busy: whether the machine was busy while it was measured.
        models: target and draft, if a log says where they are.
    """

    request: RunRequest
    k_note: str = ""
    run_id: str = ""
    measured_speedup: float | None = None
    dtype: str = ""
    interval: tuple[float, float] | None = None
    is_short: bool = False
    was_busy: bool = False
    models: tuple[ModelSource, ModelSource | None] | None = None

    @property
    def sources(self) -> tuple[ModelSource, ModelSource | None]:
        """Target and draft, as other programs name them."""
        draft = self.request.draft
        return self.models or (source_of(self.request.target), source_of(draft) if draft else None)

    @property
    def k(self) -> int:
        """K."""
        return DEFAULT_K if self.request.num_draft_tokens is None else self.request.num_draft_tokens

    @property
    def shape(self) -> str:
        """K, and of a draft model's tree also the rest of its shape, in words."""
        if self.request.method != "draft-tree":
            return f"K = {self.k}"
        depth, branching, rule = map(self.option, ("depth", "branching", "rule"))
        return f"K = {self.k} nodes, depth {depth}, branching {branching}, {rule}"

    @property
    def measured(self) -> str:
        """The measured speedup in a sentence; empty if there was no baseline."""
        if self.measured_speedup is None:
            return ""
        between = f" (95 % interval {interval_text(self.interval)})" if self.interval else ""
        own = f" in {self.dtype}"
        return (
            f"Measured in this run: {self.measured_speedup:.2f}× the speed of the target alone{between}, with "
            f"Outrider's engine{own if self.dtype else ''}."
        )

    @property
    def verdict(self) -> str:
        """Why the measurement argues against serving this, or can't be relied on; empty if neither."""
        if self.measured_speedup is None:
            return ""
        measure = "Before serving, measure this pair on the serving machine."
        # A mean is no K that the run used.
        at = f" with K = {self.k}" if not self.k_note or self.k_note.startswith(MOVED) else ""
        if self.interval and covers_one(self.interval):
            this = "The machine was busy, and this" if self.was_busy else "This"
            return f"{this} run can't tell whether drafting pays{at}. {measure}"
        if self.was_busy:
            return f"The machine was busy during this run. {measure}"
        if self.is_short:
            return f"Too few steps to tell whether speculation pays here. {measure}"
        return "" if self.measured_speedup >= 1.0 else f"Drafting did not pay in this run{at}. {measure}"

    def option(self, name: str) -> Any:
        """A parameter of the method, or its default."""
        return self.request.method_options.get(name, getattr(get_method(self.request.method).parse(), name))


def choice_from_request(request: RunRequest, steps: Sequence[Step] = (), *, may_be_plain: bool = False) -> Choice:
    """The choice of a request.

    Args:
        steps: of its run; K is theirs, or their mean where it was changed or a policy chose it.
        may_be_plain: whether K may be 0, since the caller sets another.

    Raises:
        SettingsError: nothing is drafted, or the method can't have these options.
    """
    if request.method in METHODS:  # A third-party method may be missing here.
        METHODS[request.method].parse(request.method_options)
    lengths = lengths_of(steps) or {request.draft_length}
    if not may_be_plain and (request.num_draft_tokens == 0 or lengths == {0}):
        raise SettingsError("With K = 0 nothing is drafted, so there is no draft to deploy. Choose a run that drafts.")
    length, *others = lengths
    k, note = (
        (length, "") if isinstance(length, int) and not others else _mean_k(request, steps, is_varied=bool(others))
    )
    first = request.sampling.temperature
    if any(step.temperature != first for step in steps if not math.isnan(step.temperature)):
        note = f"{note} {MOVED}{first:g}.".strip()
    dtype = "" if request.dtype is DType.AUTO else str(request.dtype)
    return Choice(replace(request, num_draft_tokens=k), note, dtype=dtype)


def _mean_k(request: RunRequest, steps: Sequence[Step], *, is_varied: bool) -> tuple[int, str]:
    """The mean K of the steps that drafted, or what stands for it, and where it comes from."""
    if drafted := [step.num_draft_tokens for step in steps if step.num_draft_tokens]:
        origin = "K was changed during the run" if is_varied else "Outrider chose K before each step"
        return round(fmean(drafted)), f"{origin}; {fmean(drafted):.1f} tokens on average where it drafted."
    if is_varied and request.num_draft_tokens is not None:
        return request.num_draft_tokens, "K was changed during the run, which drafted nothing."
    return DEFAULT_K, f"Outrider chooses K before each step; {DEFAULT_K} is its usual default."


def choice_of_run(config: Mapping[str, Any], steps: Sequence[Step], *, may_be_plain: bool = False) -> Choice:
    """The choice that a run was made with, as in `choice_from_request`, without what it measured.

    Args:
        config: the settings in its log.

    Raises:
        RunLogError: the settings are ones that no run can have.
        SettingsError: it drafted nothing, or was made on a server.
    """
    if config.get("engine"):
        raise SettingsError("This run was made on a server, so its draft and K are that server's. Deploy another run.")
    choice = choice_from_request(request_from_config(config), steps, may_be_plain=may_be_plain)
    return replace(choice, dtype=text_of(config.get("dtype")), models=sources_from_config(config))


def choice_from_log(log: RunLog, *, may_be_plain: bool = False) -> Choice:
    """The choice that a logged run was made with, as in `choice_of_run`."""
    run = run_data(log)
    return replace(
        choice_of_run(log.run["config"], run.steps, may_be_plain=may_be_plain),
        run_id=run.run_id,
        measured_speedup=run.figure("measured_speedup"),
        interval=run.interval,
        is_short=run.is_short,
        was_busy=run.was_busy,
    )
