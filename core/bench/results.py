"""From what was seen to what is told: figures with their spread, and a note wherever a contender did something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from core.bench.measure import Comparison, Observations
from core.bench.memory import Memory
from core.bench.names import ASSISTED, GENERATE, RIVALS
from core.bench.statistics import Spread, first_difference, ratios, spread
from core.bench.types import BenchSettings, Prompt

Margin = Callable[[int, int, int, int], float]
"""(prompt, index of the token, reference's id, other id) -> by how much the target prefers the first, in logits."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one temperature.

    Attributes:
        temperature, name, title: which.
        is_ours: Outrider's own engine.
        tokens_per_second: wall clock, the prompt's reading included, over all prompts of a round.
        step_tokens_per_second: of our own steps alone, as a run's summary counts them.
        ratio_to_generate, ratio_to_assisted: in the same round; None where that contender did not run.
        tokens_per_forward: of the target, forwards that only read the prompt apart.
        overhead: step / (K draft forwards + one scoring forward) - 1.
        cost_coefficient: one draft step / one of the target, bare forwards both; None where no model drafts.
        peak_memory_mb: of a process of its own, beyond what the libraries take; None if it was not measured.
        needed_memory_mb: weights and caches of that run.
        notes: sentences on what makes its figures another thing than the others'.
    """

    temperature: float
    name: str
    title: str
    is_ours: bool
    tokens_per_second: Spread
    step_tokens_per_second: Spread | None
    ratio_to_generate: Spread | None
    ratio_to_assisted: Spread | None
    tokens_per_forward: float | None
    overhead: Spread | None
    cost_coefficient: Spread | None
    peak_memory_mb: float | None
    needed_memory_mb: float | None
    notes: tuple[str, ...]


def with_memory(row: Row, memory: Memory | None) -> Row:
    """The row with what its contender's own process took."""
    return row if memory is None else replace(row, peak_memory_mb=memory.peak_mb, needed_memory_mb=memory.needed_mb)


def rows(
    comparison: Comparison, prompts: Sequence[Prompt], settings: BenchSettings, margin: Margin | None = None
) -> list[Row]:
    """The table of one temperature."""
    speeds = {name: seen.speeds for name, seen in comparison.observations.items()}
    table = []
    for name, seen in comparison.observations.items():
        steps = [tokens / seconds for tokens, seconds in zip(seen.tokens, seen.step_seconds, strict=False)]
        table.append(
            Row(
                temperature=comparison.temperature,
                name=name,
                title=seen.contender.title,
                is_ours=name not in RIVALS,
                tokens_per_second=spread(speeds[name]),
                step_tokens_per_second=spread(steps) if steps else None,
                ratio_to_generate=ratios(speeds[name], speeds[GENERATE]) if GENERATE in speeds else None,
                ratio_to_assisted=ratios(speeds[name], speeds[ASSISTED]) if ASSISTED in speeds else None,
                tokens_per_forward=seen.forward_tokens / seen.forwards if seen.forwards else None,
                overhead=spread(seen.overheads) if seen.overheads else None,
                cost_coefficient=spread(seen.costs) if seen.costs else None,
                peak_memory_mb=None,
                needed_memory_mb=None,
                notes=tuple(notes(seen, comparison.reference, prompts, settings, margin)),
            )
        )
    return table


def notes(
    seen: Observations,
    reference: Sequence[Sequence[int]] | None,
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    margin: Margin | None = None,
) -> Iterator[str]:
    """What a contender did that the others did not: another length, other drafts, another text where one is right."""
    wanted = settings.max_new_tokens
    lengths = {len(ids) for texts in seen.texts.values() for ids in texts} - {wanted}
    if lengths:
        yield f"writes {' or '.join(map(str, sorted(lengths)))} tokens where {wanted} were asked for"
    k = seen.contender.num_draft_tokens
    if k and seen.longest_draft > k:
        yield f"drafts up to {seen.longest_draft} tokens a step where K is {k}"
    elif k is None and seen.contender.name in RIVALS:
        yield f"chooses its own K, here up to {seen.longest_draft}"
    if reference is not None:
        yield from _differences(seen, reference, prompts, margin)


def _differences(
    seen: Observations, reference: Sequence[Sequence[int]], prompts: Sequence[Prompt], margin: Margin | None
) -> Iterator[str]:
    for index, texts in sorted(seen.texts.items()):
        right = reference[index]
        for ids in texts:
            at = first_difference(ids, right)
            if at is None or (ids == tuple(right[: len(ids)]) and len(ids) != len(right)):
                continue
            sentence = f"another greedy text after {prompts[index].name!r}, from token {at + 1} of {len(right)}"
            if margin is not None and at < min(len(ids), len(right)):
                logits = margin(index, at, right[at], ids[at])
                sentence += f", where the target prefers its own by {logits:.2g} in logits"
            yield sentence
            break
