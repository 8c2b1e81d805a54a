"""How a forward runs: over transformers' own module, or a leaner one over the same weights."""
