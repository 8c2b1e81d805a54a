"""Exactness on demand: whether this pair, with these settings, gives exactly what the target alone would."""
