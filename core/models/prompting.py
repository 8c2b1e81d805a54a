"""Turns a prompt into the token ids that the target continues, and holds the text as it grows."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from core.errors import (
    ModelUnreadableError,
    OutOfMemoryError,
    PromptError,
    SettingsError,
    explaining_panics,
    first_line,
    is_panic,
    ran_out_of_memory,
)
from core.files import read_bounded, read_json
from core.models import template_child
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.child import ChildExit, ChildFailedError, child_environment, python_module, supervise
from core.models.folder.checks import check_files
from core.models.folder.vocabulary import own_code_needed, vocabulary_problem
from core.settings import stop_texts
from core.text import TextStream, count_text, visible
from core.types import FinishReason

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
"""Files that may hold a tokenizer's vocabulary."""

_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template*")
"""Other files of a tokenizer; from config.json only the model type."""

_MOST_GROWTH = 10_000
"""Ten tidy-ups of a text, each at most doubling it, multiply to a thousand."""

_TEMPLATE_BASE_BYTES = 256 << 20
_TEMPLATE_STALL_S = 60.0
"""What the child that renders a template takes besides, and how long it may take to start."""

_alive: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Tokenizers in use, by the hash of their files: a draft usually shares its target's, some 15 MB."""

_lock = threading.Lock()
"""Guards the tokenizers that `render_prompt` keeps, which two threads must not use at once."""


def load_tokenizer(entry: ModelEntry, folder: Path) -> Any:
    """The tokenizer in a model's folder, whose files are checked first; the same object for equal files.

    Raises:
        ModelUnreadableError: it is missing, empty or damaged, or as `check_files`.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging

    if not entry.embedded:
        check_files(folder, entry.title)
    # Without its files transformers would invent a tokenizer of a few special tokens.
    if not any(any(folder.glob(pattern)) for pattern in _FILES):
        raise ModelUnreadableError(f"The tokenizer of {entry.title} is missing. Download the model again.")
    if problem := vocabulary_problem(folder, os.listdir(folder), entry.title):
        raise ModelUnreadableError(problem)
    # For all that follows; errors are caught and reported in a sentence.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        digest = _digest(folder)
        tokenizer = _alive.get(digest)
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        growth = _growth(tokenizer)
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if ran_out_of_memory(error):
            raise OutOfMemoryError(
                f"Out of memory while loading the tokenizer of {entry.title}. Close other programs, or choose "
                "another model."
            ) from error
        if "trust_remote_code" in str(error):  # Only its own class may know how its texts are cut.
            raise ModelUnreadableError(own_code_needed(entry.title)) from error
        raise ModelUnreadableError(
            f"The tokenizer of {entry.title} can't be read ({first_line(error)}). Download the model again, or choose "
            "another."
        ) from error
    if not len(tokenizer):
        raise ModelUnreadableError(f"The tokenizer of {entry.title} is missing or empty. Download the model again.")
    if growth > _MOST_GROWTH:
        raise ModelUnreadableError(
            f"The tokenizer of {entry.title} could make a text more than {_MOST_GROWTH:,} times as long and fill the "
            "memory. Choose another model."
        )
    _alive[digest] = tokenizer
    return tokenizer


def _growth(tokenizer: Any) -> float:
    """How many times longer a tokenizer's replacements could make a text, at most."""

    def times(step: Any) -> float:
        if not isinstance(step, dict):
            return 1.0
        if step.get("type") == "Replace":
            text, length = step["pattern"].get("String"), len(step["content"])
            return max(1.0, length / len(text)) if text else 1.0 + length  # A regex may match before each character.
        return math.prod(map(times, step.get("normalizers", []) + step.get("decoders", [])))

    backend = getattr(tokenizer, "backend_tokenizer", None)
    steps = [step for step in (getattr(backend, "normalizer", None), getattr(backend, "decoder", None)) if step]
    return max([times(json.loads(step.__getstate__())) for step in steps], default=1.0)


