"""vLLM: a scheduler over block tables, one hybrid cache manager for all kinds of layers."""
