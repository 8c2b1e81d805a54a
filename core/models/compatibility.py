"""Whether a draft can serve a target: both must mean the same text by the same ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import OutriderError
from core.models.catalogue import ModelEntry, ModelFormat, resolve


def pair_problem(draft_ref: str, target_ref: str) -> str | None:
    """Why these two can't work together, in one sentence; None if they can, or if only loading will tell.

    Reads tokenizer files only. A .gguf file that was not converted yet has none, so its verdict comes with loading.
    """
    try:
        draft, target = resolve(draft_ref), resolve(target_ref)
    except OutriderError as error:
        return str(error)
    if draft.path == target.path:
        return None
    draft_tokenizer, target_tokenizer = _read_tokenizer(draft), _read_tokenizer(target)
    if draft_tokenizer is None or target_tokenizer is None:
        return None
    try:
        return tokenizer_problem(draft_tokenizer, target_tokenizer)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None  # A damaged file, which loading reports.


def tokenizer_problem(draft: Mapping[str, Any], target: Mapping[str, Any]) -> str | None:
    """Compare two tokenizers in the form of tokenizer.json, and name the first token that differs.

    Tables that a model pads beyond its tokenizer don't count: only ids that stand for a token do.
    """
    ours, theirs = _tokens_by_id(draft), _tokens_by_id(target)
    for token_id in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(token_id), theirs.get(token_id)
        if mine != other:
            return (
                f"The tokenizers differ: id {token_id} is {_quote(mine)} in the draft and {_quote(other)} in the "
                "target. Choose a draft of the target's own family."
            )
    ours_merges, theirs_merges = _merges(draft), _merges(target)
    if ours_merges and theirs_merges and ours_merges != theirs_merges:
        pairs = zip(ours_merges, theirs_merges, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours_merges), len(theirs_merges)))
        return (
            f"The tokenizers differ in how they join characters, first at merge {at}. "
            "Choose a draft of the target's own family."
        )
    return None


def _tokens_by_id(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # Unigram models list [piece, score] in the order of ids.
        tokens = {index: str(piece[0]) for index, piece in enumerate(vocabulary)}
    else:
        tokens = {int(token_id): token for token, token_id in vocabulary.items()}
    tokens.update({int(added["id"]): str(added["content"]) for added in tokenizer.get("added_tokens") or ()})
    return tokens


def _merges(tokenizer: Mapping[str, Any]) -> list[str]:
    merges = tokenizer.get("model", {}).get("merges") or []
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _read_tokenizer(entry: ModelEntry) -> Mapping[str, Any] | None:
    folder: Path = entry.path
    if entry.format is ModelFormat.GGUF:
        from core.models.gguf import converted_folder

        folder = converted_folder(entry.path)
    try:
        tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return tokenizer if isinstance(tokenizer, dict) else None


def _quote(token: str | None) -> str:
    return "missing" if token is None else repr(token)
