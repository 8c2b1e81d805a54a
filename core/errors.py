"""Errors that a user may see. Each carries one sentence that says what is wrong and what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from core.text import visible


class OutriderError(Exception):
    """Base of every error whose message can be shown to the user as it is."""


class SettingsError(OutriderError, ValueError):
    """A setting is outside its range."""


class PromptError(OutriderError, ValueError):
    """A prompt that this model can't continue: empty, or longer than its context."""


class TokenizerError(PromptError):
    """A tokenizer panicked on a text; another text may work."""


class ModelNotFoundError(OutriderError):
    """A reference names no model on this machine."""


class ModelUnreadableError(OutriderError):
    """A model's files are incomplete, damaged, unsafe or of an unknown kind."""


class DownloadError(OutriderError):
    """A model can't be downloaded."""


class HubUnreachableError(DownloadError):
    """The Hub doesn't answer, or the connection was lost; trying again may help."""


class OfflineError(DownloadError):
    """Something needs the network while offline mode is on."""


class GatedModelError(DownloadError):
    """A model's licence must be accepted on the Hub first."""


class NoSpaceError(DownloadError):
    """The disk has too little space for a model."""


class RemovalError(OutriderError):
    """A model can't be removed, or doesn't belong to Outrider."""


class PairMismatchError(OutriderError):
    """Draft and target can't work together."""


class DeviceError(OutriderError):
    """The requested device failed, or this machine doesn't have it."""


class OutOfMemoryError(OutriderError):
    """A model or its cache does not fit on the device."""


class GenerationError(OutriderError):
    """A model returned something that can't be sampled, such as NaN."""


class DrafterError(OutriderError):
    """A drafter returned something that can't be verified: a bug in its code."""


class RunLogError(OutriderError):
    """A run log can't be written or read."""


class ServerError(OutriderError):
    """A server that runs a request failed, stopped sending or sent something unreadable; trying again may help."""


class ServerBusyError(ServerError):
    """A server asks to wait: `retry_after` seconds, or None if it doesn't say."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServerRefusedError(ServerError):
    """The address, the key, the model or a setting doesn't fit the server."""


_MEMORY_WORDS = (
    "out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory", "std::bad_alloc",
    "cublas_status_alloc_failed", "unable to mmap", "failed to map segment", "invalid buffer size",
    "error 1455",  # Windows' number in "(os error 1455)" and "[WinError 1455]", whose words are in its language.
)  # fmt: skip


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, means that memory ran out, in any form that libraries use."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # safetensors has an error of its own; a library that can't be mapped is an ImportError.
    is_known = isinstance(error, RuntimeError | OSError | ImportError) or "Safetensor" in type(error).__name__
    if is_known and any(word in str(error).lower() for word in _MEMORY_WORDS):
        return True
    return ran_out_of_memory(error.__cause__ or error.__context__)


def is_panic(error: BaseException) -> bool:
    """Whether a library written in Rust panicked, such as tokenizers; the exception is no `Exception`."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def explaining_panics(what: str) -> Iterator[None]:
    """Turn a panic into a `TokenizerError`.

    Args:
        what: begins its sentence, such as "The tokenizer of gpt2".
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise TokenizerError(
            f"{what} can't handle this text ({first_line(error)}). Shorten the text, or choose another model."
        ) from None


def first_line(error: BaseException) -> str:
    """The first line of another library's message, to be quoted within a sentence."""
    line, *_ = visible(str(error)[:10_000]).strip().splitlines() or [type(error).__name__]
    return line.rstrip(".") if len(line) <= 300 else f"{line[:299]}…"


def sentence_of(error: BaseException, what: str) -> str:
    """An error in one sentence: its own if it has one, else what could not be done, and the cause."""
    if isinstance(error, OutriderError):
        return str(error)
    if ran_out_of_memory(error):
        return f"{what}: out of memory. Close other programs, or choose a smaller model."
    if isinstance(error, OSError):
        return f"{what}: {visible(str(error.strerror or error)).rstrip('.') or type(error).__name__}."
    detail = first_line(error) if str(error).strip() else ""
    return f"{what}: {type(error).__name__}{': ' + detail if detail else ''}."
