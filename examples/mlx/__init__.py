"""mlx-lm, vllm-mlx and Rapid-MLX: caches of whole prompts, with the cache classes of mlx-lm."""
