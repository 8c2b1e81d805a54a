"""What is advised: every piece has a button, which changes the settings, or starts the run again."""

from __future__ import annotations

from dataclasses import replace

from app.controller import RunState
from app.run.conclusion import conclusion_of
from app.run.pacing import Pace
from app.run.run_view import RunView
from app.run.speed.speed import TIED, speed_report
from core.analysis.advice import Advice
from core.analysis.diagnosis import Limit, WhatIf, diagnose
from core.analysis.steadiness import REPEAT_WHEN_IDLE
from core.errors import PromptError
from core.settings import LengthPolicy, RunRequest
from tests.fakes_app import make_step, run_of
from tests.test_core_diagnosis import LIMITED, drawn, tree


def test_advice_that_names_a_setting_is_applied_to_the_controls(make_window):
    window = make_window(is_shown=True)
    fields = window.controls.fields
    fields["length_policy"].choose(LengthPolicy.AUTO)
    changes = []
    window.controls.changed.connect(lambda: changes.append(1))
    window.side.setCurrentWidget(window.speed)
    window.speed._show(speed_report(run_of(drawn(0.5, 10, draft_ms=2.0, verify_ms=20.0))))
    line = next(line for line in window.speed.advice if line.text.text().startswith("Set K to "))
    line.button.click()
    assert line.button.text() == "Applied"
    assert not line.button.isEnabled()
    assert f"Set K to {int(fields['num_draft_tokens'].value())} instead of 10" in line.text.text()
    assert fields["length_policy"].member() is LengthPolicy.FIXED
    assert changes
    window.controls.change({"method_options": {"draft-model": {"int8": False}}, "method": "draft-model"})
    assert window.controls.method.values()["int8"] is False


def test_where_no_part_holds_the_speedup_back_none_is_named():
    report = speed_report(run_of(drawn(1.0, 4, draft_ms=0.001, verify_ms=10.0)))
    assert report.limit == ""
    assert not any(gain.is_main for gain in report.gains)


KINDS = {
    **LIMITED,
    "too few": drawn(0.8, 4, count=7),
    "slow": drawn(0.0, 4, draft_ms=1.0, verify_ms=31.0, count=50),
    "good": drawn(0.9, 4, draft_ms=0.1, verify_ms=10.5),
    "trees": [tree(accepted, draft_ms=0.1, verify_ms=30.0) for accepted in (3, 2, 3, 3)] * 10,
    "compute-bound": drawn(0.9, 4, draft_ms=0.1, verify_ms=30.0),
}


def test_every_row_of_what_to_change_has_a_button_that_changes_the_settings_or_runs_again(
    make_window, qtbot, monkeypatch
):
    window = make_window(is_shown=True)
    window.side.setCurrentWidget(window.speed)
    monkeypatch.setattr(RunView, "busy_note", "The machine was busy: something else ran.")
    seen, rows, remarks = set(), "", ""
    for steps in KINDS.values():
        for baseline, config in (
            (True, {}),
            (True, {"num_draft_tokens": "auto"}),
            (False, {"method": "prompt-lookup"}),
        ):
            run = run_of(steps, baseline=baseline)
            run.started.config.update(config)
            report = speed_report(run)
            remarks += report.remarks
            rows += "".join(advice.text for advice in report.advice)
            window.speed._show(report)
            shown = [line for line in window.speed.advice if not line.isHidden()]
            assert [line.text.text() for line in shown] == [advice.text for advice in report.advice]
            for line, advice in zip(shown, report.advice, strict=True):
                assert line.button.isVisible(), advice.text
                seen.add(line.button.text())
                if advice.repeats:
                    continue
                line.button.click()
                popup = window.controls.draft.combo.view()
                if line.button.text() == "Choose…":
                    qtbot.waitUntil(popup.isVisible)
                    window.controls.draft.combo.hidePopup()
                    continue
                now = window.controls.settings("x")
                for name, value in advice.settings.items():
                    assert name == "method_options" or getattr(now, name) == value, advice.text
    assert seen == {"Apply", "Choose…", "Run again"}
    assert "Decode plainly" in rows
    assert "These settings are good" in remarks
    assert "Short blocks, a larger target or a GPU would make that cheaper" in remarks
    assert "With a larger target that matters less" in remarks
    assert "Auto K decoded plainly in 86" in remarks


