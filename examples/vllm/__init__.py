"""vLLM's offloading to host memory and to files behind `check_live_cache`."""
