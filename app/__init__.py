"""Outrider's window and its terminal commands."""

__version__ = "0.1.0"
