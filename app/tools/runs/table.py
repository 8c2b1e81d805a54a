"""The rows of the list of kept runs: their texts and sort keys, and the editing of names."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection
from datetime import datetime, timedelta

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QStyleOptionViewItem, QWidget

from app.setup.model_library import UNKNOWN
from app.widgets.rows import Column, Index, Role, Row
from app.widgets.tables import Table
from app.widgets.title_delegate import BETWEEN, TitleDelegate
from core.analysis.steadiness import interval_text
from core.draft_length import shown_draft_length
from core.drafters.registry import METHODS
from core.runlog.reading import mapping_of, number_of, text_of
from core.runlog.replay import interval_of
from core.runlog.search import MARKS, searchable
from core.runlog.store import MAX_LABEL, KeptRun, KeptState, Label
from core.settings import VerificationRule, is_lossy
from core.text import count_text, percent_text, server_text, short_name

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
"""In English, whatever the system's language, which Python's own names follow."""
MAX_TIP = 400
MAX_BADGE = 24
"""Most characters of the tags beside a run's title."""
COLUMNS = (
    Column("Run", width=204),
    Column("When", width=114, rank=1),
    Column("Target", width=152, rank=2),
    Column("Draft or method", width=146),
    Column("K", "K at the start of the run; auto: chosen before each step", 56, is_figure=True),
    Column("Temp.", "The temperature at the start of the run", 60, is_figure=True, rank=3),
    Column("Acceptance", "Accepted / drafted tokens", 90, is_figure=True),
    Column("Tokens/s", "Generated tokens per second, without the prefill", 78, is_figure=True),
    Column("Speedup", "Tokens per second / those of the baseline measured in the same run", 76, is_figure=True),
    Column("State", width=92, rank=4),
)


def run_row(run: KeptRun) -> Row[KeptRun]:
    """A run as a row of the list; dashes for what is unknown, which sorts below what is known."""
    summary = run.summary or {}
    k, temperature = shown_draft_length(run.config), run.config.get("temperature")
    names = ("draft_acceptance_rate", "tokens_per_second", "measured_speedup")
    acceptance, speed, speedup = (number_of(summary.get(name)) for name in names)
    title, (target, draft) = run.title, _models(run)
    state = str(run.state).capitalize()
    texts = (
        title,
        when_text(run.started_at),
        target,
        draft,
        UNKNOWN if k is None else str(k),
        UNKNOWN if number_of(temperature) is None else f"{temperature:g}",
        UNKNOWN if acceptance is None else percent_text(acceptance),
        UNKNOWN if speed is None else f"{speed:,.1f}",
        UNKNOWN if speedup is None else f"{speedup:.2f}×",
        state,
    )
    moment = run.started_at.timestamp() if run.started_at else 0.0
    numbers = map(number_of, (k, temperature, acceptance, speed, speedup))
    keys = (-math.inf if number is None else number for number in numbers)
    return Row(
        item=run,
        key=run.id,
        texts=texts,
        tip=_tip(run),
        sort_keys=(title.casefold(), moment, target.casefold(), draft.casefold(), *keys, state),
        subtitle=_subtitle(run),
        badge=textwrap.shorten(run.tags, MAX_BADGE, placeholder="…"),
        words=searchable(run),
        name=run.name,
    )


