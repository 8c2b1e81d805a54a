"""What can be said of a plan before anything is loaded."""

from __future__ import annotations

from core.errors import PairMismatchError
from core.models.catalogue import resolve
from core.models.compatibility import pair_problem
from core.sweep.plan import SweepPlan


def check_models(plan: SweepPlan) -> None:
    """Find out before the first run that a model isn't there, or that a draft can't serve the target.

    Raises:
        OutriderError: in one sentence.
    """
    target = resolve(plan.target)
    for drafter in plan.drafters:
        if drafter.draft is None:
            continue
        problem = pair_problem(resolve(drafter.draft).ref, target.ref)
        if problem is not None:
            raise PairMismatchError(problem)
