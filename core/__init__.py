"""Outrider's engine: exact speculative sampling, with no window attached."""
