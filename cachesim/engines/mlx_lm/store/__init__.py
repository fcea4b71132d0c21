"""Stored conversations: the trie, its queues, and the store by release."""
