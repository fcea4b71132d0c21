"""Whole conversations kept for later: the trie, its queues, and the store in its generations."""
