"""What a person chose to sweep, and the plan that it makes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from app.sentences import in_words
from app.settings import RunSettings
from core.draft_length import DraftLength, parse_draft_lengths
from core.drafters.methods import get_method
from core.errors import SettingsError
from core.prompt_suites import Prompt, find_prompts, first_of_each
from core.sweep.plan import ASK_ABOVE, DrafterChoice, SweepPlan
from core.types import LengthPolicy

WINDOW_SUITE = "own"
WINDOW_PROMPT = "the window's prompt"


@dataclass(frozen=True, slots=True)
class SweepChoices:
    """What the form holds, whether or not it could be swept as it stands.

    Attributes:
        target: reference of the target.
        drafts: references of the drafts, for the methods that need one.
        methods: names.
        lengths: values of K as text, such as 1-8; may be empty where a policy is ticked.
        policies: those that are ticked.
        temperatures: as text, such as 0, 0.5, 1.
        suites: names of the suites that are ticked.
        own: prompts of a file that was read.
        prompt: the window's prompt; None where it isn't ticked.
        prompts_each: most prompts of a suite; 0 for all.
        settings: the main window's, whose filters, coupling, device and method options hold in every cell.
    """

    target: str
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    lengths: str = ""
    policies: tuple[LengthPolicy, ...] = ()
    temperatures: str = ""
    suites: tuple[str, ...] = ()
    own: tuple[Prompt, ...] = ()
    prompt: str | None = None
    prompts_each: int = 0
    repeats: int = 3
    max_new_tokens: int = 64
    seed: int = 0
    settings: RunSettings = field(default_factory=RunSettings)


def make_plan(choices: SweepChoices) -> SweepPlan:
    """The sweep that is asked for.

    Raises:
        OutriderError: it can't be done as it stands, with a sentence that says why.
    """
    settings = choices.settings
    if not choices.target:
        raise SettingsError("There is no target model yet. Open or get one in the main window.")
    return SweepPlan(
        target=choices.target,
        drafters=_drafters(choices),
        num_draft_tokens=_lengths(choices),
        temperatures=parse_temperatures(choices.temperatures),
        prompts=_prompts(choices),
        repeats=choices.repeats,
        max_new_tokens=choices.max_new_tokens,
        seed=choices.seed,
        coupling=settings.coupling,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        chat=settings.chat.as_flag,
        device=settings.device,
        dtype=settings.dtype,
    )


def _drafters(choices: SweepChoices) -> tuple[DrafterChoice, ...]:
    if not choices.methods:
        raise SettingsError("Tick at least one method.")
    found: list[DrafterChoice] = []
    for name in choices.methods:
        method = get_method(name)
        if method.needs_draft_model and not choices.drafts:
            raise SettingsError(f"The method {method.title} needs a draft model: tick one, or leave the method out.")
        options = _changed_options(name, choices.settings.method_options.get(name, {}))
        found += [
            DrafterChoice(name, draft, options) for draft in (choices.drafts if method.needs_draft_model else (None,))
        ]
    return tuple(found)


def _changed_options(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not as a method has them by itself; the others would only lengthen its name.

    Raises:
        SettingsError: values that don't go together.
    """
    options = get_method(name).options
    known = {item.name: values[item.name] for item in fields(options) if item.name in values}
    default, chosen = options(), options(**known)
    return {key: value for key, value in known.items() if getattr(chosen, key) != getattr(default, key)}


def _lengths(choices: SweepChoices) -> tuple[DraftLength, ...]:
    found = parse_draft_lengths(choices.lengths) if choices.lengths.strip() else ()
    found = tuple(dict.fromkeys((*found, *choices.policies)))
    if not found:
        raise SettingsError("Name at least one K, such as 4 or 1-8, or tick Auto.")
    return found


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Temperatures with commas or spaces between them, each once.

    Raises:
        SettingsError: what stands there is no list of numbers.
    """
    parts = [part for part in re.split(r"[,;\s]+", text) if part]
    try:
        values = tuple(float(part) for part in parts)
    except ValueError:
        values = ()
    if not values:
        shown = f", not {text[:60]!r}" if parts else ""
        raise SettingsError(f"Temperatures are numbers with commas between them, such as 0, 0.5, 1{shown}.")
    return tuple(dict.fromkeys(values))


def _prompts(choices: SweepChoices) -> tuple[Prompt, ...]:
    found = [*_suites(choices.suites), *choices.own]
    if choices.prompts_each:
        found = first_of_each(found, choices.prompts_each)
    if choices.prompt is not None:
        if not choices.prompt.strip():
            raise SettingsError("The main window's prompt is empty: write one there, or leave it out.")
        found.insert(0, Prompt(WINDOW_PROMPT, choices.prompt, suite=WINDOW_SUITE))
    if not found:
        raise SettingsError("Tick at least one suite of prompts, a file, or the window's prompt.")
    return tuple(found)


@lru_cache(maxsize=64)
def _suites(names: tuple[str, ...]) -> tuple[Prompt, ...]:
    return tuple(find_prompts(names))


def size_text(plan: SweepPlan, seconds_each: float | None) -> str:
    """How large a sweep is, and how long it will take where a run's length is known.

    Args:
        plan: the sweep.
        seconds_each: of a run, as measured; None where none was.
    """
    cells = _count(plan.num_cells, "cell")
    baselines = _count(len(plan.temperatures), "baseline")
    prompts, repeats = _count(len(plan.prompts), "prompt"), _count(plan.repeats, "repeat")
    text = f"{_count(plan.num_runs, 'run')}: {cells} and {baselines}, each on {prompts}, {repeats}."
    if seconds_each is not None:
        return f"{text} About {in_words(seconds_each * plan.num_runs)}, by the runs measured last."
    return f"{text} {large_note(plan)}".strip()


def large_note(plan: SweepPlan) -> str:
    """That a person will be asked; empty where it is not that large."""
    return "You are asked once the first run has shown how long that takes." if plan.num_runs > ASK_ABOVE else ""


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
