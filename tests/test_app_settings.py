"""What the window remembers, and what it does with a file that it can't trust."""

from __future__ import annotations

import json

import pytest

from app.main_window import MainWindow
from app.settings import (
    MAX_OPENED_MODELS,
    SCHEMA,
    ChatTemplate,
    RunSettings,
    SettingsStore,
    WindowSettings,
    config_file,
    parse_settings,
    remember_model,
    runs_folder,
)
from app.setup.models_form import ModelRole
from app.theme import ThemeMode
from core.settings import Coupling, Device, DType, LengthPolicy

UNUSUAL = WindowSettings(
    theme=ThemeMode.DARK,
    text_scale=1.25,
    hint_seen=True,
    side_page="Why",
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
        chat=ChatTemplate.ON,
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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"version": 999}',
        b'{"version": 1, "run": 3, "splitters": [], "theme": {}, "opened_models": "x", "geometry": 5}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_can_not_be_used_gives_the_defaults(tmp_path, content):
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    assert SettingsStore(path).load() == WindowSettings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("temperature", 10**400),
        ("temperature", -1),
        ("temperature", True),
        ("num_draft_tokens", 0),
        ("num_draft_tokens", 99),
        ("num_draft_tokens", 2.5),
        ("top_p", 0),
        ("top_p", float("inf")),
        ("min_p", -0.1),
        ("top_k", -1),
        ("seed", 2**63),
        ("seed", -1),
        ("max_new_tokens", 0),
        ("method", "magic"),
        ("method", []),
        ("device", "tpu"),
        ("dtype", None),
        ("coupling", "magic"),
        ("length_policy", "sometimes"),
        ("chat", 7),
        ("target", ""),
        ("prompt", None),
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


@pytest.mark.parametrize(
    ("saved", "policy"), [(True, LengthPolicy.AUTO), (False, LengthPolicy.FIXED), ("yes", LengthPolicy.FIXED)]
)
def test_the_yes_or_no_of_older_settings_is_still_read(saved, policy):
    run = parse_settings({"version": SCHEMA, "run": {"auto_draft_tokens": saved}}).run
    assert run.length_policy is policy


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


def test_the_window_comes_back_as_it_was_left(make_window, qtbot, session, tmp_path):
    window = make_window()
    window.controls.draft_length.number.set_value(11)
    window.controls.sampling.seed.setText("1234")
    window.controls.run.dtype.choose(DType.FLOAT32)
    window.controls.method.combo.setCurrentIndex(1)
    window.prompt.edit.setPlainText("a prompt\nof mine")
    window.menus.theme_actions[ThemeMode.DARK].trigger()
    window.transcript.ghosts_button.click()
    window.text_splitter.setSizes([190, 282])
    window.side.show_page(window.why)
    window.resize(1040, 700)
    sizes = window.text_splitter.sizes()
    window.close()
    again = make_window()
    request = again.controls.request(again.prompt.text())
    assert (request.num_draft_tokens, request.seed, request.dtype) == (11, 1234, DType.FLOAT32)
    assert (request.method, request.prompt) == ("prompt-lookup", "a prompt\nof mine")
    assert again.menus.theme_actions[ThemeMode.DARK].isChecked()
    assert again.menus.show_ghosts.isChecked()
    assert again.transcript.ghosts_button.isChecked()
    assert again.text_splitter.sizes() == sizes
    assert again.side.currentWidget() is again.why
    assert again.height() == 700


def test_the_pair_and_the_sampling_are_remembered(make_window, session, tmp_path):
    window = make_window()
    window.controls.models.choose(ModelRole.TARGET, "tiny-draft")
    window.controls.sampling.temperature.set_value(1.25)
    window.controls.run.baseline.setChecked(False)
    window.close()
    again = make_window()
    assert again.controls.target.ref == "tiny-draft"
    request = again.controls.request("x")
    assert (request.sampling.temperature, request.baseline) == (1.25, False)


def test_a_page_that_no_longer_exists_leaves_the_first_one_open(make_window, tmp_path):
    SettingsStore(tmp_path / "settings.json").save(WindowSettings(side_page="Gone", text_scale=1.0))
    assert make_window().side.title() == "Live"


@pytest.mark.parametrize("scale", ["large", None, 0, 40, float("nan"), True])
def test_a_size_of_text_that_is_none_falls_back(scale):
    data = json.loads(json.dumps({"version": SCHEMA, "text_scale": scale}))
    assert parse_settings(data).text_scale == 1.0


def test_no_model_is_loaded_unless_a_run_is_wanted(make_window, qtbot, session):
    window = make_window()
    with qtbot.waitSignal(window.controller.engine_ready):
        window.show()
    for role, ref in (
        (ModelRole.TARGET, "tiny-draft"),
        (ModelRole.DRAFT, "tiny-draft"),
        (ModelRole.TARGET, "tiny-target"),
    ):
        window.controls.models.choose(role, ref)
    window.models.open()
    window.menus.help.trigger()
    window.menus.show_reading.trigger()
    assert session.requests == []
    assert session.started == 0


def test_an_unusable_seed_is_not_saved_over_the_good_one(make_window, session, tmp_path):
    window = make_window()
    window.controls.sampling.seed.setText("nonsense")
    window.close()
    assert SettingsStore(tmp_path / "settings.json").load().run.seed == 0


def test_the_window_opens_over_a_corrupt_file(make_window, tmp_path):
    (tmp_path / "settings.json").write_bytes(b'{"version": 1, "geometry": "\\u2603", "splitters": {"a": "!"}}')
    window = make_window()
    assert window.prompt.run_button.isEnabled()


def test_integers_beyond_every_number_do_not_stop_the_window(make_window, tmp_path):
    options = {"prompt-lookup": {"max_ngram": 10**400, "min_ngram": 10**30}}
    data = {"version": SCHEMA, "run": {"method": "prompt-lookup", "method_options": options, "min_p": 10**400}}
    (tmp_path / "settings.json").write_text(json.dumps(data))
    window = make_window()
    assert window.controls.settings("x").min_p == 0.0
    assert window.controls.settings("x").method == "prompt-lookup"


def test_files_live_in_the_users_own_folders(user_folders):
    assert config_file().name == "settings.json"
    assert "outrider" in config_file().parts
    assert runs_folder().name == "runs"


def test_the_window_builds_without_arguments_and_without_a_model(sound_binding, qtbot):
    window = MainWindow()
    qtbot.addWidget(window)
    window.close()
    qtbot.waitUntil(lambda: window.controller.is_closed)
    assert config_file().exists()
