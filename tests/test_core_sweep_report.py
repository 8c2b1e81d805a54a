"""A sweep as a table, as clean lines and as a report, whole or cut off."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.__main__ import main
from core.experiments.sweep_file import SCHEMA, SweepFile, SweepLog, plan_to_config, read_sweep
from core.experiments.sweep_plan import DrafterChoice, Measurement, PlannedRun, SweepPlan
from core.experiments.sweep_results import SweepResults
from core.export.charts import series_mark
from core.export.files import SWEEP_CSV_FIELDS, export_sweep_csv, export_sweep_jsonl, is_sweep
from core.export.sweep_report import sweep_page
from core.export.sweep_table import to_csv
from core.runlog.log import to_line
from tests.fakes_cli import refused
from tests.fakes_sweep import DRAFT, plan_of, summary_with
from tests.test_core_report import NASTY, Page


def measured(run: PlannedRun, index: int) -> Measurement:
    """10 tokens per second of plain decoding, 5 more with each K; K = 1 on prompt 1 fails in its second repeat."""
    k = run.cell.num_draft_tokens
    moment = f"2026-01-02T03:{index // 60:02}:{index % 60:02}+00:00"
    if k == 1 and run.prompt and run.repeat:
        return Measurement(run, index, 0, moment, 1.0, error="The model returned NaN.")
    summary = summary_with(10.0 + 5.0 * int(k))
    return Measurement(run, index, 0, moment, 1.0, summary, None, f"run-{index}", Path("/logs/r.jsonl"))


def sweep(plan: SweepPlan | None = None, count: int | None = None) -> SweepLog:
    plan = plan or plan_of()
    runs = [measured(run, index) for index, run in enumerate(plan.order())]
    head = {"schema": SCHEMA, "type": "sweep", "id": "s1", "outrider_version": "0.1.0", "started_at": "2026-01-02"}
    return SweepLog(plan, runs[:count], {**head, "config": plan_to_config(plan)})


@pytest.fixture
def path(tmp_path):
    """A sweep's file, written as a sweep writes it."""
    log = sweep()
    file = SweepFile(tmp_path / "sweep.jsonl", log.plan)
    for item in log.measurements:
        file.append(item, {"device_name": "an abacus"})
    file.close()
    return tmp_path / "sweep.jsonl"


@pytest.mark.parametrize("name", ["my_module:Mine", "of-a-package"])
def test_a_sweep_of_a_drafter_that_is_not_there_can_be_exported(tmp_path, name):
    drafter = DrafterChoice(name, options={"least": 3})
    log = sweep(plan_of(drafters=(drafter,)))
    (tmp_path / "sweep.jsonl").write_bytes(b"".join(map(to_line, log.records(tmp_path))))
    for form, kept in (("csv", '""least"": 3'), ("html", "least=3"), ("jsonl", '"least": 3')):
        assert main(["export", str(tmp_path / "sweep.jsonl"), f"--{form}", str(tmp_path / f"out.{form}")]) == 0
        text = (tmp_path / f"out.{form}").read_text("utf-8")
        assert name in text
        assert kept in text
    again = read_sweep(tmp_path / "out.jsonl")
    assert (again.plan.drafters, len(again.measurements), again.problems) == ((drafter,), 12, [])


