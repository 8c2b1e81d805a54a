"""`outrider bench`: this engine and its rivals, timed in turn on the same models and prompts."""
