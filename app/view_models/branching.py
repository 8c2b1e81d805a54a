"""Going back to a token of a run and on from there: what may stand in its place, and the request that continues it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.view_models.run_view import RunView
from app.view_models.selection import Place
from core.errors import RunLogError
from core.rerun import request_from_config
from core.types import RunRequest, Step

MOST_CHOICES = 12
_NUM_SEEDS = 2**31


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that may be forced: `target_prob` after temperature and filters, None where it is not known."""

    token_id: int
    text: str
    target_prob: float | None
    is_emitted: bool


def can_branch(run: RunView, place: Place | None) -> bool:
    """Whether a token was emitted at a place, and all that it takes to go back to it is known."""
    if place is None or run.request is None or run.started is None or not 0 <= place.step < len(run.steps):
        return False
    is_emitted = 0 <= place.slot < len(run.steps[place.step].emitted)
    return is_emitted and _is_known(run.started.config) and _is_gapless(run, run.started.config, place)


def _is_known(config: Mapping[str, Any]) -> bool:
    """Whether a damaged log has all settings: a run that lacks some is shown with others, and can't be continued."""
    try:
        request_from_config(config)
    except RunLogError:
        return False
    return True


def _is_gapless(run: RunView, config: Mapping[str, Any], place: Place) -> bool:
    """Whether no token is missing before a place, as in a damaged log; what is continued from must be all of it."""
    before = (config.get("prompt_token_ids") or (), config.get("continuation_token_ids") or ())
    written = sum(len(step.emitted) for step in run.steps[: place.step])
    return run.steps[place.step].position == sum(map(len, before)) + written


def emitted_text(run: RunView, place: Place) -> str:
    """The text of the token at a place."""
    return run.steps[place.step].emitted_texts[place.slot]


def choices(run: RunView, place: Place) -> list[Choice]:
    """Tokens that may stand at a place, likeliest first: those the target was seen to weigh, and the two at hand."""
    step, slot = run.steps[place.step], place.slot
    emitted = step.emitted[slot]
    found: dict[int, Choice] = {}
    evidence: Sequence[object] = getattr(step, "evidence", ())
    if slot < len(evidence):
        weighed = evidence[slot]
        listed = zip(weighed.ids, weighed.texts, weighed.target_probs, strict=True)  # type: ignore[attr-defined]
        for token_id, text, prob in sorted(listed, key=lambda entry: -entry[2])[:MOST_CHOICES]:
            found[token_id] = Choice(token_id, text, float(prob), token_id == emitted)
    for choice in _at_hand(step, slot):
        found.setdefault(choice.token_id, choice)
    return list(found.values())


def _at_hand(step: Step, slot: int) -> list[Choice]:
    found = [Choice(step.emitted[slot], step.emitted_texts[slot], None, True)]
    if slot < step.num_draft_tokens:
        is_emitted = step.drafted[slot] == step.emitted[slot]
        found.append(Choice(step.drafted[slot], step.drafted_texts[slot], step.target_probs[slot], is_emitted))
    return found


def is_drawn(run: RunView, place: Place) -> bool:
    """Whether another seed may lead elsewhere from a place; at temperature 0 nothing is drawn."""
    return run.steps[place.step].temperature > 0


def branch(
    run: RunView, place: Place, *, forced: tuple[int, ...] = (), forced_text: str = "", new_seed: bool = False
) -> RunRequest:
    """The request that continues a run from before a place, up to the length that the run was to have.

    Its settings are those that the run was started with. With a forced token the seed stays, so that at temperature 0,
    or with shared noise, the same token leads to the same text.
    """
    request, started = run.request, run.started
    assert request is not None, "only a run that has started has places"
    assert started is not None, "only a run that has started has places"
    written = [token for step in run.steps[: place.step] for token in step.emitted]
    written += run.steps[place.step].emitted[: place.slot]
    before = started.config.get("continuation_token_ids") or ()
    return replace(
        request,
        continuation=(*before, *written),
        forced=forced,
        forced_text=forced_text,
        max_new_tokens=max(1, request.max_new_tokens - len(written) - len(forced)),
        seed=secrets.randbelow(_NUM_SEEDS) if new_seed else request.seed,
    )
