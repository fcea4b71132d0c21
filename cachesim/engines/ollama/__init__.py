"""Ollama's MLX runner, over mlx-lm's caches."""
