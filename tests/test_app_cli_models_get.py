"""`outrider models get`, with a download that is played: its progress, its stops, and what is kept."""

import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from core.models import catalogue
from core.models.catalogue import ModelEntry, ModelFormat, ModelOrigin
from core.models.remote.hub import DownloadProgress
from tests.fakes_cache import leave_partial, models, write_model

pytestmark = pytest.mark.usefixtures("shelf")


def progress(stage, *figures):
    return DownloadProgress(stage, "model.safetensors" if figures else "", *figures)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A download in the real one's place: plays stages, calls what is callable, and notes how it was asked."""
    entry = ModelEntry("owner/model", "model", tmp_path / "snapshot", ModelFormat.SAFETENSORS, 5, ModelOrigin.HUB)
    stages = [
        progress("Asking the Hub…"),
        progress("Downloading", 0, 10_000_000),
        progress("Downloading", 4_000_000, 10_000_000, 2e6, 3.0),
        progress("Downloading", 10_000_000, 10_000_000, 2e6, 0.0),
        progress("Checking…", 10_000_000, 10_000_000),
    ]
    played = SimpleNamespace(script=stages, asked=[], path=entry.path)

    def download(ref, *, on_progress, check_cancelled, restart=False):
        played.asked.append((ref, restart))
        for item in played.script:
            check_cancelled()
            if isinstance(item, Exception):
                raise item
            item() if callable(item) else on_progress(item)
        return entry

    monkeypatch.setattr("core.models.remote.downloads.download", download)
    return played


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def test_get_prints_the_path_and_a_line_for_each_stage_and_file(hub, capsys):
    assert models("get", "owner/model") == 0
    out, err = capsys.readouterr()
    assert out == f"{hub.path}\n"
    assert err.splitlines() == ["Asking the Hub…", "10.0 MB in total", "Downloading model.safetensors"]
    assert hub.asked == [("owner/model", False)]


def test_offline_a_downloaded_model_is_found(cached, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was touched"))
    folder = cached("owner/model")
    assert models("get", "owner/model") == 0
    out, err = capsys.readouterr()
    assert out == f"{folder}\n"
    assert "already downloaded" in err


def test_what_ships_with_outrider_needs_no_download(hub, shelf, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "EMBEDDED_TITLES", {"pocket": "Pocket model"})
    folder = write_model(shelf / "embedded" / "pocket")
    assert models("get", "pocket") == 0
    assert capsys.readouterr() == (f"{folder}\n", "pocket ships with Outrider.\n")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("is_kept", "said"), [(True, "4.0 MB was kept. `…` resumes it."), (False, "nothing was kept. `…` starts again.")]
)
def test_ctrl_c_stops_a_download_says_what_is_kept_and_how_to_continue(hub, shelf, capsys, is_kept, said):
    if is_kept:
        leave_partial(shelf)
    before = signal.getsignal(signal.SIGINT)
    hub.script[3:] = [press_ctrl_c, progress("Downloading", 5_000_000, 10_000_000)]
    assert models("get", "owner/model") == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "Stopped; " + said.replace("…", "outrider models get owner/model")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_model_that_is_whole_already_is_not_called_what_a_stopped_download_kept(hub, cached, capsys):
    cached("owner/model")
    hub.script[1:] = [press_ctrl_c, progress("Downloading", 0, 10_000_000)]
    assert models("get", "owner/model") == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "Stopped; owner/model is here as before. `outrider models get owner/model` starts again."


def test_a_second_ctrl_c_does_not_wait_for_the_download(hub, capsys):
    before = signal.getsignal(signal.SIGINT)

    def hang():
        press_ctrl_c()
        press_ctrl_c()
        raise AssertionError("the second Ctrl-C was not heard")

    hub.script[2:] = [hang]
    assert models("get", "owner/model") == 130
    assert "Traceback" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_offline_the_network_is_not_used(monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was touched"))
    assert models("get", "owner/model") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "HF_HUB_OFFLINE" in err
    assert models("list", "--suggested") == 0


def test_a_terminal_shows_bytes_rate_and_time_left(hub, terminal):
    hub.script[3:] = [press_ctrl_c, progress("Downloading", 4_000_000, 10_000_000)]
    streams = terminal(width=80)
    assert models("get", "owner/model") == 130
    text = streams.err.text
    assert "Downloading" in text
    assert "4.0 of 10.0 MB" in text
    assert "2.0 MB/s" in text
    assert "3 s left" in text
    assert "\x1b[?25h" in text  # The cursor is back.
    assert streams.out.text == ""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
@pytest.mark.parametrize("action", ["get", "check"])
def test_the_first_ctrl_c_ends_a_question_to_a_hub_that_never_answers(tmp_path, action):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        command = [sys.executable, "-m", "app", "models", action, "owner/model", *["owner/other"] * (action == "check")]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1)
                child.send_signal(signal.SIGINT)
                assert child.wait(60) == 130
            assert b"Stopped" in child.stderr.read()
