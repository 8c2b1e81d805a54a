"""How figures are written for people, in the window, reports and sentences; programs get plain numbers."""

from __future__ import annotations

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def percent_text(share: float, digits: int = 0) -> str:
    """A share of one in per cent, its sign set off by a space at which no line ends: 0.795 is "79.5 %"."""
    return spaced_percent(f"{share:.{digits}%}")


def spaced_percent(text: str) -> str:
    """A figure that Python wrote, with its sign set off as above where it is one in per cent."""
    return text.replace("%", f"{_NO_BREAK}%")


def significant_text(value: float, digits: int) -> str:
    """A number to so many digits; where it is very small or large as "1.2 × 10⁻⁵", not as programs write that."""
    mantissa, e, exponent = f"{value:.{digits}g}".partition("e")
    return f"{mantissa}{_NO_BREAK}×{_NO_BREAK}10{str(int(exponent)).translate(_RAISED)}" if e else mantissa
