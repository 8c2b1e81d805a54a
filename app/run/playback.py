"""Playback: pause, single steps, pace and scrubbing, with one selection for text and plots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from PySide6.QtCore import QSignalBlocker, QSize, Qt, Signal, Slot
from PySide6.QtGui import QIcon, QPixmap, QResizeEvent
from PySide6.QtWidgets import QSlider, QWidget

from app.controller import RunController, RunState
from app.run.pacing import Pace, Pacing
from app.run.plots.step_plot import StepPlot
from app.run.run_view import RunView
from app.run.text.tokens import Place, Selection
from app.theme import RESOURCES, current_theme, hold, scaled
from app.widgets.fields import (
    EnumCombo,
    boxed,
    column,
    describe,
    hint_label,
    menu_button,
    named,
    plain_tip,
    quiet_button,
    row,
    text_label,
)
from core.text import count_text

if TYPE_CHECKING:
    from app.menus import Menus
    from app.run.text.transcript import TranscriptView

LEAST_SLIDER = 110
"""Width that the slider needs beside the buttons; with less it has its own row."""
PACE_HELP = (
    "How fast the text is shown. The engine runs at full speed, so a slow pace doesn't slow it; Stop shows the rest at "
    "once. Step by step starts a run paused; a change of K or temperature applies to its next step. At the pace "
    "“Draft, verify”, “Next step” first shows the drafted block, then verifies it. Such steps are slower, because "
    "processors clock down while they wait."
)


class PlaybackBar(QWidget):
    """Pause, step, speed, steps shown, branch; controls that can't be used are disabled.

    Text and plots share its selection. A panel of the `LiveView`.

    Signals:
        pace_changed: the pace is another one.
    """

    pace_changed = Signal()

    def __init__(
        self, controller: RunController, run: RunView, selection: Selection, view: TranscriptView, menus: Menus
    ) -> None:
        super().__init__()
        self.setObjectName("playbackBar")
        self.controller, self.run, self.selection, self.view, self.menus = controller, run, selection, view, menus
        self._is_paused = self._is_live = False
        self.pacing = Pacing()
        self.pause_button = quiet_button("", "pauseButton", "Pause", "Pause before the next step, or resume (Space)")
        self.step_button = quiet_button(
            "", "nextStepButton", "Next step", "One more draft-verify step, then pause (F8)"
        )
        self.branch_button = menu_button("Branch", "branchButton", "", accessible_name="Branch from here", role="quiet")
        self.branch_menu = self.branch_button.menu()
        self.branch_button.setEnabled(False)
        self.pace = EnumCombo({pace: pace.title for pace in Pace}, "paceCombo", is_compact=True)
        describe(self.pace, "Pace", PACE_HELP)
        self._pace_label = text_label("Pace", "hint", buddy=self.pace)
        self._pace_label.setToolTip(plain_tip(PACE_HELP))
        full_help = "Show the text as fast as it is generated"
        self.full_button = quiet_button(
            "Full speed", "fullSpeedButton", "Full speed", full_help, lambda: self.set_pace(Pace.FULL), role="link"
        )
        slider_help = "Drag to see the text as it was after any step"
        self.slider = named(QSlider(Qt.Orientation.Horizontal), "scrubSlider", "Steps shown", slider_help)
        self.slider.setMinimumWidth(28)
        self.place = hint_label("scrubPlace")
        self.place.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        hold(self.place, least_width=100)
        slowed = (self._pace_label, self.pace, self.full_button)
        self._row = row(self.pause_button, self.step_button, *slowed, (self.slider, 1), self.place, spacing=4)
        self._row.addStretch()
        self._row.addWidget(self.branch_button)
        self._second_row = row(spacing=4)
        boxed(column(self._row, self._second_row, spacing=2), self)
        self._connect()
        self._show()
        self.restyle()

    def _connect(self) -> None:
        for pause in (self.pause_button.clicked, self.menus.pause.triggered):
            pause.connect(self._on_pause_wanted)
        for step in (self.step_button.clicked, self.menus.next_step.triggered):
            step.connect(self._on_step_wanted)
        self.pace.activated.connect(self._on_pace_chosen)
        self.slider.valueChanged.connect(self._on_scrubbed)
        self.controller.state_changed.connect(self._show)
        self.view.place_chosen.connect(self.selection.select)
        self.view.step_pointed.connect(self.selection.hover)
        self.selection.changed.connect(self.view.mark)
        self.selection.hovered.connect(self.view.mark_step)

    def link(self, plots: Iterable[StepPlot]) -> None:
        """Let plots over steps share the selection with the text."""
        for plot in plots:
            plot.pointed.connect(self.selection.hover)
            plot.step_clicked.connect(self._on_step_clicked)
            self.selection.changed.connect(plot.mark_place)
            self.selection.hovered.connect(plot.mark_step)

    def restyle(self) -> None:
        """Draw the icons in the theme's colours, and fit the controls to the text."""
        self.pause_button.setIcon(_icon("resume" if self._is_paused else "pause"))
        self.step_button.setIcon(_icon("next-step"))
        self.branch_button.setIcon(_icon("branch"))
        for button in (self.pause_button, self.step_button, self.branch_button):
            button.setIconSize(QSize(scaled(16), scaled(16)))
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit the controls to the width."""
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """Label the last button and the pace if there is room; give the slider its own row if there isn't."""
        controls = [self.pause_button, self.step_button, self._pace_label, self.pace, self.branch_button]
        controls += [] if self.full_button.isHidden() else [self.full_button]
        gap = self._row.spacing()
        for style in (Qt.ToolButtonStyle.ToolButtonTextBesideIcon, Qt.ToolButtonStyle.ToolButtonIconOnly):
            self.branch_button.setToolButtonStyle(style)
            needed = sum(widget.sizeHint().width() + gap for widget in controls)
            if self.width() >= needed - gap:
                break
        self._pace_label.setVisible(self.width() >= needed - gap)
        has_room = self.width() >= needed + self.place.sizeHint().width() + gap + scaled(LEAST_SLIDER)
        wanted, first = (self._row, 5) if has_room else (self._second_row, 0)
        if wanted.indexOf(self.slider) < 0:
            for index, widget in enumerate((self.slider, self.place), start=first):
                wanted.insertWidget(index, widget, int(widget is self.slider))

    def begin(self) -> None:
        """A run starts."""
        self._is_live = True
        self._show()

    def refresh(self, *, has_news: bool) -> None:
        """Count new steps."""
        if has_news and self._has_baseline and self.controller.state is RunState.PAUSED:
            # The run was stepped to its end; its baseline is not stepped through.
            self.controller.resume()
        if has_news or self._is_live:
            self._show()

    def end(self) -> None:
        """A run is over and can be scrubbed."""
        self._is_live = False
        self.pacing.resume()  # It may have been stepped to its end.
        self._show()
        self._show_place()

    @property
    def is_slowed(self) -> bool:
        """Whether the pace is slower than the engine."""
        return self.pace.member() is not Pace.FULL

    def set_pace(self, pace: Pace) -> None:
        """Change the pace, of this run and of later ones."""
        self.pace.choose(pace)
        self._on_pace_chosen()

    @Slot()
    def _on_pause_wanted(self) -> None:
        if not self._can_pause:
            return
        if self._is_paused:
            self._show_all()
        # A slowed run is ahead of what is shown, so the display is paused, not the engine.
        pausable = self.pacing if self.pacing.is_slow else self.controller
        (pausable.resume if self._is_paused else pausable.pause)()
        self._show()

    @Slot()
    def _on_step_wanted(self) -> None:
        if self._can_pause:
            self._show_all()
            (self.pacing if self.pacing.is_slow else self.controller).step_once()

    @Slot()
    def _on_pace_chosen(self) -> None:
        pace = self.pace.member()
        self.pacing.resume()
        self.pacing.tokens_per_second = pace.tokens_per_second
        if not pace.is_stepwise:
            self.controller.resume()  # From here on, a slowed display is paused instead.
        self.controller.set_stepwise(pace.is_stepwise, stops_at_drafts=pace is Pace.HALVES)
        if pace.is_stepwise and self._can_pause:
            self.controller.pause()
        self._show()
        self.pace_changed.emit()

    @Slot(int)
    def _on_scrubbed(self, num_steps: int) -> None:
        steps = self.run.steps
        self.view.set_limit(num_steps if num_steps < len(steps) else None)
        self.selection.select(self._first_place(num_steps - 1) if 0 < num_steps <= len(steps) else None)
        self._show_place()

    @Slot(int)
    def _on_step_clicked(self, step: int) -> None:
        self.selection.select(self._first_place(step))

    def _first_place(self, step: int) -> Place:
        """The place of a step's first token, which in a tree may be any node at the root."""
        return Place(step, self.run.steps[step].slots[0])

    @property
    def _can_pause(self) -> bool:
        if self.pacing.is_slow:
            return self._is_live or self.controller.state is RunState.RUNNING
        return self.controller.state in {RunState.RUNNING, RunState.PAUSED} and not self._has_baseline

    @property
    def _has_baseline(self) -> bool:
        # While the models load, the run on screen is the previous one.
        return self._is_live and bool(self.run.baseline_steps)

    @Slot()
    def _show(self) -> None:
        """Enable what can be used, and show all steps if there are new ones."""
        state, can_pause, count = self.controller.state, self._can_pause, len(self.run.steps)
        is_paused = state is RunState.PAUSED or self.pacing.is_paused
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self.pause_button.setAccessibleName("Resume" if is_paused else "Pause")
            self.menus.pause.setText("Resume" if is_paused else "Pause")
            self.restyle()
        for control in (self.pause_button, self.step_button, self.menus.pause, self.menus.next_step):
            control.setEnabled(can_pause)
        can_scrub = is_paused or (state is RunState.IDLE and not (self._is_live and self.pacing.is_slow))
        is_slowed = self.pacing.tokens_per_second > 0
        if self.full_button.isHidden() is is_slowed:
            self.full_button.setVisible(is_slowed)
            self._fit()
        self.slider.setEnabled(can_scrub and count > 0)
        if count != self.slider.maximum() or not can_scrub:
            # New steps are shown at the end of the text, wherever the reader was.
            self._show_all()

    def _show_all(self) -> None:
        """Show the whole text, even after scrubbing."""
        count = len(self.run.steps)
        self.view.set_limit(None)
        with QSignalBlocker(self.slider):
            self.slider.setRange(0, count)
            self.slider.setValue(count)
            self.slider.setPageStep(max(1, count // 10))
        self._show_place()

    def _show_place(self) -> None:
        shown, count = self.slider.value(), self.slider.maximum()
        text = f"{shown:,} of {count_text(count, 'step')}" if count else "no steps"
        self.place.setText(f"step {shown:,}" if self._is_live and 0 < shown == count else text)
        self.place.setToolTip(f"Steps shown, of {count:,}")


def _icon(name: str) -> QIcon:
    """An icon in the theme's colours, enabled and disabled."""
    theme, icon, svg = current_theme(), QIcon(), (RESOURCES / "icons" / f"{name}.svg").read_text("utf-8")
    for mode, color in ((QIcon.Mode.Normal, theme.text), (QIcon.Mode.Disabled, theme.field_border)):
        pixmap = QPixmap()
        pixmap.loadFromData(svg.replace("currentColor", color).encode(), "SVG")
        pixmap.setDevicePixelRatio(3.0)
        icon.addPixmap(pixmap, mode)
    return icon
