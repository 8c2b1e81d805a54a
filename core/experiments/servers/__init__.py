"""Experiments on servers: load, and whether a server is right."""
