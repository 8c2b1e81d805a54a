"""What the window needs from the engine, by name, so that a test can put something else in its place.

Each function imports what it calls when it is called: the window is up before torch is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.settings import SettingsStore, runs_folder, sweeps_folder
from app.tools.models.questions import FoundModels, RenderedPrompt, RenderQuestion, VerdictQuestion
from core.controls import RunControls
from core.models.catalogue import ModelEntry, ModelFormat, embedded_models, local_models, resolve
from core.models.hub import cache_folder, is_offline
from core.models.suggestions import SUGGESTIONS, Suggestion
from core.types import Event, RunRequest

if TYPE_CHECKING:
    from core.analysis.probe import ProbeRequest
    from core.experiments.check import CheckRequest
    from core.models.details import ModelDetails
    from core.models.downloads import DownloadProgress, Removal
    from core.models.fit import PairVerdict


def render_prompt(question: RenderQuestion) -> RenderedPrompt:
    """Put a prompt through a model's chat template and tokenizer; nothing else of the model is loaded.

    Raises:
        OutriderError: it can't be rendered, with a sentence that says why.
    """
    from core.models.prompting import render

    encoded = render(question.target, question.prompt, question.chat)
    special = _special_tokens_of(question.target)
    text = encoded.rendered if encoded.is_chat else with_unwritten(encoded.rendered, encoded.ids, special)
    return RenderedPrompt(question, text, len(encoded.ids), encoded.is_chat, tuple(special.values()))


def with_unwritten(text: str, ids: Sequence[int], special: Mapping[int, str]) -> str:
    """Write out the special tokens that a tokenizer sets before or after a text, such as one for its beginning."""
    before = "".join(special[token] for token in takewhile(special.__contains__, ids))
    if len(before) and all(token in special for token in ids):
        return text if text else before
    after = "".join(reversed([special[token] for token in takewhile(special.__contains__, reversed(ids))]))
    return f"{'' if text.startswith(before) else before}{text}{'' if text.endswith(after) else after}"


def _special_tokens_of(ref: str) -> Mapping[int, str]:
    entry = resolve(ref)
    folder = entry.path
    if entry.format is ModelFormat.GGUF:
        from core.models.gguf import converted_folder

        folder = converted_folder(entry.path)
    file = folder / "tokenizer.json"
    try:
        return _special_tokens(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # They are only set apart in colour; a tokenizer of another form renders all the same.


@functools.lru_cache(maxsize=4)
def _special_tokens(file: Path, _modified_ns: int) -> Mapping[int, str]:
    added = json.loads(file.read_bytes()).get("added_tokens") or ()
    return {int(token["id"]): str(token["content"]) for token in added if token.get("special")}


class Session(Protocol):
    """The engine, as the worker sees it: `core.session.Session`."""

    def run(self, request: RunRequest, controls: RunControls) -> Iterator[Event]:
        """Yield a run's events; closing the iterator stops it."""
        ...

    def held_bytes(self, device: str) -> int:
        """What the models that are kept take on a device; another run may have it."""
        ...

    def close(self) -> None:
        """Drop the models."""
        ...


class LogWriter(Protocol):
    """Writes events as they come: `core.runlog.log.RunLogWriter`."""

    def write(self, event: Event) -> None:
        """Append one event and flush it."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def load_libraries() -> None:
    """Load what `open_session` needs most time for, without holding up other threads; in the same thread, before it."""
    from core.machine import limit_spinning

    limit_spinning()


def open_session(while_loading: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> Session:
    """Import the engine, torch included, and start it. Takes seconds the first time; for the worker's thread only.

    Args:
        while_loading: entered while models are loaded.
    """
    from core.machine import limit_spinning

    # A window and its engine share the processor, however the window was opened; torch reads this when it is imported.
    limit_spinning()
    from core.session import Session as EngineSession

    return EngineSession(while_loading=while_loading)


def open_session_beside_window() -> Session:
    """As `open_session`, in a process whose window draws while the engine computes, and answers while it loads."""
    return open_session()


def open_log(path: Path) -> LogWriter:
    """Start a run's log."""
    from core.runlog.log import RunLogWriter

    return RunLogWriter(path)


