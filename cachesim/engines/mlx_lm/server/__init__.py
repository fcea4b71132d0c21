"""The server: tokenising, admission, lookups, batches, insertions."""
