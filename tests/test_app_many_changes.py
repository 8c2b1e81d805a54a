"""A thousand quick changes of the settings while a run goes."""

import random
import threading

import pytest
from PySide6.QtWidgets import QAbstractSpinBox, QCheckBox, QComboBox, QSlider

from app.controller import RunState


@pytest.fixture
def gated(session):
    """Lets the session take one step for each release."""
    session.gate = threading.Semaphore(0)
    return session.gate


def change_something(window, source: random.Random):
    """Change one of the settings at the left, at random."""
    fields = [
        *window.controls.findChildren(QSlider),
        *window.controls.findChildren(QAbstractSpinBox),
        *window.controls.findChildren(QCheckBox),
        *window.controls.findChildren(QComboBox),
    ]
    field = source.choice([field for field in fields if field.isEnabled()])
    if isinstance(field, QSlider):
        field.setValue(source.randint(field.minimum(), field.maximum()))
    elif isinstance(field, QAbstractSpinBox):
        field.stepBy(source.choice([-3, -1, 1, 3]))
    elif isinstance(field, QCheckBox):
        field.click()
    else:
        field.setCurrentIndex(source.randrange(field.count()))


def test_a_thousand_changes_in_the_middle_of_a_run_leave_a_window_that_runs_what_it_shows(
    window, qtbot, session, gated, run_to_end
):
    source = random.Random(0)
    sentences = []
    window.controller.failed.connect(sentences.append)
    asked = window.controls.request(window.prompt.text())
    window.prompt.run_button.click()
    for number in range(1_000):
        change_something(window, source)
        if number % 50 == 0:
            gated.release()
            qtbot.waitUntil(lambda number=number: len(window.run_view.steps) == number // 50 + 1)
    assert window.run_view.request.sampling == asked.sampling  # A run's request is a snapshot.
    assert session.controls[0].sampling.temperature == pytest.approx(window.controls.sampling.temperature.value())
    gated.release(1_000)
    qtbot.waitUntil(lambda: window.controller.state is RunState.IDLE, timeout=10_000)
    assert sentences == []
    window.controls.apply(window._settings.run)
    run_to_end(window)
    assert window.run_view.request.num_draft_tokens == asked.num_draft_tokens
