"""`python -m examples.sglang`: the laws that HiCache's files keep in 0.5.23, 0.5.18 and 0.5.9."""

from examples.environments import inside, wheel

for release in ("0.5.23", "0.5.18"):
    cache = wheel("sglang", release, "sglang")
    inside(cache, "examples.sglang.cache", release, str(cache.folder))

cache = wheel("sglang", "0.5.9", "sglang")
inside(cache, "examples.sglang.indexer", "0.5.9", str(cache.folder))
