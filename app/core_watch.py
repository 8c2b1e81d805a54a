"""When a core stood still: where a machine is shared, each is taken away now and then, for tens of milliseconds.

Neither the window nor anything else of this process runs then, and no clock of the process tells that from work of its
own. A process on each core that does nothing but sleep is late at these moments, and little at any other.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

NAP_S = 0.005
REST_S = 0.1
"""While nobody listens: naps on cores that compute take time from a run, which may be the one that is timed."""
HALT_S = 0.015
"""So late is no process that only waits for its turn where others compute: of 8,500 naps beside an engine on both cores
of a Xeon, one in a thousand was 4 ms late, and the worst 6.6."""
MOST_CORES = 16
"""With more nobody watches: that many processes would themselves take time."""

Halt = tuple[float, float]
"""From when to when, by `time.perf_counter`."""


class CoreWatch:
    """Halts of all cores, as the processes that watch them write them down while somebody listens."""

    def __init__(self, files: Sequence[Path], flag: Path) -> None:
        """
        Args:
            files: that the processes write.
            flag: a file that is there while they are to watch.
        """
        self._files, self._flag = tuple(files), flag

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Have the cores watched within the block, from its first tenth of a second on."""
        self._flag.touch()
        try:
            yield
        finally:
            self._flag.unlink(missing_ok=True)

    def halts(self) -> list[Halt]:
        """All that there were up to now, in order."""
        found: list[Halt] = []
        for path in self._files:
            with contextlib.suppress(OSError):
                # The last line may be half written.
                lines = path.read_text("ascii").rpartition("\n")[0].splitlines()
                found += [(float(begin), float(end)) for begin, _, end in (line.partition(" ") for line in lines)]
        return sorted(found)


@contextlib.contextmanager
def watching_cores() -> Iterator[CoreWatch]:
    """Be ready to watch the cores. Only Linux keeps a process to a core; elsewhere no halt is ever seen."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > MOST_CORES:
        cores = []
    with TemporaryDirectory(prefix="outrider-") as folder, contextlib.ExitStack() as stack:
        files, flag = [Path(folder) / str(core) for core in cores], Path(folder) / "listening"
        for core, path in zip(cores, files, strict=True):
            command = [sys.executable, "-m", "app.core_watch", str(core), str(path), str(flag)]
            stack.enter_context(_ended(subprocess.Popen(command, stdin=subprocess.DEVNULL)))
        yield CoreWatch(files, flag)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


def without_halts(begin: float, end: float, halts: Sequence[Halt]) -> float:
    """Seconds from `begin` to `end` in which no core stood still: a window on another one may wait for what ran there.

    Args:
        begin: by `time.perf_counter`.
        end: likewise.
        halts: in order; those of several cores may overlap.
    """
    left, at = end - begin, begin
    for halt_begin, halt_end in halts:
        overlap = min(end, halt_end) - max(at, halt_begin)
        if overlap > 0:
            left -= overlap
            at = min(end, halt_end)
    return left


def watch(core: int, path: Path, flag: Path, parent: int) -> None:
    """Write down when this core stands still, as long as there is a flag, until who asked for it is gone."""
    os.sched_setaffinity(0, {core})
    with path.open("w", encoding="ascii", buffering=1) as file:
        while os.getppid() == parent:
            if not flag.exists():
                time.sleep(REST_S)
                continue
            begin = time.perf_counter()
            time.sleep(NAP_S)
            end = time.perf_counter()
            if end - begin - NAP_S > HALT_S:
                file.write(f"{begin + NAP_S} {end}\n")


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), os.getppid())
