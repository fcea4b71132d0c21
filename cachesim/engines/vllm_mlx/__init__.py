"""vllm-mlx, over mlx-lm's caches."""
