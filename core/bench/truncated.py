"""A draft made of a target's own first layers: it accepts little, and costs what a real draft of that size costs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from core.errors import ModelUnreadableError, SettingsError
from core.models.loading import prepare

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


def truncated_draft(target: LanguageModel, num_layers: int) -> LanguageModel:
    """A model of the target's first layers, which are copied, as a real draft has its own.

    Embedding, final norm and head are the target's, by reference.

    Raises:
        SettingsError: it has no such number of layers.
        ModelUnreadableError: its layers can't be told from the rest.
    """
    config = copy.deepcopy(target.model.config)
    most = config.num_hidden_layers
    if not 1 <= num_layers <= most:
        raise SettingsError(f"A draft can have from 1 to {most} of the target's layers, not {num_layers}.")
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    path = _path_of_layers(target.model, most)
    if path is None:
        raise ModelUnreadableError(
            f"The layers of {target.ref} can't be told from its other parts. Name a draft with --draft instead."
        )
    module = _with_layers(target.model, path.split("."), num_layers, config)
    return prepare(f"{target.ref}, {num_layers} layers", module, target.tokenizer, target.device, target.dtype)


def _path_of_layers(module: Any, count: int) -> str | None:
    lists = (name for name, part in module.named_modules() if isinstance(part, nn.ModuleList) and len(part) == count)
    return next(lists, None)


def _with_layers(module: Any, path: list[str], count: int, config: Any) -> Any:
    """A copy of a module with fewer layers; of all else it holds the same parts."""
    if not path:
        return nn.ModuleList(copy.deepcopy(layer) for layer in module[:count])
    twin = copy.copy(module)
    # copy.copy gives the twin the very same dictionaries, of parts as well as of hooks.
    vars(twin).update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    twin._modules[path[0]] = _with_layers(module._modules[path[0]], path[1:], count, config)
    if hasattr(module, "config"):
        twin.config = config
    return twin
