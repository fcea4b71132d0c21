"""`python -m examples.mlx`: laws that the caches of mlx-lm, vllm-mlx and Rapid-MLX keep."""

from examples.environments import MLX, inside, wheel

for project, version in (("vllm-mlx", "0.6.0"), ("rapid-mlx", "0.16.10")):
    package = project.replace("-", "_")
    inside(wheel(project, version, package, MLX), "examples.mlx.cache", package, version)

NEWEST = wheel("mlx-lm", "0.32.2", "mlx_lm", MLX)
inside(NEWEST, "examples.mlx.lru", "mlx_lm", "0.32.2")
