"""Events and causes of LM Studio's mlx-engine: those of mlx-lm's caches, so far."""