def test_the_table_has_a_row_a_run_with_the_names_of_a_runs_summary(path, tmp_path):
    export_sweep_csv(tmp_path / "runs.csv", read_sweep(path))
    with (tmp_path / "runs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == SWEEP_CSV_FIELDS
    assert len(rows) == 12
    assert rows[0]["num_draft_tokens"] == "4"
    by_k = {row["num_speculative_tokens"]: row for row in rows}
    assert float(by_k["2"]["measured_speedup"]) == 2.0
    assert by_k["0"]["method"] == "plain"
    assert by_k["0"]["measured_speedup"] == ""
    failed = [row for row in rows if row["error"]]
    assert [(row["num_tokens"], row["error"]) for row in failed] == [("", "The model returned NaN.")]
    assert {"num_accepted_tokens_per_pos", "draft_acceptance_rate"} < set(rows[0])


def test_the_table_tells_runs_apart_that_differ_in_an_option_only(tmp_path):
    choices = [DrafterChoice("draft-model", "D", {"int8": is_int8}) for is_int8 in (False, True)]
    heads = DrafterChoice("medusa", None, {"heads": "/home/me/heads"})
    export_sweep_csv(tmp_path / "runs.csv", sweep(plan_of(drafters=(*choices, heads))))
    with (tmp_path / "runs.csv").open(newline="", encoding="utf-8") as file:
        seen = {(row["method"], row["method_options"]) for row in csv.DictReader(file)}
    assert seen == {
        ("plain", ""),
        ("draft-model", '{"int8": false}'),
        ("draft-model", '{"int8": true}'),
        ("medusa", '{"heads": "heads"}'),
    }


def test_clean_lines_are_read_again_as_the_same_sweep(path, tmp_path):
    before = read_sweep(path)
    path.write_bytes(path.read_bytes()[:-30])
    torn = read_sweep(path)
    assert torn.problems
    export_sweep_jsonl(tmp_path / "clean.jsonl", torn)
    clean = read_sweep(tmp_path / "clean.jsonl")
    assert clean.problems == []
    assert clean.measurements == [
        replace(item, log=item.log and tmp_path / "r.jsonl") for item in before.measurements[:-1]
    ]
    export_sweep_jsonl(path, torn, in_place=True)
    assert read_sweep(path).measurements == before.measurements[:-1]


def test_a_report_says_what_to_do_and_shows_the_grid():
    source = sweep_page(sweep())
    page = Page(source)
    assert page.problems == []
    assert "K = 2 with D leads with 2.00× the speed of plain decoding" in page.text
    maps = [item for item in page.named("table") if item.get("class") == "heat"]
    assert len(maps) == 4
    best = [item for item in page.named("td") if item.get("class") == "number best"]
    # Speedup and speed; every K has the same acceptance, and none of them is the best.
    assert len(best) == 2
    assert page.text.count("Bold marks the highest median in a table, of the cells that the verdicts rank.") == 4
    assert "The model returned NaN." in page.text
    assert "def f" in page.text
    assert len([item for item in page.named("svg") if item.get("role")]) == 1
    # A table that grows with the grid scrolls in its own box, so that no window cuts it.
    pairs = zip(page.elements, page.elements[1:], strict=False)
    boxes = [box for box, (tag, table) in pairs if tag == "table" and table["aria-label"] != "Settings of the sweep"]
    assert boxes == [("div", {"class": "wide"})] * 6
    assert ".wide { overflow-x: auto; }" in source


def sweep_with(speeds: dict[int, float]) -> SweepLog:
    """A sweep with these tokens per second by K, 0 being the baseline's."""
    log = sweep(plan_of(num_draft_tokens=tuple(k for k in speeds if k)))
    log.measurements[:] = [
        replace(item, summary=item.summary and replace(item.summary, tokens_per_second=speeds[k]))
        for item in log.measurements
        if (k := int(item.run.cell.num_draft_tokens)) in speeds
    ]
    return log


def best_of(source: str) -> list[str]:
    """What the heat maps of a report mark as the best."""
    return re.findall(r'number best"[^>]*><b>(.*?)</b>', source)


def test_a_report_calls_no_impossible_speedup_the_best():
    log = sweep_with({0: 10.0, 1: 15.0, 2: 90.0, 4: 18.0})  # 9 × with 2 tokens per forward.
    source = sweep_page(log)
    assert "K = 4 with D leads with 1.80×" in source
    assert "9.00× (left out)</td>" in source
    assert re.findall(r'number best" style="([^"]*)"[^>]*><b>(.*?×)', source) == [
        ("background: color-mix(in srgb, var(--accepted) 55%, transparent)", "1.80×")
    ]
    by_suite = source[source.index("By suite") : source.index("Every cell")]
    assert re.findall(r"K = .*?×", by_suite) == ["K = 4 with D: 1.80×"] * 2
    assert "K = 4: 1.80×" in source
    assert "K = 2: 9.00×" not in source, "nor does the plot show it"


def test_the_only_cell_that_a_verdict_ranks_is_the_best_of_a_report():
    source = sweep_page(sweep_with({0: 10.0, 1: 15.0, 2: 90.0}))
    assert "K = 1 with D leads with 1.50×" in source
    assert best_of(source) == ["1.50×", "15.0"]
    assert best_of(sweep_page(sweep_with({0: 10.0, 1: 15.0}))) == [], "beside no other, none stands out"


def test_a_report_calls_no_cell_the_best_that_has_too_few_runs_for_the_verdict():
    log = sweep_with({0: 10.0, 1: 15.0, 2: 19.0})
    log.measurements[:] = [
        item
        for item in log.measurements
        if item.run.cell.num_draft_tokens != 2 or item.run.prompt == item.run.repeat == 0
    ]
    source = sweep_page(log)
    assert "K = 1 with D leads with 1.50×" in source
    assert best_of(source) == ["1.50×", "15.0"]
    by_suite = source[source.index("By suite") : source.index("Every cell")]
    assert re.findall(r"K = .*?×", by_suite) == ["K = 1 with D: 1.50×"] * 2


def test_a_report_says_once_and_before_its_verdicts_that_the_machine_was_busy():
    log = sweep(plan_of(temperatures=(0.0, 1.0)))
    log.measurements[:] = [replace(item, unsteadiness=0.9) for item in log.measurements]
    before, *after = sweep_page(log).split("The machine was busy in ")
    assert len(after) == 1
    assert "What to do" not in before
    assert after[0].startswith("11 of 11 runs at temperature 0 and 11 of 11 runs"), "the others failed"
    assert "What to do" in after[0]


def test_a_sweep_that_is_not_complete_or_empty_says_so():
    assert "7 of its 12 runs are missing" in Page(sweep_page(sweep(count=5))).text
    page = Page(sweep_page(sweep()))
    assert "1 of the sweep's 12 runs failed" in page.text
    assert "missing" not in page.text
    page = Page(sweep_page(sweep(count=0)))
    assert page.problems == []
    assert "nothing to compare" in page.text
    assert not page.named("svg")


def test_the_table_of_cells_numbers_drafts_of_the_same_name():
    drafters = tuple(DrafterChoice("draft-model", f"/home/{name}/d") for name in "xy")
    log = sweep(plan_of(target="/home/me/target", drafters=drafters))
    rows = list(csv.DictReader(to_csv(SweepResults(log.plan, log.measurements)).splitlines()))
    assert [row["draft"] for row in rows if not row["suite"]] == ["", "d", "d", "d (2)", "d (2)"]
    assert {row["target"] for row in rows} == {"target"}


def test_no_text_of_a_sweep_breaks_out_of_its_place():
    plan = plan_of(target=NASTY, drafters=(DRAFT, type(DRAFT)("draft-model", NASTY)))
    source = sweep_page(sweep(plan))
    page = Page(source)
    assert page.problems == []
    assert "script" not in {name for name, _ in page.elements}
    assert page.text.count(NASTY) >= 4


@pytest.mark.parametrize("flag", ["--csv", "--jsonl", "--html"])
def test_the_command_takes_a_sweeps_file_as_well(path, tmp_path, capsys, flag):
    assert main(["export", str(path), flag, str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").stat().st_size > 0
    assert capsys.readouterr() == ("", "")
    assert "--force" in refused(capsys, "export", path, flag, tmp_path / "out")


def test_damaged_newer_and_other_files_are_sentences(path, tmp_path, capsys):
    whole = path.read_text("utf-8")
    lines = whole.splitlines()
    record = json.loads(lines[1])
    record["summary"] = {"num_tokens": "many"}
    for text, code, words in (
        (whole[:-30], 0, "cut off"),
        ("\n".join([lines[0], "{]", *lines[2:]]) + "\n", 0, "Line 2"),
        ("\n".join([lines[0], json.dumps(record), *lines[2:]]) + "\n", 0, "Line 2"),
        (lines[0].replace("sweep/1", "sweep/2") + "\n", 2, "newer Outrider"),
        (lines[0].replace('"repeats": 2', '"repeats": 0') + "\n", 2, "plan"),
        (lines[0] + "\n", 0, ""),
    ):
        path.write_text(text, encoding="utf-8")
        assert is_sweep(path)
        for flag in ("--html", "--csv"):
            assert main(["export", str(path), flag, str(tmp_path / "out"), "--force"]) == code
            err = capsys.readouterr().err
            assert words in err
            assert err.count("\n") <= 1
    assert not is_sweep(tmp_path / "missing")


def test_reports_and_tables_hold_no_absolute_paths(tmp_path):
    plan = plan_of(target="/home/me/target", drafters=tuple(DrafterChoice("draft-model", f"/home/{n}/d") for n in "xy"))
    log = sweep(plan)
    error = """There is no '/home/me/my d': "/home/o'me/d", '/home/n/e' and /home/n/f don't open, C:\\home\\g does."""
    log.measurements[0] = replace(log.measurements[0], summary=None, error=error)
    log.problems.append("The last line of '/home/me/sweep.jsonl' is cut off.")
    page = sweep_page(log)
    assert "/home/" not in page
    assert "K = 1 with d (2)" in page
    assert """no 'my d': "d", 'e' and f don't open, g does.""" in Page(page).text
    heads = sweep(plan_of(drafters=tuple(DrafterChoice("medusa", None, {"heads": f"/home/{n}/heads"}) for n in "xy")))
    page = sweep_page(heads)
    assert "/home/" not in page
    assert "heads (2)" in page
    export_sweep_csv(tmp_path / "out.csv", log)
    assert "no 'my d'" in (tmp_path / "out.csv").read_text("utf-8")
    assert "/home/" not in (tmp_path / "out.csv").read_text("utf-8")
    # As seen from the new file, the path of a log in another folder tells where the folder is.
    log.measurements[0] = replace(log.measurements[0], log=tmp_path / "logs" / "run.jsonl")
    (tmp_path / "reports").mkdir()
    export_sweep_jsonl(tmp_path / "reports" / "out.jsonl", log)
    text = (tmp_path / "reports" / "out.jsonl").read_text("utf-8")
    assert "/home/" not in text
    assert json.loads(text.splitlines()[1])["log"] == "run.jsonl"
    export_sweep_jsonl(tmp_path / "reports" / ".." / "out.jsonl", log)
    assert json.loads((tmp_path / "out.jsonl").read_bytes().splitlines()[1])["log"] == "logs/run.jsonl"
    again = read_sweep(tmp_path / "reports" / "out.jsonl")
    assert ([choice.draft for choice in again.plan.drafters], again.problems) == (["d", "d (2)"], [])
    assert len(again.measurements) == len(log.measurements)


def test_more_series_than_colours_still_look_different():
    marks = [series_mark("", index) for index in range(36)]
    assert len(set(marks)) == 36
