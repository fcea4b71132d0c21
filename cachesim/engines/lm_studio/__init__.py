"""LM Studio's mlx-engine, over mlx-lm's caches."""
