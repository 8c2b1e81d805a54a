"""What the window remembers, and what it does with a file that it can't trust."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QDialog, QSplitter, QWidget

from app.__main__ import build_parser
from app.cli import check, export, probe, run, sweep
from app.main_window import MainWindow
from app.settings import (
    MAX_OPENED_MODELS,
    PAGES,
    SCHEMA,
    RunSettings,
    SettingsStore,
    WindowSettings,
    config_file,
    parse_settings,
    remember_model,
)
from app.setup.model_picker import ModelRole
from app.theme import ThemeMode
from app.widgets.fields import column
from app.window_layout import open_at, splitter
from core.runlog.replay import request_from_config
from core.settings import Coupling, Device, DType, LengthPolicy, SamplingParams
from tests.fakes_app import drag_columns

UNUSUAL = WindowSettings(
    theme=ThemeMode.DARK,
    text_scale=1.25,
    introduction_seen=True,
    is_advanced_open=True,
    side_page="Speed",
    pages_apart=("Inspector",),
    show_ghosts=True,
    geometry="AAAA",
    splitters={"mainSplitter": "BBBB"},
    opened_models=("/models/a", "/models/b.gguf"),
    run=RunSettings(
        target="a",
        draft="b",
        method="prompt-lookup",
        method_options={"prompt-lookup": {"max_ngram": 5, "min_ngram": 2}},
        num_draft_tokens=9,
        length_policy=LengthPolicy.ADAPTIVE,
        temperature=1.25,
        top_k=7,
        top_p=0.5,
        min_p=0.1,
        seed=2**63 - 1,
        max_new_tokens=33,
        coupling=Coupling.GUMBEL,
        chat=True,
        system="Be brief.",
        device=Device.CPU,
        dtype=DType.BFLOAT16,
        baseline=False,
        prompt="snö\n\t☃",
    ),
)


def test_settings_come_back_as_they_were_saved(tmp_path):
    store = SettingsStore(tmp_path / "deep" / "settings.json")
    assert store.save(UNUSUAL) is None
    assert store.load() == UNUSUAL


def test_a_prompt_of_many_megabytes_costs_no_settings(tmp_path):
    store = SettingsStore(tmp_path / "settings.json")
    settings = replace(UNUSUAL, run=replace(UNUSUAL.run, prompt="雪," * 8_100_000 + "\ud800"))
    for _ in range(2):
        assert store.save(settings) is None
    assert SettingsStore(store.path).load() == settings
    assert not list(tmp_path.glob("*unreadable*"))


def test_values_of_the_wrong_kind_give_the_defaults():
    data = {"version": SCHEMA, "run": 3, "splitters": [], "theme": {}, "opened_models": "x", "geometry": 5}
    assert parse_settings(data) == WindowSettings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("temperature", value) for value in (float("nan"), "1", 10**400, -1, True)),
        *(("num_draft_tokens", value) for value in (-1, 99, 2.5)),
        *(("top_p", value) for value in (0, float("inf"))),
        *(("seed", value) for value in (2**63, -1)),
        *(("method", value) for value in ("magic", [])),
        *(("min_p", -0.1), ("top_k", -1), ("max_new_tokens", 0), ("device", "tpu"), ("dtype", None)),
        *(("coupling", "magic"), ("length_policy", "sometimes"), ("chat", 7), ("target", ""), ("prompt", None)),
        ("baseline", 1),
    ],
)
def test_one_bad_value_falls_back_by_itself(key, value):
    good = {"version": SCHEMA, "run": {"max_new_tokens": 77, "min_p": 0.25}}
    good["run"][key] = value
    run = parse_settings(json.loads(json.dumps(good))).run
    assert getattr(run, key) == getattr(RunSettings(), key)
    if key != "max_new_tokens":
        assert run.max_new_tokens == 77


@pytest.mark.parametrize("saved", [True, False])
def test_older_settings_with_yes_or_no_are_still_read(saved):
    run = parse_settings({"version": SCHEMA, "run": {"auto_draft_tokens": saved}}).run
    assert run.length_policy is (LengthPolicy.AUTO if saved else LengthPolicy.FIXED)


def test_a_file_that_can_not_be_written_is_a_sentence(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    sentence = SettingsStore(blocker / "settings.json").save(UNUSUAL)
    assert sentence.startswith("The settings could not be saved")


def test_the_latest_model_is_remembered_first_and_the_oldest_forgotten():
    settings = WindowSettings()
    for number in range(MAX_OPENED_MODELS + 3):
        settings = remember_model(settings, f"m{number}")
    settings = remember_model(settings, "m10")
    assert settings.opened_models[0] == "m10"
    assert len(settings.opened_models) == len(set(settings.opened_models)) == MAX_OPENED_MODELS
    assert "m0" not in settings.opened_models


def test_the_window_comes_back_as_it_was_left(make_window):
    window = make_window()
    window.controls.models.choose(ModelRole.TARGET, "tiny-draft")
    window.controls.fields["temperature"].set_value(1.25)
    window.controls.fields["baseline"].setChecked(False)
    window.controls.fields["length_policy"].choose(LengthPolicy.FIXED)
    window.controls.fields["num_draft_tokens"].set_value(11)
    window.controls.fields["seed"].setText("1234")
    window.controls.fields["dtype"].choose(DType.FLOAT32)
    window.controls.method.combo.setCurrentIndex(1)
    window.prompt.edit.setPlainText("a prompt\nof mine")
    window.menus.theme_actions[ThemeMode.DARK].trigger()
    window.transcript.ghosts_button.click()
    window.controls.advanced.button.click()
    window.text_splitter.setSizes([190, 282])
    window.side.setCurrentWidget(window.speed)
    window.resize(1040, 700)
    sizes = window.text_splitter.sizes()
    window.close()
    again = make_window()
    request = again.controls.request(again.prompt.text())
    assert (request.num_draft_tokens, request.seed, request.dtype) == (11, 1234, DType.FLOAT32)
    assert again.controls.target.ref == "tiny-draft"
    assert (request.sampling.temperature, request.baseline) == (1.25, False)
    assert (request.method, request.prompt) == ("prompt-lookup", "a prompt\nof mine")
    assert again.menus.theme_actions[ThemeMode.DARK].isChecked()
    assert again.menus.show_ghosts.isChecked()
    assert again.controls.advanced.button.isChecked()
    assert again.transcript.ghosts_button.isChecked()
    assert again.text_splitter.sizes() == sizes
    assert again.side.currentWidget() is again.speed
    assert again.height() == 700


def test_columns_keep_the_widths_that_they_were_given(make_window, qtbot):
    window = make_window()
    window.resize(1280, 800)
    window.show()
    assert window.main_splitter.sizes() == [296, 552, 384]
    drag_columns(window, [380, 480, 372])
    sizes = window.main_splitter.sizes()
    for width in (1920, 1100, 1900, 1280):
        window.resize(width, 800)
    assert window.main_splitter.sizes() == sizes
    window.close()
    again = make_window(is_shown=True)
    again.resize(1280, 800)
    assert again.main_splitter.sizes() == sizes


def test_each_page_can_have_a_window_of_its_own_which_is_remembered_until_it_is_closed(make_window, qtbot):
    window = make_window(is_shown=True)
    window.resize(1280, 800)
    drag_columns(window, [310, 500, 422])
    sizes = window.main_splitter.sizes()
    window.side.setCurrentWidget(window.inspector)
    window.menus.apart.trigger()
    own = window.columns.windows[window.inspector]
    assert window.inspector.window() is own
    assert own.isVisible()
    assert window.inspector.isVisible()
    assert window.speed.isVisible(), "beside it"
    assert [window.side.tabText(index) for index in range(window.side.count())] == ["Run", "Speed"]
    own.resize(600, 650)
    QTest.keyClick(own, Qt.Key.Key_3, Qt.KeyboardModifier.ControlModifier)
    assert window.side.currentWidget() is window.speed, "the menus' keys are heard there, too"
    window.close()
    assert not own.isVisible()
    again = make_window(is_shown=True)
    again.resize(1280, 800)
    own = again.columns.windows[again.inspector]
    assert own.isVisible()
    assert own.size().toTuple() == (600, 650)
    own.close()
    assert again.inspector.window() is again
    assert [again.side.tabText(index) for index in range(again.side.count())] == ["Run", "Inspector", "Speed"]
    assert again.side.currentWidget() is again.inspector
    assert again.main_splitter.sizes() == sizes
    again.close()
    assert SettingsStore().load().pages_apart == ()


def test_without_pages_the_text_has_their_room_and_the_last_one_brings_their_column_back(make_window):
    window = make_window(is_shown=True)
    window.resize(1280, 800)
    sizes = window.main_splitter.sizes()
    window.columns.take_out_all(PAGES)
    assert window.main_splitter.count() == 2
    assert window.side.isHidden()
    window.resize(800, 700)
    assert window.controls.isVisible(), "there is no other page that it could be one of"
    assert not window.columns.is_narrow
    window.columns.windows[window.speed].close()
    assert [window.side.tabText(index) for index in range(window.side.count())] == ["Settings", "Speed"]
    assert window.speed.isVisible()
    window.columns.windows[window.measurements].close()
    window.columns.windows[window.inspector].close()
    assert [window.side.tabText(index) for index in range(window.side.count())] == ["Settings", *PAGES]
    window.resize(1280, 800)
    assert window.main_splitter.sizes() == sizes


def test_pages_that_an_older_version_kept_in_one_window_have_their_own():
    assert parse_settings({"version": SCHEMA, "pages_apart": True}).pages_apart == PAGES
    for kept in (False, None, "Run", ["Gone", 3]):
        assert parse_settings({"version": SCHEMA, "pages_apart": kept}).pages_apart == ()


def test_the_inspectors_own_window_has_its_evidence_while_another_page_is_chosen(make_window):
    window = make_window(is_shown=True)
    window.side.setCurrentWidget(window.inspector)
    window.menus.apart.trigger()
    window.menus.pages[0].trigger()
    assert window.side.currentWidget() is window.measurements
    assert window.controller._controls.is_inspected
    window.close()
    again = make_window(is_shown=True)
    assert again.controller._controls.is_inspected
    again.columns.windows[again.inspector].close()
    again.menus.pages[0].trigger()
    assert not again.controller._controls.is_inspected


@pytest.mark.parametrize("scale", ["large", None, 0, 40, float("nan"), True])
def test_an_invalid_text_size_falls_back(scale):
    assert parse_settings({"version": SCHEMA, "text_scale": scale}).text_scale == 1.0


def test_an_unusable_seed_is_not_saved_over_the_good_one(window, tmp_path):
    window.controls.fields["seed"].setText("nonsense")
    window.close()
    assert SettingsStore(tmp_path / "settings.json").load().run.seed == 0


def test_the_window_opens_over_a_file_that_makes_no_sense(make_window, tmp_path):
    run = {"method_options": {"prompt-lookup": {"max_ngram": 10**400}}, "min_p": 10**400}
    data = {"version": SCHEMA, "geometry": "\u2603", "splitters": {"a": "!"}, "side_page": "Gone", "run": run}
    (tmp_path / "settings.json").write_text(json.dumps(data))
    window = make_window()
    assert window.prompt.run_button.isEnabled()
    assert window.side.title() == "Run"
    assert window.controls.settings("x").min_p == 0.0


def test_the_options_of_a_method_that_is_not_installed_now_outlive_a_change_and_the_window(make_window, tmp_path):
    options = {"gone": {"width": 7, "name": "a"}, "prompt-lookup": {"max_ngram": 5}}
    (tmp_path / "settings.json").write_text(json.dumps({"version": SCHEMA, "run": {"method_options": options}}))
    window = make_window()
    window.controls.change({"temperature": 0.3, "method_options": {"prompt-lookup": {"min_ngram": 2}}})
    window.close()
    saved = SettingsStore(tmp_path / "settings.json").load().run
    assert saved.temperature == 0.3
    assert saved.method_options["gone"] == options["gone"]
    assert saved.method_options["prompt-lookup"] == {"max_ngram": 5, "min_ngram": 2}


def test_a_settings_file_with_a_byte_order_mark_is_read_whole(tmp_path):
    store = SettingsStore(tmp_path / "settings.json")
    store.path.write_text(json.dumps({"version": SCHEMA, "theme": "dark"}), "utf-8-sig")
    assert (store.load().theme, store.problem) == (ThemeMode.DARK, "")


def test_undo_right_after_the_start_leaves_the_saved_prompt_and_typing_continues_it(window, qtbot):
    saved = window.prompt.text()
    window.prompt.edit.undo()
    assert window.prompt.text() == saved != ""
    qtbot.keyClicks(window.prompt.edit, "x")
    assert window.prompt.text() == f"{saved}x"


def test_the_window_builds_without_arguments_and_without_a_model(sound_binding, qtbot):
    window = MainWindow()
    qtbot.addWidget(window)
    window.close()
    qtbot.waitUntil(lambda: window.controller.is_closed)
    assert config_file().exists()


@pytest.fixture
def opened(qtbot, tmp_path, monkeypatch):
    """Opens a tool's window anew."""
    monkeypatch.setattr("app.settings.config_file", lambda: tmp_path / "settings.json")

    def build():
        dialog = QDialog()
        qtbot.addWidget(dialog)
        dialog.setObjectName("someWindow")
        dialog.setLayout(column(splitter(Qt.Orientation.Horizontal, "someParts", (QWidget(), 1), (QWidget(), 1))))
        open_at(dialog, 300, 200)
        dialog.show()
        return dialog

    return build


