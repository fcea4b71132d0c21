"""vLLM's own Python files, run on a machine without a GPU."""
