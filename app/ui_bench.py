"""What the window costs: the same runs with and without it, and how long its thread is ever kept from its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from app.bench_window import opened_window, wait
from app.clocked_runs import ClockedSession, Speeds
from app.heartbeat import Heartbeat, Stalls, worst
from app.services import Session
from core.bench.statistics import Spread, ratios, spread
from core.types import RunRequest

FIRST_LOOK_MS = 1_000
"""Until a person who knows the window starts a run in it."""
START_MS = 5_000
"""Until a window has imported all that it imports unasked."""


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """Real runs in one window and in one process without, in turn.

    Attributes:
        window, headless: of each round.
        started, stalls, memory_growth_mb, environment: as in `LiveFigures`.
    """

    window: tuple[Speeds, ...]
    headless: tuple[Speeds, ...]
    started: Stalls
    stalls: Stalls
    memory_growth_mb: float
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Real runs in several windows and processes without.

    Attributes:
        window, headless: tokens per second as a run tells it: over the sum of its steps' times.
        ratio: window / headless, round by round.
        wall_ratio: the same by the clock on the wall, from the run's start to its last token, with what the engine's
            thread does between the steps: in the window it also keeps every token's laws and writes the log.
        started: how long the window's thread is kept from its events from the first one on, while the engine is
            imported and a run started that soon; the worst of all windows.
        stalls: the same during later runs.
        memory_growth_mb: resident memory after a window's last run less that after its first; the most of all.
        environment: the machine and versions, as the run's log names them.
    """

    window: Spread
    headless: Spread
    ratio: Spread
    wall_ratio: Spread
    started: Stalls
    stalls: Stalls
    memory_growth_mb: float
    environment: dict[str, Any]


def bench_live(
    open_session: Callable[[], Session],
    run_headless: Callable[[RunRequest], Speeds],
    requests: Sequence[RunRequest],
    rounds: int,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> LiveRuns:
    """Run requests in the window and without it, in turn, after a run of each that does not count.

    Args:
        open_session: called in the thread of the window's engine.
        run_headless: runs a request without the window.
        requests: taken in turn, those whose text ends early left out if there are others.
        rounds: that count, one at least.
        on_progress: what goes on, how many runs are done, and how many there will be.

    Raises:
        OutriderError: a run fails.
        KeyboardInterrupt: on Ctrl-C, when the window is closed.
    """
    opened: list[ClockedSession] = []

    def open_clocked() -> ClockedSession:
        opened.append(ClockedSession(open_session()))
        return opened[-1]

    heart = Heartbeat()
    pairs: list[tuple[Speeds, Speeds]] = []
    with opened_window(open_clocked) as (window, run_in_window):

        def run_both(turn: int, request: RunRequest) -> tuple[Speeds, Speeds]:
            found: dict[bool, Speeds] = {}
            # Who comes first changes with every round.
            for in_window in (True, False) if turn % 2 else (False, True):
                place = "in the window" if in_window else "without it"
                on_progress(f"Round {turn} of {rounds}, {place}", 2 * turn, 2 * rounds + 2)
                if in_window:
                    run_in_window(window, replace(request, inspect=True))  # As the window asks for its runs.
                    found[True] = opened[-1].speeds[-1]
                else:
                    found[False] = run_headless(request)
            return found[True], found[False]

        on_progress("Looking for stalls while the window starts", 0, 2 * rounds + 2)
        with heart.beating():
            wait(FIRST_LOOK_MS)
            run_in_window(window, replace(requests[0], inspect=True))
            wait(START_MS)
        started = heart.take()
        warm_up = [run_both(0, request)[1].num_tokens for request in requests]
        # A text that ends early is over before anything can be told of its speed.
        whole = [asked for asked, count in zip(requests, warm_up, strict=True) if count > asked.max_new_tokens / 2]
        timed = whole or requests
        first_mb = psutil.Process().memory_info().rss / 1e6
        pairs.extend(run_both(turn, timed[turn % len(timed)]) for turn in range(1, rounds + 1))
        last_mb = psutil.Process().memory_info().rss / 1e6
        # In runs of their own, since 200 beats a second take time as well.
        for request in requests:
            on_progress("Looking for stalls in the window", 2 * rounds + 2, 2 * rounds + 2)
            with heart.beating():
                run_in_window(window, replace(request, inspect=True))
    inside, outside = zip(*pairs, strict=True)
    return LiveRuns(inside, outside, started, heart.take(), last_mb - first_mb, opened[-1].environment)


def sum_up(windows: Sequence[LiveRuns]) -> LiveFigures:
    """The figures of one window or more."""
    pairs = [pair for runs in windows for pair in zip(runs.window, runs.headless, strict=True)]
    told, wall = ([(inside[kind], outside[kind]) for inside, outside in pairs] for kind in (0, 1))
    return LiveFigures(
        window=spread([inside for inside, _ in told]),
        headless=spread([outside for _, outside in told]),
        ratio=ratios(*zip(*told, strict=True)),
        wall_ratio=ratios(*zip(*wall, strict=True)),
        started=worst([runs.started for runs in windows]),
        stalls=worst([runs.stalls for runs in windows]),
        memory_growth_mb=max(runs.memory_growth_mb for runs in windows),
        environment=windows[-1].environment,
    )
