"""The first record of a run: what was asked for, and where it is carried out."""

from __future__ import annotations

import os
import platform
import uuid
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch

from core.continuation import Continuation
from core.draft_length import config_fields
from core.drafters.methods import get_method
from core.models.devices import device_name
from core.models.language_model import LanguageModel
from core.models.prompting import EncodedPrompt
from core.types import RunRequest, RunStarted


def run_started(
    request: RunRequest, target: LanguageModel, prompt: EncodedPrompt, continuation: Continuation
) -> RunStarted:
    """A run's settings as they came out, and the machine and versions that it runs with."""
    started_at = datetime.now(UTC)
    sampling = request.sampling
    return RunStarted(
        run_id=f"{started_at:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}",
        started_at=started_at.isoformat(timespec="milliseconds"),
        version=_version("outrider"),
        config={
            "target": request.target,
            "draft": request.draft,
            "method": request.method,
            "method_options": asdict(get_method(request.method).options(**request.method_options)),
            "revision": target.revision,
            "device": str(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            **config_fields(request.draft_length),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": request.seed,
            "coupling": str(request.coupling),
            "max_new_tokens": request.max_new_tokens,
            "stop": list(request.stop),
            "prompt": request.prompt,
            "prompt_token_ids": prompt.ids,
            "chat": prompt.is_chat,
            "requested_device": str(request.device),
            "requested_dtype": str(request.dtype),
            "baseline": request.baseline,
            **continuation.as_config(),
        },
        environment={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": _version("transformers"),
            "platform": platform.platform(),
            "device_name": device_name(target.device),
            "threads": torch.get_num_threads(),
            "process": os.getpid(),
        },
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
