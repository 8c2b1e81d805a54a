"""Checks a model folder before anything is built from it: its files' kinds and sizes, its counts, its shapes.

A configuration is a stranger's: it may describe a model that no memory holds, or another one than its weights.
"""

from __future__ import annotations

import importlib.util
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import ModelUnreadableError
from core.files import LARGEST_JSON
from core.models.folder.details import PACKAGES, read_config
from core.models.folder.vocabulary import LARGEST_TOKENIZER
from core.models.folder.weight_files import read_weight_headers
from core.text import bytes_text

if TYPE_CHECKING:
    import torch

_SMALL = ("config.json", "generation_config.json", "preprocessor_config.json", "chat_template.json")
_PARSED = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_MOST = {"layer": 4_096, "expert": 16_384, "label": 100_000, "head": 65_536}
"""Most of each kind of part; building a module for each, or listing them, would take hours or the whole memory."""
_LAYER = re.compile(r"(?:^|\.)(layers|layer|h|blocks|block)\.(\d+)\.")
_SLACK = 1.02
_SPARE = 10_000_000
"""A model may have this many times the parameters of its file, and these: loading names what is missing."""
_PACKED = 9
"""The same if the file packs its weights, in four bits or more."""
_MOST_BUFFERED = 100_000_000
"""A model may have as many numbers in tables, such as those of its positions, as its file has parameters, and these."""


def check_files(folder: Path, title: str) -> None:
    """Check the files that others parse, and the numbers of parts in the configuration.

    Raises:
        ModelUnreadableError: a file is too large, or a pipe or a device; or there are too many parts of a kind.
    """
    for path in folder.iterdir():
        try:
            status = path.stat()
        except OSError:
            continue  # A dangling link; whoever needs the file will report it.
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise ModelUnreadableError(
                f"{path.name!r} of {title} is a pipe or a device, not a file. Download the model again."
            )
        limit = LARGEST_JSON if path.name in _SMALL else LARGEST_TOKENIZER if path.suffix in _PARSED else None
        if limit is not None and status.st_size > limit:
            raise ModelUnreadableError(
                f"{path.name!r} of {title} is {bytes_text(status.st_size)}; at most {bytes_text(limit)} is allowed. "
                "Choose another model."
            )
    for name, value in _numbers(read_config(folder, title)):
        most = next((most for word, most in _MOST.items() if word in name), None)
        if most is not None and value > most and "size" not in name:
            raise ModelUnreadableError(
                f"The config.json of {title} asks for {value:,} as its {name!r}; at most {most:,} are allowed. "
                "Choose another model."
            )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in config.items():
        if type(value) is int:
            yield name, value
        elif isinstance(value, dict):
            yield from _numbers(value)


def loading_problem(config: Mapping[str, Any], title: str, *, with_kinds: bool = True) -> str | None:
    """Why a model with this config.json can't be loaded here, in a sentence; None if it can, or loading will tell.

    with_kinds: whether to ask transformers which kinds of models it knows, which imports torch.
    """
    kind, quantization = config.get("model_type"), config.get("quantization_config")
    if config.get("is_encoder_decoder") is True:
        return f"{title} is an encoder-decoder model ({kind}), which can't be run yet. Choose a decoder-only model."
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method == "compressed-tensors":
        return f"{title} is quantised with {method}, which can't be run yet. Choose another model."
    needed = PACKAGES.get(method, ()) if isinstance(method, str) else ()
    if lacking := [name for name in needed if importlib.util.find_spec(name) is None]:
        return (
            f"{title} is quantised with {method}, which needs {' and '.join(lacking)}. Install what is missing with "
            f"`pip install {' '.join(lacking)}`, or choose another model."
        )
    if not with_kinds or not isinstance(kind, str):
        return None
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return None
    code = " without the model's own code, which is never run" if config.get("auto_map") else ""
    return (
        f"{title} is a {kind!r} model, which transformers can't load as a causal language model{code}. "
        "Choose another model."
    )


def model_config(folder: Path) -> Any:
    """A folder's configuration, without the implementations that it asks for, which transformers would download."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    config._attn_implementation = None
    config._experts_implementation = None
    return config


def empty_model(folder: Path, dtype: torch.dtype) -> Any:
    """A folder's model without its weights, on the meta device."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    config = model_config(folder)
    # Including the buffers, so that nothing is created on the CPU first.
    with init_empty_weights(include_buffers=True):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    model.tie_weights()
    return model


def check_shapes(model: torch.nn.Module, folder: Path, title: str, *, is_packed: bool) -> None:
    """Compare a module on the meta device with the headers of its weight files.

    Args:
        is_packed: whether the file's weights are quantised, and take less than they are loaded as.

    Raises:
        ModelUnreadableError: it is larger than its files, has other layers, or tables that no model has.
    """
    tensors = read_weight_headers(folder, title)
    parameters = dict(model.named_parameters())
    here, there = sum(tensor.num_elements for tensor in tensors), sum(item.numel() for item in parameters.values())
    if there > here * (_PACKED if is_packed else _SLACK) + _SPARE:
        raise ModelUnreadableError(
            f"The config.json of {title} describes a model of {there:,} parameters, but its weights have {here:,}. "
            "Download the model again."
        )
    if (buffered := sum(item.numel() for item in model.buffers())) > here + _MOST_BUFFERED:
        raise ModelUnreadableError(
            f"The config.json of {title} describes tables, such as those of its positions, of {buffered:,} numbers in "
            "all; no model of its size has that many. Choose another model."
        )
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    names = [tensor.name for tensor in tensors if not any(re.search(pattern, tensor.name) for pattern in ignored)]
    stored, built = _num_layers(names), _num_layers(parameters)
    for kind in stored.keys() & built.keys() or stored.keys():
        if stored[kind] > built.get(kind, 0) and (kind in built or not built):
            raise ModelUnreadableError(
                f"The config.json of {title} describes {built.get(kind, 0)} layers, and its weights have "
                f"{stored[kind]}. Download the model again."
            )


def _num_layers(names: Iterable[str]) -> dict[str, int]:
    """The number of layers by what they are called; of several towers, the tallest's."""
    found: dict[str, int] = {}
    for name in names:
        if match := _LAYER.search(name):
            found[match[1]] = max(found.get(match[1], 0), int(match[2]) + 1)
    return found
