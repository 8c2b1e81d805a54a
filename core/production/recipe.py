"""What an engine's module hands back, and what several of them have to say."""

from __future__ import annotations

from dataclasses import dataclass

from core.drafters.methods import get_method
from core.production.choice import Choice
from core.production.places import Place, place_of
from core.types import Coupling


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