def find_pair_problem(draft: str, target: str) -> str | None:
    """Why two models can't work together, in a sentence; None if they can. Reads files; not for the window's thread.

    All that the files tell counts, not the tokenizers alone: a damaged draft has a reason too.
    """
    from core.models.fit import pair_verdict

    return pair_verdict(draft, target, with_memory=False).problem


def judge_pair(question: VerdictQuestion) -> PairVerdict:
    """What a pair will need and cost. Imports torch only for the memory."""
    from core.models.fit import pair_verdict

    return pair_verdict(
        question.draft,
        question.target,
        device=question.device,
        dtype=question.dtype,
        context=question.context,
        with_memory=question.with_memory,
        held_bytes=question.held_bytes,
    )


def find_models() -> FoundModels:
    """The models on this computer, and the room for more."""
    folder = cache_folder()
    free = None
    # A disk that isn't there, or doesn't tell, keeps nobody from the models that are elsewhere.
    with contextlib.suppress(OSError, StopIteration):
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
    return FoundModels(local_models(), folder, free)


def read_model_details(entry: ModelEntry) -> ModelDetails:
    """What a model's files say of it."""
    from core.models.details import read_details

    return read_details(entry)


def download_model(
    ref: str,
    *,
    on_progress: Callable[[DownloadProgress], None],
    check_cancelled: Callable[[], None],
    restart: bool,
) -> ModelEntry:
    """Download a model; see `core.models.downloads.download`."""
    from core.models.downloads import download

    return download(ref, on_progress=on_progress, check_cancelled=check_cancelled, restart=restart)


def plan_model_removal(ref: str) -> Removal:
    """What deleting a model would free."""
    from core.models.downloads import plan_removal

    return plan_removal(ref)


def remove_model(ref: str) -> int:
    """Delete a model; the bytes that were freed."""
    from core.models.downloads import remove

    return remove(ref)


def find_drafts(target: str) -> tuple[str, ...]:
    """Drafts that are here for a target; see `core.analysis.probe.drafts_here`. Not for the window's thread."""
    from core.analysis.probe import drafts_here

    return drafts_here(target)


def check_exactness(session: Any, request: CheckRequest, controls: RunControls) -> Iterator[Any]:
    """Check a pair and its settings; see `core.experiments.checking.check`. For the engine's thread."""
    from core.experiments.checking import check

    return check(session, request, controls)


def probe_drafts(session: Any, request: ProbeRequest, controls: RunControls) -> Iterator[Any]:
    """Rank drafts for a target; see `core.analysis.probing.probe`. For the engine's thread."""
    from core.analysis.probing import probe

    return probe(session, request, controls)


@dataclass(frozen=True, slots=True)
class Services:
    """The engine's entry points that the window uses."""

    load_libraries: Callable[[], None] = load_libraries
    open_session: Callable[[], Session] = open_session_beside_window
    open_log: Callable[[Path], LogWriter] = open_log
    pair_problem: Callable[[str, str], str | None] = find_pair_problem
    pair_verdict: Callable[[VerdictQuestion], PairVerdict] = judge_pair
    embedded_models: Callable[[], tuple[ModelEntry, ...]] = embedded_models
    find_models: Callable[[], FoundModels] = find_models
    suggestions: tuple[Suggestion, ...] = SUGGESTIONS
    resolve: Callable[[str], ModelEntry] = resolve
    read_details: Callable[[ModelEntry], ModelDetails] = read_model_details
    is_offline: Callable[[], bool] = is_offline
    download: Callable[..., ModelEntry] = download_model
    plan_removal: Callable[[str], Removal] = plan_model_removal
    remove: Callable[[str], int] = remove_model
    render_prompt: Callable[[RenderQuestion], RenderedPrompt] = render_prompt
    find_drafts: Callable[[str], tuple[str, ...]] = find_drafts
    check: Callable[[Any, CheckRequest, RunControls], Iterator[Any]] = check_exactness
    probe: Callable[[Any, ProbeRequest, RunControls], Iterator[Any]] = probe_drafts
    runs_folder: Callable[[], Path] = runs_folder
    sweeps_folder: Callable[[], Path] = sweeps_folder
    store: SettingsStore = field(default_factory=SettingsStore)
