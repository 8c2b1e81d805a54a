"""GGUF files, read by dequantising them once into a folder of safetensors that is kept."""

from __future__ import annotations

import errno
import functools
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import platformdirs
import torch

from core.errors import ModelUnreadableError, OutOfMemoryError, first_line
from core.files import explain_write_error


def converted_folder(path: Path) -> Path:
    """Where the converted form of this .gguf file is, or will be, kept: named by its content."""
    state = path.stat()
    digest = _digest(path, state.st_size, state.st_mtime_ns)
    return platformdirs.user_cache_path("outrider", appauthor=False) / "gguf" / digest[:32]


@functools.lru_cache(maxsize=64)
def _digest(path: Path, _size: int, _modified_ns: int) -> str:
    # Asked for again with every verdict on a pair; a file of gigabytes is read once, until it changes.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_converted(path: Path) -> bool:
    """Whether this file's converted form is kept already."""
    return (converted_folder(path) / "config.json").is_file()


def convert(path: Path) -> Path:
    """Dequantise a .gguf file to float32 safetensors, unless that was done before.

    Returns:
        A folder that loads like any other model's.

    Raises:
        ModelUnreadableError: a damaged file, one of an unknown architecture, or no room on disk for the result.
        OutOfMemoryError: no room in memory for it.
    """
    folder = converted_folder(path)
    if (folder / "config.json").is_file():
        return folder
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    scratch: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
        source: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **source)
        # Releases of transformers that can keep the blocks as they are have to be asked to unpack them.
        if hasattr(transformers, "GgufConfig"):
            source["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float32, trust_remote_code=False, **source
        )
        # The weights are plain by now; what remembers that they were not refuses to be saved.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        tokenizer.save_pretrained(scratch)
        model.save_pretrained(scratch)
        scratch.rename(folder)
    except MemoryError as error:
        raise OutOfMemoryError(f"{path.name!r} does not fit in memory unpacked. Choose a smaller model.") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise ModelUnreadableError(explain_write_error(error, folder)) from error
        if (folder / "config.json").is_file():  # Another process was faster.
            return folder
        raise ModelUnreadableError(
            f"{path.name!r} can't be read as a GGUF model ({first_line(error)}). "
            "Download it again, or choose another file."
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder
