"""What the settings of a run do to the law of its text: which keep it, and what exact means under each."""

from __future__ import annotations

from core.check.types import LawResult
from core.figures import significant_text
from core.types import Coupling, LengthPolicy, RunRequest

_HALF = {"torch.float16": "float16", "torch.bfloat16": "bfloat16"}


def notes_on(run: RunRequest, dtype: str, law: LawResult | None) -> tuple[str, ...]:
    """A sentence each.

    Args:
        run: the settings.
        dtype: torch's name of the precision that it ran in.
        law: what the sampled law came to, for the rounding that was measured.
    """
    notes = ["No setting of Outrider trades exactness for speed: method, K and an int8 draft change the speed alone."]
    if dtype in _HALF:
        measured = "" if law is None else f", here by up to {significant_text(law.rounding, 2)} in total variation"
        notes.append(
            f"In {_HALF[dtype]} the text follows the logits that the target gives when it scores a whole block; those "
            f"of one token at a time differ by rounding{measured}."
        )
    if not run.sampling.is_unfiltered and not run.sampling.is_greedy:
        notes.append(
            "Top-k, top-p and min-p change the law on purpose, with drafts and without; the filtered law was checked."
        )
    if run.coupling is Coupling.GUMBEL:
        notes.append("Gumbel coupling keeps the law, and a seed gives the text that it gives without a draft.")
    elif not run.sampling.is_greedy:
        notes.append("Rejection coupling keeps the law; a seed gives another text than it gives without a draft.")
    is_drawn = run.coupling is Coupling.REJECTION and not run.sampling.is_greedy
    if run.num_draft_tokens is None and is_drawn:
        name = "Auto" if run.length_policy is LengthPolicy.AUTO else "Adaptive"
        notes.append(f"With K on {name} the law is kept; which text a seed gives depends on this machine's timing.")
    return tuple(notes)
