"""Arithmetic: a small network that is real. Knows nothing of caches, servers, files."""
