"""Forwards through transformers' own module: works for every architecture, at that module's speed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)

from core.errors import SettingsError
from core.runners import rotary
from core.runners.base import PREFILL_CHUNK, ForwardOutput, TreeRows, check_rewind, check_room
from core.runners.timing import sent

_MOST_REREAD = 16
"""With more unread positions than this, they are read by a forward of their own, and a new snapshot is taken."""


class Reading(StrEnum):
    """How a module continues a text from its cache."""

    BLOCKS = "blocks"
    """Any number of tokens in one forward."""
    TOKENS = "tokens"
    """One token a forward, after the first."""
    WHOLE = "whole"
    """Its cache is of no use: every forward reads the whole text."""


class ModuleRunner:
    """Runs a causal language model of transformers with a cache that can be rewound.

    Attention keeps all positions, also in layers with a sliding window: the module's mask applies the window, and
    positions that were dropped could not be restored. A recurrent state can't be cut, so it is copied before each
    block; after a rejection the copy comes back, and the next forward reads what was accepted a second time.
    """

    def __init__(
        self,
        model: Any,
        capacity: int,
        head_ids: Tensor | None = None,
        reading: Reading = Reading.BLOCKS,
        longest: int | None = None,
        can_branch: bool = True,
    ) -> None:
        """
        Args:
            model: a transformers model.
            capacity: places in the cache.
            head_ids: (R,) ids whose logits to return, in this order; None for all.
            reading: how the model continues from its cache.
            longest: positions of the longest text, if the cache has room for more.
            can_branch: whether it reads trees rightly.
        """
        self._model = model
        self._head_ids = head_ids
        self._reading = reading
        self._can_branch = can_branch
        self._device = model.get_input_embeddings().weight.device
        self._rotary = rotary.frequencies_for(model, longest or capacity)
        self._first_position = first_position(model)
        self._parameters = frozenset(inspect.signature(model.forward).parameters)
        self._ids = torch.zeros(capacity, dtype=torch.int64, device=self._device)
        self.length = 0
        self.capacity = capacity
        self._start_over()

    def _start_over(self) -> None:
        self._cache = new_cache(self._model.config)
        self._num_read = 0
        """Positions in the cache: fewer than `length` after a state was restored."""
        self._saved: tuple[int, list[dict[str, Any]]] | None = None
        self._is_kept = True
        """Whether all positions are here to stay, so that a later rewind goes no further back."""

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, *, num_logits: int, layers: Sequence[int] = (), tree: TreeRows | None = None
    ) -> ForwardOutput:
        if tree is not None and (self._has_state or self._reading is not Reading.BLOCKS or not self._can_branch):
            raise SettingsError(
                "This model can't read several candidates for one position. Choose a method that drafts chains."
            )
        start, end = self.length, self.length + ids.shape[0]
        check_room(end, self.capacity)
        self._ids[start:end] = sent(ids, self._device)
        if self._has_state:
            if start - self._num_read > _MOST_REREAD:
                for at in range(self._num_read, start, PREFILL_CHUNK):
                    self._read(at, min(at + PREFILL_CHUNK, start), 0, ())
            if self._is_kept and self._num_read == start:
                self._saved = start, [_copy(layer) for layer in self._cache.layers]
                self._is_kept = False
        if self._reading is Reading.WHOLE and not num_logits and not layers:
            self.length = end  # The next forward reads it all.
            weight = self._model.get_output_embeddings().weight
            return ForwardOutput(weight.new_empty(0, len(weight if self._head_ids is None else self._head_ids)))
        output = self._read(self._num_read, end, num_logits, layers, tree)
        self.length = end
        logits = output.logits[output.logits.shape[0] - num_logits :]
        return ForwardOutput(logits, tuple(each[-len(ids) :] for each in output.states))

    def _read(
        self, start: int, end: int, num_logits: int, layers: Sequence[int], tree: TreeRows | None = None
    ) -> ForwardOutput:
        """Read positions `start` to `end`; logits of the last `num_logits`, at least one, and the states of these
        layers, of all."""
        if self._reading is Reading.WHOLE:
            return self._call(0, end, num_logits, layers)
        try:
            if self._reading is Reading.TOKENS and start:
                rows = [self._call(at, at + 1, 1, layers) for at in range(start, end)]
                states = tuple(torch.cat(each) for each in zip(*(row.states for row in rows), strict=True))
                output = ForwardOutput(torch.cat([row.logits for row in rows]), states)
            else:
                output = self._call(start, end, num_logits, layers, tree)
        except BaseException:
            # Some layers may have read these positions before the failure.
            if self._has_state:
                self._start_over()
            else:
                self._cut(start)
            raise
        self._num_read = end
        return output

    def _call(
        self, start: int, end: int, num_logits: int, layers: Sequence[int], tree: TreeRows | None = None
    ) -> ForwardOutput:
        given: dict[str, Any] = {
            "input_ids": self._ids[start:end].unsqueeze(0),
            "use_cache": self._reading is not Reading.WHOLE,
            "output_hidden_states": bool(layers),
        }
        if "position_ids" in self._parameters:
            at = sent(tree.new_positions, self._device) if tree else torch.arange(start, end, device=self._device)
            given["position_ids"] = at.unsqueeze(0) + self._first_position
        if tree is not None:
            given["attention_mask"] = self._masks(tree, end)
        if "logits_to_keep" in self._parameters:
            given["logits_to_keep"] = max(num_logits, 1)  # transformers reads 0 as "all".
        if self._reading is not Reading.WHOLE:
            # From transformers 5.24 on it is `cache`; before, purely recurrent models had a name of their own.
            names = (name for name in ("cache", "cache_params") if name in self._parameters)
            given[next(names, "past_key_values")] = self._cache
        with rotary.fixed(self._rotary):
            output = self._model(**given)
        rows = output.logits[0]
        if self._head_ids is not None:
            rows = rows[:, self._head_ids]
        return ForwardOutput(rows, tuple(output.hidden_states[layer][0] for layer in layers))

    def _masks(self, tree: TreeRows, end: int) -> Any:
        """The additive mask (1, 1, n, end) of a tree, or one for each kind of layer; a window spans positions."""
        config = self._model.config.get_text_config()
        window, kinds = getattr(config, "sliding_window", None), set(getattr(config, "layer_types", None) or ())
        count, width = tree.visible.shape
        visible = torch.ones(count, end, dtype=torch.bool)
        visible[:, -width:] = tree.visible
        positions = torch.arange(end)
        positions[-width:] = tree.positions

        def additive(allowed: Tensor) -> Tensor:
            mask = torch.zeros(allowed.shape, dtype=self._model.dtype)
            mask.masked_fill_(~allowed, torch.finfo(mask.dtype).min)
            return sent(mask[None, None], self._device)

        near = visible if not window else visible & (positions[-count:, None] - positions < window)
        chunk = getattr(config, "attention_chunk_size", None) or end
        within = visible & (positions[-count:, None] // chunk == positions // chunk)

        def seen(kind: str) -> Tensor:
            return within if kind.startswith("chunked") else near if kind.startswith("sliding") else visible

        if len(kinds) > 1:
            return {kind: additive(seen(kind)) for kind in kinds}
        return additive(near if not kinds else seen(*kinds))

    @torch.inference_mode()
    def keep(self, places: Sequence[int]) -> None:
        check_rewind(places[-1] + 1, self.length)
        start, end = places[0], places[0] + len(places)
        kept = sent(torch.tensor(places), self._device)
        for layer in self._cache.layers:
            if getattr(layer, "keys", None) is not None and layer.keys.numel():
                layer.keys[..., start:end, :] = layer.keys.index_select(-2, kept)
                layer.values[..., start:end, :] = layer.values.index_select(-2, kept)
        self._ids[start:end] = self._ids.index_select(0, kept)
        self.rewind(end)

    def rewind(self, length: int) -> None:
        check_rewind(length, self.length)
        if self._reading is not Reading.WHOLE:
            self._cut(length)
        self.length = length
        self._is_kept = True

    @property
    def _has_state(self) -> bool:
        return self._reading is not Reading.WHOLE and any(not _is_plain(layer) for layer in self._cache.layers)

    def _cut(self, length: int) -> None:
        """Leave at most the first `length` positions in the cache; fewer if it holds a state."""
        if self._has_state and length < self._num_read:
            if self._saved is None or self._saved[0] > length:
                self._start_over()
                return
            length, states = self._saved
            for layer, state in zip(self._cache.layers, states, strict=True):
                vars(layer).update(_copied(state))
        for layer in self._cache.layers:
            if getattr(layer, "keys", None) is not None and layer.keys.numel():
                layer.keys = layer.keys[..., :length, :]
                layer.values = layer.values[..., :length, :]
        self._num_read = min(self._num_read, length)


def first_position(model: Any) -> int:
    """The position of a text's first token: 0, or the one after that of padding, as in RoBERTa."""
    tables = (getattr(module, "position_embeddings", None) for module in model.modules())
    padding = (getattr(table, "padding_idx", None) for table in tables)
    return next((index + 1 for index in padding if index is not None), 0)


def new_cache(config: Any) -> DynamicCache:
    """An empty cache whose attention layers keep every position."""
    try:
        cache = DynamicCache(config=config)
    except (AttributeError, KeyError, TypeError, ValueError):  # A configuration that doesn't list its layers.
        return DynamicCache()
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, LinearAttentionAndSlidingWindowAttentionLayer):
            cache.layers[index] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif isinstance(layer, DynamicSlidingWindowLayer):
            cache.layers[index] = DynamicLayer()
    return cache


def _is_plain(layer: Any) -> bool:
    """Whether a layer of a cache holds nothing but keys and values, which can be cut."""
    return type(layer) in (DynamicLayer, DummyLayer)


def _copy(layer: Any) -> dict[str, Any]:
    """A layer's state, to be restored later; keys and values are cut instead."""
    if _is_plain(layer):
        return {}
    is_cut = isinstance(layer, DynamicLayer)
    return _copied({name: value for name, value in vars(layer).items() if not (is_cut and name in ("keys", "values"))})


def _copied(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """With its tensors, and those of dictionaries in it, cloned: modules write to them in place."""

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.clone()
        return _copied(value) if isinstance(value, Mapping) else value

    return {name: copied(value) for name, value in state.items()}
