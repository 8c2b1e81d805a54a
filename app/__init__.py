"""Outrider's window and its terminal commands."""

__version__ = "1.0.0"
