"""Models without files, and a Hub without a network, for tests of the window: every byte under the test's control."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.setup.model_library import FoundModels
from app.setup.pair import PairQuestion
from app.setup.rendered_prompt import RenderedPrompt, RenderQuestion
from core.errors import OutriderError
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin
from core.models.details import ModelDetails
from core.models.downloads import DownloadProgress, Removal
from core.models.fit import MemoryForecast, PairVerdict

CACHE = Path.home() / ".cache" / "models"


def hub_entry(ref: str, size_bytes: int, *, days: float = 3, **changes: object) -> ModelEntry:
    """A model in the cache of the Hub."""
    folder = CACHE / f"models--{ref.replace('/', '--')}" / "snapshots" / "0123456789abcdef"
    values: dict[str, object] = {
        "origin": ModelOrigin.HUB,
        "last_used": time.time() - 86_400 * days,
        "revision": "0123456789abcdef0123456789abcdef01234567",
        **changes,
    }
    return ModelEntry(ref, ref.rpartition("/")[2], folder, ModelFormat.SAFETENSORS, size_bytes, **values)  # type: ignore[arg-type]


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
    """What is on this computer, and what can be had.

    Attributes:
        others: can be opened, although no scan finds them.
        entries: the models that a scan finds beside the embedded ones.
        details: by reference; a sentence is raised.
        gate: released once for each piece of a download; None: they come by themselves.
        fail_after: the sentence of a failure after this many pieces, as (pieces, sentence).
        memory: what any pair needs; None: not known.
        warnings: on any pair.
        repairs: what a model that is damaged is like once it was got again.
        calls: (reference, whether from the start) of each download.
    """

    embedded: tuple[ModelEntry, ...] = ()
    others: tuple[ModelEntry, ...] = ()
    entries: list[ModelEntry] = field(default_factory=list)
    details: dict[str, ModelDetails | str] = field(default_factory=dict)
    gate: threading.Semaphore | None = None
    fail_after: tuple[int, str] | None = None
    is_offline: bool = False
    total_bytes: int = 1_000_000_000
    pieces: int = 10
    kept: dict[str, int] = field(default_factory=dict)
    memory: MemoryForecast | None = field(
        default_factory=lambda: MemoryForecast(1_500_000_000, 300_000_000, 100_000_000, 22_000_000_000)
    )
    warnings: tuple[str, ...] = ()
    repairs: dict[str, ModelDetails] = field(default_factory=dict)
    calls: list[tuple[str, bool]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    judged: list[PairQuestion] = field(default_factory=list)
    rendered: list[RenderQuestion] = field(default_factory=list)
    render_problem: str = ""
    pair_problem: Callable[[str, str], str | None] | None = None

    def install(self, patches: pytest.MonkeyPatch) -> None:
        """Put this in the place of the disk and the Hub, until the patches are undone."""
        for name, fake in {
            "app.setup.pair.pair_verdict": self.pair_verdict,
            "app.setup.rendered_prompt.render_prompt": self.render_prompt,
            "app.setup.prompt.render_prompt": self.render_prompt,
            "app.tools.models.window.find_models": self.find_models,
            "core.models.fit.pair_verdict": lambda draft, target, **_: PairVerdict(
                self.pair_problem(draft, target), (), None, None
            ),
            "core.models.catalogue.resolve": self.resolve,
            "core.models.details.read_details": self.read_details,
            "core.models.downloads.download": self.download,
            "core.models.downloads.plan_removal": self.plan_removal,
            "core.models.downloads.remove": self.remove,
            "core.models.hub.is_offline": lambda: self.is_offline,
        }.items():
            patches.setattr(name, fake)

    def find_models(self) -> FoundModels:
        """Scan."""
        return FoundModels((*self.embedded, *self.entries), CACHE, 41_200_000_000)

    def resolve(self, ref: str) -> ModelEntry:
        """Look a model up."""
        entry = self._find(ref)
        if entry is None:
            raise OutriderError(f"There is no model {ref!r} here.")
        return entry

    def _find(self, ref: str) -> ModelEntry | None:
        return next((entry for entry in (*self.embedded, *self.others, *self.entries) if entry.ref == ref), None)

    def read_details(self, entry: ModelEntry) -> ModelDetails:
        """Describe a model."""
        found = self.details.get(entry.ref) or make_details(entry.title)
        if isinstance(found, str):
            raise OutriderError(found)
        return found

    def download(self, ref, *, on_progress, check_cancelled, restart) -> ModelEntry:
        """Send pieces as the gate lets them through."""
        self.calls.append((ref, restart))
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
        entry = self._find(ref)
        if entry is None:
            entry = hub_entry(ref, self.total_bytes, days=0)
            self.entries.append(entry)
        if details := self.repairs.get(ref):
            self.details[ref] = details
        return entry

    def plan_removal(self, ref: str) -> Removal:
        """What a removal would free."""
        entry = self._find(ref)
        if entry is None:
            raise OutriderError(f"{ref} is not Outrider's to delete.")
        return Removal(entry, entry.size_bytes, "Other programs share this cache.")

    def remove(self, ref: str) -> int:
        """Remove a model."""
        removal = self.plan_removal(ref)
        self.entries.remove(removal.entry)
        self.removed.append(ref)
        return removal.frees_bytes

    def pair_verdict(self, question: PairQuestion) -> PairVerdict:
        """Judge a pair."""
        self.judged.append(question)
        return PairVerdict(None, self.warnings, self.memory if question.with_memory else None, 0.13)

    def render_prompt(self, question: RenderQuestion) -> RenderedPrompt:
        """Put a prompt into a template."""
        self.rendered.append(question)
        if self.render_problem:
            raise OutriderError(self.render_problem)
        is_chat = question.chat is not False
        text = f"<|im_start|>user\n{question.prompt}<|im_end|>\n<|im_start|>assistant\n" if is_chat else question.prompt
        return RenderedPrompt(text, len(text.split()), is_chat, ("<|im_start|>", "<|im_end|>"))
