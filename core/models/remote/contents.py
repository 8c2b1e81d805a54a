"""Asks the Hub what a model consists of, and refuses what can't be used here before its weights are downloaded."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from core.controls import Cancelled
from core.errors import DownloadError, ModelUnreadableError
from core.files import parse_json, read_json
from core.models.catalogue import SHARES
from core.models.folder.vocabulary import vocabulary_problem
from core.models.folder.weight_files import PICKLED, adapter_error
from core.models.remote import hub
from core.models.remote.hub import explain
from core.text import bytes_text

TIMEOUT_SECONDS = 15.0
"""Wait for a connection to the Hub, or for its next bytes."""
ANSWER_SECONDS = 60.0
MOST_ANSWER_BYTES = 32_000_000
"""Limits of an answer about a model; that of one with 10,000 files has 3 MB."""

_TOKENIZER_TABLES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken", "tekken.json")
_SMALL = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "merges.txt", "chat_template.jinja", "chat_template.json", *_TOKENIZER_TABLES,
)  # fmt: skip
_UNSAFE = (*PICKLED, "*.msgpack", "*.h5")
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_CONVERTER = "SFconvertbot"
"""The Hub's own converter, which offers older models as safetensors in a pull request."""


class RemoteFile(NamedTuple):
    """A file on the Hub: its name in the model's folder, its size in bytes, and its digest.

    The digest is sha256 of the content, or for small files git's sha1; it is the file's name in the cache.
    """

    name: str
    size: int
    digest: str


class Revision(NamedTuple):
    """One revision of a model on the Hub: its commit, the needed files with the weights last, whether it is `main`."""

    commit: str
    files: list[RemoteFile]
    is_main: bool


def ask(ref: str, check_cancelled: Callable[[], None] = lambda: None) -> Revision:
    """Ask the Hub what a model consists of.

    Raises:
        Cancelled: by `check_cancelled`.
        OutriderError: the Hub can't be reached, has no such model, or the model can't be used here.
    """
    from huggingface_hub import ModelInfo
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # Its advice would appear next to our own messages.
    answer = functools.partial(_answer, check_cancelled)
    try:
        info, converted = ModelInfo(**answer(ref, blobs=True)), None
        files = _own_files(info)
        if not _weights(files) and _matching(files, *_UNSAFE) and (converted := _converted_revision(answer, ref)):
            info = ModelInfo(**answer(f"{ref}/revision/{quote(converted, safe='')}", blobs=True))
            files = _own_files(info)
        _refuse_useless(ref, files, [sibling.rfilename for sibling in info.siblings or ()])
        commit = str(info.sha)
        if not hub.COMMIT.fullmatch(commit):
            raise ValueError("it names no commit")
        return Revision(commit, [_remote_file(files[name]) for name in _needed(files)], converted is None)
    except Cancelled:
        raise
    except Exception as error:
        raise explain(error, ref) from error


def _answer(check_cancelled: Callable[[], None], path: str, **params: Any) -> Any:
    """The Hub's answer to a question about models, in bounded memory and time."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    url = f"{hub.endpoint() or constants.ENDPOINT}/api/models/{path}"
    # A compressed answer could unpack to a thousand times what was received.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    until, data = time.monotonic() + ANSWER_SECONDS, bytearray()
    with get_session().stream("GET", url, headers=headers, params=params, timeout=TIMEOUT_SECONDS) as response:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError("it is compressed, although that was not asked for")
        for chunk in response.iter_raw():
            check_cancelled()
            data += chunk
            if len(data) > MOST_ANSWER_BYTES:
                raise ValueError(f"it has more than {bytes_text(MOST_ANSWER_BYTES)}")
            if time.monotonic() > until:
                raise ValueError(f"it takes more than {ANSWER_SECONDS:.0f} seconds")
        response._content = bytes(data)  # Its errors quote what was read.
        hf_raise_for_status(response)
    return parse_json(bytes(data))


def _own_files(info: Any) -> dict[str, Any]:
    """The files directly in a model's folder, by name; some systems use separators other than /."""
    return {item.rfilename: item for item in info.siblings or () if not set(item.rfilename) & set("/\\:")}


