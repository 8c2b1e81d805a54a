"""A loaded model: its properties, and the forwards that the engine calls."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from core.errors import ModelUnreadableError, OutOfMemoryError
from core.models.devices import is_out_of_memory
from core.models.folder.details import CONTEXTS, context_of
from core.runners.base import Runner
from core.runners.graphed import CudaCapture, GraphPool, captures_graphs
from core.runners.llama import FusedLlamaRunner, FusedLlamaWeights
from core.runners.module import ModuleRunner, Reading, first_position

_DEFAULT_CONTEXT = 2048
"""For models whose configuration sets no limit."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class LanguageModel:
    """A loaded model with its tokenizer.

    Attributes:
        ref: the reference it was loaded from.
        model: transformers' module.
        tokenizer: transformers' tokenizer.
        device, dtype: where and in which precision it runs.
        vocab_size: number of ids that stand for a token; a table padded beyond it is never emitted from.
        context_length: positions that the model was trained for.
        eos_ids: ids that end a text.
        draft_ids: (R,) ids that it proposes as a draft, in trimmed-head order; None for all.
        fused_weights: weights arranged for the fused forward; None if transformers' module is used.
        reading: how that module continues a text from its cache.
        can_branch: whether that module reads trees rightly.
        revision: a Hub model's commit; None for other models.
        known_rows: row counts whose kernels `TargetScorer.prepare` has built.
        loaded_kernels: kinds of verification whose kernels `Rounds.prepare` has loaded.
    """

    ref: str
    model: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    context_length: int
    eos_ids: frozenset[int]
    draft_ids: torch.Tensor | None = field(default=None, repr=False)
    fused_weights: FusedLlamaWeights | None = field(default=None, repr=False)
    reading: Reading = Reading.BLOCKS
    can_branch: bool = True
    revision: str | None = None
    known_rows: set[int] = field(default_factory=set, init=False, repr=False)
    loaded_kernels: set[Hashable] = field(default_factory=set, init=False, repr=False)
    _graphs: GraphPool | None = field(default=None, init=False, repr=False)

    @property
    def num_parameters(self) -> int:
        """Of the loaded module; a tied output head counts once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def embedding(self) -> Any:
        """The module that embeds ids (n,) as (n, H)."""
        return self.model.get_input_embeddings()

    @property
    def head(self) -> Any:
        """The module that turns final states (n, H) into logits (n, V)."""
        return self.model.get_output_embeddings()

    @property
    def is_spread(self) -> bool:
        """Whether its weights are in more than one place."""
        return len({str(place) for place in (getattr(self.model, "hf_device_map", None) or {}).values()}) > 1

    def runner(self, limit: int, *, drafting: bool = False, quantise: bool = False, spare: int = 0) -> Runner:
        """A fresh cache for a text of up to `limit` positions, and the forward that fills it.

        `spare` adds places to the cache, for the branches of a tree, which don't lengthen the text.

        Drafting, its logits are (n, R), those of `draft_ids` where there are any: a head over the frequent
        ids costs less, and a draft may leave out any id. A draft may also `quantise`: its products are then
        in int8 if that is faster, which only the fused forward on the CPU supports.

        Raises:
            OutOfMemoryError: the cache does not fit.
        """
        draft_ids = self.draft_ids if drafting else None
        try:
            if self.fused_weights is not None:
                return self._fused_runner(limit, limit + spare, drafting=drafting, quantise=quantise)
            return ModuleRunner(
                self.model, limit + spare, draft_ids, self.reading, longest=limit, can_branch=self.can_branch
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self._graphs is not None:
                self._graphs.clear()
            raise OutOfMemoryError(
                f"The cache of {self.ref} for {limit} positions does not fit in memory. Ask for fewer new tokens, "
                "or choose a smaller model."
            ) from error

    def _fused_runner(self, limit: int, capacity: int, *, drafting: bool, quantise: bool) -> Runner:
        weights = self.fused_weights
        assert weights is not None

        def make(num_positions: int) -> FusedLlamaRunner:
            return FusedLlamaRunner(
                weights,
                num_positions,
                longest=limit,
                products=weights.draft_products(is_quantised=quantise) if drafting else None,
                head=weights.draft_head(self.draft_ids, is_quantised=quantise) if drafting else None,
            )

        if not captures_graphs(self.device):
            return make(capacity)
        self._graphs = self._graphs or GraphPool(CudaCapture(self.device))
        # Rotary frequencies that depend on the capacity admit no other one.
        exact = limit if weights.has_length_dependent_rotary else None
        return self._graphs.runner((drafting, exact), capacity, make)


def describe(ref: str, model: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A loaded module and what its files say about it; it runs in transformers' own way.

    Raises:
        ModelUnreadableError: its context or its list of draft ids is invalid.
    """
    config = model.config.get_text_config()
    vocab_size = _vocab_size(tokenizer, rows=int(model.get_output_embeddings().weight.shape[0]))
    return LanguageModel(
        ref=ref,
        model=model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        vocab_size=vocab_size,
        context_length=_context_length(ref, config.to_dict()) - first_position(model),
        eos_ids=_eos_ids(model, tokenizer),
        draft_ids=_draft_ids(ref, config, vocab_size, device),
    )


def _context_length(ref: str, config: dict[str, Any]) -> int:
    limit, given = context_of(config), next(filter(None, map(config.get, CONTEXTS)), None)
    if given and not limit:
        raise ModelUnreadableError(
            f"The context in the config.json of {ref} must be a number of tokens, not {given!r}. "
            "Download the model again."
        )
    return limit or _DEFAULT_CONTEXT


def _vocab_size(tokenizer: Any, rows: int) -> int:
    """Rows of a model's table up to the last that stands for a token; models pad theirs beyond their tokenizers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return min(rows, max(tokenizer.get_vocab().values()) + 1)
    # Don't build the whole vocabulary: that dictionary would block every other thread and the window.
    return next((index + 1 for index in reversed(range(rows)) if backend.id_to_token(index) is not None), 0)


def _draft_ids(ref: str, config: Any, vocab_size: int, device: torch.device) -> torch.Tensor | None:
    """The list `draft_vocabulary` of a model's configuration, which models made to be drafts have."""
    listed = getattr(config, "draft_vocabulary", None)
    if listed is None:
        return None
    are_ids = isinstance(listed, list) and all(type(item) is int and 0 <= item < vocab_size for item in listed)
    if not are_ids or not listed or len(set(listed)) != len(listed):
        raise ModelUnreadableError(
            f"The draft_vocabulary in the config.json of {ref} must list different ids from 0 to {vocab_size - 1}. "
            "Download the model again."
        )
    return torch.tensor(listed, device=device)


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        listed = ids if isinstance(ids, list | tuple) else [ids]
        if valid := frozenset(end for end in listed if type(end) is int and end >= 0):
            return valid
    return frozenset()
