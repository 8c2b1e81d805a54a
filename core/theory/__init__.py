"""Theory beside measurement: what a run's own alpha, c and v(n) let expect, and whether what was predicted came true.

Reads steps, of a run that goes or of a log; imports no torch, so that the window can use it.
"""