def _subtitle(run: KeptRun, hidden: Collection[str] = ()) -> str:
    """Details that distinguish runs of the same prompt, the most telling first, or why the run can't be read.

    Args:
        hidden: titles of columns that have no room, whose texts this line shows.
    """
    config, summary, seed = run.config, run.summary or {}, run.config.get("seed")
    count = summary.get("num_tokens")
    if not run.is_readable:
        return run.problem
    temperature, interval = number_of(config.get("temperature")), interval_of(summary)
    parts = [str(run.state)] if run.state is not KeptState.FINISHED else []
    parts += [word for name, word in MARKS.items() if summary.get(name) is True]
    parts += [f"95 %: {interval_text(interval)}"] if interval else []
    parts += [f"T = {temperature:g}"] if "Temp." in hidden and temperature is not None else []
    parts += [when_text(run.started_at)] if "When" in hidden else []
    parts += [f"seed {seed}"] if isinstance(seed, int) else []
    parts += [_models(run)[0]] if "Target" in hidden else []
    parts += [server_text(engine)] if (engine := mapping_of(config.get("engine"))) else []
    method = METHODS.get(text_of(config.get("method")))
    parts += [method.title] if method and text_of(config.get("draft")) and method.name != "draft-model" else []
    if isinstance(count, int):
        parts.append(count_text(count, "token"))
    elif run.num_steps is not None:
        parts.append(count_text(run.num_steps, "step"))
    parts += [part for part in (config.get("device"), config.get("dtype")) if isinstance(part, str)]
    parts += ["Gumbel coupling"] if config.get("coupling") == "gumbel" else []
    parts += ["block verification"] if config.get("verification") == VerificationRule.BLOCK else []
    return BETWEEN.join(["lossy", *parts] if is_lossy(config) else parts)


def _tip(run: KeptRun) -> str:
    """The exact start time, the note, the tags and the beginning of the prompt, or why the run can't be read."""
    if not run.is_readable:
        return run.problem
    text = text_of(run.config.get("prompt"))
    beginning = text if len(text) <= MAX_TIP else f"{text[:MAX_TIP]}…"
    when = f"{run.started_at.astimezone():%Y-%m-%d %H:%M:%S}" if run.started_at else ""
    cut = "The log ends before the run did." if run.state is KeptState.CUT_OFF else ""
    temperature = number_of(run.config.get("temperature"))
    parts = (*_models(run), "" if temperature is None else f"T = {temperature:g}")
    # In a narrow table these columns are hidden, and the last details are left out.
    settings = BETWEEN.join(filter(None, parts))
    return "\n".join(filter(None, (when, settings, _subtitle(run), cut, run.note, run.tags, beginning)))


def when_text(moment: datetime | None) -> str:
    """A local time: today and yesterday by name, this year without the year."""
    if moment is None:
        return UNKNOWN
    now, local = datetime.now(), moment.astimezone()
    clock = f"{local:%H:%M}"
    if local.date() == now.date():
        return f"Today {clock}"
    if local.date() == (now - timedelta(days=1)).date():
        return f"Yesterday {clock}"
    day = f"{local.day} {MONTHS[local.month - 1]}"
    return f"{day} {clock}" if local.year == now.year else f"{day} {local.year}"


def _models(run: KeptRun) -> tuple[str, str]:
    """The target, and the draft model or the method if it needs none."""
    target, draft, name = (text_of(run.config.get(key)) for key in ("target", "draft", "method"))
    method = METHODS.get(name)
    title = name if method is None else method.title
    return short_name(target) or UNKNOWN, short_name(draft) or title or UNKNOWN


class RunNameDelegate(TitleDelegate):
    """Draws a run's name above its subtitle, and edits the name in place."""

    elided = Qt.TextElideMode.ElideRight

    def subtitle(self, index: Index, view: QWidget | None) -> str:
        """A run's details, with what the hidden columns would tell."""
        if not isinstance(view, Table):
            return super().subtitle(index, view)
        hidden = {column.title for place, column in enumerate(COLUMNS) if view.isColumnHidden(place)}
        return _subtitle(view.items()[index.row()], hidden)

    def createEditor(self, parent: QWidget, _option: QStyleOptionViewItem, index: Index) -> QWidget:
        """A field whose placeholder is the title of a run without a name."""
        editor = QLineEdit(parent)
        editor.setObjectName("runNameEdit")
        editor.setAccessibleName("Name of the run")
        editor.setMaxLength(MAX_LABEL[Label.NAME])
        editor.setPlaceholderText(str(index.data(Role.DisplayRole)))
        return editor

    def updateEditorGeometry(self, editor: QWidget, option: QStyleOptionViewItem, _index: Index) -> None:
        """Cover the whole cell."""
        editor.setGeometry(option.rect.adjusted(2, 2, -2, -2))
