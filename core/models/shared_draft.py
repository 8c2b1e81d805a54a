"""Drafts made for one target, whose embedding, output head and tokenizer they borrow.

The `config.json` of such a draft says so::

    "shares_tables_with": {"model": "owner/name", "tokens_sha256": "…"}
    "draft_vocabulary": [ids whose rows of the head it uses]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import ModelUnreadableError, PairMismatchError, first_line
from core.models.catalogue import served_target, shared_tables
from core.models.folder.details import read_config
from core.models.folder.vocabulary import read_tokens

if TYPE_CHECKING:
    from core.models.catalogue import ModelEntry
    from core.models.language_model import LanguageModel

BORROWED = frozenset({"model.embed_tokens.weight", "lm_head.weight"})
"""Parameters that belong to the target: never trained or stored."""


def tokens_sha256(tokens: Mapping[int, str]) -> str:
    """Fingerprint of a vocabulary: the text of each id."""
    listed = json.dumps(sorted(tokens.items()), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(listed.encode("ascii")).hexdigest()


def serves(folder: Path) -> str | None:
    """The target that the draft in this folder was made for; None for a standalone model."""
    try:
        return served_target(read_config(folder)) or None
    except ModelUnreadableError:
        return None


def shared_draft_problem(draft: ModelEntry, target: ModelEntry) -> str | None:
    """Why such a draft can't serve a target, in one sentence; None if it can, or if only loading will tell."""
    try:
        config, theirs = read_config(draft.path), read_config(target.path)
    except ModelUnreadableError:
        return None
    wanted, found = config.get("hidden_size"), theirs.get("hidden_size")
    if found is not None and wanted != found:
        return _mismatch(draft, f"its hidden size is {wanted}, this target's is {found}")
    tokens = read_tokens(target)
    if tokens is not None and tokens_sha256(tokens) != shared_tables(config).get("tokens_sha256"):
        return _mismatch(draft, "this target has a different vocabulary")
    return None


def load_shared_draft(entry: ModelEntry, target: LanguageModel) -> Any:
    """The module of a draft, loaded onto the target's device in its precision, with the target's own tables.

    Raises:
        PairMismatchError: it was made for a target with different tables.
        ModelUnreadableError: its files are damaged or incomplete.
        torch.OutOfMemoryError, MemoryError, RuntimeError: no memory is left for it.
    """
    from accelerate import init_empty_weights
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from core.models.devices import is_out_of_memory
    from core.models.folder.checks import check_files, model_config

    way_out = "Install Outrider again." if entry.embedded else "Get or distil it again, or choose another draft."
    embedding = target.model.get_input_embeddings().weight
    if not entry.embedded:
        check_files(entry.path, entry.title)
    try:
        config = model_config(entry.path)
        if (config.vocab_size, config.hidden_size) != tuple(embedding.shape):
            raise PairMismatchError(_mismatch(entry, "this target's embedding has another size"))
        weights = load_file(entry.path / "model.safetensors")
        with init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(config, dtype=target.dtype, trust_remote_code=False)
        weights = {name: tensor.to(target.device, target.dtype) for name, tensor in weights.items()}
        left = model.load_state_dict(weights, strict=False, assign=True)
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, PairMismatchError):
            raise
        raise ModelUnreadableError(
            f"The files of {entry.title} are damaged or incomplete ({first_line(error)}). {way_out}"
        ) from error
    if set(left.missing_keys) - BORROWED or left.unexpected_keys:
        raise ModelUnreadableError(f"The weight file of {entry.title} is incomplete. {way_out}")
    model.set_input_embeddings(target.model.get_input_embeddings())
    model.set_output_embeddings(target.model.get_output_embeddings())
    return model.to(target.device).eval().requires_grad_(False)


def _mismatch(draft: ModelEntry, reason: str) -> str:
    return f"{draft.title} only drafts for {draft.serves}: {reason}. Choose that target."
