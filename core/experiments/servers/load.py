"""Measures a server under load: tokens/s and time per token over the requests at once, with speculation and without.

The gain of speculation shrinks as batches grow, so the two lines may cross. A server is measured against a second one
that doesn't draft: vLLM 0.32 and llama-server b11434 have no switch for one request, and none is known of SGLang.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import statistics
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from core.controls import RunControls
from core.engines.metrics import Snapshot, difference, read_metrics
from core.engines.server import Server
from core.errors import ServerBusyError, ServerError, SettingsError
from core.experiments.bench_plan import Spread, spread, turn_order
from core.experiments.prompt_suites import Prompt
from core.experiments.servers.answers import Answer, ask_all, refuse_drafting
from core.settings import RunRequest
from core.text import count_text
from core.types import StageChanged

SCHEMA = "outrider.load/1"
MOST_AT_ONCE, DEFAULT_REPEATS = 256, 5
_OTHERS = 1.05
"""More tokens than ours by this factor mean that somebody else used the server."""


# --- The plan -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is measured.

    `request` holds the settings of every request; its model, prompt and seed are replaced. `model` is its name on the
    server that drafts, empty for the default one; see `Server.counterpart`.

    Raises:
        SettingsError: a value out of range, a server that doesn't draft, or a baseline that does.
    """

    engine: Server
    baseline: Server | None
    request: RunRequest
    model: str
    prompts: tuple[Prompt, ...]
    concurrency: tuple[int, ...]
    repeats: int = DEFAULT_REPEATS

    def __post_init__(self) -> None:
        if not all(1 <= count <= MOST_AT_ONCE for count in self.concurrency):
            raise SettingsError(f"A number of concurrent requests must be between 1 and {MOST_AT_ONCE}.")
        if self.engine.speculation.is_on is False:
            raise SettingsError(f"The server at {self.engine.address} doesn't draft; name one that does with --engine.")
        refuse_drafting(self.baseline)

    @property
    def num_cells(self) -> int:
        return len(self.concurrency) * self.repeats * (2 if self.baseline else 1)

    def requests(self, server: Server, concurrency: int, repeat: int) -> list[RunRequest]:
        """Those of a cell: each prompt equally often, and at least three for each of several workers.

        The measurement ends with the first worker that finds no more work: with one each, with the shortest text.
        """
        rounds = math.ceil((3 * concurrency if concurrency > 1 else 1) / len(self.prompts))
        template = replace(self.request, target=server.counterpart(self.model), engine=server.address.url)
        return [
            replace(template, prompt=prompt.text, seed=self.request.seed + 1_000 * repeat + index)
            for index, prompt in enumerate(self.prompts * rounds)
        ]


@dataclass(frozen=True, slots=True)
class LoadCell:
    """One measurement: a fixed number of concurrent requests on one server.

    Attributes:
        tokens_per_second: while every worker was busy.
        ms_per_token: median over the requests, from the first tokens on.
        draft_acceptance_rate: None without drafts, or if the server doesn't report it.
        was_shared: somebody else used the server meanwhile.
        error: why it failed; there are no figures then.
    """

    concurrency: int
    speculates: bool
    repeat: int
    num_requests: int
    num_tokens: int = 0
    seconds: float = 0.0
    tokens_per_second: float | None = None
    ms_per_token: float | None = None
    draft_acceptance_rate: float | None = None
    was_shared: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class CellMeasured:
    """An event: a cell was measured, or failed."""

    cell: LoadCell
    done: int
    total: int


def measure_load(plan: LoadPlan, controls: RunControls) -> Generator[StageChanged | CellMeasured, None, None]:
    """Measure all cells, with and without speculation in turn. A failure other than "too busy" ends it.

    Raises:
        ServerError: a server fails at its first request, the warm-up.
        Cancelled: the controls asked to stop.
    """
    servers = [server for server in (plan.engine, plan.baseline) if server is not None]
    for server in servers:
        yield StageChanged(f"Warming up {server.product.shown} at {server.address}")
        ask_all(server, plan.requests(server, 1, 0)[:1], 1, controls)
    done = 0
    for repeat in range(plan.repeats):
        for concurrency in sorted(plan.concurrency, reverse=repeat % 2 == 1):
            for place in turn_order(len(servers), repeat):
                cell, may_go_on = _measured(plan, servers[place], concurrency, repeat, controls)
                done += 1
                yield CellMeasured(cell, done, plan.num_cells)
                if not may_go_on:
                    return


