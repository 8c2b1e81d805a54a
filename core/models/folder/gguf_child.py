"""The child process that unpacks one GGUF file: `python -m core.models.folder.gguf_child SOURCE SCRATCH MEMORY TIME`.

It takes at most MEMORY bytes besides the libraries, and TIME seconds of processor time. It writes the folder
SCRATCH/model, and to SCRATCH/progress a line for each tensor, such as "3 20": the tensors done, and all. It ends with a
`core.models.child.ChildExit` code and the reason on its last line of output, or when its stdin is closed.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from core.models.child import end_with_parent, exit_code, limit


def main(arguments: list[str]) -> int:
    source, scratch = Path(arguments[0]), Path(arguments[1])
    memory_bytes, seconds = map(int, arguments[2:])
    threading.Thread(target=end_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(5)
    try:
        with (scratch / "progress").open("w", encoding="utf-8", buffering=1) as progress:
            from transformers import AutoModelForCausalLM  # noqa: F401 - before the limits, which spare the libraries

            limit(memory_bytes=memory_bytes, processor_s=seconds)
            unpack(source, scratch / "model", lambda done, total: print(done, total, file=progress))
    except Exception as error:
        traceback.print_exc()
        return exit_code(error)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
