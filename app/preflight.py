"""Checks whether Qt can open a window here, without starting Qt, which would abort with a core dump if it can't.

Only Linux needs this. It asks what Qt itself would ask: the dynamic linker, whether Qt's platform
plugin loads; libxcb and libwayland, whether the display answers.
"""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys
from collections.abc import Iterator, Mapping
from ctypes import CDLL
from pathlib import Path
from typing import NamedTuple

_TERMINAL = "use `outrider run` in a terminal instead"


class _Package(NamedTuple):
    """The package that provides a library, in each family of distributions."""

    debian: str
    fedora: str
    arch: str


_XCB = {name: _Package(f"libxcb-{name}{so}", "libxcb", "libxcb") for name, so in
        {"randr": 0, "render": 0, "shape": 0, "shm": 0, "sync": 1, "xfixes": 0, "xkb": 1}.items()}  # fmt: skip

_PACKAGES: dict[str, _Package] = {
    "libxcb-cursor.so.0": _Package("libxcb-cursor0", "xcb-util-cursor", "xcb-util-cursor"),
    "libxcb-icccm.so.4": _Package("libxcb-icccm4", "xcb-util-wm", "xcb-util-wm"),
    "libxcb-keysyms.so.1": _Package("libxcb-keysyms1", "xcb-util-keysyms", "xcb-util-keysyms"),
    "libxcb-image.so.0": _Package("libxcb-image0", "xcb-util-image", "xcb-util-image"),
    "libxcb-render-util.so.0": _Package("libxcb-render-util0", "xcb-util-renderutil", "xcb-util-renderutil"),
    "libxcb-util.so.1": _Package("libxcb-util1", "xcb-util", "xcb-util"),
    **{f"libxcb-{name}.so.{package.debian[-1]}": package for name, package in _XCB.items()},
    "libxcb.so.1": _Package("libxcb1", "libxcb", "libxcb"),
    "libX11.so.6": _Package("libx11-6", "libX11", "libx11"),
    "libX11-xcb.so.1": _Package("libx11-xcb1", "libX11-xcb", "libx11"),
    "libxkbcommon.so.0": _Package("libxkbcommon0", "libxkbcommon", "libxkbcommon"),
    "libxkbcommon-x11.so.0": _Package("libxkbcommon-x11-0", "libxkbcommon-x11", "libxkbcommon-x11"),
    "libwayland-client.so.0": _Package("libwayland-client0", "libwayland-client", "wayland"),
    "libwayland-cursor.so.0": _Package("libwayland-cursor0", "libwayland-cursor", "wayland"),
    "libGL.so.1": _Package("libgl1", "libglvnd-glx", "libglvnd"),
    "libEGL.so.1": _Package("libegl1", "libglvnd-egl", "libglvnd"),
    "libdbus-1.so.3": _Package("libdbus-1-3", "dbus-libs", "dbus"),
    "libfontconfig.so.1": _Package("libfontconfig1", "fontconfig", "fontconfig"),
    "libfreetype.so.6": _Package("libfreetype6", "freetype", "freetype2"),
    "libglib-2.0.so.0": _Package("libglib2.0-0", "glib2", "glib2"),
    "libgthread-2.0.so.0": _Package("libglib2.0-0", "glib2", "glib2"),
    "libz.so.1": _Package("zlib1g", "zlib", "zlib"),
    "libzstd.so.1": _Package("libzstd1", "libzstd", "zstd"),
}
_INSTALL = {"debian": "sudo apt install", "fedora": "sudo dnf install", "arch": "sudo pacman -S"}
_NEED = {
    "xcb": {name for name in _PACKAGES if not name.startswith("libwayland")},
    "wayland": {name for name in _PACKAGES if not name.startswith(("libxcb-", "libX11-", "libxkbcommon-x11"))},
}
_NEED_OF_ALL = _NEED["xcb"] & _NEED["wayland"]


