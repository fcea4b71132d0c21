"""Events and causes of Rapid-MLX: those of mlx-lm's caches, so far."""
