"""Events and causes of oMLX: those of mlx-lm's caches, so far."""
