"""A pair of models on disk, requests for runs of them, and their events at a glance."""

from collections.abc import Callable
from pathlib import Path

from core.settings import RunRequest
from core.types import StageChanged
from tests.fakes import save_model


def save_pair(folder: Path) -> Path:
    """A target and a draft of one tokenizer, which never end their texts."""
    save_model(folder / "target", eos_token_id=None)
    save_model(folder / "draft", family="gpt2", seed=1, eos_token_id=None)
    return folder


def requests_of(folder: Path) -> Callable[..., RunRequest]:
    """Makes requests for runs of the pair in a folder."""
    pair = {"target": str(folder / "target"), "draft": str(folder / "draft")}
    settings = {**pair, "prompt": "def f(x):", "max_new_tokens": 12, "device": "cpu"}
    return lambda **changes: RunRequest(**{**settings, **changes})


def kinds(events) -> list[type]:
    """The types of events, runs of one type taken together, without the stages."""
    names = [type(event) for event in events if not isinstance(event, StageChanged)]
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] is not name]
