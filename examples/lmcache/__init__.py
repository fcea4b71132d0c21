"""LMCache: token database, keys and the CPU and disk backends, as its vLLM connector calls them."""
