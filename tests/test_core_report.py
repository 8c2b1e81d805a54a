"""The HTML report: one file that is whole in itself, whatever the run's texts and its log hold."""

from __future__ import annotations

import html
import json
import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from app.theme import DARK, LIGHT
from core.controls import RunControls
from core.export.charts import headroom, nice_ticks, thinned
from core.export.choice import choice_from_log
from core.export.files import export_html
from core.export.run_report import compare_page, run_page
from core.export.templates import FOLDER, escaped, one_line
from core.runlog.log import to_record
from core.runlog.reading import RunLog, read_run_log
from core.settings import RunRequest, SamplingParams
from tests.fakes_app import FakeSession

NASTY = "</script><script>alert('x')</script> & \"quoted\" <img src=x onerror=alert(1)>"
DIFFER = "Where they differ, the measured one counts"
"""What a report with a measured and a predicted speedup says."""
OF = " from the two distributions"


def make_log(tokens=40, prompt="def f():", **changes) -> RunLog:
    """A run of the scripted session, as a log."""
    values = {"baseline": True, "sampling": SamplingParams(0.8), **changes}
    request = RunRequest("tiny-target", "tiny-draft", prompt, max_new_tokens=tokens, **values)
    records = [to_record(event) for event in FakeSession().run(request, RunControls.from_request(request))]
    kinds = {kind: [record for record in records if record and record["type"] == kind] for kind in (
        "run", "step", "baseline_step", "summary",
    )}  # fmt: skip
    return RunLog(
        kinds["run"][0], steps=kinds["step"], baseline_steps=kinds["baseline_step"], summary=kinds["summary"][0]
    )


@pytest.fixture
def log():
    return make_log()


