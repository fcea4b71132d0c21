"""`python -m examples.vllm`: the laws that vLLM's offloading managers and connectors keep."""

from examples.environments import VLLM, inside, wheel

CACHE = wheel("vllm", "0.33.0", "vllm", VLLM)
inside(CACHE, "examples.vllm.cache", str(CACHE.folder))
inside(CACHE, "examples.vllm.manager", "0.33.0", str(CACHE.folder))
for release in ("0.31.0", "0.32.0", "0.33.0"):
    cache = wheel("vllm", release, "vllm", VLLM)
    inside(cache, "examples.vllm.regions", release, str(cache.folder))
for release in ("0.28.0", "0.29.0"):
    cache = wheel("vllm", release, "vllm", VLLM)
    inside(cache, "examples.vllm.mooncake", release, str(cache.folder))
