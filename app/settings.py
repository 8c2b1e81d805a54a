"""What the window remembers: a versioned JSON file, validated value by value and written atomically.

A missing, damaged or hand-edited file never prevents the window from opening: each value that can't be used falls back
to its own default. A file that this version would lose something of is kept aside.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
from filelock import FileLock

from app.theme import ColorBy, ThemeMode, nearest_scale
from core.drafters.registry import METHODS
from core.errors import OutriderError
from core.experiments.prompt_suites import PRESETS, read_prompts
from core.files import keep_aside, read_own_json, write_atomically
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, MEASURED_LENGTHS
from core.settings import (
    SETTINGS,
    Coupling,
    Device,
    DType,
    LengthPolicy,
    RunRequest,
    SamplingParams,
    VerificationRule,
    is_valid,
    user_default,
)

SCHEMA = 1
APP_NAME = "outrider"
MAX_OPENED_MODELS = 20
PAGES = "Run", "Inspector", "Speed"
"""The titles of the pages beside the text."""
LOCK_SECONDS = 2.0

S = TypeVar("S", "WindowSettings", "RunSettings")


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


FIRST_PROMPT = next(prompt.text for prompt in read_prompts(PRESETS) if prompt.name == "Function like the one above")
"""A text that the embedded pair continues sensibly at `RunSettings.temperature`."""


def _default(name: str) -> Any:
    """A setting's value when the window is first used."""
    return user_default(name, in_window=True)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The values that the controls show, whether or not they can be run.

    `engine` is the chosen server's address, empty for this machine; `engine_model` the target there.
    """

    target: str = DEFAULT_TARGET
    draft: str = DEFAULT_DRAFT
    method: str = "draft-model"
    method_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    num_draft_tokens: int = MEASURED_LENGTHS[DEFAULT_DRAFT]
    length_policy: LengthPolicy = _default("length_policy")
    temperature: float = _default("temperature")
    top_k: int = _default("top_k")
    top_p: float = _default("top_p")
    min_p: float = _default("min_p")
    seed: int = _default("seed")
    coupling: Coupling = _default("coupling")
    verification: VerificationRule = _default("verification")
    max_new_tokens: int = _default("max_new_tokens")
    chat: bool | None = None
    system: str = ""
    device: Device = _default("device")
    dtype: DType = _default("dtype")
    baseline: bool = _default("baseline")
    engine: str = ""
    engine_model: str = ""
    prompt: str = FIRST_PROMPT

    @property
    def sampling(self) -> SamplingParams:
        """The temperature and the filters."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p)


