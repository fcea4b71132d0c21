"""`python -m examples.lmcache`: the laws that LMCache 0.5.6 keeps, and those that 0.5.0 broke."""

from examples.environments import BOTH, inside, wheel

inside(
    wheel("lmcache", "0.5.6", "lmcache"),
    "examples.lmcache.cache",
    "0.5.6",
    "images",
    "adapters",
    "salts",
    "tags",
    "disk",
)
inside(wheel("lmcache", "0.5.0", "lmcache"), "examples.lmcache.cache", "0.5.0", "images")
inside(wheel("lmcache", "0.5.6", "lmcache"), "examples.lmcache.redis_store", "0.5.6")

inside(
    wheel("lmcache", "0.5.6", "lmcache", BOTH),
    "examples.lmcache.multi_process",
    "0.5.6",
    wheel("vllm", "0.33.0", "vllm", BOTH),
)
