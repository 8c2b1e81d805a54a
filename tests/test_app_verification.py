"""The rule of verification in the window: chosen, refused where it can't act, and lossy text named wherever it is."""

from __future__ import annotations

import csv
from copy import deepcopy
from dataclasses import replace

import pytest
from PySide6.QtWidgets import QComboBox

from app.run.race.race import SAME_DISTRIBUTION, comparison_text
from app.settings import RunSettings, parse_settings
from app.tools.runs.comparison import compare
from app.widgets.rows import SUBTITLE_ROLE
from core.experiments.sweep_results import SweepResults, verdicts
from core.export.choice import choice_from_log
from core.export.configurations import PROJECTS, configuration
from core.export.files import export_run
from core.export.run_report import compare_page, run_page
from core.export.sweep_table import to_csv
from core.runlog.reading import read_run_log
from core.runlog.search import matches
from core.runlog.store import RunStore
from core.settings import LOSSY, Coupling, VerificationRule, is_lossy
from tests.fakes_app import make_step, run_of
from tests.fakes_runs import RunColumn, keep_run, shown_whole, until
from tests.fakes_sweep import choose_small

BLOCK, TYPICAL = VerificationRule.BLOCK, VerificationRule.TYPICAL


def choose(window, rule):
    window.findChild(QComboBox, "verificationCombo").setCurrentIndex(list(VerificationRule).index(rule))


def is_marked(window):
    return window.findChild(QComboBox, "verificationCombo").property("invalid")


def test_the_choice_reaches_the_request_and_is_remembered(window):
    for rule in VerificationRule:
        choose(window, rule)
        assert window.controls.request("p").verification is rule
        kept = window.controls.settings("p")
        assert parse_settings({"run": {"verification": str(rule)}}).run.verification is kept.verification is rule
        window.controls.apply(RunSettings())
        window.controls.apply(replace(RunSettings(), verification=rule))
        assert window.controls.request("p").verification is rule
    assert parse_settings({"run": {"verification": "none"}}).run.verification is VerificationRule.TOKEN


def test_a_rule_that_can_not_act_says_so_at_once_and_no_run_starts(window):
    choose(window, BLOCK)
    assert not is_marked(window)
    window.controls.method.choose("draft-tree")
    assert is_marked(window)
    assert "for chains" in window.prompt.note.text()
    assert not window.prompt.run_button.isEnabled()
    window.controls.method.choose("draft-model")
    assert not is_marked(window)
    assert window.prompt.run_button.isEnabled()
    window.controls.fields["coupling"].choose(Coupling.GUMBEL)
    assert is_marked(window)
    assert "rejection coupling" in window.prompt.note.text()
    choose(window, VerificationRule.TOKEN)
    assert not is_marked(window)
    window.controls.fields["coupling"].choose(Coupling.REJECTION)
    window.controls.method.choose("medusa")
    choose(window, TYPICAL)
    assert not is_marked(window)


def test_a_lossy_run_is_named_on_screen_and_an_exact_one_after_it_is_not(window, run_to_end):
    label = window.status.lossy
    for rule in (TYPICAL, BLOCK, TYPICAL):
        choose(window, rule)
        run_to_end(window)
        assert label.isHidden() is (rule is not TYPICAL)
        assert ("-lossy-" in window.run_view.file_prefix()) is (rule is TYPICAL)
    assert (label.text(), label.accessibleName()) == ("Lossy", LOSSY)


def test_a_kept_lossy_run_is_named_when_opened_listed_and_searched(open_runs, folder, qtbot):
    keep_run(folder, 0, verification=TYPICAL)
    keep_run(folder, 1, verification=BLOCK)
    window, panel = open_runs(2)
    exact, lossy = panel.table.items()
    subtitles = [panel.table.model().index(row, RunColumn.NAME).data(SUBTITLE_ROLE) for row in (0, 1)]
    assert subtitles[0].endswith("block verification")
    assert subtitles[1].startswith("lossy")
    assert [matches(run, "lossy") for run in (exact, lossy)] == [False, True]
    assert matches(exact, "verification=block")
    for run, is_hidden in ((lossy, False), (exact, True)):
        window.runs.open_run(run)
        until(qtbot, lambda run=run: window.live.kept_title == run.title and shown_whole(window))
        assert window.status.lossy.isHidden() is is_hidden
        assert window.run_view.typical == (None if is_hidden else (0.09, 0.3))


def test_compare_and_every_export_of_a_lossy_run_name_it(folder, tmp_path):
    keep_run(folder, 0, verification=TYPICAL)
    keep_run(folder, 1)
    store = RunStore(folder)
    runs = sorted(store.runs(), key=lambda run: run.id)
    logs = [store.load(run.id) for run in runs]
    rows = {row.title: row.texts for row in compare([*zip(runs, logs, strict=True)]).differing}
    assert rows["Verification"] == ("typical", "token")
    assert rows["Lossy"] == ("yes", "–")
    assert ["Lossy: typical acceptance" in run_page(log) for log in logs] == [True, False]
    assert "lossy" in compare_page(logs)
    older = deepcopy(logs[1])
    older.run["config"].pop("verification", None)
    pairs = zip(runs[1:] * 2, (logs[1], older), strict=True)
    assert compare([*pairs]).differing == (), "older logs always used token"
    assert "No setting or machine differs" in compare_page([logs[1], older])
    export_run(tmp_path / "run.csv", logs[0])
    with (tmp_path / "run.csv").open(newline="", encoding="utf-8") as file:
        assert {row["verification"] for row in csv.DictReader(file)} == {"typical (lossy)"}
    export_run(tmp_path / "run.jsonl", logs[0])
    config = read_run_log(tmp_path / "run.jsonl").run["config"]
    assert (config["verification"], config["lossy"]) == ("typical", True)
    for project in PROJECTS.values():
        text = " ".join(configuration(choice_from_log(logs[0]), project).text.replace("\n# ", " ").split())
        assert LOSSY in text
        assert LOSSY not in configuration(choice_from_log(logs[1]), project).text


@pytest.mark.parametrize("rule", VerificationRule)
def test_a_race_says_that_both_follow_the_target_only_if_they_do(rule):
    run = run_of([make_step(index, 4 * index) for index in range(40)])
    run.request = replace(run.request, verification=rule)
    assert comparison_text(run) == (LOSSY if rule is TYPICAL else SAME_DISTRIBUTION)


@pytest.mark.parametrize("k", [0, 4, None])
def test_plain_decoding_is_not_lossy_whatever_the_rule(k):
    request = replace(run_of([]).request, verification=TYPICAL, num_draft_tokens=k)
    config = {"verification": "typical", "num_draft_tokens": "auto" if k is None else k}
    assert request.is_lossy is is_lossy(config) is (k != 0)


def test_a_sweep_takes_the_rule_of_the_window_and_names_what_is_lossy(window):
    choose(window, TYPICAL)
    plan = choose_small(window).form.plan()
    assert (plan.verification, plan.is_lossy) == (TYPICAL, True)
    results = SweepResults(plan)
    assert all(LOSSY in verdict.sentence for verdict in verdicts(results))
    assert "typical (lossy)" in to_csv(results)
    away = SweepResults(replace(plan, target="/home/somebody/models/target"))
    assert "somebody" not in to_csv(away)
    assert "target" in to_csv(away)