def find_problem(environment: Mapping[str, str]) -> str | None:
    """Why no window can be opened with these environment variables, and what to do, in a sentence; None if it can."""
    if not sys.platform.startswith("linux"):
        return None
    names = _platforms(environment)
    if not names:
        return f"There is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set); {_TERMINAL}."
    problem = None
    for name in names:
        found = _problem_of(name)
        if found is None:
            return None
        # Qt tries them in order; the sentence is about the last one, X11, which is the most likely to be fixable.
        problem = found
    return problem


def _platforms(environment: Mapping[str, str]) -> list[str]:
    """The platforms that Qt tries, in order."""
    chosen = environment.get("QT_QPA_PLATFORM", "")
    if chosen:
        return [name.partition(":")[0].lower() for name in chosen.split(";") if name]
    names = []
    if environment.get("WAYLAND_DISPLAY") or environment.get("XDG_SESSION_TYPE") == "wayland":
        names.append("wayland")
    if environment.get("DISPLAY"):
        names.append("xcb")
    return names


def _problem_of(name: str) -> str | None:
    plugins, family = _plugin_folder(), "wayland" if name.startswith("wayland") else name
    # If PySide6 comes from the distribution, its plugins are elsewhere and its packages pull in their dependencies.
    if plugins is not None and plugins.is_dir():
        plugin = next(iter(sorted(plugins.glob(f"libq{family}*.so"))), None)
        if plugin is None:
            names = ", ".join(sorted(item.stem.removeprefix("libq") for item in plugins.glob("libq*.so")))
            return f"QT_QPA_PLATFORM names the platform {name!r}, which Qt doesn't have; it has {names}."
        try:
            CDLL(str(plugin))
        except OSError as error:
            return _missing_libraries(family, error)
    if family == "xcb":
        return _x11_problem()
    if family == "wayland":
        return _wayland_problem()
    return None


def _missing_libraries(family: str, error: OSError) -> str:
    missing = [name for name in _PACKAGES if name in _NEED.get(family, _NEED_OF_ALL) and not _loads(name)]
    if not missing:
        return f"Qt can't open a window, because its {family} plugin does not load ({error}); {_TERMINAL}."
    distribution = _distribution()
    commands = [
        f"{command} {' '.join(dict.fromkeys(getattr(_PACKAGES[name], kind) for name in missing))}"
        for kind, command in _INSTALL.items()
        if kind == distribution or distribution not in _INSTALL
    ]
    lines = "\n".join(f"  {command}" for command in commands)
    return f"Qt needs libraries that are missing here ({', '.join(missing)}); install them:\n{lines}\nor {_TERMINAL}."


def _loads(name: str) -> bool:
    try:
        CDLL(name)
    except OSError:
        return False
    return True


def _distribution() -> str | None:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    families = {"debian": "debian", "ubuntu": "debian", "fedora": "fedora", "rhel": "fedora", "arch": "arch"}
    return next((families[name] for name in names if name in families), None)


def _plugin_folder() -> Path | None:
    # find_spec does not import the package, and so loads no Qt library.
    spec = importlib.util.find_spec("PySide6")
    places: Iterator[str] = iter((spec and spec.submodule_search_locations) or ())
    return next((Path(place) / "Qt" / "plugins" / "platforms" for place in places), None)


def _x11_problem() -> str | None:
    try:
        xcb = CDLL("libxcb.so.1")
    except OSError:
        return None
    xcb.xcb_connect.restype = ctypes.c_void_p
    connection = ctypes.c_void_p(xcb.xcb_connect(None, None))  # Never null; it holds the error, if any.
    refused = bool(xcb.xcb_connection_has_error(connection))
    xcb.xcb_disconnect(connection)
    return f"The display that DISPLAY names does not answer; check it, or {_TERMINAL}." if refused else None


def _wayland_problem() -> str | None:
    try:
        wayland = CDLL("libwayland-client.so.0")
    except OSError:
        return None
    wayland.wl_display_connect.restype = ctypes.c_void_p
    display = ctypes.c_void_p(wayland.wl_display_connect(None))
    if not display:
        return f"The display that WAYLAND_DISPLAY names does not answer; check it, or {_TERMINAL}."
    wayland.wl_display_disconnect(display)
    return None
