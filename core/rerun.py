"""The request that runs a kept run again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import OutriderError, RunLogError
from core.trace import RunLog
from core.types import Coupling, Device, DType, LengthPolicy, RunRequest, SamplingParams

UNREADABLE = "This run can't be replayed: its log holds a setting that this Outrider can't read."


def request(log: RunLog) -> RunRequest:
    """The request that this run carried out, as the log has it.

    Raises:
        RunLogError: the log lacks what it takes, or holds a setting that no run can have, in one sentence.
    """
    return request_from_config(log.run["config"])


def request_to_show(log: RunLog) -> RunRequest:
    """A request to show this run with: its own, or, where that can't be carried out, its models and prompt alone."""
    config = log.run["config"]

    def text(name: str) -> str:
        value = config.get(name)
        return value if isinstance(value, str) else ""

    try:
        return request(log)
    except RunLogError:
        return RunRequest(
            target=text("target").strip() or "unknown",
            draft=text("draft") or None,
            prompt=text("prompt") or " ",
            coupling=Coupling.GUMBEL if config.get("coupling") == Coupling.GUMBEL else Coupling.REJECTION,
        )


def request_from_config(config: Mapping[str, Any]) -> RunRequest:
    """The request of which a log's `config` was made; see `request`."""
    missing = [name for name in ("target", "prompt", "seed") if config.get(name) is None]
    if missing:
        raise RunLogError(f"This run can't be replayed: its log lacks {' and '.join(missing)}.")
    sampling = SamplingParams()
    chat, stop = config.get("chat"), config.get("stop") or ()
    if not isinstance(stop, list | tuple):
        raise RunLogError(UNREADABLE)
    texts = [config["target"], config["prompt"], config.get("draft") or "", config.get("method") or "", *stop]
    if not all(isinstance(text, str) for text in texts) or not (chat is None or isinstance(chat, bool)):
        raise RunLogError(UNREADABLE)
    try:
        k = config.get("num_draft_tokens", 4)
        return RunRequest(
            target=config["target"],
            draft=config.get("draft") or None,
            prompt=config["prompt"],
            method=config.get("method") or "draft-model",
            method_options=dict(config.get("method_options") or {}),
            num_draft_tokens=None if k in {"auto", None} else k,
            # Logs from before there was a choice have none.
            length_policy=_length_policy(config) if k in {"auto", None} else LengthPolicy.AUTO,
            sampling=SamplingParams(
                config.get("temperature", sampling.temperature),
                config.get("top_k", sampling.top_k),
                config.get("top_p", sampling.top_p),
                config.get("min_p", sampling.min_p),
            ),
            seed=config["seed"],
            coupling=Coupling(config.get("coupling") or Coupling.REJECTION),
            max_new_tokens=config.get("max_new_tokens", 128),
            stop=tuple(stop),
            chat=chat,
            device=_device(config),
            dtype=_dtype(config),
            baseline=bool(config.get("baseline", False)),
            # A token that was forced is one more that was already written.
            continuation=tuple(config.get("continuation_token_ids") or ()),
        )
    except OutriderError as error:
        raise RunLogError(f"This run can't be replayed: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise RunLogError(UNREADABLE) from error


def _length_policy(config: Mapping[str, Any]) -> LengthPolicy:
    return LengthPolicy(config.get("length_policy") or LengthPolicy.AUTO)


def _device(config: Mapping[str, Any]) -> Device:
    # What was asked for, where the log has it: with "auto", target and draft are placed as they were then.
    asked = config.get("requested_device") or str(config.get("device") or "auto").partition(":")[0]
    return Device(asked)


def _dtype(config: Mapping[str, Any]) -> DType:
    return DType(config.get("requested_dtype") or config.get("dtype") or "auto")