def _converted_revision(answer: Callable[..., Any], ref: str) -> str | None:
    """The revision of the Hub converter's pull request that offers a model as safetensors."""
    from huggingface_hub.errors import HfHubHTTPError

    with contextlib.suppress(HfHubHTTPError):  # Discussions may be disabled.
        found = answer(f"{ref}/discussions", author=_CONVERTER, type="pull_request")
        for discussion in found["discussions"]:
            # The author is checked again: a mirror of the Hub may not filter.
            is_own = discussion["author"]["name"] == _CONVERTER and discussion["isPullRequest"]
            if is_own and "safetensors" in discussion["title"] and discussion["status"] == "open":
                return f"refs/pr/{int(discussion['num'])}"
    return None


def _refuse_useless(ref: str, names: Iterable[str], everything: list[str]) -> None:
    """Raise ModelUnreadableError, before anything is downloaded, if the model can't be used here."""
    pickled, ggufs = _matching(names, *_UNSAFE), _matching(everything, "*.gguf")
    is_whole = "config.json" in names and (_weights(names) or any(not name.startswith("adapter_") for name in pickled))
    if "adapter_config.json" in names and not (is_whole or ggufs):
        raise adapter_error(ref)
    if not _weights(names):
        if pickled:
            raise ModelUnreadableError(
                f"The weights of {ref!r} are pickle files, which can run code when they are opened, so they are not "
                "downloaded. Choose a model with safetensors."
            )
        if ggufs:
            raise ModelUnreadableError(
                f"{ref!r} contains only GGUF files. Download one yourself, such as {ggufs[0]!r}, and name that file "
                "instead."
            )
        raise ModelUnreadableError(f"{ref!r} has no safetensors, so there is nothing to load. Choose another model.")
    if "config.json" not in names:
        raise ModelUnreadableError(f"{ref!r} has no config.json: it is not a language model. Choose another model.")


def refuse_without_tokenizer(ref: str, revision: Revision, folder: Path) -> None:
    """Raise ModelUnreadableError if a model has no tokenizer that can be read, and does not borrow its target's."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        config = None  # Its hash is correct; the catalogue reports what is wrong with it.
    if isinstance(config, dict) and SHARES in config:
        return
    names = [file.name for file in revision.files]
    if not _matching(names, *_TOKENIZER_TABLES):
        raise ModelUnreadableError(f"{ref!r} has no tokenizer, so it can't be used. Choose another model.")
    if problem := vocabulary_problem(folder, names, ref):
        raise ModelUnreadableError(problem)


def _needed(names: Iterable[str]) -> list[str]:
    """Sort the configuration first, since it shows whether the rest is usable, and the weights last."""
    weights = _weights(names)
    small = _matching(names, *_SMALL) + ([_INDEX] if _INDEX in names and "model.safetensors" not in weights else [])
    return [*sorted(small, key=lambda name: (name != "config.json", name)), *weights]


def _weights(names: Iterable[str]) -> list[str]:
    """The weight files that transformers would read, if the model comes in several formats."""
    if "model.safetensors" in names:
        return ["model.safetensors"]
    weights = [name for name in _matching(names, "*.safetensors") if not name.startswith("adapter_")]
    shards = [name for name in weights if _SHARD.fullmatch(name)] if _INDEX in names else []
    return shards or weights


def _remote_file(sibling: Any) -> RemoteFile:
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    size = sibling.lfs.size if sibling.lfs else sibling.size
    # The digest becomes a file's name, so it must be nothing but a hash.
    if not _DIGEST.fullmatch(str(digest)) or not isinstance(size, int) or size < 0:
        raise DownloadError(
            f"The Hub gives neither size nor hash of {sibling.rfilename!r}, so it can't be checked. Try again later."
        )
    return RemoteFile(sibling.rfilename, size, digest)


def _matching(names: Iterable[str], *patterns: str) -> list[str]:
    return sorted(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
