"""`python -m examples.mlx`: the laws that the prefix caches of vllm-mlx and Rapid-MLX keep."""

from examples.environments import MLX, inside, wheel

for project, version in (("vllm-mlx", "0.6.0"), ("rapid-mlx", "0.16.10")):
    package = project.replace("-", "_")
    inside(wheel(project, version, package, MLX), "examples.mlx.cache", package, version)
