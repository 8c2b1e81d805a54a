"""What the window costs: the same runs with and without it, and how long its thread is ever kept from its events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from app.bench_window import opened_window, wait
from app.clocked_runs import ClockedSession, Speeds
from app.core_watch import CoreWatch
from app.heartbeat import Heartbeat, Stalls, worst
from app.services import Session
from core.bench.statistics import Spread, ratios, spread
from core.types import RunRequest

FIRST_LOOK_MS = 1_000
"""Until a person who knows the window starts a run in it."""
START_MS = 2_500
"""Nothing was imported for so long: a window has all by then that it imports unasked, however slow the machine."""
SETTLE_MS = 300
"""Until a window has drawn all of a run that is over: else it would draw that at the beginning of the next one."""

WINDOW, TERMINAL, ALONE = PLACES = ("in the window", "in the terminal", "by the engine alone")


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """Real runs in one window and in one process without, in turn.

    Attributes:
        window, terminal, headless: of each round; the last is the engine alone.
        started, stalls, memory_growth_mb, environment: as in `LiveFigures`.
    """

    window: tuple[Speeds, ...]
    terminal: tuple[Speeds, ...]
    headless: tuple[Speeds, ...]
    started: Stalls
    stalls: Stalls
    memory_growth_mb: float
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Real runs in several windows and processes without.

    Attributes:
        window, terminal, headless: tokens per second as a run tells it: over the sum of its steps' times. In the
            terminal the same run prints its text and keeps the same log; headless, nothing is shown or kept.
        terminal_ratio: window / terminal, round by round.
        ratio: window / headless.
        terminal_wall_ratio, wall_ratio: the same by the clock on the wall, from the run's start to its last token,
            with what goes on between the steps: the engine's thread writes the log, and waits while the window draws.
        started: how long the window's thread is kept from its events from the first one on, while the engine is
            imported and a run started that soon; the worst of all windows.
        stalls: the same during later runs.
        memory_growth_mb: resident memory after a window's last run less that after its first; the most of all.
        environment: the machine and versions, as the run's log names them.
    """

    window: Spread
    terminal: Spread
    headless: Spread
    terminal_ratio: Spread
    terminal_wall_ratio: Spread
    ratio: Spread
    wall_ratio: Spread
    started: Stalls
    stalls: Stalls
    memory_growth_mb: float
    environment: dict[str, Any]


def bench_live(
    open_session: Callable[[], Session],
    run_in_terminal: Callable[[RunRequest], Speeds],
    run_headless: Callable[[RunRequest], Speeds],
    requests: Sequence[RunRequest],
    rounds: int,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    watch: CoreWatch | None = None,
) -> LiveRuns:
    """Run requests in the window, in a terminal and by the engine alone, in turn, after one each that doesn't count.

    Args:
        open_session: called in the thread of the window's engine.
        run_in_terminal: runs a request as `outrider run` does.
        run_headless: runs a request and shows nothing.
        requests: taken in turn, those whose text ends early left out if there are others.
        rounds: that count, one at least.
        on_progress: what goes on, how many runs are done, and how many there will be.
        watch: tells when the machine itself stood still.

    Raises:
        OutriderError: a run fails.
        KeyboardInterrupt: on Ctrl-C, when the window is closed.
    """
    opened: list[ClockedSession] = []

    def open_clocked() -> ClockedSession:
        opened.append(ClockedSession(open_session()))
        return opened[-1]

    heart = Heartbeat(watch)
    found: list[dict[str, Speeds]] = []
    with opened_window(open_clocked) as (window, run_in_window):

        def run_in(place: str, asked: RunRequest) -> Speeds:
            if place == WINDOW:
                run_in_window(window, asked)
                wait(SETTLE_MS)
                return opened[-1].speeds[-1]
            return run_in_terminal(asked) if place == TERMINAL else run_headless(replace(asked, inspect=False))

        def run_all(turn: int, request: RunRequest) -> dict[str, Speeds]:
            speeds: dict[str, Speeds] = {}
            # Who comes first changes with every round.
            for index in range(len(PLACES)):
                place = PLACES[(index + turn) % len(PLACES)]
                on_progress(f"Round {turn} of {rounds}, {place}", turn, rounds + 1)
                # As the window asks for its runs.
                speeds[place] = run_in(place, replace(request, inspect=True))
            return speeds

        on_progress("Looking for stalls while the window starts", 0, rounds + 1)
        with heart.beating():
            wait(FIRST_LOOK_MS)
            run_in_window(window, replace(requests[0], inspect=True))
            _wait_for_imports()
        started = heart.take()
        warm_up = [run_all(0, request)[ALONE].num_tokens for request in requests]
        # A text that ends early is over before anything can be told of its speed.
        whole = [asked for asked, count in zip(requests, warm_up, strict=True) if count > asked.max_new_tokens / 2]
        timed = whole or requests
        first_mb = psutil.Process().memory_info().rss / 1e6
        found.extend(run_all(turn, timed[turn % len(timed)]) for turn in range(1, rounds + 1))
        last_mb = psutil.Process().memory_info().rss / 1e6
        # In runs of their own, since 200 beats a second take time as well.
        for request in requests:
            on_progress("Looking for stalls in the window", rounds + 1, rounds + 1)
            with heart.beating():
                run_in_window(window, replace(request, inspect=True))
    window_runs, terminal_runs, headless_runs = (tuple(speeds[place] for speeds in found) for place in PLACES)
    environment = opened[-1].environment
    return LiveRuns(window_runs, terminal_runs, headless_runs, started, heart.take(), last_mb - first_mb, environment)


def _wait_for_imports() -> None:
    known = -1
    while known != len(sys.modules):
        known = len(sys.modules)
        wait(START_MS)


def sum_up(windows: Sequence[LiveRuns]) -> LiveFigures:
    """The figures of one window or more."""
    window = [speeds for runs in windows for speeds in runs.window]
    terminal = [speeds for runs in windows for speeds in runs.terminal]
    headless = [speeds for runs in windows for speeds in runs.headless]
    return LiveFigures(
        window=spread([speeds.told for speeds in window]),
        terminal=spread([speeds.told for speeds in terminal]),
        headless=spread([speeds.told for speeds in headless]),
        terminal_ratio=ratios([speeds.told for speeds in window], [speeds.told for speeds in terminal]),
        terminal_wall_ratio=ratios([speeds.wall for speeds in window], [speeds.wall for speeds in terminal]),
        ratio=ratios([speeds.told for speeds in window], [speeds.told for speeds in headless]),
        wall_ratio=ratios([speeds.wall for speeds in window], [speeds.wall for speeds in headless]),
        started=worst([runs.started for runs in windows]),
        stalls=worst([runs.stalls for runs in windows]),
        memory_growth_mb=max(runs.memory_growth_mb for runs in windows),
        environment=windows[-1].environment,
    )