def _measured(
    plan: LoadPlan, server: Server, concurrency: int, repeat: int, controls: RunControls
) -> tuple[LoadCell, bool]:
    """A cell, and whether the server can be asked again."""
    requests = plan.requests(server, concurrency, repeat)
    cell = LoadCell(concurrency, server is plan.engine, repeat, len(requests))
    try:
        before = _metrics(server, plan.model)
        found = ask_all(server, requests, concurrency, controls, tries=1)  # A refusal is a result, too.
        after = _metrics(server, plan.model)
    except ServerError as error:
        return replace(cell, error=str(error)), isinstance(error, ServerBusyError)
    grown = difference(before, after) if before is not None and after is not None else None
    times = [answer.ms_per_token for answer in found.answers if answer.ms_per_token is not None]
    chunks = [chunk for answer in found.answers for chunk in answer.chunks]
    in_time = sum(len(chunk.tokens) for chunk in chunks if chunk.arrived <= found.full_until)
    seconds, num_tokens = found.full_until - found.began, sum(len(answer.tokens) for answer in found.answers)
    generated = None if grown is None else grown.generated_tokens
    return replace(
        cell,
        num_tokens=num_tokens,
        seconds=seconds,
        tokens_per_second=in_time / seconds if in_time else None,
        ms_per_token=statistics.median(times) if times else None,
        draft_acceptance_rate=_acceptance(found.answers, grown),
        # Servers differ in whether they count a text's end.
        was_shared=generated is not None and generated > _OTHERS * num_tokens + len(requests),
    ), True


def _metrics(server: Server, model: str) -> Snapshot | None:
    if server.metrics is None:
        return None
    with server.client() as client, contextlib.suppress(ServerError):
        return read_metrics(client, server.query(server.counterpart(model)))
    return None


def _acceptance(answers: Sequence[Answer], grown: Snapshot | None) -> float | None:
    """Accepted / drafted: what each answer reports, else what the server counted meanwhile."""
    reported = [answer.reported for answer in answers]
    drafted = [item.draft_tokens for item in reported if item is not None and item.draft_tokens is not None]
    accepted = [item.accepted_tokens for item in reported if item is not None and item.accepted_tokens is not None]
    if len(drafted) == len(accepted) == len(answers):
        return sum(accepted) / sum(drafted) if any(drafted) else None
    return None if grown is None else grown.acceptance_rate


# --- The results --------------------------------------------------------------------------------------------------


