"""The models window over models without files, open and with all details read."""

from __future__ import annotations

from core.models.suggestions import SUGGESTIONS
from tests.fakes_models import FakeHub, hub_entry, make_details

SMALL = hub_entry("owner/small-instruct", 269_000_000, days=1)
LARGE = hub_entry("other/large", 3_400_000_000, days=40)
NEW = SUGGESTIONS[1].ref


def until(qtbot, holds):
    """Wait longer than anything here takes, even on a machine that does much else."""
    qtbot.waitUntil(holds, timeout=30_000)


def settle(qtbot, window):
    """Wait until every question about models is answered."""
    until(qtbot, lambda: window.jobs.is_idle)


def column(panel, column):
    model = panel.table.model()
    return [model.index(row, column).data() for row in range(model.rowCount())]


def download_of(window, ref):
    return next((download for download in window.models.downloads.all() if download.ref == ref), None)


def wait_for_state(qtbot, window, ref, state):
    until(qtbot, lambda: getattr(download_of(window, ref), "state", None) is state)


def small_hub() -> FakeHub:
    """Two models, one of which is described in its own words."""
    return FakeHub(
        entries=[SMALL, LARGE],
        details={SMALL.ref: make_details("small-instruct", is_instruct=True, context_length=2048)},
    )


def open_models(window, hub, qtbot):
    """Opens a window's models window, and waits until all details are read."""
    window.models.open()
    panel = window.models.window
    until(qtbot, lambda: panel.table.count() == 2 + len(hub.entries))
    until(qtbot, lambda: not window.models._library.undescribed())
    return window, panel
