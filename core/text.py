"""Figures in words, text made harmless, and token ids streamed as text.

Partial characters wait for the rest, and stop texts are found across tokens.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_HARMLESS = f"\n{_NO_BREAK}"
_UNITS = ("B", "KB", "MB", "GB", "TB")


def percent_text(share: float, digits: int = 0) -> str:
    """A fraction in per cent, with a no-break space before the sign: 0.795 is "79.5 %", -0.1 is "−10 %".

    Only 0 and 1 are 0 % and 100 %: nearer to them than is shown, a share is "<1 %" or ">99 %".
    """
    text, least = f"{share:.{digits}%}", 10.0 ** -(digits + 2)
    if 0.0 < share < 1.0 and float(text[:-1]) in {0.0, 100.0}:
        text = f"<{least:.{digits}%}" if share < 0.5 else f">{1.0 - least:.{digits}%}"
    return spaced_percent(text.replace("-", "−"))


def spaced_percent(text: str) -> str:
    """A formatted number, with a no-break space before its per cent sign, if it has one."""
    return text.replace("%", f"{_NO_BREAK}%")


def significant_text(value: float, digits: int) -> str:
    """A number with this many significant digits; a very small or large one as "1.2 × 10⁻⁵"."""
    mantissa, e, exponent = f"{value:.{digits}g}".partition("e")
    return f"{mantissa}{_NO_BREAK}×{_NO_BREAK}10{str(int(exponent)).translate(_RAISED)}" if e else mantissa


def count_text(number: int, name: str) -> str:
    """A count with its noun, such as "1 prompt" and "3,000 prompts"."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def bytes_text(count: int) -> str:
    """A size with its unit: 86 MB, 3.4 GB."""
    value, unit = _scaled(count)
    return f"{value} {unit}"


def bytes_of_text(done: int, total: int) -> str:
    """A part of a size, with one unit if both share it: 312 of 724 MB."""
    _, unit = _scaled(total)
    value, done_unit = _scaled(done)
    return f"{value if done_unit == unit else f'{value} {done_unit}'} of {bytes_text(total)}"


def _scaled(count: int) -> tuple[str, str]:
    size, unit = float(max(0, count)), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return (f"{size:.1f}" if unit > 1 and size < 99.95 else f"{size:.0f}"), _UNITS[unit]


def duration_text(seconds: float) -> str:
    """A readable duration: 40 s, 5 min, 3 h 20 min."""
    if round(seconds) < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours < 24 else f"{hours:,} h"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question with the known name closest to an unknown one, to follow a sentence; empty if none is close."""
    import difflib

    names = {part.lower(): name for name in known for part in (name.rpartition("/")[2], name)}
    found = difflib.get_close_matches(word.lower(), names, 1, 0.6)
    return f" Did you mean {names[found[0]]}?" if found else ""


_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(names: Iterable[str], rows: Iterable[Iterable[Any]], number: Callable[[float], str] = str) -> str:
    """A table as CSV, in which no spreadsheet takes a text for a formula.

    None and numbers that are not finite are empty, and lists are joined by spaces; `number` writes a float.
    """

    def cell(value: Any) -> str:
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return ""
        if isinstance(value, tuple | list):
            return " ".join(map(cell, value))
        if isinstance(value, float):
            return number(value)
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else str(value)

    text = io.StringIO(newline="")
    csv.writer(text).writerows([*map(cell, row)] for row in (names, *rows))
    return text.getvalue()


PRODUCT_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "llama-server": "llama-server"}
"""Servers as they write their own names, by the name in a log."""


def server_text(engine: Mapping[str, Any]) -> str:
    """A run's server in words, such as vLLM 0.32.0, from the engine in its config."""
    product = str(engine.get("product") or "unknown server")
    return f"{PRODUCT_NAMES.get(product, product)} {engine.get('version') or ''}".rstrip()


def short_name(ref: str) -> str:
    """A model's reference without its owner or folders."""
    return ref.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or ref


def visible(text: str) -> str:
    """Text for a terminal or a label, without characters that move the cursor, hide text or turn its direction."""
    return "".join(letter if letter.isprintable() or letter in _HARMLESS else _REPLACEMENT for letter in text)


_CONTEXT = 6
"""Least number of tokens decoded before a new one, because some tokenizers drop a leading space."""

_LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""

_LONGEST_SHOWN = 32
"""Most characters of a token in a list; some vocabularies have tokens of a hundred spaces."""


class TextStream:
    """Turns a growing list of ids into text, token by token; `text` is what it begins with."""

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int], text: str = "") -> None:
        self._tokenizer = tokenizer
        ids = list(prompt_ids[-4 * _CONTEXT :])
        # The cut may be within a character, which some tokenizers let tear all that follows.
        cuts = range(min(_LONGEST_CHARACTER, len(ids)))
        self._pending: list[int] = ids[min(cuts, key=lambda cut: _num_torn(self._decode(ids[cut:])), default=0) :]
        self._pending, decoded = self._context(_num_torn(self._decode(self._pending)))
        self._shown = len(decoded) - _num_torn(decoded)
        self.text = text

    def push(self, token: int) -> str:
        """The text that this token completes: empty for a special token or a partial character."""
        self._pending.append(token)
        decoded = self._decode(self._pending)
        num_torn = _num_torn(decoded)
        if num_torn and len(self._pending) < 4 * _CONTEXT:
            return ""
        # This many invalid bytes are shown as such, except the last ones, which may begin a character.
        self._pending, context = self._context(num_torn)
        num_held = min(num_torn, _num_torn(context), _LONGEST_CHARACTER - 1)
        new = decoded[self._shown : len(decoded) - num_held]
        self._shown = len(context) - num_held
        self.text += new
        return new

    def flush(self) -> str:
        """The text still held back at the end: an incomplete character."""
        new = self._decode(self._pending)[self._shown :]
        self._shown += len(new)
        self.text += new
        return new

    def find_stop(self, stops: Sequence[str], num_new: int) -> int | None:
        """Index of the first stop text, if the last `num_new` characters completed one; else None."""
        begins = (self.text.find(stop, max(0, len(self.text) - num_new - len(stop) + 1)) for stop in stops)
        return min((at for at in begins if at >= 0), default=None)

    def cut(self, length: int) -> None:
        """Drop all text after the first `length` characters; no push may follow."""
        self.text = self.text[:length]

    def _context(self, num_torn: int) -> tuple[list[int], str]:
        """The last ids, from the beginning of a character, and their text."""
        found: tuple[list[int], str] = ([], "")
        for length in range(_CONTEXT, _CONTEXT + _LONGEST_CHARACTER):
            ids = self._pending[-length:]
            found = (ids, self._decode(ids))
            if _num_torn(found[1]) <= num_torn:
                break
        return found

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _num_torn(text: str) -> int:
    """Number of trailing characters that may be parts of one."""
    return len(text) - len(text.rstrip(_REPLACEMENT))


class TokenTexts:
    """`display_texts` for recurring ids: each is decoded once, and shortened."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> tuple[str, ...]:
        new = [token for token in ids if token not in self._texts]
        for token, text in zip(new, display_texts(self._tokenizer, new), strict=True):
            self._texts[token] = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"
        return tuple(self._texts[token] for token in ids)


def display_texts(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Each token alone, for display; partial characters show as U+FFFD, special tokens as their names."""
    return tuple(tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids)