def test_a_tools_window_opens_as_it_was_closed_but_never_beyond_the_screen(opened, tmp_path):
    first = opened()
    assert (first.width(), first.height()) == (300, 200)
    first.setGeometry(60, 50, 420, 310)
    first.findChild(QSplitter).setSizes([100, 280])
    sizes = first.findChild(QSplitter).sizes()
    first.close()
    again = opened()
    assert (again.x(), again.y(), again.width(), again.height()) == (first.x(), first.y(), 420, 310)
    assert again.findChild(QSplitter).sizes() == sizes
    again.setGeometry(9_000, 9_000, 5_000, 4_000)
    again.close()
    last = opened()
    assert last.screen().availableGeometry().contains(last.geometry())


def test_a_kept_layout_that_makes_no_sense_is_ignored(opened, tmp_path):
    (tmp_path / "windows.ini").write_text("[someWindow]\ngeometry=@ByteArray(no)\nsomeParts=7\n[[")
    assert (opened().width(), opened().height()) == (300, 200)


def test_commands_and_the_window_begin_with_the_same_temperature_and_a_log_without_one_means_1(make_window):
    def parsed(*arguments):
        return build_parser(arguments[0]).parse_args(arguments)

    window = make_window()
    window.menus.sweep.trigger()
    usual = window.controls.settings("Hi").temperature
    assert usual == 0.7
    for sampling in (
        window.controls.request("Hi").sampling,
        run.build_request(parsed("run", "Hi")).sampling,
        check.build_request(parsed("check")).run.sampling,
        probe.build_request(parsed("probe", "--draft", "D")).sampling,
        export._choice(parsed("export", "--config", "vllm"), None).request.sampling,
    ):
        assert sampling == SamplingParams(usual)
    for plan in (window.sweep.form.plan(), sweep.build_plan(parsed("sweep", "--out", "x"))):
        assert plan.temperatures == (usual,)
    assert request_from_config({"target": "t", "prompt": "p", "seed": 0}).sampling.temperature == 1.0
