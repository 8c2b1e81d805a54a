"""The real engine, which brings torch and transformers along: nothing of it is imported before it is needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core.collector import importing

if TYPE_CHECKING:
    from core.session import Session


def quiet_libraries() -> None:
    """Keep the bars and warnings of transformers away: they would stand among the stages, and in spite of --quiet."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def make_engine() -> Session:
    """An engine with nothing loaded."""
    quiet_libraries()
    with importing():
        from core.session import Session

    return Session()