class Page(HTMLParser):
    """What a browser would make of a page: its elements, and its text without the style sheet's."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self.problems: list[str] = []
        self.feed(source)
        self.close()
        self.problems += [f"<{name}> is never closed" for name in self._open]
        self.text = "".join(self._text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in {"meta"}:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if "style" not in self._open:
            self._text.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def test_a_report_shows_pair_settings_environment_figures_text_and_plots(log):
    page = Page(run_page(log))
    assert page.problems == []
    for words in ("tiny-target with tiny-draft", "Measured speedup", "num_draft_tokens", "device_name", "CPU"):
        assert words in page.text
    assert f"{log.summary['measured_speedup']:.2f}×" in page.text
    assert len([item for item in page.named("svg") if item.get("role") == "img"]) == 4
    assert "def f():" + "".join(step["emitted_text"] for step in log.steps) in page.text


def test_the_policy_that_chose_k_is_named_and_a_plain_run_has_no_verdict_about_drafting(log):
    log.run["config"] |= {"num_draft_tokens": "auto", "length_policy": "adaptive"}
    for step in log.steps:
        del step["draft_length"]  # As in older logs.
    assert "K = adaptive" in run_page(log)
    assert "length_policy" not in run_page(log), "K's row names the policy, also where it was changed"
    log.run["config"]["num_draft_tokens"] = 0
    assert "decoded plainly" in run_page(log)


def test_reports_state_a_changed_k_and_temperature_with_all_their_values_and_not_as_the_first_one(log):
    changed, other = make_log(), make_log()
    for run, k, temperature in ((changed, 9, 0.2), (other, 2, 1.5)):
        for step in run.steps[2:]:
            step |= {"draft_length": k, "temperature": temperature}
    page = Page(run_page(changed)).text
    assert "K = 4, then 9 from step 3, temperature 0.8, then 0.2 from step 3" in page
    assert re.search(r"num_draft_tokens\W*4, then 9 from step 3\W", page)
    compared = Page(compare_page([log, changed, other])).text
    assert re.search(r"num_draft_tokens\W*4\W*4, then 9 from step 3\W*4, then 2 from step 3\W", compared)
    assert re.search(r"temperature\W*0\.8\W*0\.8, then 0\.2 from step 3\W*0\.8, then 1\.5 from step 3\W", compared)


def test_a_setting_that_was_changed_many_times_is_cut():
    log = make_log(80)
    for index, step in enumerate(log.steps):
        step["draft_length"] = 1 + index % 8
    assert re.search(r"K = 1, then 2 from step 2, 3 from step 3, .*…, temperature 0\.8", Page(run_page(log)).text)


def test_prompts_that_differ_after_a_long_beginning_are_listed_as_different_where_they_differ(log):
    other = make_log()
    for run, end in ((log, "Write fib."), (other, "Write a poem.")):
        run.run["config"]["prompt"] = "You are given some Python. " * 12 + end
    page = Page(compare_page([log, other])).text
    assert "No setting or machine differs" in Page(compare_page([log, log])).text
    assert re.search(r"prompt\W*…[^…]*Write fib\.\W*…[^…]*Write a poem\.", page)


def test_models_and_files_of_the_same_name_are_numbered_without_their_folders(log):
    other = make_log()
    for run, place in ((log, "/a/mine"), (other, "/b/mine")):
        run.run["config"] |= {"draft": f"{place}/model", "method_options": {"heads": f"{place}/h.bin"}}
    page = Page(compare_page([log, other])).text
    assert re.search(r"draftmodelmodel \(2\)\s+method_optionsheads = h\.binheads = h\.bin \(2\)", page)
    assert "mine" not in page


def test_machines_and_versions_that_differ_are_listed(log):
    other = make_log()
    other.run |= {"environment": log.run["environment"] | {"device_name": "H100"}, "outrider_version": "0.0.1"}
    assert re.search(r"outrider0\.1\.0\S*0\.0\.1\s+device_nameCPUH100", Page(compare_page([log, other])).text)


def test_branches_that_differ_only_in_what_was_forced_are_listed_with_it(log):
    other = make_log()
    for run, forced in ((log, " cat"), (other, " dog")):
        run.run["config"] |= {"continuation_text": "The", "forced_text": forced}
    page = Page(compare_page([log, other])).text
    assert re.search(r"begins_with\W*The cat\W*The dog", page)
    assert "def f():The cat" in page


def test_a_report_of_few_steps_has_no_verdict_as_in_the_window_nor_has_a_configuration():
    few, enough = (Page(run_page(make_log(tokens))).text for tokens in (12, 80))
    assert "Too few steps to tell whether speculation pays here" in few
    assert "Too few steps" not in enough
    for verdict in ("Speculation paid", "Don’t speculate"):
        assert verdict not in few
    oldest = make_log(80)
    oldest.baseline_steps.clear()
    assert "Speculation paid" in run_page(oldest)
    of_few, of_enough, of_oldest = (choice_from_log(log).verdict for log in (make_log(12), make_log(80), oldest))
    assert of_few.startswith("Too few steps to tell whether speculation pays here.")
    assert (of_enough, of_oldest) == ("", "")


def test_a_report_holds_no_absolute_path_of_a_model(log):
    log.run["config"] |= {"target": "/home/me/models/big one", "draft": "C:\\Users\\me\\small"}
    log.summary["error"] = "The prompt is too long for /home/me/models/big; http://host:1/v1/models answers with 404."
    page = run_page(log)
    assert "big one with small" in page
    assert "too long for big; http://host:1/v1/models answers" in page
    assert not any(place in page for place in ("/home/me", "Users"))


def test_the_beginning_of_a_stop_text_is_not_in_the_text_though_its_tokens_are_in_the_log(log):
    whole, (*before, last) = log.summary["text"], log.steps[-1]["emitted_texts"]
    log.steps[-1]["emitted_texts"] = [*before, f"{last}EN"]
    for reason, text in (("stop", whole[:-3]), ("length", f"{whole}EN")):
        log.summary |= {"finish_reason": reason, "text": text}
        spans = re.findall(r'<span class="[a-z]+" title="[^"]*">([^<]*)</span>', run_page(log))
        assert html.unescape("".join(spans)) == f"def f():{text}"


def test_a_lossy_run_says_so(log):
    assert "Lossy" not in run_page(log)
    log.run["config"]["verification"] = "typical"
    assert "Lossy" in run_page(log)


def test_nothing_is_fetched_and_nothing_is_run():
    page = Page(run_page(make_log(prompt=NASTY)))
    names = {name for name, _ in page.elements}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "base", "form", "image", "use", "a"}
    for _, attributes in page.elements:
        assert not {name for name in attributes if name.startswith("on") or name in {"src", "href", "xlink:href"}}
        assert "url(" not in str(attributes.get("style", ""))
    policy = next(item for item in page.named("meta") if item.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "hostile", [NASTY, "--><!--", "]]>", "&lt;b&gt;", "</title></style></div>", "\x00\x1b[31m\x7f\x85"]
)
def test_any_text_is_shown_as_text(hostile):
    log = make_log(prompt=hostile)
    log.run["config"] |= {"target": hostile, "draft": hostile}
    log.steps[0] |= {"emitted_text": hostile, "emitted_texts": [hostile, *log.steps[0]["emitted_texts"][1:]]}
    log.steps[0]["drafted_texts"] = [hostile for _ in log.steps[0]["drafted_texts"]]
    log.summary["error"] = hostile
    log.run["environment"]["device_name"] = hostile
    page = Page(run_page(log))
    assert page.problems == []
    assert "script" not in {name for name, _ in page.elements}
    seen = hostile.replace("\x00", "␀").replace("\x1b", "␛").replace("\x7f", "␡").replace("\x85", "�")
    assert page.text.count(seen) >= 4


def test_control_characters_are_visible_and_a_text_that_runs_from_the_right_does_not_turn_the_page():
    assert escaped("a\x00b\x07c\nd\te") == "a␀b␇c\nd\te"
    assert escaped("\u202eevil\u2066") == "⟨U+202E⟩evil⟨U+2066⟩"
    assert escaped("\ud800x") == "\ufffdx"
    assert one_line('a"b\nc') == "a&#34;b↵c"
    assert escaped("שלום") == "שלום"
    source = run_page(make_log(prompt="مرحبا"))
    assert '<div class="text" dir="auto"' in source
    assert "<bdi>" in source


def test_each_kind_of_token_has_a_line_style_beside_its_colour_and_tells_p_q_and_u():
    source = run_page(make_log())
    for style in ("underline solid", "underline wavy", "underline dotted"):
        assert style in source
    tokens = [item for item in Page(source).named("span") if "title" in item]
    accepted, resampled = ([item["title"] for item in tokens if item["class"] == kind] for kind in "ar")
    assert accepted
    assert all("p 0." in tip and "q 0." in tip and "u 0." in tip for tip in accepted)
    assert resampled
    assert all("in place of" in tip for tip in resampled)
    assert "@media print" in source


def test_a_token_of_a_plain_step_is_not_shown_as_a_bonus(log):
    log.steps[0] |= {"num_draft_tokens": 0, "num_accepted": 0, "drafted": [], "drafted_texts": [], "draft_probs": []}
    log.steps[0] |= {"emitted": [1], "emitted_kinds": ["bonus"], "emitted_texts": ["alone"], "emitted_text": "alone"}
    page = run_page(log)
    assert 'class="n" title="plain, step 1' in page.partition(">alone<")[0][-80:]


def test_the_colours_are_the_windows_in_both_themes():
    light, dark, *_ = (FOLDER / "report.css").read_text("utf-8").split(":root")[1:]
    for ours, theirs in ((light, LIGHT), (dark, DARK)):
        colours = dict(re.findall(r"--(\w+): (#\w+);", ours))
        assert len(colours) == 21
        assert {name: getattr(theirs, name) for name in colours} == colours
    assert "prefers-color-scheme: dark" in run_page(make_log())


def pictures_of(source) -> list[str]:
    """The plots of a page, as XML."""
    _, *parts = source.split('<svg viewBox="0 0 760')
    return ['<svg viewBox="0 0 760' + part.partition("</svg>")[0] + "</svg>" for part in parts]


def test_a_long_run_gives_a_report_of_a_sane_size():
    source = run_page(make_log(tokens=5_000, baseline=True))
    assert len(source) < 1_700_000
    assert sum(map(len, pictures_of(source))) < 300_000


def test_every_plot_is_sound_xml_with_a_title_and_units():
    parts = pictures_of(run_page(make_log()))
    pictures = [ElementTree.fromstring(part) for part in parts]
    assert len(pictures) == 4
    said = [" ".join(text.text or "" for text in picture.iter("text")) for picture in pictures]
    for words, units in zip(said, ("accepted, %", "ms per token", "time, s", "position in the draft"), strict=True):
        assert units in words
    assert all(picture.find("title").text and picture.find("desc").text for picture in pictures)
    assert "nan" not in "".join(parts)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"coupling": "rejection", "verification": "token"}, f"predicted{OF}"),
        ({"coupling": "rejection", "verification": "block"}, f"predicted{OF}"),
        ({"coupling": "gumbel", "verification": "token"}, f"predicted for rejection sampling{OF}"),
        ({"coupling": "rejection", "verification": "typical"}, ""),
    ],
)
def test_the_predicted_acceptance_is_named_by_what_it_holds_for_and_only_where_there_is_one(log, config, key):
    log.run["config"] |= config
    for step in log.steps if config["verification"] == "typical" else ():
        step |= {"acceptance_probs": None, "expected_acceptance": None}
    keys = re.findall(r'<span class="key">.*?</svg>(.*?)</span>', run_page(log).partition("Latency")[0])
    assert [name for name in keys if "predicted" in name] == [key] * bool(key)


# --- Logs that lack something -------------------------------------------------------------------------------------


def test_a_log_without_steps_gives_a_report_that_says_so(log):
    log.steps.clear()
    log.baseline_steps.clear()
    log.summary = None
    page = Page(run_page(log))
    assert page.problems == []
    assert "holds no step" in page.text
    assert not [item for item in page.named("svg") if item.get("role")]


def test_a_log_that_was_cut_off_gives_a_report_of_what_there_is(tmp_path):
    path = tmp_path / "torn.jsonl"
    log = make_log()
    lines = [json.dumps(record) for record in log.records()]
    path.write_text("\n".join(lines[:6]) + "\n" + lines[6][:40], encoding="utf-8")
    page = Page(run_page(read_run_log(path)))
    assert "is cut off and was left out" in page.text
    assert "The baseline did not run" in page.text
    assert "cut off" in page.text
    assert len([item for item in page.named("svg") if item.get("role")]) == 4


def test_invalid_values_are_left_out_and_the_rest_is_drawn(log, tmp_path):
    for record in log.steps[::2]:
        record |= {"draft_ms": math.nan, "total_ms": math.inf, "target_probs": None, "uniforms": [math.nan] * 4}
    log.steps[1]["emitted_kinds"] = ["nonsense"]
    log.summary |= {"tokens_per_second": math.nan, "measured_speedup": 10**400, "num_drafts": "many"}
    path = tmp_path / "nan.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in log.records()), encoding="utf-8")
    page = Page(run_page(read_run_log(path)))
    assert page.problems == []
    assert "1 of the log's" in page.text
    assert "are damaged and were left out" in page.text
    assert not any(word in page.text for word in ("nan", "NaN", "inf "))


def test_a_mean_beyond_the_largest_number_is_unknown():
    log = make_log(baseline=False)
    for record in log.steps:
        record["total_ms"] = 1e308
    page = Page(run_page(log))
    assert "Mean time per step spent drafting." in page.text
    assert "Mean time of a step." not in page.text
    assert "inf" not in page.text


@pytest.mark.parametrize("config", [{}, {"target": 7, "draft": [], "prompt": None}, {"method_options": 3, "stop": "x"}])
def test_settings_of_another_kind_do_not_stop_a_report(log, config):
    log.run = {"config": config, "environment": ["odd"], "id": 5}
    assert Page(run_page(log)).problems == []


def test_a_report_of_several_runs_shows_what_differs_and_the_text_of_each(tmp_path):
    export_html(tmp_path / "both.html", make_log(), make_log(num_draft_tokens=7, prompt=NASTY, baseline=False))
    page = Page((tmp_path / "both.html").read_text("utf-8"))
    assert page.problems == []
    for words in ("2 runs compared", "num_draft_tokens", NASTY, DIFFER):
        assert words in page.text
    assert len(page.named("details")) == 2
    assert DIFFER in Page(run_page(make_log())).text
    assert DIFFER not in Page(run_page(make_log(baseline=False))).text


def test_a_baseline_that_was_stopped_is_not_said_not_to_have_run(log):
    log.summary |= dict.fromkeys(("baseline_tokens_per_second", "measured_speedup", "baseline_text"))
    text = Page(run_page(log)).text
    assert "The baseline did not finish" in text
    assert "The baseline did not run" not in text


def test_a_log_that_kept_no_plain_step_still_shows_the_baselines_speed(log):
    log.baseline_steps.clear()
    source = run_page(log)
    assert "The baseline did not run" not in source
    assert source.count(">target alone<") == 1
    assert "target alone, per token" in source


# --- Plots' own numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 53, [0, 10, 20, 30, 40, 50]), (0.4, 4.6, [1, 2, 3, 4]), (3, 3, [3])],
)
def test_ticks_are_round_numbers_and_those_of_counts_are_whole(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)
    assert nice_ticks(0, 2, is_whole=True) == [0, 1, 2]


def test_a_long_series_is_thinned_and_keeps_its_end():
    kept = thinned([(float(place), 0.0) for place in range(1001)], limit=100)
    assert len(kept) <= 101
    assert kept[-1] == (1000.0, 0.0)
    assert headroom([math.nan]) == 1.0