def _digest(folder: Path) -> str:
    """The hash of a tokenizer's files."""
    digest = hashlib.sha256()
    with contextlib.suppress(OSError, ValueError):
        config = read_json(folder / "config.json")
        if isinstance(config, dict):
            digest.update(f"{config.get('model_type')} {config.get('tokenizer_class')}".encode())
    for path in sorted({path for pattern in (*_FILES, *_BESIDE) for path in folder.glob(pattern) if path.is_file()}):
        with path.open("rb") as file:
            digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


FilesState = frozenset[tuple[str, int, int]]


def files_state(path: Path) -> FilesState:
    """Names, sizes in bytes and times of writing in nanoseconds of a model's files, to see whether they changed.

    Only of those that loading reads: a folder may also hold logs, locks and pictures.
    """
    patterns = ("*.safetensors", "*.json", *_FILES, *_BESIDE)
    files = {path} if path.is_file() else {file for pattern in patterns for file in path.glob(pattern)}
    states = ((file.name, file.stat()) for file in files if file.is_file())
    return frozenset((name, state.st_size, state.st_mtime_ns) for name, state in states)


class EncodedPrompt(NamedTuple):
    """ids, the text they were made from, and whether a chat template was applied."""

    ids: list[int]
    rendered: str
    is_chat: bool


def encode_prompt(
    target: LanguageModel, prompt: str, chat: bool | None = None, system: str = "", *, max_new_tokens: int = 1
) -> EncodedPrompt:
    """Apply the target's chat template if requested, and tokenize.

    Args:
        chat: True, False, or None for "if there is a template".
        system: the system prompt, which only a template can format.
        max_new_tokens: how many are to follow, which an error about the length says.

    Raises:
        SettingsError: chat is True, or there is a system prompt, and the tokenizer has no template or may not use it.
        PromptError: nothing to continue, or no room left in the context to continue it.
        TokenizerError: the tokenizer panics.
    """
    encoded = _encode(target.tokenizer, target.ref, prompt, chat, system)
    check_prompt_length(len(encoded.ids), target, max_new_tokens)
    return encoded


class RenderedPrompt(NamedTuple):
    """What a model reads: the text with its special tokens, and how many tokens it is."""

    text: str
    num_tokens: int
    is_chat: bool
    special_tokens: tuple[str, ...] = ()


def render_prompt(ref: str, prompt: str, chat: bool | None = None, system: str = "") -> RenderedPrompt:
    """Preview what `encode_prompt` encodes, using only the model's tokenizer; callable from any thread.

    Special tokens that the tokenizer adds are written out. The length is not checked.

    Raises:
        ModelNotFoundError, ModelUnreadableError: no such model, or its tokenizer can't be read yet.
        SettingsError, PromptError: the template is requested but missing, or fails.
    """
    entry = resolve(ref)
    folder = tokenizer_folder(entry)
    with _lock:
        tokenizer = _kept_tokenizer(entry, folder, files_state(folder))
        encoded = _encode(tokenizer, ref, prompt, chat, system)
        special = _special_tokens(tokenizer)
        text = encoded.rendered if encoded.is_chat else _with_added_tokens(tokenizer, encoded, special)
    return RenderedPrompt(text, len(encoded.ids), encoded.is_chat, tuple(special.values()))


def _special_tokens(tokenizer: Any) -> dict[int, str]:
    return {token: str(added) for token, added in tokenizer.added_tokens_decoder.items() if added.special}


def _with_added_tokens(tokenizer: Any, encoded: EncodedPrompt, special: Mapping[int, str]) -> str:
    """A raw text with the special tokens that its tokenizer adds before or after it, such as one for its beginning."""
    ids, text = encoded.ids, encoded.rendered
    # Not by the texts: the user's own may begin with the same token, or leave spaces around it that are not read.
    own = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    places = range(len(ids) - len(own) + 1)
    begin = next((place for place in places if ids[place : place + len(own)] == own), None)
    if begin is None:
        return text
    before, after = (
        "".join(special.get(token, "") for token in part) for part in (ids[:begin], ids[begin + len(own) :])
    )
    return f"{before}{text}{after}"


