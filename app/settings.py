"""What the window remembers: a versioned JSON file, validated value by value and written atomically.

A missing, truncated, outdated or hand-edited file never prevents the window from opening: each value that can't be
used falls back to its own default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from app.theme import ThemeMode, nearest_scale
from core.drafters.registry import METHODS
from core.errors import OutriderError
from core.files import write_atomically
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.settings import SETTINGS, Coupling, Device, DType, LengthPolicy, is_valid

SCHEMA = 1
APP_NAME = "outrider"
MAX_OPENED_MODELS = 20

E = TypeVar("E", bound=StrEnum)


def config_file() -> Path:
    """Where the settings are stored."""
    return Path(platformdirs.user_config_dir(APP_NAME, appauthor=False)) / "settings.json"


def data_folder() -> Path:
    """Where runs and sweeps are kept."""
    return Path(platformdirs.user_data_dir(APP_NAME, appauthor=False))


def runs_folder() -> Path:
    """Where every run's log is written during the run."""
    return data_folder() / "runs"


def sweeps_folder() -> Path:
    """Where every sweep file is written, with a folder beside it for the logs of its runs."""
    return data_folder() / "sweeps"


CHAT = {"auto": None, "on": True, "off": False}
"""How older settings files name the values of `chat`."""


def _default(name: str) -> Any:
    """A setting's value when the window is first used."""
    return SETTINGS[name].metadata.get("window_default", SETTINGS[name].default)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The values that the controls show, whether or not they can be run."""

    target: str = DEFAULT_TARGET
    draft: str = DEFAULT_DRAFT
    method: str = "draft-model"
    method_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    num_draft_tokens: int = _default("num_draft_tokens")
    length_policy: LengthPolicy = LengthPolicy.FIXED
    temperature: float = _default("temperature")
    top_k: int = _default("top_k")
    top_p: float = _default("top_p")
    min_p: float = _default("min_p")
    seed: int = _default("seed")
    coupling: Coupling = _default("coupling")
    max_new_tokens: int = _default("max_new_tokens")
    chat: bool | None = None
    device: Device = _default("device")
    dtype: DType = _default("dtype")
    baseline: bool = _default("baseline")
    prompt: str = 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n'


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Everything that is saved between sessions. `geometry` and `splitters` are Qt's own state, as base64.

    `hint_seen`: whether the hint at the first start is no longer needed. `side_page`: the title of the open page.
    """

    theme: ThemeMode = ThemeMode.SYSTEM
    text_scale: float = 1.0
    show_ghosts: bool = False
    hint_seen: bool = False
    side_page: str = ""
    geometry: str = ""
    splitters: Mapping[str, str] = field(default_factory=dict)
    opened_models: tuple[str, ...] = ()
    run: RunSettings = field(default_factory=RunSettings)


class SettingsStore:
    """Loads and saves the settings file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_file()

    def load(self) -> WindowSettings:
        """The saved settings, with defaults for whatever can't be used."""
        try:
            data = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return WindowSettings()
        if not isinstance(data, dict) or data.get("version") != SCHEMA:
            return WindowSettings()
        return parse_settings(data)

    def save(self, settings: WindowSettings) -> str | None:
        """Write the settings atomically.

        Returns:
            None, or a sentence that says why they could not be saved.
        """
        text = json.dumps({"version": SCHEMA, **asdict(settings)}, indent=2) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, text)
        except (OSError, OutriderError) as error:
            return f"The settings could not be saved: {error}"
        return None


def parse_settings(data: Mapping[str, Any]) -> WindowSettings:
    """Read settings value by value; one that can't be used falls back to its default."""
    default = WindowSettings()
    run = data.get("run")
    return WindowSettings(
        theme=_enum(data, "theme", default.theme),
        text_scale=nearest_scale(_checked(data, "text_scale", default.text_scale, _between(0.5, 2.0))),
        show_ghosts=_checked(data, "show_ghosts", default.show_ghosts, _is_bool),
        hint_seen=_checked(data, "hint_seen", default.hint_seen, _is_bool),
        side_page=_checked(data, "side_page", default.side_page, _is_text),
        geometry=_checked(data, "geometry", default.geometry, _is_text),
        splitters={k: v for k, v in _mapping(data.get("splitters")).items() if _is_text(v)},
        opened_models=_refs(data.get("opened_models")),
        run=_parse_run(run) if isinstance(run, dict) else default.run,
    )


def remember_model(settings: WindowSettings, ref: str) -> WindowSettings:
    """Move a model to the front of the opened ones; the oldest are dropped."""
    others = tuple(known for known in settings.opened_models if known != ref)
    return replace(settings, opened_models=(ref, *others)[:MAX_OPENED_MODELS])


def _parse_run(data: Mapping[str, Any]) -> RunSettings:
    default = RunSettings()
    values = {name: _run_value(name, data.get(name), getattr(default, name)) for name in RunSettings.__slots__}
    if "length_policy" not in data and data.get("auto_draft_tokens") is True:  # Older settings had only this.
        values["length_policy"] = LengthPolicy.AUTO
    return RunSettings(**values)


def _run_value(name: str, value: Any, default: Any) -> Any:
    """The value if the window can show it, else the default."""
    if name == "method_options":
        options = {method: _mapping(values) for method, values in _mapping(value).items() if method in METHODS}
        return {method: _plain(values) for method, values in options.items()}
    if isinstance(default, StrEnum):
        return _enum({name: value}, name, default)
    if name == "chat":
        value = CHAT.get(value, value) if isinstance(value, str) else value
        return value if isinstance(value, bool) else None
    if name == "prompt":
        return value if isinstance(value, str) else default
    if name == "method":
        return value if isinstance(value, str) and value in METHODS else default
    if name in SETTINGS:
        return value if value is not None and is_valid(SETTINGS[name], value, in_window=True) else default
    return value if _is_text(value) else default


def _checked(data: Mapping[str, Any], key: str, default: Any, is_valid: Callable[[Any], bool]) -> Any:
    value = data.get(key, default)
    try:
        return value if is_valid(value) else default
    except TypeError:  # an unhashable value where a name should be
        return default


def _enum(data: Mapping[str, Any], key: str, default: E) -> E:
    try:
        return type(default)(data.get(key, default))
    except ValueError:
        return default


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if _is_bool(value) or _is_text(value) or _is_finite(value)}


def _refs(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(dict.fromkeys(ref for ref in value if _is_text(ref)))[:MAX_OPENED_MODELS]


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _is_finite(value) and low <= value <= high
