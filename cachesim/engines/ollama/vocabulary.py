"""Events and causes of Ollama's MLX runner: those of mlx-lm's caches, so far."""
