"""`python -m examples.vllm`: what vLLM's offloading managers hold."""

from examples.environments import VLLM, inside, wheel

CACHE = wheel("vllm", "0.33.0", "vllm", VLLM)
inside(CACHE, "examples.vllm.cache", str(CACHE.folder))
