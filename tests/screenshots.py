"""Photograph every panel in each of its states: `python -m tests.screenshots FOLDER`.

The session is the tests' scripted one, so that the pictures are the same every time and need no weights; `--real`
uses the engine and the embedded pair for the runs instead. What fails, and the models, are always scripted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from PySide6.QtWidgets import QApplication

from tests.screenshots_check import photograph_check
from tests.screenshots_models import photograph_models
from tests.screenshots_runs import photograph_errors, photograph_runs
from tests.screenshots_sweep import photograph_sweeps


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--real", action="store_true", help="the engine and the embedded pair")
    parser.add_argument("--models", action="store_true", help="only the models window")
    parser.add_argument("--only", default="", metavar="WORD", help="only pictures that have this in their name")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    application = QApplication.instance() or QApplication(sys.argv[:1])
    if not arguments.models:
        photograph_runs(arguments.folder, arguments.only, real=arguments.real)
        photograph_errors(arguments.folder, arguments.only)
        photograph_check(arguments.folder, arguments.only)
    photograph_models(arguments.folder, arguments.only)
    if not arguments.models:
        photograph_sweeps(arguments.folder, arguments.only)
    del application
    return 0


if __name__ == "__main__":
    sys.exit(main())
