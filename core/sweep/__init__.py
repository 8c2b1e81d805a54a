"""A sweep: one pair or several, run over a grid of K, temperatures and prompts, and what came of it.

Nothing here imports torch until a sweep runs.
"""
