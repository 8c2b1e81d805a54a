"""Forwards through transformers' own module: works for every architecture, at that module's speed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from core.errors import ModelUnreadableError
from core.runners.base import ForwardOutput, check_rewind


class ModuleRunner:
    """Runs a causal language model of transformers with a cache that can be rewound.

    Every layer's cache keeps all positions, also in layers that attend through a sliding window: the module's mask
    applies the window, and a cache without the positions outside the window could not be rewound.
    """

    def __init__(self, model: Any, capacity: int, head_ids: Tensor | None = None) -> None:
        """
        Args:
            model: a transformers model.
            capacity: maximum positions of the text.
            head_ids: (R,) ids whose logits to return, in this order; None for all.
        """
        if getattr(model.config, "is_encoder_decoder", False):
            raise ModelUnreadableError("Encoder-decoder models can't be run yet. Choose a decoder-only model.")
        self._model = model
        self._head_ids = head_ids
        self._device = model.get_input_embeddings().weight.device
        self._cache = DynamicCache()
        self.length = 0
        self.capacity = capacity

    @torch.inference_mode()
    def forward(self, ids: Tensor, *, num_logits: int, with_hidden: bool = False) -> ForwardOutput:
        count = ids.shape[0]
        positions = torch.arange(self.length, self.length + count, device=self._device)
        try:
            output = self._model(
                input_ids=ids.to(self._device).unsqueeze(0),
                position_ids=positions.unsqueeze(0),
                past_key_values=self._cache,
                use_cache=True,
                # transformers reads 0 as "all", so ask for at least one row.
                logits_to_keep=max(num_logits, 1),
                output_hidden_states=with_hidden,
            )
        except BaseException:
            # Some layers may have appended before the failure: cut all back to the same length.
            self._cut(self.length)
            raise
        self.length += count
        rows = output.logits[0]
        if self._head_ids is not None:
            rows = rows[:, self._head_ids]
        return ForwardOutput(
            logits=rows[rows.shape[0] - num_logits :],
            hidden=output.hidden_states[-1][0] if with_hidden else None,
        )

    def rewind(self, length: int) -> None:
        check_rewind(length, self.length)
        self._cut(length)
        self.length = length

    def _cut(self, length: int) -> None:
        for layer in self._cache.layers:
            if getattr(layer, "keys", None) is not None and layer.keys.numel():
                layer.keys = layer.keys[..., :length, :]
                layer.values = layer.values[..., :length, :]
