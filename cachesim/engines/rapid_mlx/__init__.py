"""Rapid-MLX, over mlx-lm's caches."""
