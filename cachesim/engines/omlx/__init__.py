"""oMLX, over mlx-lm's caches."""
