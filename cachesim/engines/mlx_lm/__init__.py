"""mlx-lm: cache classes, trie, prompt cache, batches, server."""