class LoadResults:
    """The cells so far, and what follows from them."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.cells: list[LoadCell] = []

    def values(self, concurrency: int, speculates: bool, name: str) -> Spread | None:
        """A figure of `LoadCell` over the repeats; None if no cell has it."""
        cells = [cell for cell in self.cells if (cell.concurrency, cell.speculates) == (concurrency, speculates)]
        values = [value for cell in cells if (value := getattr(cell, name)) is not None]
        return spread(values) if values else None

    def speedup(self, concurrency: int) -> Spread | None:
        """Tokens/s with speculation / without, repeat by repeat; None without a baseline."""
        values = [speedup for curve in self._curves() for count, speedup in curve if count == concurrency]
        return spread(values) if values else None

    @property
    def sentence(self) -> str:
        """Whether speculation pays at these loads, where the lines cross, and what is missing."""
        total = self.plan.num_cells
        num_missing = total - sum(cell.error is None for cell in self.cells)
        if not num_missing:
            return self._gain
        counted = f"{num_missing:,} of {count_text(total, 'measurement')}"
        return f"{self._gain} {counted} failed or were not made; the figures rest on the others."

    @property
    def _gain(self) -> str:
        plan = self.plan
        found = [(count, value) for count in sorted(plan.concurrency) if (value := self.speedup(count)) is not None]
        if plan.baseline is None:
            return (
                "Only the server with speculation was measured. For the comparison, serve the same model without "
                f"speculation and add --baseline-engine: {plan.engine.product.shown} can't switch it off for one "
                "request."
            )
        if not found:
            return "No load was measured on both servers, so nothing can be said about the gain."
        medians = [(count, value.median) for count, value in found]
        crossed = crossings(medians)
        if not crossed:
            is_gain = medians[0][1] > 1.0
            surely = all(
                len(value.values) > 1 and ((value.extremes[0] > 1.0) if is_gain else (value.extremes[1] < 1.0))
                for _, value in found
            )
            kind = "faster" if is_gain else "no faster"
            first, last = found[0][0], found[-1][0]
            loads = f"from {first} to {last} concurrent requests"
            if first == last:
                loads = f"at {count_text(first, 'concurrent request')}"
            return f"With speculation the server is {kind} {loads}{'' if surely else ', by the medians'}."
        alike = {is_gain: [at for at, kind in crossed if kind is is_gain] for _, is_gain in crossed}
        return " ".join(self._crossing(at, is_gain, alike[is_gain]) for at, is_gain in crossed)

    def _crossing(self, at: float, is_gain: bool, alike: Sequence[float]) -> str:
        each = [crossings(curve) for curve in self._curves()]
        # A repeat's crossing belongs to the nearest of the medians' crossings in its direction.
        own = [[place for place, kind in curve if kind is is_gain and _nearest(alike, place) == at] for curve in each]
        places = [_nearest(found, at) for found in own if found]
        repeats = f"{len(places)} of {count_text(len(each), 'repeat')}"
        interval = f" ({min(places):.1f} to {max(places):.1f} in {repeats})" if places else ", but in no single repeat"
        change = "Speculation pays from" if is_gain else "The lines cross: speculation pays up to"
        return f"{change} about {at:.1f} concurrent requests{interval}."

    def _curves(self) -> Iterator[list[tuple[int, float]]]:
        """Of each repeat: requests at once, and the speedup, where both servers were measured."""
        for repeat in range(self.plan.repeats):
            speeds = {
                (cell.concurrency, cell.speculates): cell.tokens_per_second
                for cell in self.cells
                if cell.repeat == repeat
            }
            curve = []
            for count in sorted(self.plan.concurrency):
                ours, theirs = speeds.get((count, True)), speeds.get((count, False))
                if ours and theirs:
                    curve.append((count, ours / theirs))
            if curve:
                yield curve

    @property
    def has_any(self) -> bool:
        """Whether anything was measured."""
        return any(cell.error is None for cell in self.cells)

    def to_json_lines(self) -> str:
        """The plan, every cell, and the result for each load, one JSON object a line."""
        plan = self.plan
        sampling = asdict(plan.request.sampling)
        lines: list[dict[str, Any]] = [
            {
                "schema": SCHEMA,
                "type": "load",
                "engine": _described(plan.engine, plan.model),
                "baseline": None if plan.baseline is None else _described(plan.baseline, plan.model),
                "concurrency": list(plan.concurrency),
                "repeats": plan.repeats,
                "max_new_tokens": plan.request.max_new_tokens,
                "seed": plan.request.seed,
                **{name: sampling[name] for name in ("temperature", "top_k", "top_p", "min_p")},
                "prompts": [{"name": prompt.name, "suite": prompt.suite} for prompt in plan.prompts],
            }
        ]
        lines += [{"type": "cell", **asdict(cell)} for cell in self.cells]
        lines.append({"type": "summary", "sentence": self.sentence})
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _nearest(places: Sequence[float], at: float) -> float:
    return min(places, key=lambda place: abs(math.log(place / at)))


def crossings(speedups: Sequence[tuple[int, float]]) -> list[tuple[float, bool]]:
    """Where a curve of (requests at once, speedup) passes 1, and whether it rises there.

    Between two points it is a straight line in the logarithms of both.
    """
    found = []
    for (left, before), (right, after) in itertools.pairwise(speedups):
        if (before > 1.0) != (after > 1.0):
            share = math.log(before) / (math.log(before) - math.log(after))
            found.append((left * (right / left) ** share, after > 1.0))
    return found


def _described(server: Server, model: str) -> dict[str, Any]:
    speculation = server.speculation
    return {
        "product": str(server.product),
        "version": server.version,
        "address": server.address.url,
        "model": server.counterpart(model),
        "speculates": speculation.is_on,
        "method": speculation.method,
        "num_draft_tokens": speculation.num_draft_tokens,
    }