def tokenizer_folder(entry: ModelEntry) -> Path:
    """The folder with a model's tokenizer files.

    Raises:
        ModelUnreadableError: the .gguf file is not converted yet.
    """
    if entry.format is not ModelFormat.GGUF:
        return entry.path
    from core.models.folder.gguf import converted_folder, is_converted

    if not is_converted(entry.path):
        raise ModelUnreadableError(
            f"{entry.title} has not been converted yet. Run it once to see its prompts formatted."
        )
    return converted_folder(entry.path)


@functools.lru_cache(maxsize=4)
def _kept_tokenizer(entry: ModelEntry, folder: Path, _state: FilesState) -> Any:
    return load_tokenizer(entry, folder)


def _encode(tokenizer: Any, name: str, prompt: str, chat: bool | None, system: str = "") -> EncodedPrompt:
    # Tokenizers reject lone surrogates, which a terminal or clipboard can produce.
    text, system = (given.encode("utf-8", "replace").decode("utf-8") for given in (prompt, system))
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_template:
        raise SettingsError(f"{name} has no chat template. Run it raw, or choose an instruct model.")
    is_chat = has_template if chat is None else chat
    if system and not is_chat:
        reason = "is run raw" if has_template else "has no chat template"
        raise SettingsError(
            f"{name} {reason}, so it takes no system prompt. Write it into the prompt, or choose an instruct model."
        )
    advice = "Run the prompt raw, or without a system prompt." if system else "Run the prompt raw instead."
    rendered = render_chat(tokenizer, name, text, system, advice=advice) if is_chat else text
    with explaining_panics(f"The tokenizer of {name}"):
        # A template writes its special tokens itself.
        ids = tokenizer(rendered, add_special_tokens=not is_chat)["input_ids"]
    return EncodedPrompt(list(ids), rendered, is_chat)


def render_chat(tokenizer: Any, name: str, text: str, system: str = "", *, advice: str) -> str:
    """What `tokenizer.apply_chat_template` returns for one message of the user, with an open answer.

    Raises:
        PromptError: the template fails in its child process, or exceeds its limits; ends with the advice.
    """
    said = [{"role": "system", "content": system}] if system else []
    problem = f"it needs more than {template_child.SECONDS} seconds"
    try:
        request = {
            "conversations": [[*said, {"role": "user", "content": text}]],
            "chat_template": tokenizer.get_chat_template(),
            "add_generation_prompt": True,
            **tokenizer.special_tokens_map,
        }
        # The day, since a template may write it.
        return _render(json.dumps(request, default=str), datetime.now().date())
    except ChildFailedError as error:
        if error.code == ChildExit.MEMORY:
            problem = "it needs too much memory"
        elif error.code == ChildExit.FAILED:
            problem = visible(error.last_line[:160]).rstrip(".") or "it gave no reason"
    except Exception as error:  # Its entry in the tokenizer may be of any kind.
        problem = first_line(error)
    raise PromptError(f"The chat template of {name} failed ({problem}). {advice}")