def settings_of(request: RunRequest, current: RunSettings) -> RunSettings:
    """A request's settings, to apply to the controls, which take the nearest value that they can hold."""
    names = ("seed", "chat", "system", "prompt", "engine", "max_new_tokens")
    shown = replace(current, **{name: getattr(request, name) for name in names}, **asdict(request.sampling))
    if request.engine:  # What a server decides stays as it is for this machine.
        return replace(shown, engine_model=request.target)
    if request.method in METHODS:
        options = {**current.method_options, request.method: dict(request.method_options)}
        shown = replace(shown, method=request.method, method_options=options)
    k = request.num_draft_tokens
    return replace(
        shown,
        **{name: getattr(request, name) for name in ("coupling", "verification", "dtype", "baseline", "target")},
        device=Device(request.device.partition(":")[0]),
        draft=request.draft or current.draft,
        num_draft_tokens=k if k is not None else current.num_draft_tokens,
        length_policy=request.length_policy if k is None else LengthPolicy.FIXED,
    )


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Everything that is saved between sessions. `geometry` and `splitters` are Qt's own state, as base64.

    `introduction_seen`: whether it was shown, as at the first start. `is_advanced_open`: whether the settings that few
    people need are unfolded. `side_page`: the title of the open page. `pages_apart`: the titles of the pages in windows
    of their own. `servers`: names by address, without keys.
    """

    theme: ThemeMode = ThemeMode.SYSTEM
    text_scale: float = 1.0
    show_ghosts: bool = False
    color_by: ColorBy = ColorBy.KIND
    show_previous: bool = True
    introduction_seen: bool = False
    is_advanced_open: bool = False
    side_page: str = ""
    pages_apart: tuple[str, ...] = ()
    geometry: str = ""
    splitters: Mapping[str, str] = field(default_factory=dict)
    opened_models: tuple[str, ...] = ()
    servers: Mapping[str, str] = field(default_factory=dict)
    run: RunSettings = field(default_factory=RunSettings)


class SettingsStore:
    """Loads and saves the settings file, which several windows may share."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config_file()
        self.problem = ""
        """A sentence if the file that was loaded had to be kept aside."""
        self._known = WindowSettings()
        """What the file held when this window last read or wrote it."""

    def load(self) -> WindowSettings:
        """The saved settings, with defaults for whatever can't be used."""
        data, is_whole = read_own_json(self.path, SCHEMA)
        self._known = parse_settings(data)
        if not is_whole:
            self.problem = "Not all settings could be read."
            with contextlib.suppress(OSError):
                self.problem += f" The old file is now {str(keep_aside(self.path))!r}."
        return self._known

    def save(self, settings: WindowSettings) -> str | None:
        """Write what this window has changed atomically; what another one has changed meanwhile stays.

        Returns:
            None, or a sentence that says why they could not be saved.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=LOCK_SECONDS):
                data, is_whole = read_own_json(self.path, SCHEMA)
                if not is_whole:
                    keep_aside(self.path)
                values = asdict(settings)
                if data:
                    values = _merged(asdict(self._known), values, asdict(parse_settings(data)))
                record = {"version": SCHEMA, **values}
                write_atomically(self.path, json.dumps(record, ensure_ascii=False, indent=2) + "\n")
        except (OSError, OutriderError) as error:
            return f"The settings could not be saved: {error}"
        self._known = settings
        return None


def _merged(known: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """`theirs`, with what `ours` has changed, added or removed since it was `known`."""
    result = {key: value for key, value in theirs.items() if key in ours or key not in known}
    for key, value in ours.items():
        if key in known and value == known[key]:
            continue
        if isinstance(value, dict):
            result[key] = _merged(known.get(key, {}), value, theirs.get(key, {}))
        elif key == "opened_models":
            result[key] = tuple(dict.fromkeys((*value, *theirs[key])))[:MAX_OPENED_MODELS]
        else:
            result[key] = value
    return result


def parse_settings(data: Mapping[str, Any]) -> WindowSettings:
    """Read settings value by value; one that can't be used falls back to its default."""
    run = _mapping(data.get("run"))
    if run.get("auto_draft_tokens") is True:  # Older settings had only this.
        run = {"length_policy": LengthPolicy.AUTO, **run}
    return replace(_parse(WindowSettings(), data), run=_parse(RunSettings(), run))


def remember_model(settings: WindowSettings, ref: str) -> WindowSettings:
    """Move a model to the front of the opened ones; the oldest are dropped."""
    refs = dict.fromkeys((ref, *settings.opened_models))
    return replace(settings, opened_models=tuple(refs)[:MAX_OPENED_MODELS])


def _parse(default: S, data: Mapping[str, Any]) -> S:
    known = [item.name for item in fields(default) if item.name in data]
    return replace(default, **{name: _usable(name, data[name], getattr(default, name)) for name in known})


def _usable(name: str, value: Any, default: Any) -> Any:
    """The value as the window can show it, else the default."""
    if name == "method_options":
        # Also those of a package that isn't installed now, which has them again later.
        options = {method: _mapping(values) for method, values in _mapping(value).items()}
        return {method: {k: v for k, v in values.items() if _is_plain(v)} for method, values in options.items()}
    if name in {"splitters", "servers"}:
        return {k: v for k, v in _mapping(value).items() if _is_text(v)}
    if name == "opened_models":
        refs = value if isinstance(value, list) else []
        return tuple(dict.fromkeys(ref for ref in refs if _is_text(ref)))[:MAX_OPENED_MODELS]
    if name == "pages_apart":
        # Older settings had only whether all were, in one window.
        return PAGES if value is True else tuple(title for title in PAGES if isinstance(value, list) and title in value)
    if name == "chat":
        value = CHAT.get(value, value) if isinstance(value, str) else value
        return value if isinstance(value, bool) else None
    if name == "text_scale":
        is_number = _is_plain(value) and not isinstance(value, str | bool)
        return nearest_scale(value) if is_number and 0.5 <= value <= 2.0 else default
    if isinstance(default, StrEnum):
        return type(default)(value) if value in list(type(default)) else default
    if name in SETTINGS:
        return value if value is not None and is_valid(SETTINGS[name], value, in_window=True) else default
    if name == "method":
        return value if isinstance(value, str) and value in METHODS else default
    if name == "prompt":
        return value if isinstance(value, str) else default
    return value if (isinstance(value, bool) if isinstance(default, bool) else _is_text(value)) else default


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_plain(value: Any) -> bool:
    try:
        return _is_text(value) or (isinstance(value, int | float) and math.isfinite(value))
    except OverflowError:  # an integer beyond every float
        return False
