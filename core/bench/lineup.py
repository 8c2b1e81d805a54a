"""Who takes part in a bench, and who can't."""

from __future__ import annotations

from collections.abc import Callable

from core.bench.names import ASSISTED, AUTO, FLASHSPEC, FLASHSPEC_AUTO, GENERATE, PLAIN, default_names, split_name
from core.bench.ours import Plain, Speculative
from core.bench.rival_flashspec import FlashSpec
from core.bench.rival_transformers import Assisted, Generate
from core.bench.types import Absence, BenchSettings, Contender, NotApplicableError, Pair
from core.drafters.methods import METHODS
from core.errors import SettingsError


def line_up(pair: Pair, settings: BenchSettings) -> tuple[list[Contender], list[Absence]]:
    """The contenders that can run with this pair, and those that can't.

    Raises:
        SettingsError: one that was asked for by name can't take part.
    """
    present: list[Contender] = []
    absent: list[Absence] = []
    for name in settings.only or default_names():
        try:
            present.append(build(name, pair, settings))
        except (NotApplicableError, SettingsError) as error:
            if settings.only:
                raise SettingsError(f"The contender {name} can't take part: {error}") from error
            absent.append(Absence(name, str(error)))
    return present, absent


def build(name: str, pair: Pair, settings: BenchSettings) -> Contender:
    """One contender.

    Raises:
        NotApplicableError, SettingsError: it can't run with these models, or here.
    """
    base, options = split_name(name)
    length, k = settings.max_new_tokens, settings.num_draft_tokens
    made: dict[str, Callable[[], Contender]] = {
        GENERATE: lambda: Generate(pair, length),
        ASSISTED: lambda: Assisted(pair, length, k),
        FLASHSPEC: lambda: FlashSpec(pair, length, k),
        FLASHSPEC_AUTO: lambda: FlashSpec(pair, length, None),
        PLAIN: lambda: Plain(pair, length),
        AUTO: lambda: Speculative(pair, length, None, "draft-model" if pair.draft is not None else "prompt-lookup"),
    }
    return made[base]() if base in made else Speculative(pair, length, k, base, options)


def needs_draft(name: str) -> bool:
    """Whether a contender has no use for a target alone. With `auto`, the draft is used where there is one."""
    base, _ = split_name(name)
    return base not in {GENERATE, PLAIN} and (base not in METHODS or METHODS[base].needs_draft_model)