@functools.lru_cache(maxsize=256)
def _render(request: str, _day: date) -> str:
    with tempfile.TemporaryDirectory(prefix="outrider-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        (folder / "request.json").write_text(request, "utf-8")
        child = supervise(
            python_module("core.models.template_child", folder),
            # One thread: each of numpy's takes its share of the memory limit.
            environment={**child_environment(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            folder=folder,
            memory_bytes=_TEMPLATE_BASE_BYTES + template_child.MEMORY_BYTES,
            stall_s=_TEMPLATE_STALL_S,
        )
        with contextlib.closing(child):
            began = math.inf
            for _ in child:
                if (folder / "request.json").exists():
                    continue  # It imports what it needs.
                began = min(began, time.monotonic())
                if time.monotonic() - began > template_child.SECONDS:
                    raise ChildFailedError(ChildExit.STALLED, "")
        return read_bounded(folder / "rendered", template_child.LONGEST_BYTES).decode("utf-8")


def check_prompt_length(num_ids: int, target: LanguageModel, max_new_tokens: int = 1) -> None:
    """Raises:
    PromptError: nothing to continue, or no room left in the context to continue it.
    """
    if not num_ids:
        raise PromptError("The prompt is empty. Write a few words for the model to continue.")
    if num_ids >= target.context_length:
        excess = num_ids - target.context_length
        is_possible = 1 < max_new_tokens < target.context_length
        room = f", or {excess + max_new_tokens:,} for all {max_new_tokens:,} new ones" if is_possible else ""
        raise PromptError(
            f"The prompt has {num_ids:,} tokens. {target.ref} reads at most {target.context_length:,}, prompt and new "
            f"tokens together: remove at least {count_text(excess + 1, 'token')}{room}."
        )


class RunText:
    """A prompt and the text generated after it.

    Attributes:
        ids: all ids, the prompt's included.
        limit: maximum number of ids.
        ends: ids that end the text, and why each does.

    Raises:
        PromptError: no ids, ids that the target doesn't have, or too many for its context.
        SettingsError: `max_new_tokens` below 1, or an empty stop text.
    """

    def __init__(
        self,
        target: LanguageModel,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        stop: Sequence[str],
        written: str = "",
    ) -> None:
        """`written`: text at the end of the prompt in which a stop text may begin."""
        check_prompt_length(len(prompt_ids), target)
        if not all(hasattr(token, "__index__") and 0 <= token < target.vocab_size for token in prompt_ids):
            raise PromptError(f"The prompt holds something other than ids from 0 to {target.vocab_size - 1}.")
        if max_new_tokens < 1:
            raise SettingsError(f"The number of new tokens must be 1 or more, not {max_new_tokens!r}.")
        self.ids = list(prompt_ids)
        self.limit = min(len(self.ids) + max_new_tokens, target.context_length)
        self._stop = stop_texts(stop)
        # A special token has no text in which it could be found.
        special = _special_tokens(target.tokenizer) if self._stop else {}
        self.ends = {token: FinishReason.STOP for token, text in special.items() if text in self._stop}
        self.ends |= dict.fromkeys(target.eos_ids, FinishReason.EOS)
        # A stop text that is whole before the new text has stopped nothing, and no part of it does.
        written = written[max((written.rfind(text) + len(text) for text in self._stop if text in written), default=0) :]
        self._num_written = len(written)
        self._stream = TextStream(target.tokenizer, self.ids, written)

    @property
    def text(self) -> str:
        """The generated text, without the prompt."""
        return self._stream.text[self._num_written :]

    @property
    def room(self) -> int:
        """How many more ids fit."""
        return self.limit - len(self.ids)

    def write(self, tokens: Sequence[int]) -> tuple[list[str], FinishReason | None]:
        """Add tokens up to the end of the text. Returns the texts of those added, and why the text ended, if it did."""
        texts: list[str] = []
        for token in tokens:
            texts.append(self._stream.push(token))
            self.ids.append(token)
            if (ended := self._end_at(token, texts)) is not None:
                return texts, ended
        return texts, None

    def _end_at(self, token: int, texts: list[str]) -> FinishReason | None:
        """Why the text ends with the token just added, or None; the last of `texts` is its own, and may be cut."""
        at = self._stream.find_stop(self._stop, len(texts[-1])) if self._stop else None
        if at is not None:
            surplus = len(self._stream.text) - at
            self._stream.cut(at)
            # A stop text may begin in tokens already emitted; only the summary's text is cut there.
            texts[-1] = texts[-1][: max(0, len(texts[-1]) - surplus)]
            return FinishReason.STOP
        ended = self.ends.get(token, FinishReason.LENGTH if self.room <= 0 else None)
        if ended is not None:
            texts[-1] += self._stream.flush()
        return ended
