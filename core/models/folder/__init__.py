"""Reads and checks a model's folder: its configuration, tokenizer and weights, including GGUF."""
