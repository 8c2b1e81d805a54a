"""What the window of the probe says: the question that it asks, a row a draft, a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.settings import RunSettings
from core.errors import PromptError
from core.figures import percent_text
from core.probe.types import DraftProbe, ProbeRequest, ProbeText
from core.types import SamplingParams

GENERATED = 64
"""Tokens that the target writes first, where that is wanted."""

NONE_YET = "Probe the drafts that are here for this target, on this prompt. It takes seconds, and drafts nothing."

NO_DRAFTS = "Each draft gets a row here, the best first: the speedup to expect of it, and at which K."


@dataclass(frozen=True, slots=True)
class ColumnMeaning:
    """A column of the table: its title, and what it is."""

    title: str
    help: str


COLUMNS = (
    ColumnMeaning("Draft", "Drafts that are here, smaller than the target and with the same tokenizer."),
    ColumnMeaning("Expected", "τ(K) / (K c + v(K+1)) at its best K; 95 % interval over the places of the text."),
    ColumnMeaning("Best K", "The K from 1 to 16 with the highest expected speedup; none where plain decoding wins."),
    ColumnMeaning("Acceptance", "Mean of Σ min(p, q) over the places, p the target's law, q the draft's."),
    ColumnMeaning("Top-1", "Share of places where both have the same likeliest token."),
    ColumnMeaning("KL", "Mean of Σ p ln(p / q) in nats, where it is finite."),
    ColumnMeaning("c", "Time of one draft step / time of one step of the target, timed here."),
    ColumnMeaning("v(5)", "Time of the target to score 5 positions / one, timed here."),
)


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A draft as the table has it."""

    probe: DraftProbe
    texts: tuple[str, ...]
    tip: str

    @property
    def is_usable(self) -> bool:
        """Whether there is a K to take it with."""
        return not self.probe.problem and self.probe.best_k > 0


def row_of(probe: DraftProbe, title: Callable[[str], str] = str) -> DraftRow:
    """A draft's figures in words."""
    found, costs, name = probe.agreement, probe.costs, title(probe.draft)
    if probe.problem or found is None or costs is None:
        return DraftRow(probe, (name, "–", "–", "–", "–", "–", "–", "–"), probe.problem)
    at = probe.speedup.at(probe.best_k)
    divergence = found.kl_target_draft
    interval = "" if at.low is None else f" ({at.low:.2f} to {at.high:.2f})"
    survival = ", ".join(percent_text(share) for share in found.survival[:8])
    way = (
        "The text is the target's own, so that this is what a block along it would keep."
        if found.is_own_text
        else "A product along the text, which takes the draft to be as good behind its own tokens."
    )
    return DraftRow(
        probe,
        (
            name,
            f"{at.value:.2f}×{interval}" if probe.best_k else "below 1×",
            str(probe.best_k) if probe.best_k else "none",
            percent_text(found.acceptance.value, 1),
            percent_text(found.top_1),
            "–" if divergence is None else f"{divergence:.2f}",
            f"{costs.cost:.3f}",
            f"{probe.verify.values[4]:.2f}",
        ),
        f"Kept up to token 1, 2, …: {survival}. {way} Over {found.num_places:,} places.",
    )


def question(
    target: str, settings: RunSettings, prompt: str, drafts: tuple[str, ...], *, generate: bool
) -> ProbeRequest:
    """The probe that the settings ask for.

    Raises:
        OutriderError: there is no prompt, or a setting is out of range.
    """
    if not prompt.strip():
        raise PromptError("The prompt is empty. Write a few words for the models to read.")
    return ProbeRequest(
        target=target,
        drafts=drafts,
        texts=(ProbeText("the prompt", prompt=prompt),),
        sampling=SamplingParams(settings.temperature, settings.top_k, settings.top_p, settings.min_p),
        generate=GENERATED if generate else 0,
        chat=settings.chat.as_flag,
        device=settings.device,
        dtype=settings.dtype,
    )
