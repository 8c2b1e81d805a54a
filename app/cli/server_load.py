"""`outrider sweep --engine URL`: what speculation gains on a server as its load grows."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table

from app.cli.console import Progress, check_out, figure_table, printing, spread_text
from app.cli.errors import Exit, UsageError, say, stop_on_interrupt
from app.cli.parsing import SAMPLING, common_fields, find_servers, flag_of, refuse_for_engine
from core.controls import Cancelled, RunControls
from core.errors import RunLogError
from core.experiments.prompt_suites import Prompt, find_prompts, first_of_each
from core.files import write_atomically
from core.settings import RunRequest, SamplingParams
from core.text import count_text

if TYPE_CHECKING:
    from core.experiments.servers.load import LoadPlan, LoadResults

DEFAULT_CONCURRENCY = (1, 2, 4, 8, 16)
_LEGEND = (
    "Medians over the repeats, lowest and highest in brackets. speedup: tokens/s with speculation / without, repeat by "
    "repeat. tokens/s: of all requests together, while the full number of requests is running. ms/token: of one "
    "request, from its first token on; none where its steps were few or came together. acceptance: accepted / "
    "drafted tokens, as the server counts them."
)


def build_plan(args: argparse.Namespace, few: int, local: Iterable[str]) -> LoadPlan:
    """The measurement that the arguments describe; asks both servers what they are.

    Args:
        few: prompts by default.
        local: arguments that only a sweep on this machine has.

    Raises:
        UsageError: a flag that only the engine of this machine has.
        ServerError: a server doesn't answer, or hasn't the model.
    """
    from core.engines.session import check_request  # Late: most sweeps need no HTTP.
    from core.experiments.servers.load import LoadPlan

    refuse_for_engine(args)
    for name in local:
        if getattr(args, name):
            raise UsageError(f"{flag_of(name)} works only on this machine; leave it out with --engine.")
    if len(args.temperature) > 1:
        raise UsageError("A server is measured at one temperature; give --temperature one value.")
    counts = args.concurrency or DEFAULT_CONCURRENCY
    prompts = prompts_of(args, "chat", few)
    engine, baseline = find_servers(args)
    engine = engine.for_model(args.target or "")
    baseline = baseline and baseline.for_model(baseline.counterpart(args.target or ""))
    request = RunRequest(
        target=engine.model(args.target or ""),
        draft=None,
        prompt="any",
        num_draft_tokens=None,
        sampling=SamplingParams(args.temperature[0], **{name: getattr(args, name) for name in SAMPLING[1:]}),
        **common_fields(args, "max_new_tokens"),
        engine=engine.address.url,
    )
    for server in (engine, baseline):
        if server is not None:
            check_request(replace(request, target=server.counterpart(args.target or "")), server)
    return LoadPlan(engine, baseline, request, args.target or "", prompts, counts, args.repeats)


def prompts_of(args: argparse.Namespace, suite: str, few: int) -> tuple[Prompt, ...]:
    """The prompts of --prompts, as many of each suite as --num-prompts says; by default a few of one suite."""
    prompts = find_prompts(args.prompts or [suite])
    return tuple(first_of_each(prompts, args.num_prompts or (len(prompts) if args.prompts else few)))


def measure(args: argparse.Namespace, few: int, local: Iterable[str]) -> int:
    """Measure, print, and return the exit code."""
    from core.experiments.servers.load import SCHEMA, CellMeasured, LoadResults, measure_load

    check_out(args.out, SCHEMA)
    if args.out is not None and not args.restart and os.path.isfile(args.out) and os.path.getsize(args.out):
        raise UsageError(f"{args.out!r} holds earlier results; choose another name, or add --restart to replace them.")
    plan = build_plan(args, few, local)
    results, controls = LoadResults(plan), RunControls()
    code = Exit.DONE
    try:
        with Progress() as progress, stop_on_interrupt(controls):
            for server in (plan.engine, plan.baseline):
                if server is not None:
                    progress.say(server.text)
            events = measure_load(plan, controls)
            with contextlib.suppress(Cancelled), contextlib.closing(events):
                for event in events:
                    if not isinstance(event, CellMeasured):
                        progress.show(event.text)
                        continue
                    results.cells.append(event.cell)
                    progress.show_left("Measuring", event.done, event.total)
                    if event.cell.error is not None:
                        requests = count_text(event.cell.concurrency, "concurrent request")
                        progress.say_once(f"{requests}: {event.cell.error}")
                        code = Exit.FAILED
                    # A pipe gets everything once, at the end, which also says what can't be written.
                    if results.has_any and args.out is not None and not _is_stream(args.out):
                        with contextlib.suppress(RunLogError):
                            write_atomically(args.out, results.to_json_lines())
    finally:  # Also after a second Ctrl-C.
        if results.has_any:
            try:  # First: standard output may be closed, or its disk full.
                if args.out is not None:
                    write_atomically(args.out, results.to_json_lines())
            finally:
                write_results(results)
    if controls.is_cancelled:
        say(f"Stopped after {len(results.cells):,} of {plan.num_cells:,} measurements.")
        return Exit.STOPPED
    return code


def _is_stream(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)


def write_results(results: LoadResults) -> None:
    """Print the table and what follows from it."""
    plan = results.plan
    with printing() as show:
        prompts, repeats = count_text(len(plan.prompts), "prompt"), count_text(plan.repeats, "repeat")
        temperature = plan.request.sampling.temperature
        plain = plan.request.target if plan.baseline is None else plan.baseline.counterpart(plan.model)
        against = f" against {plain}" if plain != plan.request.target else ""
        show(
            f"{plan.request.target}{against} at temperature {temperature:g}; {prompts}, {repeats}, up to "
            f"{plan.request.max_new_tokens} new tokens"
        )
        show()
        show(_table(results, "extremes" if show.is_wide else ""))
        show()
        show(results.sentence)
        shared = [cell for cell in results.cells if cell.was_shared]
        if shared:
            counted = count_text(len(shared), "measurement")
            show(f"Other clients used the servers during {counted}; measure again when they are idle.")
        show(_LEGEND, "dim")


def _table(results: LoadResults, ends: str) -> Table:
    def figure(name: str, speculates: bool, form: str) -> Callable[[int], str]:
        return lambda concurrency: spread_text(results.values(concurrency, speculates, name), form, ends=ends)

    columns: list[tuple[str, Callable[[int], str]]] = [("requests", str)]
    has_baseline = results.plan.baseline is not None
    if has_baseline:
        columns.append(
            ("speedup", lambda concurrency: spread_text(results.speedup(concurrency), ".2f", "×", "extremes"))
        )
    for name, title, form in (("tokens_per_second", "tokens/s", ".1f"), ("ms_per_token", "ms/token", ".1f")):
        columns.append((title, figure(name, True, form)))
        if has_baseline:
            columns.append((f"{title} plain", figure(name, False, form)))
    columns.append(("acceptance", figure("draft_acceptance_rate", True, ".0%")))
    return figure_table(sorted(results.plan.concurrency), columns)
