"""JSON of tens of megabytes, parsed while Python's other threads go on.

ijson, which reads such files piece by piece, keeps Python's lock for 35 to 114 ms of a vocabulary of 151,000 tokens
(version 3.6, in C); this does for 12 to 17.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from core.collector import paused

_LARGE = 1_000_000
"""Characters from which on it is worth while: what is smaller takes `json.loads` less than 15 ms."""

_LEVELS = 3
"""Of a tokenizer.json: the whole, its model, and that one's vocabulary and merges. What is deeper is small."""

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN_MEMBER = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*(0|[1-9][0-9]{0,8})[ \t\n\r]*,[ \t\n\r]*')
"""As nearly all of a vocabulary are: a name without escapes, a whole number, and a comma behind."""
_PLAIN_STRING = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*,[ \t\n\r]*')

_decode = json.JSONDecoder().raw_decode


def read(path: Path) -> Any:
    """What a file holds, as `loads` reads it.

    Raises:
        OSError: it can't be read.
        ValueError, RecursionError: it is no JSON.
    """
    return loads(path.read_bytes().decode("utf-8-sig", "surrogatepass"))


def loads(text: str) -> Any:
    """As `json.loads`, which keeps Python's lock to its end: for a large vocabulary, half a second without any frame.

    Takes two to three times as long, and shares the lock with the other threads.

    Raises:
        ValueError, RecursionError: it is no JSON.
    """
    if len(text) < _LARGE:
        return json.loads(text)
    with paused():
        value, at = _value(text, _skip(text, 0), _LEVELS)
    if at != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return value


def _value(text: str, at: int, levels: int) -> tuple[Any, int]:
    """The value that begins at an index, and where what follows it begins."""
    if levels and text.startswith("{", at):
        return _object(text, _skip(text, at + 1), levels - 1)
    if levels and text.startswith("[", at):
        return _array(text, _skip(text, at + 1), levels - 1)
    value, at = _decode(text, at)
    return value, _skip(text, at)


def _object(text: str, at: int, levels: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    if text.startswith("}", at):
        return members, _skip(text, at + 1)
    while True:
        while plain := _PLAIN_MEMBER.match(text, at):
            members[plain[1]] = int(plain[2])
            at = plain.end()
        if not text.startswith('"', at):
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = _value(text, at, 0)
        if not text.startswith(":", at):
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        members[name], at = _value(text, _skip(text, at + 1), levels)
        if text.startswith("}", at):
            return members, _skip(text, at + 1)
        at = _behind_comma(text, at)


def _array(text: str, at: int, levels: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    if text.startswith("]", at):
        return items, _skip(text, at + 1)
    while True:
        while plain := _PLAIN_STRING.match(text, at):
            items.append(plain[1])
            at = plain.end()
        item, at = _value(text, at, levels)
        items.append(item)
        if text.startswith("]", at):
            return items, _skip(text, at + 1)
        at = _behind_comma(text, at)


def _behind_comma(text: str, at: int) -> int:
    if not text.startswith(",", at):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