def test_a_run_on_a_busy_machine_is_repeated_with_one_click_slowed_where_drawing_disturbs_it(
    window, qtbot, monkeypatch
):
    monkeypatch.setattr(RunView, "busy_note", f"The machine was busy: something else ran. {REPEAT_WHEN_IDLE}")
    for ms, pace in ((30.0, Pace.FULL), (10.0, Pace.SLOWED)):
        window.playback.set_pace(Pace.FULL)
        run = run_of([make_step(i, 9 + 3 * i, ms=ms, num_accepted=2) for i in range(40)])
        run.summary = replace(run.summary, measured_speedup=1.4)
        with qtbot.waitSignal(window.live.run_shown):
            window.live.show_kept(run.request, run.past_events(), "busy")
        assert window.conclusion.advice.button.text() == "Run again"
        assert window.conclusion.advice.text.isHidden(), "the sentence above says it"
        window.prompt.set_text("not yet run")
        window.controls.change({"top_k": 7})
        with qtbot.waitSignal(window.live.run_shown):
            window.conclusion.advice.button.click()
            assert window.playback.pace.member() is pace
            assert window.controller.request.prompt == run.request.prompt
            window.live.finish()
        assert window.prompt.text() == run.request.prompt, "the settings are the run's, too"
        assert window.controls.fields["top_k"].value() == 0
        window.prompt.edit.undo()
        assert window.prompt.text() == "not yet run"


def test_after_a_refused_run_no_advice_repeats_the_run_before_until_the_prompt_is_another(
    make_window, session, run_to_end, monkeypatch
):
    window = make_window(is_shown=True)
    run_to_end(window)
    window.side.setCurrentWidget(window.speed)
    monkeypatch.setattr(RunView, "busy_note", "The machine was busy: something else ran.")
    window.speed._show(speed_report(run_of(drawn(0.5, 10, draft_ms=2.0, verify_ms=20.0))))
    again, *others = [line.button for line in window.speed.advice if line.isVisible()]
    assert again.text() == "Run again"
    session.fail_before = PromptError("The prompt is too long.")
    run_to_end(window)
    assert not again.isEnabled()
    assert others
    assert all(button.isEnabled() for button in others), "they change the settings, which may help"
    window.banner.close_button.click()
    assert again.isEnabled()
    run_to_end(window)
    assert not again.isEnabled()
    window.prompt.set_text("Another prompt")
    assert again.isEnabled()


def test_a_run_whose_log_lacks_a_setting_is_not_run_again_with_another_in_its_place(window, qtbot):
    run = run_of([make_step(i, 30 + 3 * i, ms=30.0, num_accepted=2) for i in range(4)])
    with qtbot.waitSignal(window.live.run_shown):
        window.live.show_kept(run.request, run.past_events(), "kept")
    del window.run_view.started.config["seed"]
    window.speed.applied.emit(Advice("Repeat it.", repeats=True))
    assert "lacks seed" in window.banner.sentence()
    assert window.controller.state is RunState.IDLE


def test_a_run_that_began_at_k_0_stays_plain_and_says_so(window):
    assert "stays plain" in window.controls.fields["num_draft_tokens"].spin.toolTip()
    started = []
    window.controller.set_num_draft_tokens = started.append
    for k, expected in ((0, []), (2, [5])):
        window.controller.request = RunRequest("target", "draft", "x", num_draft_tokens=k)
        window.starter._on_draft_length_changed(5)
        assert started == expected


def test_the_sentence_on_top_of_a_slow_run_has_its_advice_applied_with_one_click(window, qtbot):
    run = run_of(drawn(0.5, 10, draft_ms=2.0, verify_ms=20.0))
    run.summary = replace(run.summary, measured_speedup=0.5)
    with qtbot.waitSignal(window.live.run_shown):
        window.live.show_kept(run.request, run.past_events(), "slow")
    line = window.conclusion.advice
    assert line.text.text().startswith("Try this: Use prompt lookup")
    line.button.click()
    assert window.controls.method.method.name == "prompt-lookup"


def test_the_run_page_and_the_speed_page_agree_on_a_short_run():
    run = run_of(drawn(0.8, 4, count=12))
    run.summary = replace(run.summary, measured_speedup=2.4)
    assert conclusion_of(run).headline.startswith("2.40 times as fast")
    assert "drafting pays here" in speed_report(run).headline
    slow = run_of(drawn(0.05, 4, count=12))
    slow.summary = replace(slow.summary, measured_speedup=0.6)
    assert conclusion_of(slow).headline.startswith("Slower than plain decoding")
    assert speed_report(slow).headline.endswith(": slower than plain decoding."), "nothing else was looked at"


def test_of_limits_that_read_the_same_none_is_said_to_cost_most(monkeypatch):
    run = run_of(LIMITED[Limit.DRAFT])
    found = diagnose(run.counts.sums, run.plain_step)
    tied = WhatIf(Limit.DRAFT, 2.144), WhatIf(Limit.ACCEPTANCE, 2.136), WhatIf(Limit.VERIFY, 2.1)
    monkeypatch.setattr("app.run.speed.speed.diagnose", lambda *_: replace(found, speedup=1.5, what_ifs=tied))
    report = speed_report(run)
    assert report.limit == TIED.format(2.14)
    assert [gain.is_main for gain in report.gains] == [False, True, True, False]
