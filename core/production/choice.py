"""What is to be taken to production: a pair, a method, K and the sampling, and what was measured of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.drafters.methods import get_method
from core.rerun import request as replayed
from core.trace import RunLog
from core.types import Coupling, RunRequest, SamplingParams

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
