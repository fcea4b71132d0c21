"""The cache classes of `mlx_lm.models.cache`, on NumPy."""
