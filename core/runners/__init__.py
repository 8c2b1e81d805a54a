"""How a forward runs: through transformers' own module, or fused over the same weights."""
