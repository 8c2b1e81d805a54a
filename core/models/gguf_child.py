"""The child process that unpacks one GGUF file: `python -m core.models.gguf_child SOURCE DESTINATION MEMORY_BYTES`.

It writes JSON objects to stdout, one a line: `{"done": 3, "total": 20}` for tensors, and, before it exits with 1,
`{"failure": "space" | "memory" | "file", "reason": ...}`. It exits when its stdin is closed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from core.errors import first_line

_NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "cannot allocate memory")


def main(arguments: list[str]) -> int:
    source, destination, memory_bytes = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    # Messages use the real stdout; library output goes to stderr.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(**message: Any) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit(memory_bytes)
    try:
        unpack(source, destination, lambda done, total: send(done=done, total=total))
    except Exception as error:
        send(failure=_kind(error), reason=first_line(error))
        raise
    return 0


def unpack(source: Path, destination: Path, on_progress: Callable[[int, int], None]) -> None:
    """Write the model and tokenizer of a .gguf file as a folder of float32 safetensors."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    options: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **options)
    # Newer releases of transformers keep the blocks packed unless asked, and can report progress.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    if hasattr(logging, "set_tqdm_hook"):
        logging.set_tqdm_hook(lambda _factory, items, settings: _Counted(items, settings, on_progress))
    model, info = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.float32, output_loading_info=True, **options
    )
    # transformers fills missing tensors with random numbers.
    if lacking := sorted(info.get("missing_keys") or ()):
        raise ValueError(f"it lacks {lacking[0]!r} and {len(lacking) - 1} more")
    # The weights are dequantised; a leftover quantisation config would prevent saving.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(destination)
    model.save_pretrained(destination)


class _Counted:
    """Replaces a progress bar, and reports its count."""

    def __init__(
        self, items: tuple[Any, ...], settings: dict[str, Any], on_progress: Callable[[int, int], None]
    ) -> None:
        self._items: Iterable[Any] = items[0] if items else settings.get("iterable") or ()
        self._total = settings.get("total") or (len(self._items) if hasattr(self._items, "__len__") else 0)
        self._on_progress = on_progress
        self._done = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item
            self.update()

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def update(self, count: int = 1) -> None:
        self._done += count
        self._on_progress(self._done, max(self._total, self._done))


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 4096):
            pass
    os._exit(1)


def _limit(memory_bytes: int) -> None:
    """Lower the priority, and let allocations fail before the machine runs out of memory."""
    if hasattr(os, "nice"):
        os.nice(5)
    try:
        import resource
    except ImportError:  # Windows, where the supervising process watches the memory.
        return
    with contextlib.suppress(OSError, ValueError):
        # Not the address space: torch reserves many times what it uses.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _kind(error: Exception) -> str:
    if isinstance(error, MemoryError) or any(words in str(error) for words in _MEMORY_WORDS):
        return "memory"
    is_full = isinstance(error, OSError) and error.errno in _NO_SPACE
    return "space" if is_full or "No space left" in str(error) else "file"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
