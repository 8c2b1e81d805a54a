"""Drafting methods: anything that proposes tokens."""
