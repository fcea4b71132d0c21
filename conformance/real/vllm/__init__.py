"""vLLM's own scheduler core beside the simulator: counts, never numbers of a kernel."""
