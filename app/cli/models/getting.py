"""`outrider models get`: download a model, with its progress, so that Ctrl-C loses nothing."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import Exit, say, writing_output
from app.cli.interrupts import stop_on_interrupt
from app.cli.models.progress import open_progress
from app.view_models.model_text import bytes_text
from core.controls import Cancelled, RunControls
from core.errors import OutriderError

if TYPE_CHECKING:
    from core.models.catalogue import ModelEntry


def add_parser(actions: Any) -> None:
    """Register `get` with the subparsers of `outrider models`."""
    parser = actions.add_parser(
        "get",
        help="download a model from the Hub",
        description=(
            "Download a model into the Hub cache, after a look at the space on the disk, and print its path. What came "
            "from the Hub before a Ctrl-C or a lost connection is kept, and the same command goes on from there."
        ),
        epilog=(
            "With HF_HUB_OFFLINE=1 in the environment nothing touches the network, and nothing is downloaded. "
            "Exit codes: 0 here, 1 the download failed, 2 bad usage or no such model, 130 stopped."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("ref", metavar="REF", help="a Hub id, such as those of `outrider models list --suggested`")
    parser.add_argument(
        "--restart", action="store_true", help="discard what came of it so far, check what is here, and begin anew"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Download, and return the exit code.

    Raises:
        OutriderError: there is no such model, no network, no space…
        OutputClosed, OutputError: standard output can't be written.
    """
    here = _already_here(args.ref)
    if here is not None and here.embedded:
        say(f"{here.ref} ships with Outrider.")
        return _print_path(here.path)
    from core.models.downloads import download

    controls, progress = RunControls(), open_progress()
    try:
        # The first Ctrl-C asks the download to stop, so that it can keep what came.
        with stop_on_interrupt(controls), progress:
            entry = download(
                args.ref, on_progress=progress.update, check_cancelled=controls.check_cancelled, restart=args.restart
            )
    except Cancelled:
        say(_farewell(args.ref))
        return Exit.STOPPED
    if here is not None and here.path == entry.path and not args.restart:
        say(f"{entry.ref} is here already; --restart checks its files.")
    return _print_path(entry.path)


def _print_path(path: Path) -> Exit:
    if sys.stdout is not None:
        with writing_output():
            sys.stdout.write(f"{path}\n")
            sys.stdout.flush()
    return Exit.DONE


def _already_here(ref: str) -> ModelEntry | None:
    """A model that is here whole, as far as its files' headers tell, with no download of it to finish."""
    from core.models import hub
    from core.models.catalogue import ModelOrigin, resolve
    from core.models.details import read_details

    try:
        entry = resolve(ref)
        is_ours = entry.origin in {ModelOrigin.EMBEDDED, ModelOrigin.HUB, ModelOrigin.KEPT}
        if not is_ours or hub.partial_bytes(ref):
            return None
        read_details(entry)
    except (OutriderError, OSError):
        return None
    return entry


def _farewell(ref: str) -> str:
    """What a stopped download leaves, looked up on the disk: not every source can be resumed."""
    from core.models.downloads import plan_removal

    command = f"`outrider models get {shlex.quote(ref)}`"
    try:
        kept = plan_removal(ref).frees_bytes
    except OutriderError:
        kept = 0
    if not kept:
        return f"Stopped; nothing of it is kept. {command} begins again."
    return f"Stopped; {bytes_text(kept)} of it are kept. {command} goes on from there."
