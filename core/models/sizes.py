"""Sizes in words."""

from __future__ import annotations


def in_words(num_bytes: int) -> str:
    """A size as a person reads it, in units of 10^9 or 10^6 bytes."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
