"""vllm-mlx and Rapid-MLX: prefix caches of whole prompts, with the cache classes of mlx-lm."""
