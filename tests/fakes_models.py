"""Models without files, and a Hub without a network, for tests of the window: every byte under the test's control."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import OutriderError
from core.models.catalogue import SUGGESTIONS, ModelEntry, ModelFormat, ModelOrigin
from core.models.fit import MemoryForecast, PairVerdict
from core.models.folder.details import ModelDetails
from core.models.prompting import RenderedPrompt
from core.models.remote.hub import DownloadProgress
from core.models.remote.removal import Removal

CACHE = Path.home() / ".cache" / "models"
FREE_BYTES = 41_200_000_000

TARGET = ModelEntry(
    "tiny-target", "Tiny target", Path("/nowhere/target"), ModelFormat.SAFETENSORS, 40_000_000, ModelOrigin.EMBEDDED
)
DRAFT = ModelEntry(
    "tiny-draft", "Tiny draft", Path("/nowhere/draft"), ModelFormat.SAFETENSORS, 5_000_000, ModelOrigin.EMBEDDED
)
STRANGER = ModelEntry("stranger", "Stranger", Path("/nowhere/stranger.gguf"), ModelFormat.GGUF, 90_000_000)
MISMATCH = "Stranger and Tiny target have different tokenizers. Choose a draft with the target's tokenizer."


def hub_entry(ref: str, size_bytes: int, **changes: object) -> ModelEntry:
    """A model in the cache of the Hub."""
    folder = CACHE / f"models--{ref.replace('/', '--')}" / "snapshots" / "0123456789abcdef"
    values: dict[str, object] = {
        "origin": ModelOrigin.HUB,
        "revision": "0123456789abcdef0123456789abcdef01234567",
        **changes,
    }
    return ModelEntry(ref, ref.rpartition("/")[2], folder, ModelFormat.SAFETENSORS, size_bytes, **values)  # type: ignore[arg-type]


SMALL = hub_entry("owner/small-instruct", 269_000_000)
LARGE = hub_entry("other/large", 3_400_000_000)
NEW = SUGGESTIONS[1].ref


def make_details(title: str, **changes: object) -> ModelDetails:
    """Details of a small Llama."""
    values: dict[str, object] = {
        "title": title,
        "architecture": "llama",
        "num_parameters": 134_515_008,
        "precision": "bfloat16",
        "context_length": 8192,
        "vocab_size": 49_152,
        "table_size": 49_152,
        "num_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "has_chat_template": False,
        "is_instruct": False,
        "weight_bytes": 269_060_552,
        "body_parameters": 106_203_456,
        "head_parameters": 28_311_552,
        **changes,
    }
    return ModelDetails(**values)  # type: ignore[arg-type]


@dataclass
class FakeHub:
    """What is on this computer, and what can be downloaded.

    Attributes:
        embedded, entries: the models that a scan finds.
        details: by reference; a sentence is raised.
        gate: released once for each piece of a download; None: they come by themselves.
        fail_after: the sentence of a failure after this many pieces, as (pieces, sentence).
        download_error, scan_error, removal_error, pair_error, forecast_error: raised instead, if set.
        memory: what any pair needs; None: not known.
        warnings: on any pair.
        repairs: what a damaged model is like once it was downloaded again.
        problems: by (draft, target), beside those of the stranger.
        calls: (reference, whether from the start) of each download.
        judged: (draft, target, settings) of each forecast; rendered: (target, prompt, chat, system).
    """

    embedded: tuple[ModelEntry, ...] = (TARGET, DRAFT)
    entries: list[ModelEntry] = field(default_factory=list)
    details: dict[str, ModelDetails | str] = field(default_factory=dict)
    gate: threading.Semaphore | None = None
    fail_after: tuple[int, str] | None = None
    download_error: Exception | None = None
    scan_error: Exception | None = None
    removal_error: Exception | None = None
    pair_error: Exception | None = None
    forecast_error: Exception | None = None
    judge_gate: threading.Event | None = None
    is_offline: bool = False
    total_bytes: int = 1_000_000_000
    pieces: int = 10
    kept: dict[str, int] = field(default_factory=dict)
    memory: MemoryForecast | None = field(
        default_factory=lambda: MemoryForecast(1_500_000_000, 300_000_000, 100_000_000, 22_000_000_000)
    )
    warnings: tuple[str, ...] = ()
    repairs: dict[str, ModelDetails] = field(default_factory=dict)
    problems: dict[tuple[str, str], str] = field(default_factory=dict)
    calls: list[tuple[str, bool]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    judged: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)
    rendered: list[tuple[str, str, bool | None, str]] = field(default_factory=list)
    render_problem: str = ""

    def install(self, monkeypatch) -> FakeHub:
        """Put this in place of the core's functions on models."""
        monkeypatch.setattr("app.tools.models.models.find_models", self.find_models)
        for name, function in {
            "catalogue.embedded_models": lambda: self.embedded,
            "catalogue.resolve": self.resolve,
            "folder.details.read_details": self.read_details,
            "remote.downloads.download": self.download,
            "remote.removal.plan_removal": self.plan_removal,
            "remote.removal.remove": self.remove,
            "fit.pair_verdict": self.pair_verdict,
            "remote.hub.is_offline": lambda: self.is_offline,
            "prompting.render_prompt": self.render_prompt,
        }.items():
            monkeypatch.setattr(f"core.models.{name}", function)
        return self

    def find_models(self, opened=()):
        """Scan."""
        from app.tools.models.models import FoundModels

        if self.scan_error is not None:
            raise self.scan_error
        return FoundModels((*self.embedded, *self.entries), CACHE, FREE_BYTES)

    def resolve(self, ref: str) -> ModelEntry:
        """Look a model up."""
        for entry in (*self.embedded, STRANGER, *self.entries):
            if entry.ref == ref:
                return entry
        raise OutriderError(f"There is no model {ref!r} here.")

    def read_details(self, entry: ModelEntry) -> ModelDetails:
        """Describe a model."""
        found = self.details.get(entry.ref) or make_details(entry.title, body_parameters=entry.size_bytes)
        if isinstance(found, str):
            raise OutriderError(found)
        return found

    def download(self, ref, *, on_progress, check_cancelled, restart) -> ModelEntry:
        """Send pieces as the gate lets them through."""
        self.calls.append((ref, restart))
        if self.download_error is not None:
            raise self.download_error
        on_progress(DownloadProgress("Asking the Hub…"))
        first = 0 if restart else self.kept.get(ref, 0)
        size = self.total_bytes // self.pieces
        for piece in range(first, self.pieces):
            if self.fail_after is not None and piece - first == self.fail_after[0]:
                raise OutriderError(self.fail_after[1])
            while self.gate is not None and not self.gate.acquire(timeout=0.005):
                check_cancelled()
            check_cancelled()
            self.kept[ref] = piece + 1
            left = (self.pieces - piece - 1) * size / 18_200_000
            done = DownloadProgress(
                "Downloading", "model.safetensors", (piece + 1) * size, self.total_bytes, 18.2e6, left
            )
            on_progress(done)
        on_progress(DownloadProgress("Checking…", "model.safetensors", self.total_bytes, self.total_bytes))
        entry = next((entry for entry in self.entries if entry.ref == ref), None)
        if entry is None:
            entry = hub_entry(ref, self.total_bytes)
            self.entries.append(entry)
        if details := self.repairs.get(ref):
            self.details[ref] = details
        return entry

    def plan_removal(self, ref: str) -> Removal:
        """What a removal would free."""
        entry = self.resolve(ref)
        return Removal(entry, entry.size_bytes, "Other programs share this cache.")

    def remove(self, ref: str) -> int:
        """Remove a model."""
        if self.removal_error is not None:
            raise self.removal_error
        entry = self.resolve(ref)
        self.entries.remove(entry)
        self.removed.append(ref)
        return entry.size_bytes

    def pair_verdict(self, draft: str, target: str, *, with_memory: bool = True, **settings: object) -> PairVerdict:
        """Judge a pair: with the settings of a run, or whether the two fit at all, which only the stranger doesn't."""
        if not settings:
            if self.pair_error is not None:
                raise self.pair_error
            is_strange = STRANGER.ref in {draft, target} and draft != target
            return PairVerdict(MISMATCH if is_strange else self.problems.get((draft, target)))
        if self.judge_gate is not None and target == DRAFT.ref:
            self.judge_gate.wait(20)
        self.judged.append((draft, target, {**settings, "with_memory": with_memory}))
        if self.forecast_error is not None:
            raise self.forecast_error
        return PairVerdict(None, self.warnings, self.memory if with_memory else None, 0.13)

    def render_prompt(self, target: str, prompt: str, chat: bool | None, system: str = "") -> RenderedPrompt:
        """Put a prompt into a template."""
        self.rendered.append((target, prompt, chat, system))
        if self.render_problem:
            raise OutriderError(self.render_problem)
        is_chat = chat is not False
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n" if is_chat else prompt
        return RenderedPrompt(text, len(text.split()), is_chat, ("<|im_start|>", "<|im_end|>"))


# --- The models window ------------------------------------------------------------------------------------------


def small_hub() -> FakeHub:
    """Two models, one of which is described in its own words."""
    return FakeHub(
        entries=[SMALL, LARGE],
        details={SMALL.ref: make_details("small-instruct", is_instruct=True, context_length=2048)},
    )


def until(qtbot, holds):
    """Wait longer than anything here takes, even on a machine that is busy otherwise."""
    qtbot.waitUntil(holds, timeout=30_000)


def names(panel):
    """The titles in the list of models."""
    return [entry.title for entry in panel.table.items()]


def download_of(window, ref):
    return next((download for download in window.models.downloads.all() if download.ref == ref), None)


def wait_for_state(qtbot, window, ref, state):
    until(qtbot, lambda: getattr(download_of(window, ref), "state", None) is state)


def open_models(window, hub, qtbot):
    """Opens a window's models window, and waits until all details are read."""
    window.models.open()
    panel = window.models.window
    until(qtbot, lambda: panel.table.count() == len(hub.embedded) + len(hub.entries))
    until(qtbot, lambda: not window.models.library.undescribed())
    return window, panel
