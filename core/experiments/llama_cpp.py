"""llama.cpp as a contender of the bench: its server, on the same weights, converted once by its own script."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from core.errors import GenerationError, OutriderError, SettingsError
from core.experiments.bench_plan import (
    LLAMA_CPP,
    LLAMA_CPP_DRAFT,
    NO_DRAFT,
    BenchSettings,
    NotApplicableError,
    Pair,
    Timed,
)
from core.files import explain_write_error, file_digest, require_space, scratch_folder
from core.models.catalogue import ModelFormat, resolve
from core.models.child import ChildFailedError, supervise
from core.models.folder.gguf import convert

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

_SCRIPT = "convert_hf_to_gguf.py"
_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""The script's names of the precisions."""
_START_S, _ANSWER_S, _POLL_S = 600.0, 1800.0, 0.05
_SPARE_POSITIONS = 64
_SMALL_FILES = frozenset({".json", ".jinja", ".model", ".txt"})
"""Ends of the names of a tokenizer's files."""

# Ends the server when this process ends, however it ends: a pipe to its stdin closes then.
_GUARD = """
import os, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (os.read(0, 1), child.kill()), daemon=True).start()
os._exit(child.wait() & 255)
"""


@dataclass(frozen=True, slots=True)
class Build:
    """A build of llama.cpp: its server, and its conversion script if that was found."""

    server: Path
    script: Path | None

    def version(self) -> str:
        """What the server says about itself, such as "0.6.0-dev (build 0, commit unknown)"; empty if nothing."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run([self.server, "--version"], capture_output=True, text=True, timeout=60, check=True)
            lines = (said.stdout + said.stderr).splitlines()
            return next((line.removeprefix("version: ") for line in lines if line.startswith("version: ")), "")
        return ""


def find_build(path: str) -> Build:
    """The build in a folder, such as `llama.cpp` or `llama.cpp/build`, or that of a binary.

    The script is looked for beside the server, in the folders above it, in the build's sources, and on the PATH.

    Raises:
        SettingsError: there is no server.
    """
    given = Path(path).expanduser()
    folder = given if given.is_dir() else given.parent
    names = [given.name] if given.is_file() and given.stem == "llama-server" else ["llama-server", "llama-server.exe"]
    places = [folder / part / name for part in ("", "bin", "build/bin", "build/bin/Release") for name in names]
    server = next((place for place in places if place.is_file()), None)
    if server is None or not given.exists():
        raise SettingsError(
            f"There is no llama-server in {path!r}. Name the folder of a build of llama.cpp, or the file."
        )
    server = server.resolve()
    sources = [*server.parents, *filter(None, map(_sources_of, server.parents))]
    scripts = [source / _SCRIPT for source in sources] + [Path(shutil.which(_SCRIPT) or _SCRIPT)]
    return Build(server, next((script for script in scripts if script.is_file()), None))


def _sources_of(build: Path) -> Path | None:
    """The folder that CMake built this one from."""
    key = "CMAKE_HOME_DIRECTORY:INTERNAL="
    with contextlib.suppress(OSError):
        lines = (build / "CMakeCache.txt").read_text("utf-8", "replace").splitlines()
        return next((Path(line.removeprefix(key)) for line in lines if line.startswith(key)), None)
    return None


# --- The same weights -------------------------------------------------------------------------------------------


def converted(model: LanguageModel, ref: str | None, target_ref: str, script: Path | None) -> Path:
    """A GGUF file with a loaded model's weights, in its precision; converted once and kept by content.

    A .gguf file is used as it is.

    Args:
        ref: the model's own; None if it was made here.
        target_ref: whose tokenizer a model without its own has.

    Raises:
        NotApplicableError: it can't be converted.
        OutriderError, OSError: a file can't be read or written.
    """
    entry = None if ref is None else resolve(ref)
    if entry is not None and entry.format is ModelFormat.GGUF:
        return entry.path
    if script is None:
        raise NotApplicableError(f"{_SCRIPT} was not found; move the build back beside its sources.")
    kept = platformdirs.user_cache_path("outrider", appauthor=False) / "llama.cpp"
    with scratch_folder(kept, ".converting-") as scratch:
        source = scratch / "source" if entry is None or entry.serves is not None else entry.path
        if not source.exists():
            _write_model(model, source, resolve(target_ref).path)
        kind = _TYPES[str(model.dtype).removeprefix("torch.")]
        file = kept / f"{_fingerprint(source)[:32]}-{kind}.gguf"
        if not file.exists():
            _run_script(script, source, kind, scratch, sum(part.nbytes for part in model.model.parameters()))
            (scratch / "model.gguf").rename(file)
        return file


def _write_model(model: LanguageModel, folder: Path, tokenizer: Path) -> None:
    """Write a loaded model as a folder: one made of its target's layers, or with its target's tables."""
    from safetensors.torch import save_file

    if tokenizer.is_file():
        tokenizer = convert(tokenizer)
    folder.mkdir()
    for file in tokenizer.iterdir():
        if file.suffix in _SMALL_FILES and ".safetensors" not in file.name:
            shutil.copy(file, folder)
    model.model.config.to_json_file(folder / "config.json")
    tensors: dict[Any, tuple[str, Any]] = {}
    for name, tensor in model.model.state_dict().items():
        tensors.setdefault((tensor.data_ptr(), tensor.shape), (name, tensor))  # A tied head is stored once.
    save_file({name: tensor.cpu().clone() for name, tensor in tensors.values()}, folder / "model.safetensors")


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.name == "config.json" or file.suffix == ".safetensors":
            file_digest(file, lambda: None, digest)
    return digest.hexdigest()


def _run_script(script: Path, source: Path, kind: str, scratch: Path, num_bytes: int) -> None:
    require_space("The conversion for llama.cpp", 2 * num_bytes, scratch, "leave llama.cpp out")
    environment = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    if importlib.util.find_spec("sentencepiece") is None and not (source / "tokenizer.model").exists():
        # The script imports it even where no file of its kind is read.
        (scratch / "stand-in").mkdir()
        (scratch / "stand-in" / "sentencepiece.py").write_text("SentencePieceProcessor = None\n")
        environment["PYTHONPATH"] = str(scratch / "stand-in")
    command = [sys.executable, str(script), str(source), "--outtype", kind, "--outfile", str(scratch / "model.gguf")]
    try:
        for _ in supervise(command, environment=environment, folder=scratch, memory_bytes=4 * 2**30 + 3 * num_bytes):
            pass
    except ChildFailedError as error:
        reason = error.last_line[:160].rstrip(".") or f"exit code {error.code}"
        raise NotApplicableError(f"llama.cpp's {_SCRIPT} can't convert the model ({reason}).") from error


# --- The server -------------------------------------------------------------------------------------------------


class Server:
    """A llama-server of ours, on a free port of this machine; it ends with `close`, and with this process."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it, and wait until it is ready.

        Raises:
            GenerationError: it doesn't start; says its last words.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        # In its own session: Ctrl+C reaches only this process, which then ends the server.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-c", _GUARD, *command, "--host", "127.0.0.1", "--port", str(self._port)],
            stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
            # Not the flag, which older builds refuse: drafts are tested by rejection sampling.
            env={**os.environ, "LLAMA_ARG_SPEC_DRAFT_SAMPLING": "probabilistic"},
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._ask("GET", "/health")[0] == http.client.OK:
                    return
            if self._guard.poll() is not None:
                break
            time.sleep(_POLL_S)
        raise GenerationError(f"llama-server doesn't start ({self._last_words()}).")

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:160].rstrip(".") if lines else "it says nothing"

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer of /completion.

        Raises:
            GenerationError: it refuses, or has ended.
        """
        try:
            status, answer = self._ask("POST", "/completion", json.dumps(request))
            if status == http.client.OK:
                return dict(answer)
            reason = answer["error"]["message"]
        except (OSError, http.client.HTTPException):
            reason = self._last_words()
        except (ValueError, TypeError, KeyError):
            reason = "it doesn't answer as a llama-server does"
        raise GenerationError(f"llama-server failed ({reason}).")

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._guard.stdin.close()  # type: ignore[union-attr]
        self._guard.wait()
        self._log.close()


# --- The contender ----------------------------------------------------------------------------------------------


class LlamaCpp:
    """llama.cpp's server, plain, or with the draft model and K tokens a step.

    Its cache has llama.cpp's default precision. It never writes an id that ends a text: it can't go on behind one.
    """

    def __init__(
        self, pair: Pair, settings: BenchSettings, num_draft_tokens: int, on_stage: Callable[[str], None]
    ) -> None:
        """Raises:
        NotApplicableError, SettingsError: there is no build, no draft, or the weights can't be converted.
        """
        if settings.llama_cpp is None:
            raise NotApplicableError("Name a build of it with --llama-cpp.")
        build = find_build(settings.llama_cpp)
        self.name, self.title = LLAMA_CPP, "llama.cpp"
        self.num_draft_tokens: int | None = num_draft_tokens
        self._max_new_tokens = settings.max_new_tokens
        self._server: Server | None = None
        self._capacity = 0
        models: dict[str, tuple[LanguageModel, str | None]] = {"--model": (pair.target, settings.target)}
        count = str(settings.threads or os.cpu_count() or 1)
        on_cpu = pair.target.device.type == "cpu"
        self._command = [str(build.server), "--parallel", "1", "--no-ui", "--offline"]
        self._command += ["--threads", count, "--threads-batch", count, *(["--device", "none"] if on_cpu else [])]
        if num_draft_tokens:
            if pair.draft is None:
                raise NotApplicableError(NO_DRAFT)
            self.name, self.title = LLAMA_CPP_DRAFT, "llama.cpp, draft model"
            models["--spec-draft-model"] = (pair.draft, settings.draft)
            self._command += ["--spec-type", "draft-simple", "--spec-draft-n-max", str(num_draft_tokens)]
            self._command += ["--spec-draft-threads", count, *(["--spec-draft-device", "none"] if on_cpu else [])]
        for flag, (model, ref) in models.items():
            on_stage(f"Converting {model.ref} for llama.cpp…")
            try:
                file = converted(model, ref, settings.target, build.script)
            except OutriderError as error:
                raise NotApplicableError(str(error)) from error
            except OSError as error:
                raise NotApplicableError(explain_write_error(error, error.filename or "the file")) from error
            self._command += [flag, str(file)]

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        """Continue a prompt; the server starts with the first, and anew for a longer one."""
        needed = len(prompt_ids) + self._max_new_tokens + (self.num_draft_tokens or 0) + _SPARE_POSITIONS
        if self._server is None or needed > self._capacity:
            self.close()
            self._server = Server([*self._command, "--ctx-size", str(needed)])
            self._capacity = needed
        request = {
            "prompt": list(prompt_ids),
            "n_predict": self._max_new_tokens,
            "temperature": temperature,
            "samplers": ["temperature"],
            "seed": seed,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        }
        start = time.perf_counter()
        answer = self._server.complete(request)
        seconds = time.perf_counter() - start
        ids = tuple(answer["tokens"])
        accepted = answer.get("timings", {}).get("draft_n_accepted", 0)
        return Timed(ids, seconds, num_forwards=len(ids) - accepted, longest_draft=self.num_draft_tokens)

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.close()
            self._server = None
