"""Events and causes of vllm-mlx: those of mlx-lm's caches, so far."""
