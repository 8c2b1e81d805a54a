"""What a model on the Hub consists of, and which of its files are needed."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Any

from core.errors import DownloadError, ModelUnreadableError
from core.models import hub
from core.models.hub_errors import explain
from core.models.transfer import TIMEOUT_SECONDS, RemoteFile

_TOKENIZER_TABLES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken", "tekken.json")
_SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    *_TOKENIZER_TABLES,
)
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_CONVERTER = "SFconvertbot"
"""The Hub's own converter, which offers models of old as safetensors in a pull request."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a model on the Hub.

    Attributes:
        commit: its hash.
        files: those that are needed, the small ones first, so that a model with weights is a whole one.
        is_main: whether the branch `main` is at it.
    """

    commit: str
    files: tuple[RemoteFile, ...]
    is_main: bool = True

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)


def ask(ref: str) -> Revision:
    """Ask the Hub what a model consists of.

    Raises:
        OutriderError: the Hub can't be reached, has no such model, or the model is of no use here.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # Its advice would be written past what a person is shown.
    api = HfApi(endpoint=hub.endpoint())
    try:
        info = _info(api, ref)
        converted = _converted_revision(api, ref) if _has_pickles_only(info) else None
        if converted is not None:
            info = _info(api, ref, converted)
        names = {sibling.rfilename: sibling for sibling in info.siblings or () if _is_plain(sibling.rfilename)}
        _refuse_useless(ref, set(names), [sibling.rfilename for sibling in info.siblings or ()])
        if not _COMMIT.fullmatch(str(info.sha)):
            raise ValueError("it names no commit")
        files = tuple(_remote_file(names[name]) for name in _needed(set(names)))
    except Exception as error:
        raise explain(error, ref) from error
    return Revision(info.sha, files, converted is None)


def _info(api: Any, ref: str, revision: str | None = None) -> Any:
    return api.model_info(ref, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS)


def _converted_revision(api: Any, ref: str) -> str | None:
    """The pull request with which the Hub's converter offers a model as safetensors, as a revision."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        for discussion in api.get_repo_discussions(ref, author=_CONVERTER, discussion_type="pull_request"):
            # The name is asked again: a mirror of the Hub may not know how to filter.
            if discussion.author == _CONVERTER and "safetensors" in discussion.title and discussion.status == "open":
                return discussion.git_reference
    except HfHubHTTPError:
        pass  # Discussions may be switched off.
    return None


def _is_plain(name: str) -> bool:
    """Whether a file lies right in the model's folder, on any system: some have more signs than / that lead out."""
    return not set(name) & set("/\\:")


def _has_pickles_only(info: Any) -> bool:
    names = [sibling.rfilename for sibling in info.siblings or () if _is_plain(sibling.rfilename)]
    return not _weights(set(names)) and bool(_matching(names, *_PICKLED))


def _refuse_useless(ref: str, names: set[str], everything: list[str]) -> None:
    """Raises:
    ModelUnreadableError: before anything is downloaded, if the model can't be used here.
    """
    if not _weights(names):
        if _matching(names, *_PICKLED):
            raise ModelUnreadableError(
                f"The weights of {ref!r} are pickle files, which can run code when they are opened, so it is not "
                "downloaded. Choose a model with safetensors."
            )
        if ggufs := _matching(everything, "*.gguf"):
            raise ModelUnreadableError(
                f"{ref!r} holds GGUF files only. Fetch one by hand, such as {min(ggufs)!r}, and name that file instead."
            )
        raise ModelUnreadableError(f"{ref!r} has no safetensors, so there is nothing to load. Choose another model.")
    if "config.json" not in names:
        what = "an adapter for another model" if "adapter_config.json" in names else "not a language model"
        raise ModelUnreadableError(f"{ref!r} has no config.json: it is {what}. Choose another model.")


def refuse_without_tokenizer(ref: str, revision: Revision, config: Any) -> None:
    """Raises:
    ModelUnreadableError: if a model has no tokenizer, and is not one that borrows its target's.
    """
    borrows = isinstance(config, dict) and "shares_tables_with" in config
    if not borrows and not _matching([file.name for file in revision.files], *_TOKENIZER_TABLES):
        raise ModelUnreadableError(f"{ref!r} has no tokenizer, so it can't be used. Choose another model.")


def _needed(names: set[str]) -> list[str]:
    weights = _weights(names)
    small = _matching(names, *_SMALL) + ([_INDEX] if _INDEX in names and "model.safetensors" not in weights else [])
    # The configuration comes first: it says whether the rest is worth fetching.
    return [*sorted(small, key=lambda name: (name != "config.json", name)), *weights]


def _weights(names: set[str]) -> list[str]:
    """The weight files: those that transformers would read, where a model is there in several forms."""
    if "model.safetensors" in names:
        return ["model.safetensors"]
    weights = [name for name in _matching(names, "*.safetensors") if not name.startswith("adapter_")]
    shards = [name for name in weights if _SHARD.fullmatch(name)] if _INDEX in names else []
    return shards or weights


def _remote_file(sibling: Any) -> RemoteFile:
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    size = sibling.lfs.size if sibling.lfs else sibling.size
    # It becomes a file's name: nothing but a hash will do.
    if not _DIGEST.fullmatch(str(digest)) or not isinstance(size, int) or size < 0:
        raise DownloadError(
            f"The Hub says neither size nor hash of {sibling.rfilename!r}, so it can't be checked. Try again later."
        )
    return RemoteFile(sibling.rfilename, size, digest)


def _matching(names: Any, *patterns: str) -> list[str]:
    return sorted(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
